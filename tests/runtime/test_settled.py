"""What follows from sizes alone is computed once for each set of sizes, and nothing else is."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from graphs.constants import Constant
from graphs.errors import ExecutionFailed
from graphs.ir import Graph, Node
from graphs.text import parse_graph
from runtime import Session, program, settled
from runtime.settled import MOST_BYTES, NodeFunction, precomputed, settled_nodes

HEADS = """graph "heads" opset 18 (x: float32[b, n, 6]) -> (y, m) {
  zero = constant int64[1] [0]
  one = constant int64[1] [1]
  halves = constant int64[2] [2, 3]
  c = constant float32[] 1.0
  sizes = Shape(x)
  b = Gather(sizes, zero, axis=0)
  n = Gather(sizes, one, axis=0)
  wanted = Concat(b, n, halves, axis=0)
  h = Reshape(x, wanted, shape=runtime)
  square = Concat(n, n, axis=0)
  full = ConstantOfShape(square)
  m = Add(full, c)
  e = Exp(h)
  y = Sin(e)
}"""
FOUND = """graph "found" opset 18 (x: float32[n]) -> (y) {
  places = NonZero(x)
  y = Shape(places)
}"""
NOISE = """graph "noise" opset 18 (x: float32[n]) -> (y) {
  s = Shape(x)
  c = ConstantOfShape(s)
  y = RandomUniformLike(c, dtype=1)
}"""


def graph_of(text: str) -> Graph:
    return parse_graph(text)


def feed(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)}


def test_only_what_reads_sizes_and_constants_is_settled() -> None:
    graph = graph_of(HEADS)
    assert {graph.nodes[place].outputs[0] for place in settled_nodes(graph)} == {
        "sizes", "b", "n", "wanted", "square", "full", "m"}


def test_it_is_computed_once_for_each_set_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(node: Node, function: NodeFunction, constants: list[int]) -> NodeFunction:
        return settled.remembering(node, lambda values: calls.append(node.op) or function(values), constants)

    plain = Session(graph_of(HEADS))
    monkeypatch.setattr(program, "remembering", counted)
    session = Session(graph_of(HEADS))
    for sizes in [(2, 3), (2, 3), (4, 5), (2, 3), (4, 5)]:
        values = feed(*sizes, 6)
        got, expected = session.run(values), plain.run(values)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
    assert calls.count("Shape") == 2 and calls.count("Concat") == 4 and len(calls) == 14


@pytest.mark.parametrize("bound", ["MOST_BYTES", "MOST_KEPT"])
def test_bounds_cost_time_and_nothing_else(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, bound, 1)
    session = Session(graph_of(HEADS))
    for sizes in [(2, 3), (4, 5), (2, 3)]:
        got = session.run(feed(*sizes, 6))
        assert got["y"].shape == (*sizes, 2, 3) and got["m"].shape == (sizes[1],) * 2


def test_a_result_belongs_to_who_asked_for_it() -> None:
    session = Session(graph_of(HEADS))
    session.run(feed(2, 3, 6))["m"].fill(7)
    again = session.run(feed(2, 3, 6))["m"]
    np.testing.assert_array_equal(again, 1)
    assert not np.shares_memory(again, session.run(feed(2, 3, 6))["m"])


def test_a_size_that_depends_on_values_is_read_each_time() -> None:
    session = Session(graph_of(FOUND))
    assert [session.run({"x": np.array(x, np.float32)})["y"].tolist() for x in ([0, 1, 0], [1, 1, 0], [0, 0, 0])] == [
        [1, 1], [1, 2], [1, 0]]


def test_random_numbers_are_drawn_each_time() -> None:
    session = Session(graph_of(NOISE), seed=1)
    one, two = (session.run({"x": np.zeros(9, np.float32)})["y"] for _ in range(2))
    assert (one != two).any()


def test_what_is_computed_from_a_large_result_is_not_kept_with_it() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[n]) -> (y) {
      s = Shape(x)
      big = ConstantOfShape(s)
      y = ReduceSum(big, axes=[0])
    }""")
    size = settled.MOST_BYTES // 4 + 1
    results: list[weakref.ref[np.ndarray]] = []
    plain = settled.settled_nodes(graph)
    assert len(plain) == 3

    def make(values: list[np.ndarray]) -> list[np.ndarray]:
        made = [np.zeros(size, np.float32)]
        results.append(weakref.ref(made[0]))
        return made

    total = settled.remembering(graph.nodes[2], lambda values: [values[0].sum(keepdims=True)])
    for _ in range(5):
        total(make([]))
    assert all(each() is None for each in results)


def test_sequences_that_follow_from_sizes_are_no_arrays() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[n, 2]) -> (y) {
      one = constant int64[] 1
      s = Shape(x)
      both = SequenceConstruct(s, s)
      y = SequenceAt(both, one)
    }""")
    session = Session(graph)
    for n in (3, 3, 5):
        assert session.run({"x": np.zeros((n, 2), np.float32)})["y"].tolist() == [n, 2]


def test_what_depends_on_constants_alone_is_computed_beforehand() -> None:
    """But what is larger than twice its operands, what may be given, and what is random."""
    assert MOST_BYTES < 900 * 400 * 4
    graph = graph_of("""graph "g" opset 18 (x: float32[n, 400], given: float32[1, 400], a: float32[1, 400],
                                            b: float32[1, 400]) -> (y, z) {
      both = Concat(a, b, axis=0)
      turned = Neg(both)
      wide = Expand(a, shape=[900, 400])
      noise = RandomNormalLike(a)
      kept = Neg(given)
      p = Add(x, given)
      y = Gemm(p, turned, transB=1)
      z = Concat(wide, noise, kept, axis=0)
    }""")
    graph.inputs = ["x", "given"]
    counted = np.arange(400, dtype=np.float32)[None]
    graph.defaults["given"] = Constant.of(np.ones_like(counted))
    graph.constants.update({"a": Constant.of(counted), "b": Constant.of(np.ones_like(counted))})
    made = precomputed(graph)
    assert [node.op for node in made.nodes] == ["Expand", "RandomNormalLike", "Neg", "Add", "Gemm", "Concat"]
    assert set(made.constants) == {"a", "turned"} and len(graph.nodes) == 8
    np.testing.assert_array_equal(made.constants["turned"].array, -np.stack([np.arange(400), np.ones(400)]))
    x = np.ones((2, 400), np.float32)
    for feeds, row in (({"x": x}, 2), ({"x": x, "given": np.full((1, 400), 2, np.float32)}, 3)):
        found = Session(graph).run(feeds)["y"]
        np.testing.assert_array_equal(found, np.tile([-row * counted.sum(), -row * 400], (2, 1)))


def test_what_cannot_be_computed_fails_when_it_is_asked_for() -> None:
    graph = graph_of("""graph "g" opset 18 (x: float32[n]) -> (y) {
      a = constant float32[2] [1, 2]
      i = constant int64[1] [7]
      g = Gather(a, i)
      y = Add(x, g)
    }""")
    session = Session(graph)
    with pytest.raises(ExecutionFailed):
        session.run({"x": np.ones(1, np.float32)})
