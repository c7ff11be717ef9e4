"""Sets of nodes with several outputs: enumeration, what may not become nodes together, and the values they compute."""

import numpy as np
import pytest

from cost_model.timings import Timings
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import run
from runtime.codegen.c import FusedKernel, unavailable
from runtime.codegen.c.check import fault
from runtime.feeds import draw
from runtime.fused_functions import fused_again
from runtime.fusion import Group, as_functions, body_of, fuse
from search.fusions import discover
from search.fusions.choose import packing_of, ring_of
from search.fusions.enumerate import enumerate_groups
from search.fusions.measure import Measured, shapes_of
from tests.search.test_fusions import random_graph

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

ADAM = """graph "g" opset 18 (w: float32[9, 5], g: float32[9, 5], m: float32[9, 5], v: float32[9, 5]) -> (w2, m2, v2) {
  b1 = constant float32[] 0.9
  c1 = constant float32[] 0.1
  b2 = constant float32[] 0.99
  c2 = constant float32[] 0.01
  e = constant float32[] 1e-8
  lr = constant float32[] 0.001
  m1 = Mul(m, b1)
  g1 = Mul(g, c1)
  m2 = Add(m1, g1)
  v1 = Mul(v, b2)
  g2 = Mul(g, g)
  g3 = Mul(g2, c2)
  v2 = Add(v1, g3)
  s = Sqrt(v2)
  d = Add(s, e)
  q = Div(m2, d)
  u = Mul(q, lr)
  w2 = Sub(w, u)
}"""
RESIDUAL = """graph "g" opset 18 (x: float32[6, 16], r: float32[6, 16], g: float32[16], k: float32[16, 16]) -> (y, a) {
  s = Add(x, r)
  n = LayerNormalization(s, g, axis=-1)
  y = Tanh(n)
  a = MatMul(s, k)
}"""
GATED = """graph "g" opset 18 (a: float32[3, 8], b: float32[3, 8]) -> (y, s, t) {
  s = Sigmoid(a)
  t = Mul(a, s)
  y = Mul(t, b)
}"""
SIDES = """graph "g" opset 18 (x: float32[3, 8]) -> (p, q) {
  a = Exp(x)
  p = Neg(a)
  b = Tanh(x)
  q = Abs(b)
}"""
ROWS = """graph "g" opset 18 (x: float32[3, 8]) -> (y, m) {
  m = ReduceMax(x, axes=[1])
  d = Sub(x, m)
  y = Exp(d)
}"""


def groups_of(graph: Graph) -> list[Group]:
    return [group for group in enumerate_groups(graph, graph.types, 10_000, 99).groups if group.others]


@pytest.mark.parametrize("seed", range(8))
def test_sets_are_convex_and_name_all_that_is_needed_outside(seed: int) -> None:
    graph = random_graph(seed, 9)
    found = groups_of(graph)
    assert found and len({group.nodes for group in found}) == len(found)
    makers = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
    for group in found:
        inside = set(group.nodes)
        needed = {graph.nodes[index].outputs[0] for index in inside
                  if graph.nodes[index].outputs[0] in graph.outputs
                  or any(graph.nodes[index].outputs[0] in node.inputs
                         for place, node in enumerate(graph.nodes) if place not in inside)}
        assert needed | {group.output} == set(group.outputs) and len(group.outputs) > 1
        reached = {index for index, node in enumerate(graph.nodes) if index not in inside
                   and any(makers.get(name) in inside for name in node.inputs)}
        for _ in graph.nodes:
            reached |= {index for index, node in enumerate(graph.nodes) if index not in inside
                        and any(makers.get(name) in reached for name in node.inputs)}
        assert not any(makers.get(name) in reached for index in inside for name in graph.nodes[index].inputs)


@pytest.mark.parametrize("text,outputs", [(ADAM, {"w2", "m2", "v2"}), (GATED, {"y", "s", "t"}), (SIDES, {"p", "q"}),
                                          (ROWS, {"y", "m"}), (RESIDUAL, {"y", "s"})],
                         ids=["adam", "gates", "side by side", "row and columns", "residual sum"])
def test_one_kernel_writes_what_others_need(text: str, outputs: set[str]) -> None:
    graph = parse_graph(text)
    group = next(group for group in reversed(groups_of(graph)) if set(group.outputs) == outputs)
    made = fuse(graph, [group])
    assert sum(node.op == "Fused" for node in made.nodes) == 1
    feeds = draw(graph, 3)
    got, want = run(made, feeds), run(graph, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-6, atol=1e-6)
    again = fused_again(as_functions(made))
    assert [node.op for node in again.nodes] == [node.op for node in made.nodes]
    np.testing.assert_array_equal(run(again, feeds)[group.output], got[group.output])
    if unavailable() is None:
        body, _ = body_of(graph, group)
        assert fault(FusedKernel(body), shapes_of(body)) is None


def test_groups_that_need_each_other_do_not_become_nodes_together() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4], z: float32[4]) -> (p, q) {
      a = Exp(x)
      b = Tanh(z)
      p = Add(a, b)
      q = Mul(a, b)
    }""")
    crossed = parse_graph("""graph "g" opset 18 (x: float32[4], z: float32[4]) -> (c, d) {
      a = Exp(x)
      b = Tanh(z)
      c = Neg(b)
      d = Abs(a)
    }""")
    assert not ring_of(graph, [Group((0, 1), "b", ("a",)), Group((2, 3), "q", ("p",))], ())
    first, second = Group((0, 2), "c", ("a",)), Group((1, 3), "d", ("b",))
    assert sorted(ring_of(crossed, [first, second], ())) == [0, 1]
    assert packing_of(crossed, [(first, 2e-6), (second, 3e-6)], ()) == [1]
    fused = fuse(crossed, [second])
    assert [node.op for node in fused.nodes] == ["Exp", "Fused", "Neg"]


def test_readers_of_an_early_output_stand_after_the_kernel() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4]) -> (n, c) {
      a = Exp(x)
      n = Neg(a)
      c = Abs(a)
    }""")
    made = fuse(graph, [Group((0, 2), "c", ("a",))])
    assert [node.op for node in made.nodes] == ["Fused", "Neg"]


@needs_compiler
def test_they_are_candidates_and_counted() -> None:
    def attempt(body: Graph, exact: bool, threads: int) -> tuple[Measured, tuple[float, ...]]:
        return Measured(1e-6, len(body.nodes) * 1e-6, "faster"), (1e-6,)

    found = discover(parse_graph(ADAM), {}, Timings(":memory:"), attempt=attempt)
    assert found.counts["of several outputs"] > 0 and found.counts["chosen"] == 1
    assert set(found.groups[0].outputs) == {"w2", "m2", "v2"} and "3 results" in found.fusions[0].label
