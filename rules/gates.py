"""Gates recognised from their parts: HardSigmoid, HardSwish and Gelu."""

from __future__ import annotations

import math

from .declare import Match, Outcome, Rule, refuse, rule
from .polynomial import polynomial
from .values import COMMON_FLOATS, close, is_number, near, number, rounded, scalar

FAMILY = "elementwise"
_X = "graph opset 17 (x: float32[2, 3]) -> (y)"

# HardSigmoid and HardSwish ---------------------------------------------------------------------------------


def _hard_sigmoid(m: Match, alpha: float | None, beta: float | None) -> Outcome:
    if m.x.dtype not in COMMON_FLOATS:
        return refuse(f"few runtimes have HardSigmoid for {m.x.dtype}")
    if not alpha or beta is None or not 1e-3 < abs(alpha) < 1e3 or abs(beta) > 1e3:
        return refuse("slope and offset must be numbers of moderate size")
    return {"alpha": rounded("float32", alpha), "beta": rounded("float32", beta)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="clip(a x + b, 0, 1) is HardSigmoid.",
    before="Clip(Add(Mul(x, $a), $b), min=0, max=1)", after="HardSigmoid(x, alpha=alpha, beta=beta)",
    example=_X + " { a = constant float32[] 0.2 b = constant float32[] 0.5 t = Mul(x, a) s = Add(t, b) "
                 "y = Clip(s, min=0, max=1) }",
    near_miss=_X + " { a = constant float32[] 0.2 b = constant float32[] 0.5 t = Mul(x, a) s = Add(t, b) "
                   "y = Clip(s, min=0, max=2) }",
)
def hard_sigmoid(m: Match) -> Outcome:
    return _hard_sigmoid(m, number(m.a), number(m.b))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="clip((x + b) a, 0, 1) is HardSigmoid.",
    before="Clip(Mul(Add(x, $b), $a), min=0, max=1)", after="HardSigmoid(x, alpha=alpha, beta=beta)",
    example=_X + " { a = constant float32[] 0.16666667 b = constant float32[] 3 s = Add(x, b) t = Mul(s, a) "
                 "y = Clip(t, min=0, max=1) }",
    near_miss=_X + " { a = constant float32[3] [1, 2, 3] b = constant float32[] 3 s = Add(x, b) t = Mul(s, a) "
                   "y = Clip(t, min=0, max=1) }",
)
def hard_sigmoid_shift_first(m: Match) -> Outcome:
    alpha, shift = number(m.a), number(m.b)
    return _hard_sigmoid(m, alpha, None if alpha is None or shift is None else alpha * shift)


def _six(m: Match) -> Outcome:
    """clip(x + b, 0, h) times a, where a = 1 / h."""
    high, shift, factor = m["h"], number(m.b), number(m.a)
    if not isinstance(high, (int, float)) or not high > 0 or shift is None or factor is None:
        return refuse("the bound, the shift and the factor must be numbers")
    if not close(factor * high, 1.0, m.x.dtype, 2.0):
        return refuse("the factor is not one over the upper bound")
    return _hard_sigmoid(m, 1.0 / high, shift / high)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="relu6(x + 3) / 6 as a product is HardSigmoid with the slope 1/6.",
    before="Mul(Clip(Add(x, $b), min=0, max=h), $a)", after="HardSigmoid(x, alpha=alpha, beta=beta)",
    example=_X + " { b = constant float32[] 3 a = constant float32[] 0.16666667 s = Add(x, b) "
                 "t = Clip(s, min=0, max=6) y = Mul(t, a) }",
    near_miss=_X + " { b = constant float32[] 3 a = constant float32[] 0.2 s = Add(x, b) "
                   "t = Clip(s, min=0, max=6) y = Mul(t, a) }",
)
def hard_sigmoid_six(m: Match) -> Outcome:
    return _six(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="relu6(x + 3) / 6 is HardSigmoid with the slope 1/6.",
    before="Div(Clip(Add(x, $b), min=0, max=h), $a)", after="HardSigmoid(x, alpha=alpha, beta=beta)",
    example=_X + " { b = constant float32[] 3 a = constant float32[] 6 s = Add(x, b) "
                 "t = Clip(s, min=0, max=6) y = Div(t, a) }",
    near_miss=_X + " { b = constant float32[] 3 a = constant float32[] 3 s = Add(x, b) "
                   "t = Clip(s, min=0, max=6) y = Div(t, a) }",
)
def hard_sigmoid_six_quotient(m: Match) -> Outcome:
    high, shift = m["h"], number(m.b)
    if not isinstance(high, (int, float)) or not high > 0 or shift is None or number(m.a) != high:
        return refuse("the divisor is not the upper bound")
    return _hard_sigmoid(m, 1.0 / high, shift / high)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="HardSigmoid is a product, a sum and a Clip (faster kernels in some runtimes).",
    before="HardSigmoid(x, alpha=alpha, beta=beta)", after="Clip(Add(Mul(x, a), b), min=0.0, max=1.0)",
    example=_X + " { y = HardSigmoid(x) }",
    near_miss=_X + " { y = HardSigmoid(x, alpha=0.0) }",
)
def hard_sigmoid_parts(m: Match) -> Outcome:
    alpha, beta = m["alpha"], m["beta"]
    if not 1e-3 < abs(alpha) < 1e3 or not abs(beta) < 1e3:
        return refuse("slope and offset must be of moderate size")
    if m.x.dtype not in ("float32", "float64") and any(
            rounded(m.x.dtype, each) != rounded("float32", each) for each in (alpha, beta)):
        return refuse(f"slope or offset would be rounded to {m.x.dtype}")
    return {"a": scalar(m.x.dtype, alpha), "b": scalar(m.x.dtype, beta)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x times HardSigmoid with the slope 1/6 is HardSwish.",
    before="Mul(x, HardSigmoid(x, alpha=a, beta=0.5))", after="HardSwish(x)",
    example=_X + " { t = HardSigmoid(x, alpha=0.16666667, beta=0.5) y = Mul(x, t) }",
    near_miss=_X + " { t = HardSigmoid(x, alpha=0.2, beta=0.5) y = Mul(x, t) }",
)
def hard_swish(m: Match) -> Outcome:
    if m.x.dtype not in COMMON_FLOATS:
        return refuse(f"few runtimes have HardSwish for {m.x.dtype}")
    return None if close(m["a"], 1 / 6, "float32", 2.0) else refuse("the slope is not 1/6")


def _hard_swish_six(name: str, before: str, factor: float, body: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding",
        meaning="x relu6(x + 3) / 6 is x times HardSigmoid.",
        before=before, after="Mul(x, HardSigmoid(x, alpha=alpha, beta=beta))",
        example=_X + f" {{ b = constant float32[] 3 a = constant float32[] {factor} s = Add(x, b) "
                     f"t = Clip(s, min=0, max=6) u = Mul(t, x) {body} }}",
        near_miss=_X + f" {{ b = constant float32[] 3 a = constant float32[] {factor} s = Add(x, b) "
                       f"t = Clip(s, min=0, max=5) u = Mul(t, x) {body} }}",
    )
    def guard(m: Match) -> Outcome:
        if not near(m.a, factor) or m["h"] != 6 or not is_number(m.b, 3.0):
            return refuse("the constants are not 3, 6 and 1/6")
        return _hard_sigmoid(m, 1 / 6, 0.5)

    return guard.renamed(name)


HARD_SWISH = [
    _hard_swish_six("hard-swish-six", "Mul(Mul(x, Clip(Add(x, $b), min=0, max=h)), $a)", 0.16666667, "y = Mul(u, a)"),
    _hard_swish_six("hard-swish-six-quotient", "Div(Mul(x, Clip(Add(x, $b), min=0, max=h)), $a)", 6,
                    "y = Div(u, a)"),
    _hard_swish_six("hard-swish-six-scaled-first", "Mul(Mul(x, $a), Clip(Add(x, $b), min=0, max=h))", 0.16666667,
                    "v = Mul(x, a) y = Mul(v, t)"),
]

# Sigmoid and Elu from other functions ----------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding",
    meaning="(tanh(x / 2) + 1) / 2 is Sigmoid.",
    before="Mul(Add(Tanh(Mul(x, $h)), $one), $k)", after="Sigmoid(x)",
    example=_X + " { h = constant float32[] 0.5 one = constant float32[] 1 u = Mul(x, h) t = Tanh(u) s = Add(t, one) "
                 "y = Mul(s, h) }",
    near_miss=_X + " { h = constant float32[] 0.25 one = constant float32[] 1 u = Mul(x, h) t = Tanh(u) "
                   "s = Add(t, one) y = Mul(s, h) }",
)
def sigmoid_from_tanh(m: Match) -> Outcome:
    if not (is_number(m.h, 0.5) and is_number(m.k, 0.5) and is_number(m.one, 1.0)):
        return refuse("the constants are not 1/2, 1 and 1/2")
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="tanh(x / 2) / 2 + 1/2 is Sigmoid.",
    before="Add(Mul(Tanh(Mul(x, $h)), $k), $c)", after="Sigmoid(x)",
    example=_X + " { h = constant float32[] 0.5 u = Mul(x, h) t = Tanh(u) s = Mul(t, h) y = Add(s, h) }",
    near_miss=_X + " { h = constant float32[] 0.5 u = Mul(x, h) t = Tanh(u) s = Mul(t, h) y = Sub(s, h) }",
)
def sigmoid_from_half_tanh(m: Match) -> Outcome:
    if not (is_number(m.h, 0.5) and is_number(m.k, 0.5) and is_number(m.c, 0.5)):
        return refuse("the constants are not all 1/2")
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A choice between x and a (exp(x) - 1) by the sign of x is Elu (NaN stays NaN).",
    before="Where(Greater(x, $z), x, Mul(Sub(Exp(x), $one), $a))", after="Elu(x, alpha=alpha)",
    example=_X + " { z = constant float32[] 0 one = constant float32[] 1 a = constant float32[] 1.5 e = Exp(x) "
                 "s = Sub(e, one) t = Mul(s, a) c = Greater(x, z) y = Where(c, x, t) }",
    near_miss=_X + " { z = constant float32[] 0 one = constant float32[] 2 a = constant float32[] 1.5 e = Exp(x) "
                   "s = Sub(e, one) t = Mul(s, a) c = Greater(x, z) y = Where(c, x, t) }",
)
def elu_where(m: Match) -> Outcome:
    alpha = number(m.a)
    if m.x.dtype not in COMMON_FLOATS or alpha is None or not 1e-3 < alpha < 1e3:
        return refuse("the factor is not one positive number of moderate size")
    if not (is_number(m.z, 0.0) and is_number(m.one, 1.0)):
        return refuse("the constants are not 0 and 1")
    return {"alpha": rounded("float32", alpha)}


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="A choice between x and exp(x) - 1 by the sign of x is Elu (NaN stays NaN).",
    before="Where(Greater(x, $z), x, Sub(Exp(x), $one))", after="Elu(x, alpha=1.0)",
    example=_X + " { z = constant float32[] 0 one = constant float32[] 1 e = Exp(x) s = Sub(e, one) "
                 "c = Greater(x, z) y = Where(c, x, s) }",
    near_miss=_X + " { z = constant float32[] 0 one = constant float32[] 2 e = Exp(x) s = Sub(e, one) "
                   "c = Greater(x, z) y = Where(c, x, s) }",
)
def elu_where_plain(m: Match) -> Outcome:
    if m.x.dtype not in COMMON_FLOATS or not (is_number(m.z, 0.0) and is_number(m.one, 1.0)):
        return refuse("the constants are not 0 and 1")
    return None


# Gelu ------------------------------------------------------------------------------------------------------

_ROOT = math.sqrt(2 / math.pi)
_GELU = {"erf": ({1: math.sqrt(0.5)}, "none"), "tanh": ({1: _ROOT, 3: _ROOT * 0.044715}, "tanh")}


def _gelu(name: str, function: str, form: str, factor: float, body: str) -> Rule:
    """A spelling of Gelu: `form` holds `F` for Erf or Tanh, `E` for it plus 1, and `$h` for the factor."""
    wanted, approximate = _GELU[function]
    op = function.capitalize()
    argument = ("r = constant float32[] 0.70710677 u = Mul(x, r)" if function == "erf" else
                "k = constant float32[] 0.7978846 d = constant float32[] 0.044715 q = Mul(x, x) v = Mul(q, x) "
                "w = Mul(d, v) p = Add(x, w) u = Mul(k, p)")
    text = (f"graph opset 20 (x: float32[2, 3]) -> (y) {{ one = constant float32[] 1 h = constant float32[] {factor} "
            f"{argument} e = {op}(u) g = Add(e, one) {body} }}")

    @rule(
        family=FAMILY, exactness="rounding",
        meaning=f"Gelu written out with {op}.",
        before=form.replace("E", "Add(F, $one)").replace("F", f"{op}(u)"), after="Gelu(x, approximate=how)",
        example=text, near_miss=text.replace("0.70710677", "0.7").replace("0.044715", "0.05"),
    )
    def guard(m: Match) -> Outcome:
        if m.x.dtype not in COMMON_FLOATS:
            return refuse(f"few runtimes have Gelu for {m.x.dtype}")
        if ("one" in m.bindings and not is_number(m.one, 1.0)) or not near(m.h, factor):
            return refuse("a constant differs from that of Gelu")
        found = polynomial(m, m.u, m.x)
        if found is None or set(found) != set(wanted):
            return refuse(f"the argument of {op} is not that of Gelu")
        if not all(close(found[power], value, m.x.dtype, 4.0) for power, value in wanted.items()):
            return refuse(f"a constant in the argument of {op} differs from that of Gelu")
        return {"how": approximate}

    return guard.renamed(name)


def _gelus(function: str) -> list[Rule]:
    names = [("half-last", "Mul(Mul(x, E), $h)", 0.5, "b = Mul(x, g) y = Mul(b, h)"),
             ("half-inside", "Mul(x, Mul(E, $h))", 0.5, "b = Mul(g, h) y = Mul(x, b)"),
             ("half-first", "Mul(Mul(x, $h), E)", 0.5, "b = Mul(x, h) y = Mul(b, g)"),
             ("halved-last", "Div(Mul(x, E), $h)", 2, "b = Mul(x, g) y = Div(b, h)"),
             ("halved-inside", "Mul(x, Div(E, $h))", 2, "b = Div(g, h) y = Mul(x, b)"),
             ("halved-first", "Mul(Div(x, $h), E)", 2, "b = Div(x, h) y = Mul(b, g)"),
             ("half-spread", "Mul(x, Add(Mul(F, $h), $h))", 0.5, "f = Mul(e, h) b = Add(f, h) y = Mul(x, b)")]
    return [_gelu(f"gelu-{function}-{name}", function, form, factor, body) for name, form, factor, body in names]


GELU_ERF = _gelus("erf")
GELU_TANH = _gelus("tanh")
