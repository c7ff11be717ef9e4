"""Extraction and the way back to a graph."""

from __future__ import annotations

from typing import Any

import pytest

from graphs.ir import Graph
from graphs.text import print_graph
from search import Budget, ENode, Saturated, linear, saturate
from search.build import build_graph
from search.extract import diverse, exact, greedy, incumbent, node_count
from search.steps import same_graph
from tests.search import samples
from tests.search.samples import SOUND, graph_of


def matmul_heavy(enode: ENode) -> float:
    if enode.kind not in ("op", "opaque"):
        return 0.0
    return 6.0 if enode.op == "MatMul" else 1.0


@pytest.fixture(scope="module")
def bert() -> tuple[Graph, Saturated]:
    graph = samples.bert(layers=2)
    return graph, saturate(graph, SOUND)


def test_the_input_is_its_own_selection(bert) -> None:
    graph, found = bert
    selection = incumbent(found, node_count)
    assert selection.cost == len(graph.nodes)
    built = build_graph(graph, found, selection)
    assert same_graph(built, graph)
    assert [node.outputs for node in built.nodes] == [node.outputs for node in graph.nodes]


def test_exact_finds_the_shared_product_that_greedy_misses(bert) -> None:
    graph, found = bert
    base, quick, best = (choose(found, matmul_heavy) for choose in (incumbent, greedy, exact))
    assert quick.cost <= base.cost  # greedy alone would be worse than the input
    assert best.cost < quick.cost
    assert best.method == "exact"
    assert best.gap is not None and best.gap < 1e-4
    assert best.bound is not None and best.bound <= best.cost
    built = build_graph(graph, found, best)
    assert sum(node.op == "MatMul" for node in built.nodes) == sum(node.op == "MatMul" for node in graph.nodes) - 4
    assert built.outputs == graph.outputs and built.inputs == graph.inputs
    assert built.type_of("y") == graph.type_of("y")


def test_a_solver_that_answers_with_its_start_is_asked_again(bert, monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS may say `Optimal`, tell the best objective, and give the values of the start."""
    _, found = bert
    best = exact(found, matmul_heavy)

    class Stale(linear.QuietSolver):
        guess: Any = None

        def setSolution(self, solution: Any) -> Any:
            self.guess = solution
            return super().setSolution(solution)

        def getSolution(self) -> Any:
            return self.guess or super().getSolution()

    monkeypatch.setattr(linear, "QuietSolver", Stale)
    again = exact(found, matmul_heavy)
    assert (again.method, again.cost) == ("exact", best.cost)


def test_where_nothing_helps_the_input_comes_back(bert) -> None:
    graph, found = bert

    def originals_only(enode: ENode) -> float:
        return 0.0 if enode.kind in ("leaf", "proj") else 1.0 if enode.origin is not None else 50.0

    for choose in (greedy, exact):
        selection = choose(found, originals_only)
        assert selection.method == "input"
        assert same_graph(build_graph(graph, found, selection), graph)


def test_bytes_that_folding_adds_are_charged(bert) -> None:
    _, found = bert
    cheap, dear = exact(found, matmul_heavy, byte_cost=0.0), exact(found, matmul_heavy, byte_cost=1.0)
    assert cheap.method == "exact" and dear.method == "input"


def test_diverse_selections_differ_and_all_build(bert) -> None:
    graph, found = bert
    selections = diverse(found, matmul_heavy)
    assert len(selections) >= 2
    assert selections[0].cost == min(selection.cost for selection in selections)
    texts = {print_graph(build_graph(graph, found, selection)) for selection in selections}
    assert len(texts) == len(selections)


def test_an_infinite_price_is_never_chosen_but_the_input_always_can_be() -> None:
    graph = graph_of("graph opset 17 (x: float32[2, 3]) -> (y) { t = Relu(x) y = Relu(t) }")
    found = saturate(graph, SOUND)
    selection = exact(found, lambda enode: float("inf"))
    assert build_graph(graph, found, selection).nodes


OUTPUTS = {
    "an output that is an input": ("y = Mul(x, one)", "(y)", 1),
    "two outputs that become one": ("y = Relu(x) z = Mul(y, one)", "(y, z)", 2),
    "an output used inside": ("y = Relu(x) z = Relu(y) w = Neg(y)", "(y, z, w)", 3),
    "the later output computes": ("t = Mul(x, one) z = Relu(t) y = Relu(z)", "(y, z)", 2),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_keep_names_and_order(case: str) -> None:
    body, outputs, most = OUTPUTS[case]
    graph = graph_of(f"graph opset 17 (x: float32[2, 3]) -> {outputs} {{ one = constant float32[] 1 {body} }}")
    found = saturate(graph, SOUND)
    built = build_graph(graph, found, exact(found, node_count))
    assert built.outputs == graph.outputs
    assert len(built.nodes) <= most
    assert sum(node.op == "Identity" for node in built.nodes) <= 1


def test_original_nodes_keep_names_and_new_ones_say_where_they_come_from() -> None:
    graph = graph_of("""graph opset 17 (x: float32[2, 3, 4]) -> (y) {
        a = Transpose(x, perm=[1, 0, 2])
        b = Transpose(a, perm=[2, 1, 0])
        y = Relu(b)
    }""")
    for index, node in enumerate(graph.nodes):
        node.name, node.metadata = f"node{index}", {"line": str(index)}
    found = saturate(graph, [samples.t_transpose_compose])
    built = build_graph(graph, found, exact(found, node_count))
    new, relu = built.nodes
    assert new.op == "Transpose" and new.name == "" and new.origins == ("node1",)
    assert relu.name == "node2" and relu.metadata == {"line": "2"}


def test_nested_graphs_read_the_new_names_and_random_nodes_keep_their_order() -> None:
    graph = graph_of("""graph opset 17 (x: float32[2, 3], c: bool[]) -> (y, p, q) {
        one = constant float32[] 1
        t = Relu(x)
        u = Relu(t)
        p = RandomNormalLike(u)
        q = RandomNormalLike(u)
        y = If(c, then_branch=graph () -> (v) { v = Neg(u) }, else_branch=graph () -> (w) { w = Mul(u, one) })
    }""")
    found = saturate(graph, SOUND)
    assert found.class_of("p") != found.class_of("q")
    built = build_graph(graph, found, exact(found, node_count))
    assert [node.op for node in built.nodes] == ["Relu", "RandomNormalLike", "RandomNormalLike", "If"]
    assert [node.outputs for node in built.nodes[1:]] == [("p",), ("q",), ("y",)]
    relu = built.nodes[0].outputs[0]
    assert all(inner.nodes[0].inputs[0] == relu for inner in built.nodes[3].graphs)


def test_several_outputs_and_absent_inputs() -> None:
    graph = graph_of("""graph opset 17 (x: float32[2, 6], hi: float32[]) -> (y, z) {
        a, b, c = Split(x, axis=1, split=[2, 2, 2])
        d = Relu(a)
        y = Relu(d)
        z = Clip(c, , hi)
    }""")
    found = saturate(graph, SOUND)
    built = build_graph(graph, found, exact(found, node_count))
    assert [node.op for node in built.nodes] == ["Split", "Relu", "Clip"]
    assert built.nodes[2].inputs == ("c", "", "hi")


def test_a_runtime_reshape_target_that_is_known_needs_no_shape_nodes() -> None:
    graph = graph_of("""graph opset 17 (x: float32[n, 3, 4]) -> (y) {
        s = Shape(x)
        i = constant int64[1] [0]
        g = Gather(s, i, axis=0)
        m = constant int64[1] [-1]
        t = Concat(g, m, axis=0)
        y = Reshape(x, t, shape=runtime)
    }""")
    found = saturate(graph, SOUND, Budget(iterations=2))
    selection = exact(found, node_count)
    built = build_graph(graph, found, selection)
    assert [node.op for node in built.nodes] == ["Reshape"]
    assert built.type_of("y") == graph.type_of("y")
