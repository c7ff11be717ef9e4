"""Linear rules: MatMul and Gemm with scales, biases, transposes and products of constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphs.dtypes import FLOATS, SIGNED

from .declare import Leaf, Match, Operand, Outcome, Refusal, Rule, refuse, rule, term
from .values import (
    bounded,
    finite_constant,
    fits_into,
    fold,
    is_float,
    moderate_constant,
    scalar,
    sizes,
)  # fmt: skip

FAMILY = "linear"
_W = "w = constant float32[3, 2] [1, -2, 3, 0.5, 5, 6]"
_X = "graph opset 17 (x: float32[n, 3]) -> (y)"


def _row(operand: Operand, width: object) -> Leaf | None:
    """A constant with one value per column (or one for all), as a vector of the width or of size 1."""
    if operand.rank == 0:
        return operand
    if operand.shape[-1] not in (1, width) or any(dim != 1 for dim in operand.shape[:-1]):
        return None
    return operand if operand.rank == 1 else term("Reshape", operand, shape=operand.shape[-1:])


def _column(operand: Operand, height: object) -> Leaf | None:
    """A constant with one value per column of x, as a column to scale the rows of a weight."""
    row = _row(operand, height)
    if row is None or operand.rank == 0 or operand.shape[-1] == 1:
        return row
    return term("Reshape", operand, shape=(operand.shape[-1], 1))


def _scale_fits(weight: Operand, scale: Operand) -> Refusal | None:
    """The scale is moderate, and does not make the weight overflow where its elements are known."""
    if not is_float(weight) or not moderate_constant(scale):
        return refuse("the scale must be a float constant of moderate size without zeros")
    if weight.facts is not None and not weight.facts.finite:
        return refuse("the weight holds NaN or infinities")
    known, factor = sizes(weight), sizes(scale)
    if known is not None and factor is not None:
        limit = {"float16": 6e4, "float64": 1e300}.get(weight.dtype, 1e38)
        if known[1] * factor[1] > limit:
            return refuse("the scaled weight would overflow")
    return None


# Scales ----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A scale after a MatMul (one number, or one a column) moves into the weight.",
    before="Mul(MatMul(x, $w), $c)", after="MatMul(x, v)",
    example=_X + " { " + _W + " c = constant float32[2] [0.5, 3] t = MatMul(x, w) y = Mul(t, c) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { " + _W + " c = constant float32[2, 1] [0.5, 3] "
              "t = MatMul(x, w) y = Mul(t, c) }",
)
def matmul_then_scale(m: Match) -> Outcome:
    if m.w.rank < 2:
        return refuse("a vector has no columns")
    row = _row(m.c, m.w.shape[-1])
    if row is None:
        return refuse("the scale is not one number or one a column")
    return _scale_fits(m.w, m.c) or {"v": fold("Mul", m.w, row)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A scale before a MatMul (one number, or one a column) moves into the rows of the weight.",
    before="MatMul(Mul(x, $c), $w)", after="MatMul(x, v)",
    example=_X + " { " + _W + " c = constant float32[3] [0.5, 3, -1] t = Mul(x, c) y = MatMul(t, w) }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (y) { " + _W + " c = constant float32[3, 1] [0.5, 3, -1] "
              "t = Mul(x, c) y = MatMul(t, w) }",
)
def scale_then_matmul(m: Match) -> Outcome:
    if m.w.rank < 2 or m.c.rank > m.x.rank:
        return refuse("a vector has no rows, or the scale raises the rank")
    column = _column(m.c, m.x.shape[-1])
    if column is None or not fits_into(m.c.shape, m.x.shape):
        return refuse("the scale is not one number or one a column, or widens x")
    return _scale_fits(m.w, m.c) or {"v": fold("Mul", m.w, column)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="One number times a product scales the first operand, where that leads on into a constant weight.",
    before="Mul(MatMul(a, b), $c)", after="MatMul(Mul(a, c), b)",
    example="graph opset 17 (x: float32[n, 2, 3], b: float32[n, 2, 4]) -> (y) { " + _W + " c = constant float32[] 0.5 "
            "p = MatMul(x, w) a = Transpose(p, perm=[0, 2, 1]) t = MatMul(a, b) y = Mul(t, c) }",
    near_miss="graph opset 17 (a: float32[n, 2, 3], b: float32[n, 3, 4]) -> (y) "
              "{ c = constant float32[] 0.5 t = MatMul(a, b) y = Mul(t, c) }",
)
def scale_of_product(m: Match) -> Outcome:
    if m.a.is_constant or m.b.is_constant:
        return refuse("a constant operand takes the scale by another rule")
    if any(dim != 1 for dim in m.c.shape) or m.c.rank > m.a.rank:
        return refuse("the scale is not one number")
    if not is_float(m.a) or not moderate_constant(m.c):
        return refuse("the scale is not of moderate size")
    return None if _leads_to_weight(m, m.a, 6) else refuse("no constant weight takes up the scale")


def _leads_to_weight(m: Match, operand: Operand, depth: int) -> bool:
    """The value is a product with a constant weight, a bias added, turned and reshaped."""
    if depth == 0:
        return False
    for op, position in (("MatMul", 1), ("Gemm", 1), ("Transpose", 0), ("Reshape", 0), ("Add", 0), ("Add", 1)):
        for view in operand.forms(op):
            arg = view.args[position]
            if arg is None:
                continue
            last = op in ("MatMul", "Gemm")
            if arg.is_constant if last else not arg.is_constant and _leads_to_weight(m, arg, depth - 1):
                m.use(view)
                return True
    return False


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A product with a constant spreads over a sum with a constant.",
    before="Mul(Add(x, $b), $c)", after="Add(Mul(x, c), d)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) "
            "{ b = constant float32[3] [1, 2, 3] c = constant float32[] 0.5 t = Add(x, b) y = Mul(t, c) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) "
              "{ b = constant float32[3] [1, inf, 3] c = constant float32[] 0.5 t = Add(x, b) y = Mul(t, c) }",
)
def spread_scale(m: Match) -> Outcome:
    bias, scale = sizes(m.b), sizes(m.c)
    if not is_float(m.x) or bias is None or scale is None or not moderate_constant(m.c):
        return refuse("the constants must be finite floats, the factor of moderate size")
    if not (fits_into(m.b.shape, m.c.shape) or fits_into(m.c.shape, m.b.shape)):
        return refuse("the constants would widen each other")
    if bias[1] * scale[1] > 6e4:
        return refuse("the product of the constants is too large")
    return {"d": fold("Mul", m.b, m.c)}


# Biases ----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="Subtracting a constant is adding its negative.",
    before="Sub(x, $c)", after="Add(x, d)",
    example=_X + " { c = constant float32[3] [1, 2, 3] y = Sub(x, c) }",
    near_miss="graph opset 17 (x: uint8[n, 3]) -> (y) { c = constant uint8[3] [1, 2, 3] y = Sub(x, c) }",
)
def sub_constant(m: Match) -> Outcome:
    if m.x.is_constant or m.c.dtype not in FLOATS | SIGNED:
        return refuse("both are constants, or unsigned")
    return {"d": fold("Neg", m.c)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A shift before a MatMul becomes a bias after it.",
    before="MatMul(Add(x, $b), $w)", after="Add(MatMul(x, w), MatMul(row, w))",
    example=_X + " { " + _W + " b = constant float32[3] [0.5, 3, -1] t = Add(x, b) y = MatMul(t, w) }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (y) { " + _W + " b = constant float32[3, 1] [0.5, 3, -1] "
              "t = Add(x, b) y = MatMul(t, w) }",
)
def shift_then_matmul(m: Match) -> Outcome:
    width = m.x.shape[-1] if m.x.rank else None
    if m.w.rank != 2 or not isinstance(width, int) or m.b.rank > m.x.rank:
        return refuse("the weight is no matrix, or the shift raises the rank")
    row = _row(m.b, width)
    if row is None or not fits_into(m.b.shape, m.x.shape):
        return refuse("the shift is not one number or one a column, or widens x")
    if not finite_constant(m.w) or sizes(m.b) is None:
        return refuse("weight and shift must be finite")
    return {"row": term("Expand", row, shape=(width,))}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A MatMul of matrices and a bias are a Gemm.",
    before="Add(MatMul(x, y), c)", after="Gemm(x, y, c)",
    example=_X + " { " + _W + " c = constant float32[2] [1, 2] t = MatMul(x, w) y = Add(t, c) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { " + _W + " c = constant float32[4, 1] [1, 2, 3, 4] "
              "t = MatMul(x, w) y = Add(t, c) }",
)
def matmul_add_gemm(m: Match) -> Outcome:
    problem = _gemm_bias(m, m.x, m.y, m.c)
    if problem is None and not fits_into(m.c.shape, (m.x.shape[0], m.y.shape[1])):
        return refuse("the bias does not broadcast to the product")
    return problem


def _gemm_bias(m: Match, x: Operand, y: Operand, c: Operand) -> Refusal | None:
    if not is_float(x) or x.rank != 2 or y.rank != 2 or c.rank > 2:
        return refuse("Gemm takes float matrices and a bias of at most rank 2")
    if x.shape[0] == 0 or x.shape[1] == 0:
        return refuse("runtimes disagree on Gemms of empty matrices")
    if m.root.type.rank != 2 or not fits_into(c.shape, m.root.type.shape or ()):
        return refuse("the bias does not broadcast to the product")
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A bias after a Gemm without C is its C.",
    before="Add(g:Gemm(x, y), c)", after="Gemm(x, y, c, beta=1.0, *g)",
    example=_X + " { w = constant float32[2, 3] [1, 2, 3, 4, 5, 6] c = constant float32[2] [1, 2] "
                 "t = Gemm(x, w, transB=1) y = Add(t, c) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { w = constant float32[2, 3] [1, 2, 3, 4, 5, 6] "
              "c = constant float32[3, 1] [1, 2, 3] t = Gemm(x, w, transB=1) y = Add(t, c) }",
)
def gemm_add(m: Match) -> Outcome:
    return _gemm_bias(m, m.x, m.y, m.c) or (None if m.g.type == m.root.type else refuse("the bias widens"))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A second bias adds to the C of a Gemm.",
    before="Add(g:Gemm(x, y, $b), $c)", after="Gemm(x, y, d, *g)",
    example=_X + " { " + _W + " b = constant float32[2] [1, 2] c = constant float32[1, 2] [3, 4] "
                 "t = Gemm(x, w, b) y = Add(t, c) }",
    near_miss=_X + " { " + _W + " b = constant float32[2] [1, 2] c = constant float32[1, 2] [3, 4] "
                   "t = Gemm(x, w, b, beta=0.5) y = Add(t, c) }",
)
def gemm_bias_bias(m: Match) -> Outcome:
    if m.g.attrs["beta"] != 1.0 or m.g.type != m.root.type:
        return refuse("beta is not 1, or the bias widens the product")
    if not (fits_into(m.b.shape, m.c.shape) or fits_into(m.c.shape, m.b.shape)):
        return refuse("the biases would widen each other")
    if sizes(m.b) is None or sizes(m.c) is None:
        return refuse("the biases are not known to be finite")
    return _gemm_bias(m, m.x, m.y, m.c) or {"d": fold("Add", m.b, m.c)}


# Transposes ------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Gemm takes a transposed first operand as it is.",
    before="g:Gemm(Transpose(x, perm=[1, 0]), y, ?c)", after="Gemm(x, y, c, transA=t, *g)",
    example="graph opset 17 (x: float32[3, n]) -> (y) { " + _W + " t = Transpose(x, perm=[1, 0]) y = Gemm(t, w) }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (y) { " + _W + " t = Transpose(x, perm=[0, 1]) y = Gemm(t, w) }",
)
def gemm_transposed_first(m: Match) -> Outcome:
    return {"t": 1 - int(bool(m.g.attrs["transA"]))}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Gemm takes a transposed second operand as it is.",
    before="g:Gemm(x, Transpose(y, perm=[1, 0]), ?c)", after="Gemm(x, y, c, transB=t, *g)",
    example="graph opset 17 (x: float32[n, 3], z: float32[2, 3]) -> (y) "
            "{ t = Transpose(z, perm=[1, 0]) y = Gemm(x, t) }",
    near_miss="graph opset 17 (x: float32[n, 3], z: float32[3, 3]) -> (y) "
              "{ t = Transpose(z, perm=[0, 1]) y = Gemm(x, t) }",
)
def gemm_transposed_second(m: Match) -> Outcome:
    return {"t": 1 - int(bool(m.g.attrs["transB"]))}


def _matmul_transposed(side: str) -> Rule:
    first = side == "first"

    @rule(
        family=FAMILY, exactness="rounding", meaning=f"A product whose {side} operand is transposed is a Gemm.",
        before="MatMul(Transpose(x, perm=[1, 0]), y)" if first else "MatMul(x, Transpose(y, perm=[1, 0]))",
        after="Gemm(x, y, transA=1)" if first else "Gemm(x, y, transB=1)",
        example="graph opset 17 (x: float32[3, 4], z: float32[3, 5]) -> (y) "
                "{ t = Transpose(x, perm=[1, 0]) y = MatMul(t, z) }" if first else
                "graph opset 17 (x: float32[3, 4], z: float32[5, 4]) -> (y) "
                "{ t = Transpose(z, perm=[1, 0]) y = MatMul(x, t) }",
        near_miss="graph opset 17 (x: float32[3, 3], z: float32[2, 3, 3]) -> (y) "
                  + ("{ t = Transpose(x, perm=[1, 0]) y = MatMul(t, z) }" if first else
                     "{ t = Transpose(x, perm=[1, 0]) y = MatMul(z, t) }"),
    )
    def guard(m: Match) -> Outcome:
        if m.opset < 11:
            return refuse("before opset 11 Gemm needs a C")
        return None if is_float(m.x) and m.x.rank == m.y.rank == 2 else refuse("Gemm takes float matrices")

    return guard.renamed(f"matmul-transposed-{side}")


MATMUL_TRANSPOSED = [_matmul_transposed("first"), _matmul_transposed("second")]


# Sums of products ------------------------------------------------------------------------------------------


def _shared_weight(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding",
        meaning="Two values times one constant weight are their sum (or difference) times the weight.",
        before=f"{op}(MatMul(x, $w), MatMul(y, $w))", after=f"MatMul({op}(x, y), w)",
        example="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (y) "
                "{ " + _W + f" s = MatMul(x, w) t = MatMul(z, w) y = {op}(s, t) }}",
        near_miss="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (y) "
                  "{ w = constant float32[3, 2] [1, inf, 3, 4, 5, 6] "
                  f"s = MatMul(x, w) t = MatMul(z, w) y = {op}(s, t) }}",
    )
    def guard(m: Match) -> Outcome:
        if m.x.type != m.y.type or not is_float(m.x):
            return refuse("the two values differ in type or shape")
        return None if finite_constant(m.w) else refuse("the weight must be finite")

    return guard.renamed(f"shared-weight-{op.lower()}")


SHARED_WEIGHT = [_shared_weight("Add"), _shared_weight("Sub")]


def _two_weights(op: str, certain: bool) -> Rule:
    source = "s = Sigmoid(x)" if certain else "s = Neg(x)"
    weights = _W + " v = constant float32[3, 2] [1, 1, 2, -3, 5, 0.5] "
    missed = weights if certain else weights.replace("0.5] ", "nan] ")

    @rule(
        family=FAMILY, exactness="rounding" if certain else "finite",
        meaning="One value times two constant weights is the value times their sum (or difference)"
                + (", if it is never infinite." if certain else "."),
        before=f"{op}(MatMul(x, $w), MatMul(x, $v))", after="MatMul(x, u)",
        example=f"graph opset 17 (x: float32[n, 3]) -> (y) {{ {source} {weights}"
                f"p = MatMul(s, w) q = MatMul(s, v) y = {op}(p, q) }}",
        near_miss=f"graph opset 17 (x: float32[n, 3]) -> (y) {{ {missed}"
                  f"p = MatMul(x, w) q = MatMul(x, v) y = {op}(p, q) }}",
    )
    def guard(m: Match) -> Outcome:
        if m.w.type != m.v.type or m.w.rank < 2 or not is_float(m.x):
            return refuse("the weights differ in shape")
        if not (finite_constant(m.w) and finite_constant(m.v)):
            return refuse("the weights must be finite")
        problem = _finite_input(m, m.x) if certain else None
        return problem or {"u": fold(op, m.w, m.v)}

    return guard.renamed(f"two-weights-{op.lower()}" + ("" if certain else "-finite"))


def _finite_input(m: Match, x: Operand) -> Refusal | None:
    view = bounded(x)
    if view is None:
        return refuse("nothing shows that the value is never infinite")
    m.use(view)
    return None


TWO_WEIGHTS = [_two_weights(op, certain) for op in ("Add", "Sub") for certain in (True, False)]


# Two layers ------------------------------------------------------------------------------------------------


def _two_layers(bias: bool, certain: bool) -> Rule:
    source = "s = Sigmoid(x)" if certain else "s = Neg(x)"
    middle = "h = MatMul(s, w) b = constant float32[2] [0.5, -3] t = Add(h, b)" if bias else "t = MatMul(s, w)"
    inner = "Add(MatMul(x, $w), $b)" if bias else "MatMul(x, $w)"
    second = "v = constant float32[2, 3] [1, 1, 2, -3, 5, 0.5]"

    @rule(
        family=FAMILY, exactness="rounding" if certain else "finite",
        meaning="Two layers without an activation between them are one"
                + (", if their input is never infinite." if certain else "."),
        before=f"MatMul({inner}, $v)",
        after="Add(MatMul(x, MatMul(w, v)), MatMul(b, v))" if bias else "MatMul(x, MatMul(w, v))",
        example=f"graph opset 17 (x: float32[n, 3]) -> (y) {{ {source} {_W} {middle} {second} y = MatMul(t, v) }}",
        near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { " + ("s = Exp(x)" if certain else "s = Neg(x)")
                  + f" {_W} {middle} {second.replace('0.5', 'inf')} y = MatMul(t, v) }}",
    )
    def guard(m: Match) -> Outcome:
        if m.w.rank != 2 or m.v.rank != 2 or not is_float(m.x) or 0 in (*m.w.shape, *m.v.shape):
            return refuse("the weights are no matrices, or empty")
        if not (finite_constant(m.w) and finite_constant(m.v)):
            return refuse("the weights must be finite")
        if bias and (m.b.shape != m.w.shape[1:] or sizes(m.b) is None):
            return refuse("the bias must be a finite vector")
        return _finite_input(m, m.x) if certain else None

    return guard.renamed("two-layers" + ("-bias" if bias else "") + ("" if certain else "-finite"))


TWO_LAYERS = [_two_layers(bias, certain) for bias in (False, True) for certain in (True, False)]


def plain_weight(weight: Operand, attrs: Mapping[str, Any]) -> Leaf:
    """The weight that a Gemm's second operand stands for: transposed and scaled as its attributes say."""
    value: Leaf = term("Transpose", weight, perm=(1, 0)) if attrs["transB"] else weight
    return value if attrs["alpha"] == 1.0 else term("Mul", value, scalar(weight.dtype, attrs["alpha"]))


def plain_bias(bias: Operand | None, attrs: Mapping[str, Any]) -> Leaf | None:
    """The addend that a Gemm's C stands for."""
    if bias is None or attrs["beta"] == 1.0:
        return bias
    return term("Mul", bias, scalar(bias.dtype, attrs["beta"]))
