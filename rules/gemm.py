"""Gemm written as a product and a sum, and scales around it."""

from __future__ import annotations

import numpy as np

from .affine import narrowed, vector
from .declare import Leaf, Match, Operand, Outcome, refuse, rule, term
from .linear import plain_bias, plain_weight
from .values import finite_constant, fits_into, fold, is_float, moderate_constant, number, scalar, sizes

FAMILY = "linear"
_W = "w = constant float32[3, 2] [1, -2, 3, 0.5, 5, 6]"
_X = "graph opset 17 (x: float32[n, 3]) -> (y)"


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Gemm is a product and a sum (with the transpose and the factors in its constants).",
    before="g:Gemm(x, w, ?c)",
    example=_X + " { w = constant float32[2, 3] [1, -2, 3, 0.5, 5, 6] c = constant float32[2] [1, 2] "
                 "y = Gemm(x, w, c, alpha=0.5, beta=2.0, transB=1) }",
    near_miss="graph opset 17 (x: float32[n, 3], w: float32[3, 2]) -> (y) { y = Gemm(x, w, alpha=0.5) }",
)
def gemm_as_matmul(m: Match) -> Outcome:
    attrs = m.g.attrs
    if attrs["transA"] or not is_float(m.x):
        return refuse("the first operand is transposed, or no floats")
    if not m.w.is_constant and (attrs["transB"] or attrs["alpha"] != 1.0):
        return refuse("the second operand is transposed or scaled, and no constant")
    if m.c is not None and attrs["beta"] != 1.0 and not m.c.is_constant:
        return refuse("C is scaled, and no constant")
    product = term("MatMul", m.x, plain_weight(m.w, attrs))
    return product if m.c is None else term("Add", product, plain_bias(m.c, attrs))


def _per_column(operand: Operand, columns: object) -> np.ndarray | None:
    """One value for each column (or one for all) as a vector in float64."""
    array = vector(operand)
    if array is None or operand.rank > 2 or not isinstance(columns, int):
        return None
    if array.size not in (1, columns) or (operand.rank and operand.shape[-1] != array.size):
        return None
    return np.broadcast_to(array.reshape(-1), (columns,)).copy()


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A scale after a Gemm (one number, or one a column) moves into its weight and C.",
    before="Mul(g:Gemm(x, $w, $?b), $k)",
    example=_X + " { " + _W + " b = constant float32[2] [1, 2] k = constant float32[2] [0.5, 3] "
                 "t = Gemm(x, w, b) y = Mul(t, k) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { " + _W + " b = constant float32[2] [1, 2] "
              "k = constant float32[2, 1] [0.5, 3] t = Gemm(x, w, b) y = Mul(t, k) }",
)
def gemm_then_scale(m: Match) -> Outcome:
    columns = m.g.type.shape[1] if m.g.type.shape is not None else None
    factor = _per_column(m.k, columns)
    if factor is None or not moderate_constant(m.k) or not finite_constant(m.w):
        return refuse("the scale is not one number or one a column, or the weight is not finite")
    bias: Leaf | None = None
    if m.b is not None:
        known = _per_column(m.b, columns)
        bias = None if known is None else narrowed(m.w.dtype, known * m.g.attrs["beta"] * factor)
        if bias is None:
            return refuse("C is not one number a column")
    scale = narrowed(m.w.dtype, factor)
    facts = m.w.facts
    if scale is None or facts is None or facts.low is None or facts.high is None:
        return refuse("the weight is not known")
    if narrowed(m.w.dtype, np.array(max(abs(facts.low), abs(facts.high)) * float(np.abs(factor).max()))) is None:
        return refuse("the scaled weight would overflow")
    return term("Gemm", m.x, term("Mul", plain_weight(m.w, m.g.attrs), scale), bias, transA=m.g.attrs["transA"])


def _same_shape(m: Match) -> bool:
    return m.x.shape == m.y.shape and fits_into(m.x.shape, m.y.shape)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The sum of two Gemms with one constant weight is one product of the sum.",
    before="Add(Gemm(x, $w, c), MatMul(y, $w))", after="Gemm(Add(x, y), w, c)",
    example="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (y) { " + _W
            + " c = constant float32[2] [1, 2] s = Gemm(x, w, c) t = MatMul(z, w) y = Add(s, t) }",
    near_miss="graph opset 17 (x: float32[4, 3], z: float32[1, 3]) -> (y) { " + _W
              + " c = constant float32[2] [1, 2] s = Gemm(x, w, c) t = MatMul(z, w) y = Add(s, t) }",
)
def gemm_shared_weight(m: Match) -> Outcome:
    return None if _same_shape(m) and finite_constant(m.w) and is_float(m.x) else refuse("shapes differ")


# Signs -----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="The negative of a product is the product with the negative weight (but for the sign of zeros).",
    before="Neg(MatMul(x, $w))", after="MatMul(x, v)",
    example=_X + " { " + _W + " t = MatMul(x, w) y = Neg(t) }",
    near_miss="graph opset 17 (x: int32[n, 3]) -> (y) "
              "{ w = constant int32[3, 2] [1, 2, 3, 4, 5, 6] t = MatMul(x, w) y = Neg(t) }",
)
def neg_of_matmul(m: Match) -> Outcome:
    return {"v": fold("Neg", m.w)} if is_float(m.x) and not m.x.is_constant else refuse("no floats, or all constant")


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="The negative of a Gemm is the Gemm with negative factors (but for the sign of zeros).",
    before="Neg(g:Gemm(x, w, ?c))",
    example=_X + " { " + _W + " c = constant float32[2] [1, 2] t = Gemm(x, w, c) y = Neg(t) }",
    near_miss="graph opset 17 (x: int32[n, 3], w: int32[3, 2]) -> (y) { t = Gemm(x, w) y = Neg(t) }",
)
def neg_of_gemm(m: Match) -> Outcome:
    if not is_float(m.x):
        return refuse("no floats")
    return term("Gemm", m.x, m.w, m.c, **{**m.g.attrs, "alpha": -m.g.attrs["alpha"], "beta": -m.g.attrs["beta"]})


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Two numbers that scale both operands of a product scale one of them.",
    before="MatMul(Mul(a, $c), Mul(b, $d))", after="MatMul(Mul(a, e), b)",
    example="graph opset 17 (a: float32[n, 2, 3], b: float32[n, 3, 4]) -> (y) "
            "{ c = constant float32[] 0.5 p = Mul(a, c) q = Mul(b, c) y = MatMul(p, q) }",
    near_miss="graph opset 17 (a: float32[n, 2, 3], b: float32[n, 3, 4]) -> (y) "
              "{ c = constant float32[3] [0.5, 2, 1] d = constant float32[] 3 p = Mul(a, c) q = Mul(b, d) "
              "y = MatMul(p, q) }",
)
def both_operands_scaled(m: Match) -> Outcome:
    if m.a.is_constant or m.b.is_constant or not (moderate_constant(m.c) and moderate_constant(m.d)):
        return refuse("a constant operand, or a scale that is not of moderate size")
    if not (is_one_number(m.c, m.a) and is_one_number(m.d, m.b)):
        return refuse("the scales are not one number each")
    if m.a.dtype == "float16":
        return refuse("half precision has few numbers near zero: the product of both scales could lose digits")
    first, second = sizes(m.c), sizes(m.d)
    if first is None or second is None or first[1] > 1 or second[1] > 1:
        return refuse("a scale above 1 could overflow in one operand where it does not in both")
    return {"e": fold("Mul", scalar(m.a.dtype, number(m.c) or 0.0), scalar(m.a.dtype, number(m.d) or 0.0))}


def is_one_number(scale: Operand, value: Operand) -> bool:
    """All axes of the scale are of size 1, and it adds none to the value's."""
    return all(dim == 1 for dim in scale.shape) and scale.rank <= value.rank
