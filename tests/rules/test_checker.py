"""The checker finds rules that are unsound, each by another of its means."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.errors import ExecutionFailed
from graphs.text import parse_graph
from rules.check import OnnxRuntime, check_all, check_rule
from rules.declare import Match, Outcome, Rule, refuse, rule, term

NEVER = "graph opset 17 (x: float32[2, 3]) -> (y) { y = Sin(x) }"
INSTANCES = 60


@rule(
    family="planted", exactness="rounding", meaning="Merges grouped convolutions as if they had one group.",
    before=("c:Conv(x, $w)", "d:Conv(x, $v)"),
    example="graph opset 17 (x: float32[1, 2, 3, 3]) -> (p, q) { w = constant float32[4, 2, 1, 1] "
            "[1, 2, 3, 4, 5, 6, 7, 8] v = constant float32[2, 2, 1, 1] [1, 2, 3, 4] p = Conv(x, w) q = Conv(x, v) }",
    near_miss=NEVER,
)
def grouped_merge(m: Match) -> Outcome:
    if m.c.attrs["group"] != m.d.attrs["group"] or m.w.shape[1:] != m.v.shape[1:]:
        return refuse("another geometry")
    joined = term("Conv", m.x, term("Concat", m.w, m.v, axis=0), **{**m.c.attrs, "kernel_shape": None})
    sizes = (m.w.shape[0], m.v.shape[0])
    return [term("Split", joined, axis=1, split=sizes, output=index, outputs=2) for index in (0, 1)]


@rule(
    family="planted", exactness="rounding", meaning="Takes a gamma that does not lie along the normalised axis.",
    before="Mul(n:LayerNormalization(x, $one), $g)",
    example="graph opset 17 (x: float32[3, 3]) -> (y) { one = constant float32[3] [1, 1, 1] "
            "g = constant float32[3, 1] [2, 3, 4] t = LayerNormalization(x, one) y = Mul(t, g) }",
    near_miss=NEVER,
)
def gamma_of_wrong_shape(m: Match) -> Outcome:
    return term("LayerNormalization", m.x, term("Reshape", m.g, shape=m.one.shape), **m.n.attrs)


@rule(
    family="planted", exactness="exact", meaning="Forgets that a broadcast zero widens, and the sign of zero.",
    before="Add(x, $c)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] 0 y = Add(x, c) }",
    near_miss="graph opset 17 (x: float32[3]) -> (y) { c = constant float32[] 1 y = Add(x, c) }",
)
def zero_of_any_sign(m: Match) -> Outcome:
    return None if m.c.splat == 0 else refuse("not 0")


@rule(
    family="planted", exactness="rounding", meaning="NaN and infinity times zero are not zero.",
    before="Mul(x, $c)", after="c",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[2, 3] [0, 0, 0, 0, 0, 0] y = Mul(x, c) }",
    near_miss=NEVER,
)
def times_zero(m: Match) -> Outcome:
    return None if m.c.splat == 0 else refuse("not 0")


@rule(
    family="planted", exactness="rounding", meaning="A MaxPool pads with minus infinity, not with zeros.",
    before="c:MaxPool(p:Pad(x))",
    example="graph opset 17 (x: float32[1, 1, 4, 4]) -> (y) "
            "{ t = Pad(x, pads=[0, 0, 1, 1, 0, 0, 1, 1]) y = MaxPool(t, kernel_shape=[2, 2]) }",
    near_miss=NEVER,
)
def zero_pad_into_max_pool(m: Match) -> Outcome:
    pads = m.p.attrs["pads"]
    return term("MaxPool", m.x, **{**m.c.attrs, "pads": (*pads[2:4], *pads[6:8])})


@rule(
    family="planted", exactness="rounding", meaning="A comparison with NaN is false, so this drops NaN.",
    before="Relu(x)", after="Where(Greater(x, z), x, z)",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { y = Relu(x) }",
    near_miss=NEVER,
)
def relu_as_choice(m: Match) -> Outcome:
    return {"z": np.zeros((), np.float32)} if m.x.dtype == "float32" else refuse("float32 only")


@rule(
    family="planted", exactness="rounding", meaning="Integer division truncates.",
    before="Mul(Div(x, $a), $a)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { a = constant float32[] 2 t = Div(x, a) y = Mul(t, a) }",
    near_miss=NEVER,
)
def division_undone(m: Match) -> Outcome:
    return None if m.a.splat == 2 else refuse("not 2")


@rule(
    family="planted", exactness="exact", meaning="The permutations are composed the wrong way round.",
    before="Transpose(Transpose(x, perm=p), perm=q)", after="Transpose(x, perm=r)",
    example="graph opset 17 (x: float32[3, 3, 3]) -> (y) "
            "{ t = Transpose(x, perm=[1, 0, 2]) y = Transpose(t, perm=[1, 0, 2]) }",
    near_miss=NEVER,
)
def permutations_swapped(m: Match) -> Outcome:
    return {"r": tuple(m["q"][axis] for axis in m["p"])}


@rule(
    family="planted", exactness="rounding", meaning="Constants of different signs: infinity times both is NaN.",
    before="Add(Mul(x, $a), Mul(x, $b))", after="Mul(x, c)",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { a = constant float32[] 3 b = constant float32[] -1 "
            "s = Mul(x, a) t = Mul(x, b) y = Add(s, t) }",
    near_miss=NEVER,
)
def factors_of_two_signs(m: Match) -> Outcome:
    return {"c": term("Add", m.a, m.b)}


@rule(
    family="planted", exactness="rounding", meaning="A guard that fails stops the search.",
    before="Add(x, $c)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[1] [-0.0] y = Add(x, c) }",
    near_miss=NEVER,
)
def guard_that_fails(m: Match) -> Outcome:
    return None if m.c.array[0] == 0 and m.c.rank == 1 else refuse("not 0")


@rule(
    family="planted", exactness="exact", meaning="The near miss is none.",
    before="Neg(Neg(x))", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { t = Neg(x) y = Neg(t) }",
    near_miss="graph opset 17 (x: float32[3]) -> (y) { t = Neg(x) y = Neg(t) }",
)
def near_miss_that_fires(m: Match) -> Outcome:
    return None


@rule(
    family="planted", exactness="exact", meaning="The example is none.",
    before="Neg(Neg(x))", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { t = Neg(x) y = Abs(t) }", near_miss=NEVER,
)
def example_that_does_not_fire(m: Match) -> Outcome:
    return None


PLANTED = [value for value in list(globals().values()) if isinstance(value, Rule)]
KINDS = {"near-miss-that-fires": "near miss", "guard-that-fails": "crash", "example-that-does-not-fire": "example"}


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_unsound_rule_is_found(planted: Rule) -> None:
    report = check_rule(planted, instances=INSTANCES, seed=1)
    assert not report.ok, report.text()
    assert report.failures[0].kind == KINDS.get(planted.name, report.failures[0].kind)
    assert "UNSOUND" in report.text() and report.to_dict()["ok"] is False


@rule(
    family="planted", exactness="exact", meaning="So do our kernels, to the bit; ONNX Runtime's do not.",
    before="Softsign(x)", after="Div(x, Add(one, Abs(x)))",
    example="graph opset 17 (x: float32[8, 9]) -> (y) { y = Softsign(x) }", near_miss=NEVER,
)
def softsign_by_hand(m: Match) -> Outcome:
    return {"one": np.ones((), m.x.dtype)} if m.x.dtype == "float32" else refuse("float32 only")


@rule(
    family="planted", exactness="exact", meaning="The smallest integer divided by -1 ends ONNX Runtime's process.",
    before="Div(Neg(x), z)", after="Div(Neg(x), Identity(z))",
    example="graph opset 17 (x: int32[8], z: int32[8]) -> (y) { n = Neg(x) y = Div(n, z) }", near_miss=NEVER,
)
def divided(m: Match) -> Outcome:
    return None


def test_onnx_runtime_is_asked_too_and_may_crash() -> None:
    pytest.importorskip("onnxruntime")
    assert check_rule(softsign_by_hand, 0).ok
    with OnnxRuntime() as other:
        report = check_rule(softsign_by_hand, 0, 0, other)
        assert report.failures[0].kind == "example in ONNX Runtime" and report.checked == 1 and report.elsewhere == 0
        crash = other(parse_graph("graph opset 17 (x: int32[1], z: int32[1]) -> (y) { y = Div(x, z) }"))
        with pytest.raises(ExecutionFailed, match="crashes"):
            crash({"x": np.full(1, -(2**31), np.int32), "z": np.full(1, -1, np.int32)})
        report = check_rule(divided, 0, 0, other)
        assert report.ok and report.elsewhere == 1
        assert "1 in ONNX Runtime" in report.text()


def test_reports_are_reproducible_and_selectable() -> None:
    first, second = (check_all(["neg-neg", "mul-one"], instances=3, seed=5) for _ in range(2))
    assert [report.to_dict() for report in first] == [report.to_dict() for report in second]
    assert {report.name for report in first} == {"neg-neg", "mul-one"}
    with pytest.raises(KeyError, match="no-such-rule"):
        check_all(["no-such-rule"])
