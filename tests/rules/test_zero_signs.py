"""Rules that may change the sign of a zero are used where nothing can show it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs import zoo
from graphs.text import parse_graph
from optimizer import optimize
from rules.zero_signs import showing_places

HEAD = ('graph "m" opset 18 (x: float32[n, 4], k: bool[]) -> (y) { '
        "zero = constant float32[] 0 one = constant float32[] 1 ")
SHOWN = {
    "reciprocal": "a = Add(x, zero) y = Reciprocal(a)",
    "division": "a = Sub(zero, x) y = Div(one, a)",
    "behind carriers": "a = Add(x, zero) b = Transpose(a, perm=[1, 0]) c = Sqrt(b) d = Relu(c) y = Div(one, d)",
    "power": "m = constant float32[] -1 a = Add(x, zero) y = Pow(a, m)",
    "text": "a = Add(x, zero) y = Cast(a, to=8)",
    "an operator nobody knows": "a = Add(x, zero) y = my.domain.Own(a)",
    "a branch": "a = Add(x, zero) y = If(k, then_branch=graph () -> (u) { u = Reciprocal(a) }, "
                "else_branch=graph () -> (u) { u = Neg(a) })",
}
HIDDEN = {
    "an output": "a = Add(x, zero) y = Relu(a)",
    "the numerator": "two = constant float32[] 2 a = Add(x, zero) y = Div(a, two)",
    "an exponential": "a = Add(x, zero) e = Exp(a) s = ReduceSum(e, axes=[1]) y = Div(e, s)",
    "a norm with epsilon": "eps = constant float32[] 1e-5 a = Add(x, zero) m = ReduceMean(a, axes=[-1]) d = Sub(a, m) "
                           "q = Mul(d, d) v = ReduceMean(q, axes=[-1]) w = Add(v, eps) s = Sqrt(w) y = Div(d, s)",
    "a bound": "eps = constant float32[] 1e-5 a = Add(x, zero) b = Max(a, eps) y = Reciprocal(b)",
    "integers": "i = Cast(x, to=6) j = Abs(i) o = constant int32[] 1 a = Add(j, o) y = Div(i, a)",
}


def ops(body: str, precision: str = "rounding") -> tuple[list[str], list[dict]]:
    result = optimize(parse_graph(HEAD + body + " }"), target="roofline", effort="low", precision=precision)
    return [node.op for node in result.graph.nodes], result.report["dropped"]


@pytest.mark.parametrize("body", SHOWN.values(), ids=SHOWN)
def test_where_it_shows(body: str) -> None:
    assert showing_places(parse_graph(HEAD + body + " }"))
    found, dropped = ops(body)
    assert not dropped and ("Add" in found or "Sub" in found)


@pytest.mark.parametrize(("factor", "shows"), [(-1, True), (2, False)])
def test_a_sum_of_products_may_become_a_negated_sum(factor: int, shows: bool) -> None:
    body = f"c = constant float32[] {factor} a = Mul(x, c) b = ReduceSum(a, axes=[1]) y = Div(one, b)"
    assert bool(showing_places(parse_graph(HEAD + body + " }"))) == shows


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_where_it_does_not_show(body: str) -> None:
    assert not showing_places(parse_graph(HEAD + body + " }"))
    found, dropped = ops(body)
    assert not dropped
    assert "zero" not in body or "Add(x, zero)" not in body or found.count("Add") < body.count("Add(")


def test_the_reason_is_told_and_finite_requests_have_the_rule() -> None:
    graph = parse_graph(HEAD + SHOWN["reciprocal"] + " }")
    reasons = optimize(graph, target="roofline", effort="low").trace.refusals["add-zero"]
    assert any("sign of a zero could show" in reason for reason in reasons)
    assert ops(SHOWN["reciprocal"], "finite") == (["Reciprocal"], [])


@pytest.mark.parametrize("name", ["bert-tiny", "resnet-tiny", "llama-tiny"])
def test_networks_show_no_signs(name: str) -> None:
    if name not in zoo.names():
        pytest.skip("not in the zoo")
    assert not showing_places(zoo.build(name))


def test_this_page_has_all_rules() -> None:
    declared = [path for path in Path(__file__).parents[2].joinpath("rules").glob("*.py")
                if "sign of zero)" in path.read_text() and "zero_sign=True" not in path.read_text()]
    assert not declared
