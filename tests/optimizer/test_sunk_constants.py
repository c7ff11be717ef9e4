"""A constant that one nested graph alone reads is stored there; others stay where they are."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from optimizer.normalize import branches, normalize
from optimizer.normalize.branches import sink_constants
from runtime import run

TEXT = """graph "g" opset 18 (k: bool[], n: int64[], x: float32[4]) -> (y, z, kept) {
  one = constant float32[4] [1, 2, 3, 4]
  two = constant float32[4] [2, 3, 4, 5]
  both = constant float32[4] [3, 4, 5, 6]
  also = constant float32[4] [4, 5, 6, 7]
  deep = constant float32[4] [5, 6, 7, 8]
  kept = constant float32[4] [6, 7, 8, 9]
  yes = constant bool[] true
  y = If(k, then_branch=graph () -> (a) { s = Mul(x, one) t = Add(s, both) a = Add(t, also) },
         else_branch=graph () -> (b) {
           t = Sub(x, both)
           u = Add(t, kept)
           b = If(k, then_branch=graph () -> (c) { c = Div(u, deep) }, else_branch=graph () -> (d) { d = Neg(u) })
         })
  w = Add(x, also)
  z = Loop(n, yes, w, body=graph (i: int64[], c: bool[], v: float32[4]) -> (c2, o) { c2 = Identity(c) o = Add(v, two) })
}"""


def placed(graph) -> dict[str, set[str]]:
    """The constants of each graph, by its first output."""
    return {each.outputs[0]: set(each.constants) for each in graph.walk()}


def test_each_constant_is_where_it_is_read() -> None:
    graph = parse_graph(TEXT)
    feeds = {"n": np.array(3), "x": np.arange(4, dtype=np.float32)}
    before = [run(graph, {**feeds, "k": np.array(k)}) for k in (True, False)]
    assert set(sink_constants(graph)) == {"one", "two", "deep"}
    assert placed(graph) == {"y": {"both", "also", "kept", "yes"}, "a": {"one"}, "b": set(), "c": {"deep"}, "d": set(),
                             "c2": {"two"}}
    assert sink_constants(graph) == []
    session = onnxruntime.InferenceSession(proto_bytes(graph), providers=["CPUExecutionProvider"])
    for k, expected in zip((True, False), before):
        for found in (run(graph, {**feeds, "k": np.array(k)}),
                      dict(zip(graph.outputs, session.run(None, {**feeds, "k": np.array(k)})))):
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)


def test_large_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "MOST_SUNK", 8)
    graph = parse_graph(TEXT)
    assert sink_constants(graph) == []


def test_normalization_tells_of_it_once() -> None:
    told: list[str] = []
    normalize(parse_graph(TEXT), lambda named, before, after, places: told.append(named.name))
    assert told.count("sink-constants") == 1
