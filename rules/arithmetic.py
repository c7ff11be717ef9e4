"""Arithmetic rules: powers, chains of constants, negations, factors, and casts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.dtypes import FLOATS, INTEGERS, SIGNED, numpy_dtype

from .declare import Leaf, Match, Operand, Outcome, Refusal, Rule, refuse, rule, term
from .values import (
    fits_into,
    fold,
    is_float,
    is_integer,
    is_number,
    moderate,
    moderate_constant,
    nonnegative,
    number,
    scalar,
    sizes,
)  # fmt: skip

FAMILY = "elementwise"
_HEAD = "graph opset 17 (x: float32[2, 3]) -> (y)"


def _float_power(m: Match, exponent: float) -> Refusal | None:
    if not is_float(m.x):
        return refuse("integer powers go through floats in some runtimes")
    return None if is_number(m.c, exponent) else refuse(f"the exponent is not {exponent} everywhere")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A square is a product.",
    before="Pow(x, $c)", after="Mul(x, x)",
    example=_HEAD + " { c = constant float32[] 2 y = Pow(x, c) }",
    near_miss="graph opset 17 (x: float32[3]) -> (y) { c = constant float32[2, 1] [2, 2] y = Pow(x, c) }",
)
def pow_two(m: Match) -> Outcome:
    return _float_power(m, 2.0)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A third power is two products.",
    before="Pow(x, $c)", after="Mul(Mul(x, x), x)",
    example=_HEAD + " { c = constant float32[] 3 y = Pow(x, c) }",
    near_miss=_HEAD + " { c = constant float32[] 3.5 y = Pow(x, c) }",
)
def pow_three(m: Match) -> Outcome:
    return _float_power(m, 3.0)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A fourth power is a square squared.",
    before="Pow(x, $c)",
    example="graph opset 17 (x: float64[n]) -> (y) { c = constant float64[1] [4] y = Pow(x, c) }",
    near_miss=_HEAD + " { c = constant float32[] -4 y = Pow(x, c) }",
)
def pow_four(m: Match) -> Outcome:
    square = term("Mul", m.x, m.x)
    return _float_power(m, 4.0) or term("Mul", square, square)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The power -1 is the reciprocal.",
    before="Pow(x, $c)", after="Reciprocal(x)",
    example=_HEAD + " { c = constant float32[] -1 y = Pow(x, c) }",
    near_miss="graph opset 17 (x: int32[2, 3]) -> (y) { c = constant int32[] -1 y = Pow(x, c) }",
)
def pow_minus_one(m: Match) -> Outcome:
    return _float_power(m, -1.0)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The power 1/2 is the root where the value is never negative (they differ at minus infinity).",
    before="Pow(x, $c)", after="Sqrt(x)",
    example=_HEAD + " { c = constant float32[] 0.5 t = Abs(x) y = Pow(t, c) }",
    near_miss=_HEAD + " { c = constant float32[] 0.5 y = Pow(x, c) }",
)
def pow_half(m: Match) -> Outcome:
    view = nonnegative(m.x)
    if view is None:
        return refuse("nothing shows that the value is never negative")
    m.use(view)
    return _float_power(m, 0.5)


@rule(
    family=FAMILY, exactness="finite",
    meaning="The power 1/2 is the root of finite values.",
    before="Pow(x, $c)", after="Sqrt(x)",
    example=_HEAD + " { c = constant float32[] 0.5 y = Pow(x, c) }",
    near_miss=_HEAD + " { c = constant float32[] -0.5 y = Pow(x, c) }",
)
def pow_half_finite(m: Match) -> Outcome:
    return _float_power(m, 0.5)


# Chains of constants ---------------------------------------------------------------------------------------


def _joinable(m: Match, product: bool) -> Refusal | None:
    """Whether constants a and b may be joined: they do not widen each other, and nothing overflows."""
    a, b = m.a, m.b
    if not (fits_into(a.shape, b.shape) or fits_into(b.shape, a.shape)):
        return refuse("the joined constant would be larger than either")
    if is_integer(m.x):
        return None if product else refuse("integer division truncates")
    if not is_float(m.x):
        return refuse(f"no arithmetic of {m.x.dtype}")
    return None


def _scales(m: Match, quotient: Callable[[float, float], float], integers: bool = False) -> Refusal | None:
    problem = _joinable(m, integers)
    if problem is not None or is_integer(m.x):
        return problem
    a, b = sizes(m.a), sizes(m.b)
    if a is None or b is None:
        return refuse("the elements of the constants are not known")
    ends = [quotient(one, other) for one in a for other in b if one and other]
    if not moderate(m.x.dtype, *a, *b, *ends):
        return refuse("the joined constant could hide or make an overflow")
    return None


def _level(operand: Operand) -> float:
    """Root mean square of a constant whose elements are known."""
    assert operand.array is not None
    return float(np.sqrt(np.mean(np.square(operand.array, dtype=np.float64)))) if operand.array.size else 0.0


def _shifts(m: Match, sign: int) -> Refusal | None:
    problem = _joinable(m, True)
    if problem is not None or is_integer(m.x):
        return problem
    a, b = sizes(m.a), sizes(m.b)
    if a is None or b is None:
        return refuse("the elements of the constants are not known")
    if m.x.dtype not in _MILD:
        return refuse(f"sums of {m.x.dtype} constants lose too much")
    if max(*a, *b) > _MILD[m.x.dtype]:
        return refuse("the constants are so large that adding them one by one loses the other operand")
    less, more = sorted((a[1], b[1]))
    if 0 < less * _SAME_SIZE < more and not (a[0] == a[1] and b[0] == b[1] and _adds_exactly(m.x.dtype, less, more)):
        return refuse("the digits of one constant would be lost in the other")
    if m.a.array is not None and m.b.array is not None:
        left = np.asarray(m.a.array, np.float64) + sign * np.asarray(m.b.array, np.float64)
        if left.size and np.sqrt(np.mean(left * left)) * _CANCELLED < max(_level(m.a), _level(m.b)):
            return refuse("the constants cancel: a small x shows that it was rounded in between")
    return None


def _adds_exactly(dtype: str, less: float, more: float) -> bool:
    kind = numpy_dtype(dtype).type
    return all(float(kind(more) + kind(each)) == more + each for each in (less, -less))


# An x near one constant would show the rounding of both together, relative to the other: 1e-5 in (x + 1) - 1e-5.
_SAME_SIZE = 512.0
# As in (x + 2) - 2, which has lost the digits of an x of 0.001.
_CANCELLED = 8.0
_MILD = {"float16": 64.0, "float32": 2.0**16, "float64": 2.0**24}


def _chain(name: str, before: str, after: str, joined: Callable[[Match], Leaf],
           check: Callable[[Match], Refusal | None], example: str, near_miss: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", meaning="Two constants in a row are one.",
        before=before, after=after, example=example, near_miss=near_miss,
    )
    def guard(m: Match) -> Outcome:
        problem = check(m)
        return problem if problem is not None else {"c": joined(m)}

    return guard.renamed(name)


def _two(first: str, second: str, a: str = "3", b: str = "0.5", dtype: str = "float32") -> str:
    return (f"graph opset 17 (x: {dtype}[2, 3]) -> (y) {{ a = constant {dtype}[] {a} b = constant {dtype}[] {b} "
            f"t = {first} y = {second} }}")


_PRODUCT, _QUOTIENT = (lambda a, b: a * b), (lambda a, b: a / b)
CHAINS = [
    _chain("mul-mul", "Mul(Mul(x, $a), $b)", "Mul(x, c)", lambda m: fold("Mul", m.a, m.b),
           lambda m: _scales(m, _PRODUCT, integers=True), _two("Mul(x, a)", "Mul(b, t)"),
           _two("Mul(x, a)", "Mul(t, b)", "1e30", "1e-30")),
    _chain("mul-div", "Div(Mul(x, $a), $b)", "Mul(x, c)", lambda m: fold("Div", m.a, m.b),
           lambda m: _scales(m, _QUOTIENT), _two("Mul(x, a)", "Div(t, b)"),
           _two("Mul(x, a)", "Div(t, b)", "3", "2", "int64")),
    _chain("div-mul", "Mul(Div(x, $a), $b)", "Mul(x, c)", lambda m: fold("Div", m.b, m.a),
           lambda m: _scales(m, _QUOTIENT), _two("Div(x, a)", "Mul(t, b)"),
           _two("Div(x, a)", "Mul(t, b)", "2", "2", "int32")),
    _chain("div-div", "Div(Div(x, $a), $b)", "Div(x, c)", lambda m: fold("Mul", m.a, m.b),
           lambda m: _scales(m, _PRODUCT), _two("Div(x, a)", "Div(t, b)", "2", "4", "float16"),
           _two("Div(x, a)", "Div(t, b)", "1e-30", "1e-30")),
    _chain("add-add", "Add(Add(x, $a), $b)", "Add(x, c)", lambda m: fold("Add", m.a, m.b), lambda m: _shifts(m, 1),
           _two("Add(x, a)", "Add(b, t)"), _two("Add(x, a)", "Add(t, b)", "3e38", "3e38")),
    _chain("add-sub", "Sub(Add(x, $a), $b)", "Add(x, c)", lambda m: fold("Sub", m.a, m.b), lambda m: _shifts(m, -1),
           _two("Add(x, a)", "Sub(t, b)"), _two("Add(x, a)", "Sub(b, t)")),
    _chain("sub-add", "Add(Sub(x, $a), $b)", "Add(x, c)", lambda m: fold("Sub", m.b, m.a), lambda m: _shifts(m, -1),
           _two("Sub(x, a)", "Add(t, b)"), _two("Sub(a, x)", "Mul(t, b)")),
    _chain("sub-sub", "Sub(Sub(x, $a), $b)", "Sub(x, c)", lambda m: fold("Add", m.a, m.b), lambda m: _shifts(m, 1),
           _two("Sub(x, a)", "Sub(t, b)"), _two("Sub(x, a)", "Sub(t, b)", "-3e38", "-3e38")),
    _chain("rsub-add", "Add(Sub($a, x), $b)", "Sub(c, x)", lambda m: fold("Add", m.a, m.b), lambda m: _shifts(m, 1),
           _two("Sub(a, x)", "Add(t, b)"), _two("Sub(a, x)", "Add(t, b)", "3e38", "3e38")),
    _chain("rdiv-mul", "Mul(Div($a, x), $b)", "Div(c, x)", lambda m: fold("Mul", m.a, m.b),
           lambda m: _scales(m, _PRODUCT), _two("Div(a, x)", "Mul(t, b)"),
           _two("Div(a, x)", "Mul(t, b)", "3", "2", "int64")),
    _chain("rdiv-div", "Div(Div($a, x), $b)", "Div(c, x)", lambda m: fold("Div", m.a, m.b),
           lambda m: _scales(m, _QUOTIENT), _two("Div(a, x)", "Div(t, b)"),
           _two("Div(a, x)", "Div(b, t)", "3", "2")),
    _chain("rsub-rsub", "Sub($b, Sub($a, x))", "Add(x, c)", lambda m: fold("Sub", m.b, m.a), lambda m: _shifts(m, -1),
           _two("Sub(a, x)", "Sub(b, t)"), _two("Sub(a, x)", "Sub(t, b)")),
]  # fmt: skip


def _power_of_two(value: float) -> bool:
    from math import frexp

    return abs(frexp(value)[0]) == 0.5


@rule(
    family=FAMILY, exactness="exact",
    meaning="Dividing by a power of two is multiplying by its reciprocal, bit for bit.",
    before="Div(x, $c)", after="Mul(x, r)",
    example=_HEAD + " { c = constant float32[] 8 y = Div(x, c) }",
    near_miss=_HEAD + " { c = constant float32[] 6 y = Div(x, c) }",
)
def div_power_of_two(m: Match) -> Outcome:
    value = number(m.c)
    if not is_float(m.x) or value is None or not moderate(m.c.dtype, value) or not _power_of_two(value):
        return refuse("the divisor is no power of two of moderate size")
    return {"r": fold("Reciprocal", m.c)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Dividing by a constant is multiplying by its reciprocal.",
    before="Div(x, $c)", after="Mul(x, r)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { c = constant float32[3] [1.5, -3, 7] y = Div(x, c) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { c = constant float32[3] [1.5, 0, 7] y = Div(x, c) }",
)
def div_constant(m: Match) -> Outcome:
    if not moderate_constant(m.c):
        return refuse("the divisor must be a float constant of moderate size without zeros")
    return {"r": fold("Reciprocal", m.c)}


# Negation --------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="Multiplying by -1 is negation.",
    before="Mul(x, $c)", after="Neg(x)",
    example=_HEAD + " { c = constant float32[] -1 y = Mul(x, c) }",
    near_miss="graph opset 17 (x: uint8[2, 3]) -> (y) { c = constant uint8[] 255 y = Mul(x, c) }",
)
def mul_minus_one(m: Match) -> Outcome:
    return None if is_number(m.c, -1.0) else refuse("the constant is not -1 everywhere")


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="0 - x is -x (but for the sign of zero); not used where a division could show it.",
    before="Sub($c, x)", after="Neg(x)",
    example=_HEAD + " { c = constant float32[] 0 y = Sub(c, x) }",
    near_miss="graph opset 17 (x: uint32[2, 3]) -> (y) { c = constant uint32[] 0 y = Sub(c, x) }",
)
def zero_minus(m: Match) -> Outcome:
    if m.x.dtype not in FLOATS | SIGNED:
        return refuse("Neg takes signed types")
    return None if is_number(m.c, 0.0) else refuse("the constant is not 0 everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="The sign moves into the constant.",
    before="Mul(Neg(x), $c)", after="Mul(x, d)",
    example=_HEAD + " { c = constant float32[3] [1, 2, 3] t = Neg(x) y = Mul(t, c) }",
    near_miss=_HEAD + " { c = constant float32[3] [1, 2, 3] t = Abs(x) y = Mul(t, c) }",
)
def mul_neg_constant(m: Match) -> Outcome:
    return {"d": fold("Neg", m.c)}


def _two_signs(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning="Two signs cancel.",
        before=f"{op}(Neg(x), Neg(y))", after=f"{op}(x, y)",
        example="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) "
                f"{{ a = Neg(x) b = Neg(z) y = {op}(a, b) }}",
        near_miss="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) "
                  f"{{ a = Neg(x) b = Abs(z) y = {op}(a, b) }}",
    )
    def guard(m: Match) -> Outcome:
        return None if is_float(m.x) or op == "Mul" else refuse("the smallest integer has no negative")

    return guard.renamed(f"{op.lower()}-neg-neg")


TWO_SIGNS = [_two_signs("Mul"), _two_signs("Div")]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A product with a reciprocal is a quotient.",
    before="Mul(x, Reciprocal(y))", after="Div(x, y)",
    example="graph opset 17 (x: float32[2, 3], z: float32[2, 1]) -> (y) { t = Reciprocal(z) y = Mul(x, t) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[2, 1]) -> (y) { t = Reciprocal(z) y = Div(x, t) }",
)
def mul_reciprocal(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("integers have no reciprocals")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="1 / x is the reciprocal.",
    before="Div($c, x)", after="Reciprocal(x)",
    example=_HEAD + " { c = constant float32[] 1 y = Div(c, x) }",
    near_miss="graph opset 17 (x: int64[2, 3]) -> (y) { c = constant int64[] 1 y = Div(c, x) }",
)
def one_over(m: Match) -> Outcome:
    if not is_float(m.x):
        return refuse("integer division truncates")
    return None if is_number(m.c, 1.0) else refuse("the numerator is not 1 everywhere")


# Factors ---------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="x + x is 2 x, bit for bit.",
    before="Add(x, x)", after="Mul(x, two)",
    example="graph opset 17 (x: float16[2, 3]) -> (y) { y = Add(x, x) }",
    near_miss="graph opset 17 (x: float16[2, 3], z: float16[2, 3]) -> (y) { y = Add(x, z) }",
)
def add_same(m: Match) -> Outcome:
    if m.x.dtype not in FLOATS | INTEGERS:
        return refuse(f"no arithmetic of {m.x.dtype}")
    return {"two": scalar(m.x.dtype, 2)}


def _sign(operand: object) -> float:
    facts = operand.facts  # type: ignore[attr-defined]
    if facts is None or facts.low is None or facts.high is None:
        return 0
    return 1 if facts.low > 0 else -1 if facts.high < 0 else 0


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x a + x b is x (a + b) for constants of one sign (of different signs, infinities would differ).",
    before="Add(Mul(x, $a), Mul(x, $b))", after="Mul(x, c)",
    example=_HEAD + " { a = constant float32[] 0.3 b = constant float32[] 0.45 s = Mul(x, a) t = Mul(b, x) "
                    "y = Add(s, t) }",
    near_miss=_HEAD + " { a = constant float32[] 0.3 b = constant float32[] -0.45 s = Mul(x, a) t = Mul(b, x) "
                      "y = Add(s, t) }",
)
def factor_constants(m: Match) -> Outcome:
    if is_integer(m.x):
        return _joinable(m, True) or {"c": fold("Add", m.a, m.b)}
    problem = _scales(m, lambda a, b: a + b)
    if problem is not None:
        return problem
    if _sign(m.a) * _sign(m.b) <= 0:
        return refuse("the constants must have one sign")
    return {"c": fold("Add", m.a, m.b)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x + x a is x (1 + a) for a positive constant.",
    before="Add(x, Mul(x, $a))", after="Mul(x, c)",
    example="graph opset 17 (x: float16[n, 8]) -> (y) { a = constant float16[] 2 t = Mul(a, x) y = Add(x, t) }",
    near_miss="graph opset 17 (x: float16[n, 8]) -> (y) { a = constant float16[] -2 t = Mul(a, x) y = Add(x, t) }",
)
def factor_one(m: Match) -> Outcome:
    if is_float(m.x) and not (moderate_constant(m.a) and _sign(m.a) > 0):
        return refuse("the constant must be positive and of moderate size")
    if not (is_float(m.x) or is_integer(m.x)):
        return refuse(f"no arithmetic of {m.x.dtype}")
    return {"c": fold("Add", m.a, scalar(m.x.dtype, 1))}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x a + y a is (x + y) a for a constant.",
    before="Add(Mul(x, $a), Mul(y, $a))", after="Mul(Add(x, y), a)",
    example="graph opset 17 (x: float32[2, 3], z: float32[2, 3]) -> (y) "
            "{ a = constant float32[] 0.5 s = Mul(x, a) t = Mul(z, a) y = Add(s, t) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[2, 3]) -> (y) "
              "{ a = constant float32[] 1e-30 s = Mul(x, a) t = Mul(z, a) y = Add(s, t) }",
)
def factor_common_constant(m: Match) -> Outcome:
    if is_integer(m.x):
        return None
    return None if moderate_constant(m.a) else refuse("the constant must be of moderate size")


@rule(
    family=FAMILY, exactness="finite",
    meaning="x a + x b is x (a + b).",
    before="Add(Mul(x, a), Mul(x, b))", after="Mul(x, Add(a, b))",
    example="graph opset 17 (x: float32[2, 3], a: float32[2, 3], b: float32[2, 3]) -> (y) "
            "{ s = Mul(x, a) t = Mul(x, b) y = Add(s, t) }",
    near_miss="graph opset 17 (x: float32[2, 3], a: float32[2, 3], b: float32[2, 3]) -> (y) "
              "{ s = Mul(x, a) t = Mul(x, b) y = Sub(s, t) }",
)
def factor_product(m: Match) -> Outcome:
    if m.a.is_constant or m.b.is_constant:
        return refuse("constants have a rule of their own")
    return None
