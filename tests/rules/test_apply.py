"""Matching and applying one rule on a graph."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.ir import Graph
from graphs.text import parse_graph
from rules.apply import apply_at, apply_everywhere, fold_constants, matches, size_of
from rules.catalogue import all_rules, by_name, permitted
from rules.declare import Match, Outcome, Refusal, refuse, rule
from runtime import run


def applied(name: str, text: str) -> Graph:
    graph = parse_graph(text)
    for match in matches(graph, by_name(name)):
        new = apply_at(graph, by_name(name), match)
        if isinstance(new, Graph):
            return new
    raise AssertionError(f"{name} does not fire")


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_output_keeps_its_name_when_a_value_takes_its_place() -> None:
    new = applied("neg-neg", "graph opset 17 (x: float32[2]) -> (y) { a = Abs(x) t = Neg(a) y = Neg(t) }")
    assert ops(new) == ["Abs"] and new.nodes[0].outputs == ("y",) and new.outputs == ["y"]


def test_output_that_is_an_input_needs_an_identity() -> None:
    new = applied("neg-neg", "graph opset 17 (x: float32[2]) -> (y) { t = Neg(x) y = Neg(t) }")
    assert ops(new) == ["Identity"] and new.nodes[0].inputs == ("x",)


def test_replacement_that_is_another_output() -> None:
    new = applied("neg-neg", "graph opset 17 (x: float32[2]) -> (a, y) { a = Abs(x) t = Neg(a) y = Neg(t) }")
    assert ops(new) == ["Abs", "Identity"] and new.outputs == ["a", "y"]


def test_shared_values_stay() -> None:
    new = applied("abs-neg", "graph opset 17 (x: float32[2]) -> (y, z) { t = Neg(x) y = Abs(t) z = Exp(t) }")
    assert sorted(ops(new)) == ["Abs", "Exp", "Neg"]


def test_nested_graphs_read_the_new_value() -> None:
    text = ("graph opset 17 (c: bool[], x: float32[2]) -> (y) { t = Neg(x) u = Neg(t) y = If(c, "
            "then_branch=graph () -> (p) { p = Abs(u) }, else_branch=graph () -> (q) { q = Exp(u) }) }")
    new = applied("neg-neg", text)
    assert ops(new) == ["If"]
    found = run(new, {"c": np.array(True), "x": np.array([1, -2], np.float32)})
    assert found["y"].tolist() == [1, 2]


def test_new_nodes_have_fresh_names_types_and_origins() -> None:
    graph = parse_graph(by_name("join-biased-matmuls").example)
    for node in graph.nodes:
        node.name = f"layer_{node.outputs[0]}"
    rule_ = by_name("join-biased-matmuls")
    new = apply_at(graph, rule_, next(matches(graph, rule_)))
    assert isinstance(new, Graph)
    assert [op for op in ops(new) if op in ("MatMul", "Split")] == ["MatMul", "Split"]
    names = [name for node in new.nodes for name in node.outputs]
    assert len(names) == len(set(names)) and set(new.outputs) <= set(names)
    assert all(new.type_of(name) is not None for name in names)
    split = next(node for node in new.nodes if node.op == "Split")
    assert split.origins == ("layer_p", "layer_q") and split.version > 0


def test_group_rules_leave_members_that_do_not_fit() -> None:
    text = ("graph opset 17 (x: float32[n, 3], z: float32[2, 3, 4]) -> (p, q, r) { "
            "w = constant float32[3, 1] [1, 2, 3] v = constant float32[3, 2] [1, 2, 3, 4, 5, 6] "
            "t = constant float32[2, 3, 1] [1, 2, 3, 4, 5, 6] "
            "p = MatMul(x, w) q = MatMul(x, t) r = MatMul(x, v) }")
    new = applied("join-matmuls", text)
    assert ops(new).count("MatMul") == 2 and ops(new).count("Split") == 1


def test_impure_and_opaque_nodes_do_not_match() -> None:
    text = "graph opset 17 (x: float32[2]) -> (y) { t = my.domain.Neg(x) y = Neg(t) }"
    assert not list(matches(parse_graph(text), by_name("neg-neg")))


@rule(
    family="test", exactness="exact", meaning="Would need its own result.",
    before="Neg(x)", after="Neg(Neg(x))", example="graph opset 17 (x: float32[2]) -> (y) { y = Neg(x) }",
    near_miss="graph opset 17 (x: float32[2]) -> (y) { y = Abs(x) }",
)
def wrong_type(m: Match) -> Outcome:
    return refuse("never") if m.x.rank == 0 else m.x if m.x.rank == 1 else None


def test_wrong_types_are_refused() -> None:
    graph = parse_graph("graph opset 17 (x: float32[2], z: float32[3, 1]) -> (y) { t = Add(x, z) y = Neg(t) }")
    cast = by_name("cast-like")
    assert not list(matches(graph, cast))
    low = parse_graph("graph opset 10 (x: float32[2, 3]) -> (y) { c = constant float32[] 2 t = Relu(x) y = Min(t, c) }")
    new = [apply_at(low, by_name("min-of-relu"), match) for match in matches(low, by_name("min-of-relu"))]
    assert all(isinstance(each, (Graph, Refusal)) for each in new) and new


def test_fold_constants_computes_and_keeps_outputs() -> None:
    graph = parse_graph("graph opset 17 (x: float32[2]) -> (y, z) { c = constant float32[2] [1, 2] "
                        "d = Neg(c) z = Abs(d) y = Add(x, d) }")
    fold_constants(graph)
    assert ops(graph) == ["Abs", "Add"]


@pytest.mark.parametrize(("text", "left"), [
    ("{ c = constant float32[] 2 d = constant float32[] 4 t = Mul(x, c) u = Div(t, d) y = Relu(u) }", ["Mul", "Relu"]),
    ("{ t = Transpose(x, perm=[1, 0]) u = Relu(t) v = Transpose(u, perm=[1, 0]) y = Neg(v) }", ["Relu", "Neg"]),
    ("{ a = Add(x, x) b = Add(a, x) c = Add(b, x) y = Abs(c) }", ["Mul", "Abs"]),
])  # fmt: skip
def test_apply_everywhere_reaches_the_short_form(text: str, left: list[str]) -> None:
    graph = parse_graph("graph opset 17 (x: float32[2, 3]) -> (y) " + text)
    new = apply_everywhere(graph, permitted("rounding"), limit=12)
    assert ops(new) == left and size_of(new) < size_of(graph)


def test_apply_everywhere_without_gain_returns_the_graph() -> None:
    graph = parse_graph("graph opset 17 (x: float32[2, 3]) -> (y) { y = Tanh(x) }")
    assert apply_everywhere(graph, all_rules(), limit=3) is graph


def test_a_lookup_gives_zeros_for_every_position_out_of_range() -> None:
    for dtype in ("int32", "int64"):
        new = applied("equal-matmul", by_name("equal-matmul").example.replace("int32", dtype))
        assert "MatMul" not in ops(new) and "Gather" in ops(new)
        ends = np.iinfo(dtype)
        x = np.array([ends.min, -5, -1, 0, 1, 2, 3, 100, ends.max], dtype)[:, None]
        expected = [[0, 0]] * 3 + [[1, 2], [3, 4], [5, 6]] + [[0, 0]] * 3
        assert run(new, {"x": x})["y"].tolist() == expected
