"""Casts, and choices that are no choices."""

from __future__ import annotations

from graphs.dtypes import FLOATS, FROM_ONNX, INTEGERS, ONNX_NUMBER

from .declare import Match, Outcome, Rule, refuse, rule
from .values import splat_of

FAMILY = "elementwise"

# Casts -----------------------------------------------------------------------------------------------------

_RANGE = {**{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
          **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)}, "bool": (0, 1)}
_DIGITS = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}


def lossless(source: str, target: str) -> bool:
    """Every value of the source type is a value of the target type."""
    if source == target:
        return True
    if source in _RANGE and target in _RANGE:
        return _RANGE[target][0] <= _RANGE[source][0] and _RANGE[source][1] <= _RANGE[target][1] and target != "bool"
    if source in _RANGE and target in _DIGITS:
        return max(map(abs, _RANGE[source])) <= 2 ** _DIGITS[target][0]
    if source in _DIGITS and target in _DIGITS:
        return all(a <= b for a, b in zip(_DIGITS[source], _DIGITS[target], strict=True))
    return False


@rule(
    family=FAMILY, exactness="exact",
    meaning="A cast to the type that is there does nothing.",
    before="Cast(x, to=t)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { y = Cast(x, to=1) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { y = Cast(x, to=11) }",
)
def cast_same(m: Match) -> Outcome:
    return None if FROM_ONNX.get(m["t"]) == m.x.dtype else refuse("the type changes")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A cast that loses nothing may be left out before another cast.",
    before="Cast(Cast(x, to=s), to=t)", after="Cast(x, to=t)",
    example="graph opset 17 (x: uint8[2, 3]) -> (y) { c = Cast(x, to=6) y = Cast(c, to=1) }",
    near_miss="graph opset 17 (x: int8[2, 3]) -> (y) { c = Cast(x, to=2) y = Cast(c, to=1) }",
)
def cast_cast(m: Match) -> Outcome:
    source, middle, target = m.x.dtype, FROM_ONNX.get(m["s"], ""), FROM_ONNX.get(m["t"], "")
    if not lossless(source, middle):
        return refuse(f"{middle} cannot hold every {source}")
    if target not in _RANGE and target not in _DIGITS:
        return refuse(f"casts to {target} are left alone")
    if target in ("float16", "bfloat16") and not lossless(source, "float32"):
        return refuse("runtimes go to 16 bits by way of float32, which rounds as well")
    if target in INTEGERS and (source in FLOATS or (middle in FLOATS and not lossless(source, target))):
        return refuse(f"what {target} makes of floats that do not fit depends on the way")
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="A cast to the type of another value is a plain Cast.",
    before="CastLike(x, y)", after="Cast(x, to=t)",
    example="graph opset 17 (x: float32[2, 3], z: float16[3]) -> (y) { y = CastLike(x, z) }",
    near_miss="graph opset 21 (x: float32[2, 3], z: float8_e4m3fn[3]) -> (y) { y = CastLike(x, z, saturate=0) }",
)
def cast_like(m: Match) -> Outcome:
    return {"t": ONNX_NUMBER[m.y.dtype]}


# Selection -------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding",  # some runtimes lose the sign of zero in Where
    meaning="Choosing between a value and itself is the value.",
    before="Where(c, x, x)", after="x",
    example="graph opset 17 (c: bool[3], x: float32[2, 3]) -> (y) { y = Where(c, x, x) }",
    near_miss="graph opset 17 (c: bool[2, 1], x: float32[3]) -> (y) { y = Where(c, x, x) }",
)
def where_same(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A negated condition chooses the other way round.",
    before="Where(Not(c), x, y)", after="Where(c, y, x)",
    example="graph opset 17 (c: bool[2, 3], x: float32[2, 3], z: float32[3]) -> (y) "
            "{ n = Not(c) y = Where(n, x, z) }",
    near_miss="graph opset 17 (c: bool[2, 3], x: float32[2, 3], z: float32[3]) -> (y) "
              "{ n = Or(c, c) y = Where(n, x, z) }",
)
def where_not(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A condition that is known everywhere chooses for good.",
    before="Where($c, x, y)",
    example="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) "
            "{ c = constant bool[1] [true] y = Where(c, x, z) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[3]) -> (y) "
              "{ c = constant bool[1] [false] y = Where(c, x, z) }",
)
def where_known(m: Match) -> Outcome:
    value = splat_of(m.c)
    if value is None or not isinstance(value, bool):
        return refuse("the condition is not the same everywhere")
    return m.x if value else m.y


def _idempotent(op: str, dtype: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} of a value with itself is the value.",
        before=f"{op}(x, x)", after="x",
        example=f"graph opset 17 (x: {dtype}[2, 3]) -> (y) {{ y = {op}(x, x) }}",
        near_miss=f"graph opset 17 (x: {dtype}[2, 3], z: {dtype}[2, 3]) -> (y) {{ y = {op}(x, z) }}",
    )
    def guard(m: Match) -> Outcome:
        return None

    return guard.renamed(f"{op.lower()}-same")


IDEMPOTENT = [_idempotent("And", "bool"), _idempotent("Or", "bool"), _idempotent("Max", "float32"),
              _idempotent("Min", "float32")]
