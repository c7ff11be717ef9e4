"""Gemm written as a product and a sum, and scales around it."""

from __future__ import annotations

import numpy as np

from .affine import narrowed, vector
from .declare import Leaf, Match, Operand, Outcome, refuse, rule, term
from .linear import plain_bias, plain_weight
from .values import finite_constant, fits_into, is_float, moderate_constant

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
