"""Fused kernels that read by indices: what they pick, checks of the indices, labels of losses."""

import numpy as np
import pytest

from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, run
from runtime.codegen.c import FusedKernel, NotFusable, unavailable
from runtime.codegen.c.check import fault
from runtime.codegen.c.views import OutOfRange
from runtime.constraints import constraints
from runtime.feeds import draw
from runtime.fusion import Group, as_functions, fuse

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

EMBEDDING = """graph "g" opset 18 (t: float32[50, 16], i: int64[3, 5], p: float32[5, 16], g: float32[16]) -> (y) {
  w = Gather(t, i, axis=0)
  e = Add(w, p)
  y = LayerNormalization(e, g, axis=-1)
}"""
MIDDLE = """graph "g" opset 18 (t: float32[4, 7, 6], i: int32[2, 3], c: float32[6]) -> (y) {
  w = Gather(t, i, axis=1)
  y = Mul(w, c)
}"""
COMPUTED = """graph "g" opset 18 (t: float32[9, 6], i: int64[4], j: int64[4, 1]) -> (y) {
  s = Softmax(t, axis=1)
  w = Gather(s, i, axis=0)
  e = GatherElements(w, j, axis=1)
  y = Neg(e)
}"""
RANKS = """graph "g" opset 18 (t: float32[9, 6], i: int64[]) -> (y) {
  w = Gather(t, i, axis=0)
  y = Exp(w)
}"""
CASES = {"embedding": EMBEDDING, "a middle axis": MIDDLE, "of what is computed": COMPUTED, "one index": RANKS}


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: graph.type_of(name).shape for name in graph.inputs}  # type: ignore[union-attr,misc]


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_what_is_picked_is_what_the_graph_picks(text: str) -> None:
    graph = parse_graph(text)
    assert fault(FusedKernel(graph), shapes(graph)) is None
    if graph.nodes[0].op == "Gather":
        exact = parse_graph(text.replace("LayerNormalization(e, g, axis=-1)", "Mul(e, g)").replace("Exp", "Neg"))
        assert fault(FusedKernel(exact, exact=True), shapes(exact)) is None


def test_negative_indices_count_from_the_end_and_others_are_refused() -> None:
    graph, rng = parse_graph(MIDDLE), np.random.default_rng(0)
    table, scale = rng.normal(size=(4, 7, 6)).astype(np.float32), np.ones(6, np.float32)
    kernel = FusedKernel(graph)
    indices = np.array([[-7, -1, 0], [6, 3, -4]], np.int32)
    np.testing.assert_array_equal(kernel(table, indices, scale)[0], table[:, indices])
    for wrong in (7, -8, 2**31 - 1, -(2**31)):
        indices[1, 1] = wrong
        with pytest.raises(OutOfRange):
            kernel(table, indices, scale)


def test_a_session_says_of_a_bad_index_what_it_says_without_fusions() -> None:
    graph = parse_graph(EMBEDDING)
    rng = np.random.default_rng(0)
    feeds = {"t": rng.normal(size=(50, 16)).astype(np.float32), "i": np.full((3, 5), -50),
             "p": rng.normal(size=(5, 16)).astype(np.float32), "g": np.ones(16, np.float32)}
    session = Session(fuse(graph, [Group((0, 1, 2), "y")]))
    np.testing.assert_allclose(session.run(feeds)["y"], run(graph, feeds)["y"], rtol=1e-5, atol=1e-6)
    feeds["i"][2, 4] = 50
    with pytest.raises(ExecutionFailed) as plain:
        run(graph, feeds)
    with pytest.raises(ExecutionFailed) as fused:
        session.run(feeds)
    assert fused.value.found == plain.value.found and "50" in fused.value.found


def test_an_index_that_would_not_be_checked_makes_no_kernel() -> None:
    one = parse_graph("""graph "g" opset 18 (t: float32[1, 6], i: int64[4]) -> (y) {
      w = Gather(t, i, axis=0)
      y = Exp(w)
    }""")
    with pytest.raises(NotFusable, match="one element"):
        FusedKernel(one).plan(np.zeros((1, 6), np.float32), np.zeros(4, np.int64))
    unread = parse_graph("""graph "g" opset 18 (t: float32[1, 6], i: int64[4]) -> (y) {
      x = Expand(t, shape=[5, 6])
      w = Gather(x, i, axis=0)
      y = Exp(w)
    }""")
    with pytest.raises(NotFusable, match="checked"):
        FusedKernel(unread).plan(np.zeros((1, 6), np.float32), np.zeros(4, np.int64))


def test_sizes_are_not_in_the_text() -> None:
    graph = parse_graph(MIDDLE)
    plans = [FusedKernel(graph).plan(np.zeros((4, size, 6), np.float32), np.zeros((2, 3), np.int32),
                                     np.zeros(6, np.float32)) for size in (7, 11)]
    assert plans[0].text == plans[1].text


def test_random_inputs_of_a_fused_graph_are_places_on_the_axis() -> None:
    graph = parse_graph("""graph "g" opset 18 (t: float32[3, 6], i: int64[40]) -> (y) {
      u = Unsqueeze(i, axes=[0])
      c = Cast(u, to=6)
      w = Gather(t, c, axis=0)
      y = Exp(w)
    }""")
    for nodes in ((0, 1, 2, 3), (2, 3)):
        made = fuse(graph, [Group(nodes, "y")])
        assert constraints(made)["i"].high == 3 and run(made, draw(made, 0))["y"].shape == (1, 40, 6)
        assert constraints(as_functions(made))["i"].high == 3
    made = fuse(made, [Group((0, 1), "c")])
    assert [node.op for node in made.nodes] == ["Fused", "Fused"] and constraints(made)["i"].high == 3


def test_a_product_does_not_multiply_what_is_picked() -> None:
    graph = parse_graph("""graph "g" opset 18 (t: float32[9, 6], i: int64[4], m: float32[6, 5]) -> (y) {
      w = Gather(t, i, axis=0)
      p = MatMul(w, m)
      y = Exp(p)
    }""")
    with pytest.raises(NotFusable, match="computed"):
        FusedKernel(graph).plan(np.zeros((9, 6), np.float32), np.zeros(4, np.int64), np.zeros((6, 5), np.float32))
