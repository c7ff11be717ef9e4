"""Elementwise rules: neutral elements, pairs that cancel, and operators that do nothing twice."""

from __future__ import annotations

from graphs.dtypes import FLOATS, INTEGERS

from .declare import Match, Outcome, Rule, refuse, rule, term
from .values import (
    finite_constant,
    fits_into,
    is_float,
    is_integer,
    is_negative_zero,
    is_number,
    number,
    splat_of,
    static,
)  # fmt: skip

FAMILY = "elementwise"


@rule(
    family=FAMILY, exactness="exact",
    meaning="Adding an integer 0, or the float -0.0, changes no bit.",
    before="Add(x, $c)", after="x",
    example="graph opset 17 (x: int64[2, 3]) -> (y) { c = constant int64[] 0 y = Add(x, c) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] 0.0 y = Add(x, c) }",
)
def add_nothing(m: Match) -> Outcome:
    value = splat_of(m.c)
    if value is None or value != 0:
        return refuse("the constant is not 0 everywhere")
    if m.c.dtype in FLOATS and not is_negative_zero(float(value)):
        return refuse("-0.0 + 0.0 is 0.0: the sign of zero changes")
    return None


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="Adding 0 changes at most the sign of a zero; not used where a division could show it.",
    before="Add(x, $c)", after="x",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { c = constant float32[1] [0.0] y = Add(c, x) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { c = constant float32[2, 1] [0.0, 0.0] y = Add(x, c) }",
)
def add_zero(m: Match) -> Outcome:
    return None if is_number(m.c, 0.0) else refuse("the constant is not 0 everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Subtracting 0 changes no bit.",
    before="Sub(x, $c)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] 0.0 y = Sub(x, c) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] -0.0 y = Sub(x, c) }",
)
def sub_zero(m: Match) -> Outcome:
    value = number(m.c)
    if value is None or value != 0:
        return refuse("the constant is not 0 everywhere")
    if m.c.dtype in FLOATS and is_negative_zero(value):
        return refuse("-0.0 - -0.0 is 0.0: the sign of zero changes")
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Multiplying by 1 changes no bit.",
    before="Mul(x, $c)", after="x",
    example="graph opset 17 (x: float16[2, 3]) -> (y) { c = constant float16[1, 1] [1.0] y = Mul(c, x) }",
    near_miss="graph opset 17 (x: int32[3]) -> (y) { c = constant int32[1, 1] [1] y = Mul(x, c) }",
)
def mul_one(m: Match) -> Outcome:
    return None if is_number(m.c, 1.0) else refuse("the constant is not 1 everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Dividing by 1 changes no bit.",
    before="Div(x, $c)", after="x",
    example="graph opset 17 (x: int64[2, 3]) -> (y) { c = constant int64[] 1 y = Div(x, c) }",
    near_miss="graph opset 17 (x: int64[2, 3]) -> (y) { c = constant int64[] 1 y = Div(c, x) }",
)
def div_one(m: Match) -> Outcome:
    return None if is_number(m.c, 1.0) else refuse("the constant is not 1 everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="The first power is the value itself.",
    before="Pow(x, $c)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] 1.0 y = Pow(x, c) }",
    near_miss="graph opset 17 (x: float32[3]) -> (y) { c = constant float32[2, 1] [1.0, 1.0] y = Pow(x, c) }",
)
def pow_one(m: Match) -> Outcome:
    if m.x.dtype not in FLOATS:
        return refuse("integer powers go through floats in some runtimes")
    return None if is_number(m.c, 1.0) else refuse("the exponent is not 1 everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="And with true is the value itself.",
    before="And(x, $c)", after="x",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[] true y = And(x, c) }",
    near_miss="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[] false y = And(x, c) }",
)
def and_true(m: Match) -> Outcome:
    return None if splat_of(m.c) is True else refuse("the constant is not true everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Or with false is the value itself.",
    before="Or(x, $c)", after="x",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[1, 1] [false] y = Or(x, c) }",
    near_miss="graph opset 17 (x: bool[3]) -> (y) { c = constant bool[2, 1] [false, false] y = Or(x, c) }",
)
def or_false(m: Match) -> Outcome:
    return None if splat_of(m.c) is False else refuse("the constant is not false everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Xor with false is the value itself.",
    before="Xor(x, $c)", after="x",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[] false y = Xor(x, c) }",
    near_miss="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[] true y = Xor(x, c) }",
)
def xor_false(m: Match) -> Outcome:
    return None if splat_of(m.c) is False else refuse("the constant is not false everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two negations cancel.",
    before="Neg(Neg(x))", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { t = Neg(x) y = Neg(t) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { t = Neg(x) y = Abs(t) }",
)
def neg_neg(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two Nots cancel.",
    before="Not(Not(x))", after="x",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { t = Not(x) y = Not(t) }",
    near_miss="graph opset 17 (x: bool[2, 3]) -> (y) { t = Not(x) y = And(t, x) }",
)
def not_not(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Turning all bits over twice changes nothing.",
    before="BitwiseNot(BitwiseNot(x))", after="x",
    example="graph opset 18 (x: uint8[2, 3]) -> (y) { t = BitwiseNot(x) y = BitwiseNot(t) }",
    near_miss="graph opset 18 (x: int32[2, 3]) -> (y) { t = BitwiseNot(x) y = Neg(t) }",
)
def bitwise_not_twice(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="What equals true is the value itself.",
    before="Equal(x, $c)", after="x",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[] true y = Equal(x, c) }",
    near_miss="graph opset 17 (x: bool[3]) -> (y) { c = constant bool[2, 1] [true, true] y = Equal(x, c) }",
)
def equal_true(m: Match) -> Outcome:
    return None if splat_of(m.c) is True else refuse("the constant is not true everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="What equals false is negated.",
    before="Equal(x, $c)", after="Not(x)",
    example="graph opset 17 (x: bool[2, 3]) -> (y) { c = constant bool[1] [false] y = Equal(x, c) }",
    near_miss="graph opset 17 (x: bool[2]) -> (y) { c = constant bool[2] [false, true] y = Equal(x, c) }",
)
def equal_false(m: Match) -> Outcome:
    return None if splat_of(m.c) is False else refuse("the constant is not false everywhere")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Relu twice is Relu.",
    before="Relu(Relu(x))", after="Relu(x)",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { t = Relu(x) y = Relu(t) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { t = Relu(x) y = Neg(t) }",
)
def relu_relu(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Abs twice is Abs.",
    before="Abs(Abs(x))", after="Abs(x)",
    example="graph opset 17 (x: int32[2, 3]) -> (y) { t = Abs(x) y = Abs(t) }",
    near_miss="graph opset 17 (x: int32[2, 3]) -> (y) { t = Abs(x) y = Neg(t) }",
)
def abs_abs(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Abs throws the sign away, so a negation below it does nothing.",
    before="Abs(Neg(x))", after="Abs(x)",
    example="graph opset 17 (x: float64[2, 3]) -> (y) { t = Neg(x) y = Abs(t) }",
    near_miss="graph opset 17 (x: float64[2, 3]) -> (y) { t = Abs(x) y = Neg(t) }",
)
def abs_neg(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="-(x - y) is y - x (but for the sign of zero); not used where a division could show it.",
    before="Neg(Sub(x, y))", after="Sub(y, x)",
    example="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { t = Sub(x, z) y = Neg(t) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { t = Sub(x, z) y = Abs(t) }",
)
def neg_sub(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="x - (-y) is x + y.",
    before="Sub(x, Neg(y))", after="Add(x, y)",
    example="graph opset 17 (x: float64[2, 3], z: float64[3]) -> (y) { t = Neg(z) y = Sub(x, t) }",
    near_miss="graph opset 17 (x: float64[2, 3], z: float64[3]) -> (y) { t = Neg(x) y = Sub(t, z) }",
)
def sub_neg(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="x + (-y) is x - y.",
    before="Add(x, Neg(y))", after="Sub(x, y)",
    example="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { t = Neg(z) y = Add(x, t) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { t = Neg(z) y = Mul(x, t) }",
)
def add_neg(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Integer addition wraps around, so adding and subtracting the same amount cancels.",
    before="Sub(Add(x, c), c)", after="x",
    example="graph opset 17 (x: int64[2, 3]) -> (y) { c = constant int64[] 3 t = Add(x, c) y = Sub(t, c) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { c = constant float32[] 3 t = Add(x, c) y = Sub(t, c) }",
)
def add_sub_integer(m: Match) -> Outcome:
    return None if is_integer(m.x) else refuse("float addition rounds")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Integer subtraction wraps around, so subtracting and adding the same amount cancels.",
    before="Add(Sub(x, c), c)", after="x",
    example="graph opset 17 (x: int32[2, 3]) -> (y) { c = constant int32[3] [1, 2, 3] t = Sub(x, c) y = Add(t, c) }",
    near_miss="graph opset 17 (x: int32[3]) -> (y) { c = constant int32[1, 3] [1, 2, 3] t = Sub(x, c) y = Add(t, c) }",
)
def sub_add_integer(m: Match) -> Outcome:
    return None if is_integer(m.x) else refuse("float addition rounds")


def _integers(m: Match) -> Outcome:
    return None if m.a.dtype in INTEGERS else refuse("a comparison with NaN is false, and its Not is true")


def _negated(op: str, opposite: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact",
        meaning=f"Integers have no NaN, so Not({op}) is {opposite}.",
        before=f"Not({op}(a, b))", after=f"{opposite}(a, b)",
        example=f"graph opset 17 (a: int64[2, 3], b: int64[3]) -> (y) {{ t = {op}(a, b) y = Not(t) }}",
        near_miss=f"graph opset 17 (a: float32[2, 3], b: float32[3]) -> (y) {{ t = {op}(a, b) y = Not(t) }}",
    )
    def guard(m: Match) -> Outcome:
        return _integers(m)

    return guard.renamed(f"not-{op.lower()}")


NEGATED = [_negated("Greater", "LessOrEqual"), _negated("Less", "GreaterOrEqual"),
           _negated("GreaterOrEqual", "Less"), _negated("LessOrEqual", "Greater")]


def _rounded_twice(outer: str, inner: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact",
        meaning=f"{outer} does nothing to the whole numbers that {inner} gives.",
        before=f"{outer}({inner}(x))", after=f"{inner}(x)",
        example=f"graph opset 17 (x: float32[2, 3]) -> (y) {{ t = {inner}(x) y = {outer}(t) }}",
        near_miss=f"graph opset 17 (x: float32[2, 3]) -> (y) {{ t = Sqrt(x) y = {outer}(t) }}",
    )
    def guard(m: Match) -> Outcome:
        return None

    return guard.renamed(f"{outer.lower()}-of-{inner.lower()}")


ROUNDED = [_rounded_twice(outer, inner) for outer in ("Floor", "Ceil", "Round") for inner in ("Floor", "Ceil", "Round")]


def _single(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} of one operand is the operand.",
        before=f"{op}(x)", after="x",
        example=f"graph opset 17 (x: float32[2, 3]) -> (y) {{ y = {op}(x) }}",
        near_miss=f"graph opset 17 (x: float32[2, 3], z: float32[2, 3]) -> (y) {{ y = {op}(x, z) }}",
    )
    def guard(m: Match) -> Outcome:
        return None

    return guard.renamed(f"{op.lower()}-of-one")


SINGLE = [_single(op) for op in ("Sum", "Mean", "Max", "Min")]


@rule(
    family=FAMILY, exactness="exact",
    meaning="Sum of two operands is Add.",
    before="Sum(x, y)", after="Add(x, y)",
    example="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { y = Sum(x, z) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) { y = Sum(x, z, z) }",
)
def sum_of_two(m: Match) -> Outcome:
    return None


# Bounds and constants ----------------------------------------------------------------------------------------


def _bound_twice(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", zero_sign=True,
        meaning=f"{op} with two constants in turn is {op} with the {op} of the constants.",
        before=f"{op}({op}(x, $c), $d)", after=f"{op}(x, {op}(c, d))",
        example="graph opset 17 (x: float32[n, 3]) -> (y) { c = constant float32[] 2 d = constant float32[3] [1, 2, 3] "
                f"t = {op}(x, c) y = {op}(t, d) }}",
        near_miss="graph opset 17 (x: float32[n, 3]) -> (y) "
                  "{ c = constant float32[] nan d = constant float32[3] [1, 2, 3] "
                  f"t = {op}(x, c) y = {op}(t, d) }}",
    )
    def guard(m: Match) -> Outcome:
        if m.x.is_constant or (is_float(m.x) and not (finite_constant(m.c) and finite_constant(m.d))):
            return refuse("the bounds must be finite constants")
        if not (fits_into(m.c.shape, m.d.shape) or fits_into(m.d.shape, m.c.shape)):
            return refuse("the bounds would widen each other")
        return None

    return guard.renamed(f"{op.lower()}-twice")


BOUND_TWICE = [_bound_twice(op) for op in ("Max", "Min")]


def _no_bound(op: str, infinite: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"Nothing lies beyond {infinite}: {op} with it changes nothing.",
        before=f"{op}(x, $c)", after="x",
        example=f"graph opset 17 (x: float32[n, 3]) -> (y) {{ c = constant float32[] {infinite} y = {op}(x, c) }}",
        near_miss=f"graph opset 17 (x: float32[n, 3]) -> (y) {{ c = constant float32[] 9 y = {op}(x, c) }}",
    )
    def guard(m: Match) -> Outcome:
        return None if splat_of(m.c) == float(infinite) else refuse(f"the constant is not {infinite} everywhere")

    return guard.renamed(f"{op.lower()}-without-bound")


NO_BOUND = [_no_bound("Max", "-inf"), _no_bound("Min", "inf")]


@rule(
    family=FAMILY, exactness="exact",
    meaning="A square is not negative, so its absolute value is itself.",
    before="Abs(Mul(x, x))", after="Mul(x, x)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { t = Mul(x, x) y = Abs(t) }",
    near_miss="graph opset 17 (x: int32[n, 3]) -> (y) { t = Mul(x, x) y = Abs(t) }",
)
def abs_of_square(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("an integer square may wrap around to a negative one")


@rule(
    family=FAMILY, exactness="exact",
    meaning="The sign of a sign is that sign.",
    before="Sign(Sign(x))", after="Sign(x)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { t = Sign(x) y = Sign(t) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { t = Sign(x) y = Neg(t) }",
)
def sign_sign(m: Match) -> Outcome:
    return None


def _de_morgan(op: str, opposite: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"Not {op} of two Nots is {opposite} (De Morgan).",
        before=f"Not({op}(Not(a), Not(b)))", after=f"{opposite}(a, b)",
        example="graph opset 17 (a: bool[n, 3], b: bool[3]) -> (y) "
                f"{{ p = Not(a) q = Not(b) t = {op}(p, q) y = Not(t) }}",
        near_miss=f"graph opset 17 (a: bool[n, 3], b: bool[3]) -> (y) {{ p = Not(a) t = {op}(p, b) y = Not(t) }}",
    )
    def guard(m: Match) -> Outcome:
        return None

    return guard.renamed(f"not-{op.lower()}-of-nots")


DE_MORGAN = [_de_morgan("And", "Or"), _de_morgan("Or", "And")]


def _absorbed(op: str, value: str, dtype: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} with {value} everywhere is {value}, whatever x is.",
        before=f"{op}(x, $c)",
        example=f"graph opset 17 (x: {dtype}[2, 3]) -> (y) {{ c = constant {dtype}[] {value} y = {op}(x, c) }}",
        near_miss=f"graph opset 17 (x: {dtype}[n, 3]) -> (y) {{ c = constant {dtype}[] {value} y = {op}(x, c) }}",
    )
    def guard(m: Match) -> Outcome:
        if m.c.dtype in FLOATS or splat_of(m.c) is None or str(splat_of(m.c)).lower() != value or m.x.is_constant:
            return refuse(f"the constant is not {value} everywhere, or zero times NaN is NaN")
        shape = m.root.type.shape
        if shape is None or not static(shape):
            return refuse("the shape is not known")
        element = m.c if m.c.rank == 0 else term("Reshape", term("Slice", m.c, axes=tuple(range(m.c.rank)),
                                                 starts=(0,) * m.c.rank, ends=(1,) * m.c.rank,
                                                 steps=(1,) * m.c.rank), shape=())
        return term("Expand", element, shape=shape)

    return guard.renamed(f"{op.lower()}-{value}-everywhere")


ABSORBED = [_absorbed("Mul", "0", "int64"), _absorbed("And", "false", "bool"), _absorbed("Or", "true", "bool")]
