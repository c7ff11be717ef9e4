"""Proofs across folded constants: large ones are computed, and equal only to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from rules.catalogue import all_rules
from rules.declare import allowed
from search.budget import NORMAL, Folding
from search.prove import prove
from search.steps import replay, same_graph

ROUNDING = [rule for rule in all_rules() if allowed(rule.exactness, "rounding")]
EXACT = [rule for rule in all_rules() if allowed(rule.exactness, "exact")]
N = 40  # 1,600 elements: more than guards see
DRAW = np.random.default_rng(3)
W = DRAW.standard_normal((N, N)).astype(np.float32)
S = DRAW.uniform(0.5, 2.0, N).astype(np.float32)
T = DRAW.uniform(0.5, 2.0, N).astype(np.float32)


def model(body: str, **constants: np.ndarray) -> Graph:
    values = {name: Constant.of(array) for name, array in constants.items()}
    lines = "\n".join(f"{name} = constant {value.type} sha256:{value.digest}" for name, value in values.items())
    graph = parse_graph(f"graph opset 17 (x: float32[n, {N}]) -> (y) {{ {lines}\n{body} }}",
                        {value.digest: value for value in values.values()})
    infer(graph)
    return graph


SCALED = model("t = MatMul(x, w) y = Mul(t, s)", w=W, s=S)
FOLDED = model("y = MatMul(x, v)", v=W * S)


def test_a_folded_weight_is_the_product_that_it_was_folded_from() -> None:
    proof = prove(SCALED, FOLDED, ROUNDING)
    assert proof.joined and proof.exactness == "rounding" and proof.left_out == 0
    assert "computed-constant" in [step.rule for step in proof.steps]
    assert not any(step.region for step in proof.steps)
    assert same_graph(replay(SCALED, proof.steps), FOLDED)


def test_the_way_back_is_a_proof_too() -> None:
    proof = prove(FOLDED, SCALED, ROUNDING)
    assert proof.joined and same_graph(replay(FOLDED, proof.steps), SCALED)


def test_a_weight_that_differs_in_one_bit_is_another_one() -> None:
    near = W * S
    near[7, 9] = np.nextafter(near[7, 9], np.float32(np.inf))
    assert not prove(SCALED, model("y = MatMul(x, v)", v=near), ROUNDING).joined


def test_every_form_of_a_constant_counts_however_it_rounds() -> None:
    """(w s) t and w (s t) differ in bits, and each is what some form of the model folds to."""
    twice = model("p = MatMul(x, w) q = Mul(p, s) y = Mul(q, t)", w=W, s=S, t=T)
    first, second = W * S * T, W * (S * T)
    assert not np.array_equal(first, second)
    assert prove(twice, model("y = MatMul(x, v)", v=first), ROUNDING).joined
    assert prove(twice, model("y = MatMul(x, v)", v=second), ROUNDING).joined


def test_exact_rules_join_what_is_only_moved() -> None:
    moved = model("t = Add(x, x) u = Transpose(v, perm=[1, 0]) y = MatMul(t, u)", v=W)
    given = model("t = Add(x, x) y = MatMul(t, v)", v=np.ascontiguousarray(W.T))
    proof = prove(moved, given, EXACT)
    assert proof.joined and proof.exactness == "exact"
    assert not prove(SCALED, FOLDED, EXACT).joined


@pytest.mark.parametrize("shape", [(N, N), ()])  # guards see the elements of small constants
def test_exact_proofs_rest_on_no_bits_of_our_own(shape: tuple[int, ...]) -> None:
    w = DRAW.standard_normal(shape).astype(np.float32)
    for op, value, alike in (("Exp", np.exp(w), False), ("Sqrt", np.sqrt(np.abs(w)), True)):
        body = f"a = Abs(w) v = {op}(a) y = Mul(x, v)" if alike else f"v = {op}(w) y = Mul(x, v)"
        computed, given = model(body, w=w), model("y = Mul(x, v)", v=value)
        assert prove(computed, given, EXACT).joined is alike
        proof = prove(computed, given, ROUNDING)
        assert proof.joined and proof.exactness == ("exact" if alike else "rounding")


def test_outputs_of_a_node_with_several_are_constants_each() -> None:
    parts = model("a, b = Split(w, axis=1, split=[15, 25]) t = MatMul(x, b) u = MatMul(x, a) "
                  "y = Concat(t, u, axis=1)", w=W)
    given = model("t = MatMul(x, b) u = MatMul(x, a) y = Concat(t, u, axis=1)", a=W[:, :15], b=W[:, 15:])
    assert prove(parts, given, []).joined
    swapped = model("t = MatMul(x, b) u = MatMul(x, a) y = Concat(t, u, axis=1)", a=W[:, 25:], b=W[:, 15:])
    assert not prove(parts, swapped, []).joined


@pytest.mark.parametrize("folding", [Folding(elements=N * N - 1), Folding(bytes=4 * N * N - 1)])
def test_what_the_budget_leaves_out_is_counted(folding: Folding) -> None:
    proof = prove(SCALED, FOLDED, ROUNDING, NORMAL, folding)
    assert not proof.joined and proof.left_out >= 1
    assert prove(SCALED, FOLDED, ROUNDING, NORMAL, None).left_out == 0


def branching(then_body: str, else_body: str) -> Graph:
    graph = parse_graph(f"""graph opset 17 (x: float32[n, 4], c: bool[]) -> (y) {{
        t = Neg(x)
        y = If(c, then_branch=graph {then_body}, else_branch=graph {else_body}) }}""")
    infer(graph)
    return graph


def test_nested_graphs_are_alike_whatever_their_values_are_called() -> None:
    one = branching("() -> (a) { k = constant float32[] 2 z = Relu(t) a = Mul(z, k) }", "() -> (b) { b = Abs(x) }")
    same = branching("() -> (q) { two = constant float32[] 2 p = Relu(t) q = Mul(p, two) }",
                     "() -> (r) { r = Abs(x) }")
    proof = prove(one, same, [])
    assert proof.joined and not proof.steps
    for other in [branching("() -> (q) { two = constant float32[] 2 p = Relu(t) q = Mul(p, two) }",
                            "() -> (r) { r = Abs(t) }"),
                  branching("() -> (q) { k = constant float32[] 3 p = Relu(t) q = Mul(p, k) }",
                            "() -> (r) { r = Abs(x) }"),
                  branching("() -> (q) { k = constant float32[] 2 p = Relu(t) q = Mul(p, p) }",
                            "() -> (r) { r = Abs(x) }")]:
        assert not prove(one, other, []).joined


def test_inner_names_are_told_apart_from_captured_ones() -> None:
    inner = branching("() -> (a) { z = Relu(t) a = Mul(z, z) }", "() -> (b) { b = Abs(x) }")
    captured = branching("() -> (a) { z = Relu(t) a = Mul(z, t) }", "() -> (b) { b = Abs(x) }")
    assert not prove(inner, captured, []).joined


def test_a_graph_is_proved_equal_to_itself_without_steps_though_rules_apply_to_it() -> None:
    graph = model("t = Neg(x) u = Neg(t) y = MatMul(u, w)", w=W)
    proof = prove(graph, graph.copy(), ROUNDING)
    assert proof.joined and not proof.steps and proof.exactness == "exact"
