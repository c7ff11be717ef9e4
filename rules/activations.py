"""Activations recognised from their parts: Relu, Clip, LeakyRelu, Sigmoid, HardSwish, Gelu and their like."""

from __future__ import annotations

import math

from graphs.dtypes import INTEGERS

from .declare import Match, Outcome, Refusal, Rule, refuse, rule
from .values import COMMON_FLOATS, fits_into, is_float, is_number, moderate, number, rounded, scalar

FAMILY = "elementwise"
_X = "graph opset 17 (x: float32[2, 3]) -> (y)"


def _attribute_number(value: object, name: str) -> float | Refusal | None:
    """A bound of Clip: None where it is not given."""
    if value is None:
        return None
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return refuse(f"the bound {name} is not known")


def _bounds(m: Match, low: str = "lo", high: str = "hi") -> tuple[float | None, float | None] | Refusal:
    found = _attribute_number(m[low], low), _attribute_number(m[high], high)
    for each in found:
        if isinstance(each, Refusal):
            return each
        if each is not None and m.x.dtype in INTEGERS and rounded(m.x.dtype, each) != each:
            return refuse(f"a bound is no {m.x.dtype}")
    first, second = found
    if isinstance(first, (int, float)) and isinstance(second, (int, float)) and first > second:
        return refuse("the bounds are the wrong way round")
    return first, second  # type: ignore[return-value]


def _kept(value: float | None) -> bool:
    """The number stays what it is as an attribute."""
    return value is None or rounded("float32", value) == value


# Relu and Clip ---------------------------------------------------------------------------------------------


def _at_least_zero(m: Match) -> Outcome:
    bounds = _bounds(m)
    if isinstance(bounds, Refusal):
        return bounds
    low, high = bounds
    if high is not None and high < 0:
        return refuse("the upper bound is below 0")
    return {"low": max(low, 0) if low is not None else 0}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Clip cuts at 0 itself, so a Relu before it moves into its lower bound.",
    before="Clip(Relu(x), min=lo, max=hi)", after="Clip(x, min=low, max=hi)",
    example=_X + " { t = Relu(x) y = Clip(t, min=0, max=6) }",
    near_miss=_X + " { t = Relu(x) y = Clip(t, min=-3, max=-1) }",
)
def relu_then_clip(m: Match) -> Outcome:
    return _at_least_zero(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Relu after a Clip moves into its lower bound.",
    before="Relu(Clip(x, min=lo, max=hi))", after="Clip(x, min=low, max=hi)",
    example=_X + " { t = Clip(x, max=6) y = Relu(t) }",
    near_miss=_X + " { t = Clip(x, max=-1) y = Relu(t) }",
)
def clip_then_relu(m: Match) -> Outcome:
    return _at_least_zero(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Two Clips in a row are one.",
    before="Clip(Clip(x, min=lo, max=hi), min=lo2, max=hi2)", after="Clip(x, min=low, max=high)",
    example=_X + " { t = Clip(x, min=-1, max=6) y = Clip(t, min=0, max=10) }",
    near_miss=_X + " { t = Clip(x, min=1, max=-1) y = Clip(t, min=0, max=10) }",
)
def clip_clip(m: Match) -> Outcome:
    inner, outer = _bounds(m), _bounds(m, "lo2", "hi2")
    if isinstance(inner, Refusal):
        return inner
    if isinstance(outer, Refusal):
        return outer

    def clamp(value: float | None, other: float | None) -> float | None:
        if value is None:
            return other
        value = value if outer[0] is None else max(value, outer[0])
        return value if outer[1] is None else min(value, outer[1])

    return {"low": clamp(inner[0], outer[0]), "high": clamp(inner[1], outer[1])}


def _between(m: Match) -> Outcome:
    low, high = number(m.a), number(m.b)
    if low is None or high is None or low > high:
        return refuse("the bounds must be two numbers in order")
    if not (_kept(low) and _kept(high)):
        return refuse("the bounds are no float32 numbers")
    if m.opset < 12 and m.x.dtype != "float32":
        return refuse("before opset 12 runtimes have Clip for float32 only")
    if not is_float(m.x):
        low, high = int(low), int(high)
    return {"low": low, "high": high}


def _min_max(name: str, before: str, example: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", zero_sign=True,  # Max may make 0.0 of -0.0, which Clip keeps
        meaning="A maximum and a minimum with constants are a Clip (NaN stays NaN in both).",
        before=before, after="Clip(x, min=low, max=high)",
        example="graph opset 17 (x: int64[2, 3]) -> (y) "
                "{ a = constant int64[] 0 b = constant int64[] 19 " + example + " }",
        near_miss="graph opset 17 (x: float32[2, 3]) -> (y) "
                  "{ a = constant float32[] 2 b = constant float32[] 1 " + example + " }",
    )
    def guard(m: Match) -> Outcome:
        return _between(m)

    return guard.renamed(name)


MIN_MAX = [
    _min_max("min-of-max", "Min(Max(x, $a), $b)", "t = Max(x, a) y = Min(t, b)"),
    _min_max("max-of-min", "Max(Min(x, $b), $a)", "t = Min(x, b) y = Max(t, a)"),
]


def _constant_last(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", zero_sign=True,
        meaning=f"{op} takes its operands in any order (they differ at most in the sign of zero).",
        before=f"{op}($c, x)", after=f"{op}(x, c)",
        example=_X + f" {{ c = constant float32[] 1 y = {op}(c, x) }}",
        near_miss=_X + f" {{ c = constant float32[] 1 y = {op}(x, c) }}",
    )
    def guard(m: Match) -> Outcome:
        return refuse("both are constants") if m.x.is_constant else None

    return guard.renamed(f"{op.lower()}-constant-last")


CONSTANT_LAST = [_constant_last("Max"), _constant_last("Min")]


def _zero(m: Match) -> Outcome:
    if not is_float(m.x):
        return refuse("Relu is for floats here")
    return None if is_number(m.z, 0.0) else refuse("the constant is not 0 everywhere")


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,  # Max may make 0.0 of -0.0, which Relu keeps
    meaning="The maximum with 0 is Relu (NaN stays NaN in both).",
    before="Max(x, $z)", after="Relu(x)",
    example=_X + " { z = constant float32[] 0 y = Max(x, z) }",
    near_miss=_X + " { z = constant float32[] 0.5 y = Max(x, z) }",
)
def max_zero(m: Match) -> Outcome:
    return _zero(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Relu cut at a constant is a Clip.",
    before="Min(Relu(x), $b)", after="Clip(x, min=low, max=high)",
    example=_X + " { b = constant float32[] 6 t = Relu(x) y = Min(t, b) }",
    near_miss=_X + " { b = constant float32[] -6 t = Relu(x) y = Min(t, b) }",
)
def min_of_relu(m: Match) -> Outcome:
    high = number(m.b)
    if high is None or high < 0 or not _kept(high):
        return refuse("the bound must be a float32 number of at least 0")
    if m.opset < 12 and m.x.dtype != "float32":
        return refuse("before opset 12 runtimes have Clip for float32 only")
    return {"low": 0, "high": high if is_float(m.x) else int(high)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Zero where a value is negative is Relu; NaN is not below 0 and stays.",
    before="Where(Less(x, $z), $w, x)", after="Relu(x)",
    example=_X + " { z = constant float32[] 0 c = Less(x, z) y = Where(c, z, x) }",
    near_miss=_X + " { z = constant float32[] 0 c = Greater(x, z) y = Where(c, x, z) }",
)
def where_below_zero(m: Match) -> Outcome:
    return _zero(m) if is_number(m.w, 0.0) else refuse("the other value is not 0")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The larger of x and -x is |x|.",
    before="Max(x, Neg(x))", after="Abs(x)",
    example="graph opset 17 (x: float64[n, 3]) -> (y) { t = Neg(x) y = Max(x, t) }",
    near_miss="graph opset 17 (x: float64[n, 3]) -> (y) { t = Neg(x) y = Min(x, t) }",
)
def max_neg(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The larger of -x and x is |x|.",
    before="Max(Neg(x), x)", after="Abs(x)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { t = Neg(x) y = Max(t, x) }",
    near_miss="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (y) { t = Neg(x) y = Max(t, z) }",
)
def max_neg_first(m: Match) -> Outcome:
    return None


# LeakyRelu -------------------------------------------------------------------------------------------------


def _alpha(m: Match, upper: float = math.inf, nonzero: bool = True) -> Outcome:
    alpha = number(m.a)
    if alpha is None or m.x.dtype not in COMMON_FLOATS:
        return refuse("the slope must be one float")
    if not _kept(alpha) or (m.opset < 16 and m.x.dtype != "float32"):
        return refuse("the slope is no float32 number, or runtimes have LeakyRelu of this opset for float32 only")
    if alpha > upper or (nonzero and not moderate(m.x.dtype, alpha)):
        return refuse("the slope is not of moderate size")
    return {"alpha": alpha}


def _leaky(name: str, before: str, body: str, miss: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding",
        meaning="A choice between x and a x by the sign of x is LeakyRelu (NaN stays NaN).",
        before=before, after="LeakyRelu(x, alpha=alpha)",
        example=_X + " { z = constant float32[] 0 a = constant float32[] 0.2 s = Mul(x, a) " + body + " }",
        near_miss=_X + " { z = constant float32[] 0 a = constant float32[] 0.2 s = Mul(x, a) " + miss + " }",
    )
    def guard(m: Match) -> Outcome:
        return _alpha(m, nonzero=False) if is_number(m.z, 0.0) else refuse("not a comparison with 0")

    return guard.renamed(name)


LEAKY = [
    _leaky("leaky-where-less", "Where(Less(x, $z), Mul(x, $a), x)", "c = Less(x, z) y = Where(c, s, x)",
           "c = Less(x, a) y = Where(c, s, x)"),
    _leaky("leaky-where-less-equal", "Where(LessOrEqual(x, $z), Mul(x, $a), x)",
           "c = LessOrEqual(x, z) y = Where(c, s, x)", "c = LessOrEqual(x, z) y = Where(c, x, s)"),
    _leaky("leaky-where-greater", "Where(Greater(x, $z), x, Mul(x, $a))", "c = Greater(x, z) y = Where(c, x, s)",
           "c = Greater(x, z) y = Where(c, s, x)"),
    _leaky("leaky-where-greater-equal", "Where(GreaterOrEqual(x, $z), x, Mul(x, $a))",
           "c = GreaterOrEqual(x, z) y = Where(c, x, s)", "c = GreaterOrEqual(x, a) y = Where(c, x, s)"),
    _leaky("leaky-where-greater-flipped", "Where(Greater($z, x), Mul(x, $a), x)",
           "c = Greater(z, x) y = Where(c, s, x)", "c = Greater(a, x) y = Where(c, s, x)"),
]  # fmt: skip


def _leaky_max(name: str, before: str, body: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding",
        meaning="The larger of x and a x is LeakyRelu for a slope between 0 and 1.",
        before=before, after="LeakyRelu(x, alpha=alpha)",
        example=_X + " { a = constant float32[] 0.2 s = Mul(x, a) " + body + " }",
        near_miss=_X + " { a = constant float32[] 1.5 s = Mul(x, a) " + body + " }",
    )
    def guard(m: Match) -> Outcome:
        value = number(m.a)
        return _alpha(m, upper=1.0) if value is not None and value > 0 else refuse("the slope is not positive")

    return guard.renamed(name)


LEAKY_MAX = [_leaky_max("leaky-max", "Max(x, Mul(x, $a))", "y = Max(x, s)"),
             _leaky_max("leaky-max-first", "Max(Mul(x, $a), x)", "y = Max(s, x)")]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="relu(x) - a relu(-x) is LeakyRelu.",
    before="Sub(Relu(x), Mul(Relu(Neg(x)), $a))", after="LeakyRelu(x, alpha=alpha)",
    example=_X + " { a = constant float32[] 0.2 p = Relu(x) n = Neg(x) q = Relu(n) s = Mul(q, a) y = Sub(p, s) }",
    near_miss=_X + " { a = constant float32[3] [0.2, 0.3, 0.4] p = Relu(x) n = Neg(x) q = Relu(n) "
                   "s = Mul(q, a) y = Sub(p, s) }",
)
def leaky_two_relus(m: Match) -> Outcome:
    return _alpha(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="PRelu with one slope for all is LeakyRelu.",
    before="PRelu(x, $a)", after="LeakyRelu(x, alpha=alpha)",
    example=_X + " { a = constant float32[1] [0.25] y = PRelu(x, a) }",
    near_miss=_X + " { a = constant float32[3] [0.25, 0.5, 0.25] y = PRelu(x, a) }",
)
def prelu_one_slope(m: Match) -> Outcome:
    return _alpha(m) if fits_into(m.a.shape, m.x.shape) else refuse("the slope widens x")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="PRelu with slopes between 0 and 1 is the larger of x and the scaled x (faster kernels in some runtimes).",
    before="PRelu(x, $a)", after="Max(x, Mul(x, a))",
    example=_X + " { a = constant float32[3] [0.25, 0.5, 1] y = PRelu(x, a) }",
    near_miss=_X + " { a = constant float32[3] [0.25, 0.5, 1.5] y = PRelu(x, a) }",
)
def prelu_as_max(m: Match) -> Outcome:
    facts = m.a.facts
    if facts is None or facts.low is None or facts.high is None or not (facts.low > 0 and facts.high <= 1):
        return refuse("the slopes are not all above 0 and at most 1")
    return None if is_float(m.x) and fits_into(m.a.shape, m.x.shape) else refuse("no floats, or the slope widens x")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="PRelu is the positive part plus the scaled negative part (faster kernels in some runtimes).",
    before="PRelu(x, $a)", after="Add(Relu(x), Mul(Min(x, zero), a))",
    example=_X + " { a = constant float32[3] [0.25, -0.5, 1.5] y = PRelu(x, a) }",
    near_miss=_X + " { a = constant float32[3] [0.25, inf, 1.5] y = PRelu(x, a) }",
)
def prelu_as_parts(m: Match) -> Outcome:
    if not is_float(m.x) or m.a.facts is None or not m.a.facts.finite or not fits_into(m.a.shape, m.x.shape):
        return refuse("the slopes must be finite floats")
    return {"zero": scalar(m.x.dtype, 0)}


# Sigmoid, Softsign, Softplus -------------------------------------------------------------------------------


def _one(m: Match) -> Outcome:
    return None if is_number(m.c, 1.0) else refuse("the constant is not 1 everywhere")


def _common_one(m: Match) -> Outcome:
    return _one(m) if m.x.dtype in COMMON_FLOATS else refuse(f"few runtimes have this operator for {m.x.dtype}")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="1 / (1 + exp(-x)) is Sigmoid, infinities included.",
    before="Reciprocal(Add(Exp(Neg(x)), $c))", after="Sigmoid(x)",
    example=_X + " { c = constant float32[] 1 n = Neg(x) e = Exp(n) s = Add(e, c) y = Reciprocal(s) }",
    near_miss=_X + " { c = constant float32[] 1 e = Exp(x) s = Add(e, c) y = Reciprocal(s) }",
)
def sigmoid_reciprocal(m: Match) -> Outcome:
    return _one(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="1 / (1 + exp(-x)) is Sigmoid, infinities included.",
    before="Div($d, Add(Exp(Neg(x)), $c))", after="Sigmoid(x)",
    example=_X + " { c = constant float32[] 1 n = Neg(x) e = Exp(n) s = Add(c, e) y = Div(c, s) }",
    near_miss=_X + " { c = constant float32[] 1 d = constant float32[] 2 n = Neg(x) e = Exp(n) s = Add(c, e) "
                   "y = Div(d, s) }",
)
def sigmoid_quotient(m: Match) -> Outcome:
    return _one(m) if is_number(m.d, 1.0) else refuse("the numerator is not 1 everywhere")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x / (1 + exp(-x)) is x times Sigmoid (SiLU).",
    before="Div(x, Add(Exp(Neg(x)), $c))", after="Mul(x, Sigmoid(x))",
    example=_X + " { c = constant float32[] 1 n = Neg(x) e = Exp(n) s = Add(c, e) y = Div(x, s) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[2, 3]) -> (y) "
              "{ c = constant float32[] 1 n = Neg(z) e = Exp(n) s = Add(c, e) y = Div(x, s) }",
)
def silu_quotient(m: Match) -> Outcome:
    return _one(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="2 sigmoid(2 x) - 1 is Tanh.",
    before="Sub(Mul(Sigmoid(Mul(x, $a)), $b), $c)", after="Tanh(x)",
    example=_X + " { a = constant float32[] 2 c = constant float32[] 1 t = Mul(x, a) s = Sigmoid(t) u = Mul(s, a) "
                 "y = Sub(u, c) }",
    near_miss=_X + " { a = constant float32[] 3 c = constant float32[] 1 t = Mul(x, a) s = Sigmoid(t) u = Mul(s, a) "
                   "y = Sub(u, c) }",
)
def tanh_from_sigmoid(m: Match) -> Outcome:
    return _one(m) if is_number(m.a, 2.0) and is_number(m.b, 2.0) else refuse("the factors are not 2")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x / (1 + |x|) is Softsign; infinity gives NaN in both.",
    before="Div(x, Add(Abs(x), $c))", after="Softsign(x)",
    example=_X + " { c = constant float32[] 1 a = Abs(x) s = Add(c, a) y = Div(x, s) }",
    near_miss="graph opset 17 (x: float64[2, 3]) -> (y) { c = constant float64[] 1 a = Abs(x) s = Add(c, a) "
              "y = Div(x, s) }",
)
def softsign(m: Match) -> Outcome:
    return _common_one(m)


@rule(
    family=FAMILY, exactness="finite",
    meaning="log(1 + exp(x)) is Softplus, which does not overflow.",
    before="Log(Add(Exp(x), $c))", after="Softplus(x)",
    example=_X + " { c = constant float32[] 1 e = Exp(x) s = Add(e, c) y = Log(s) }",
    near_miss=_X + " { c = constant float32[] 2 e = Exp(x) s = Add(e, c) y = Log(s) }",
)
def softplus(m: Match) -> Outcome:
    return _common_one(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x tanh(softplus(x)) is Mish.",
    before="Mul(x, Tanh(Softplus(x)))", after="Mish(x)",
    example="graph opset 18 (x: float32[2, 3]) -> (y) { s = Softplus(x) t = Tanh(s) y = Mul(x, t) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { s = Softplus(x) t = Tanh(s) y = Mul(x, t) }",
)
def mish(m: Match) -> Outcome:
    return None if m.x.dtype in COMMON_FLOATS else refuse(f"few runtimes have Mish for {m.x.dtype}")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x tanh(log(1 + exp(x))) is Mish: where exp overflows, tanh is 1.",
    before="Mul(x, Tanh(Log(Add(Exp(x), $c))))", after="Mish(x)",
    example="graph opset 18 (x: float32[2, 3]) -> (y) { c = constant float32[] 1 e = Exp(x) s = Add(c, e) "
            "l = Log(s) t = Tanh(l) y = Mul(x, t) }",
    near_miss="graph opset 18 (x: float32[2, 3]) -> (y) { c = constant float32[] 2 e = Exp(x) s = Add(c, e) "
              "l = Log(s) t = Tanh(l) y = Mul(x, t) }",
)
def mish_parts(m: Match) -> Outcome:
    return _common_one(m)
