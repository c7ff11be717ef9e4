"""E-nodes are said in names of the graph's values, never by numbers of classes."""

from __future__ import annotations

import re

from search import saturate
from search.saying import Speaker
from tests.search.samples import SOUND, graph_of

GRAPH = graph_of("""graph opset 17 (x: float32[2, 3]) -> (z) {
    a = constant float32[3] [1, 2, 3]
    b = constant float32[3] [4, 5, 7]
    t = Add(x, a)
    y = Add(t, b)
    `the end` = Transpose(y, perm=[1, 0])
    z = Transpose(`the end`, perm=[1, 0]) }""")


def test_what_is_in_the_graph_is_said_as_it_stands_there() -> None:
    found = saturate(GRAPH, [])
    speaker = Speaker(found)
    nodes = [enode for enode in found.enodes if enode.origin is not None]
    assert speaker.lines(nodes) == ["t = Add(x, a)", "y = Add(t, b)", "`the end` = Transpose(y, perm=[1, 0])",
                                    "z = Transpose(`the end`, perm=[1, 0])"]
    assert [speaker.place(label) for label in (found.encoded.labels["t"], found.encoded.labels["the end"])] \
        == ["t", "`the end`"]


def test_what_rules_made_is_said_over_values_of_the_graph() -> None:
    graph = graph_of("""graph opset 17 (x: float32[2, 3], w: float32[3, 4]) -> (y) {
        t = Transpose(x, perm=[1, 0])
        u = Relu(t)
        y = Transpose(u, perm=[1, 0]) }""")
    found = saturate(graph, SOUND)
    lines = [line for enode in found.enodes if enode.kind == "op" and enode.origin is None
             for line in Speaker(found).lines([enode])]
    assert "y = Relu(x)" in lines


def test_what_stands_inside_another_line_has_none_of_its_own() -> None:
    graph = graph_of("graph opset 17 (x: float32[2, 3]) -> (y) { t = Relu(x) y = Neg(t) }")
    found = saturate(graph, [])
    speaker = Speaker(found)
    del speaker.names[found.class_of("t")]
    inner, outer = (found.of_label[found.encoded.labels[name]] for name in ("t", "y"))
    outer.origin = inner.origin = None
    assert speaker.lines([inner, outer]) == ["y = Neg(Relu(x))"]
    assert speaker.lines([inner]) == ["Relu(x)"]


def test_no_line_has_a_number_of_a_class() -> None:
    found = saturate(GRAPH, SOUND)
    speaker = Speaker(found)
    for enode in found.enodes:
        for line in speaker.lines([enode]):
            assert not re.search(r"[(,] ?\d+[,)]", re.sub(r"\[[^]]*\]", "", line)), line
