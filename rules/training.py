"""Rules that graphs of gradients need: signs that move, the cross-entropy of a Softmax, masks."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import ONNX_NUMBER, numpy_dtype

from .declare import Match, Operand, Outcome, refuse, rule, term
from .values import COMMON_FLOATS, is_float, is_number, number

FAMILY = "training"
_X = "graph opset 18 (x: float32[n, 4], z: float32[n, 4]) -> (y)"

# Signs -----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="The sign of a factor is the sign of the product.",
    before="Mul(x, Neg(y))", after="Neg(Mul(x, y))",
    example=f"{_X} {{ t = Neg(z) y = Mul(x, t) }}",
    near_miss=f"{_X} {{ t = Abs(z) y = Mul(x, t) }}",
)
def mul_neg(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("not floats")


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="A sum of negated terms is the negated sum (but for the sign of zero).",
    before="ReduceSum(Neg(x), axes=a, keepdims=k)", after="Neg(ReduceSum(x, axes=a, keepdims=k))",
    example=f"{_X} {{ t = Neg(x) y = ReduceSum(t, axes=[1]) }}",
    near_miss=f"{_X} {{ t = Abs(x) y = ReduceSum(t, axes=[1]) }}",
)
def reducesum_neg(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("not floats")


# Softmax and its cross-entropy -----------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The exponential of LogSoftmax is Softmax.",
    before="Exp(LogSoftmax(x, axis=a))", after="Softmax(x, axis=a)",
    example=f"{_X} {{ t = LogSoftmax(x) y = Exp(t) }}",
    near_miss=f"{_X} {{ t = LogSoftmax(x) y = Sigmoid(t) }}",
)
def exp_of_log_softmax(m: Match) -> Outcome:
    return None if m.x.dtype in COMMON_FLOATS else refuse(f"what runtimes make of infinity in {m.x.dtype} differs")


def _spread(m: Match, operand: Operand) -> float | None:
    """The one finite number that all elements are: of a constant, or of an Expand of one."""
    found = number(operand)
    for view in operand.forms("Expand") if found is None else ():
        source = view.args[0]
        found = number(source) if source is not None else None
        if found is not None:
            m.use(view)
            break
    return found


_SCATTER = ("graph opset 18 (x: float32[n, 3], l: int64[n, 3]) -> (y) { zero = constant float32[] 0 "
            "number = constant float32[] -2 i = ArgMax(l, axis=1) j = Shape(i) k = Shape(x) "
            "z = Expand(zero, k, shape=runtime) u = Expand(number, j, shape=runtime) ")


@rule(
    family=FAMILY, exactness="rounding", zero_sign=True,
    meaning="One number added to zeros at one place of each line is a one-hot tensor. A place outside of the line, "
            "which the first refuses, is none.",
    before='ScatterElements(z, i, u, axis=a, reduction="add")',
    example=f'{_SCATTER} y = ScatterElements(z, i, u, axis=1, reduction="add") }}',
    near_miss=f'{_SCATTER} y = ScatterElements(x, i, u, axis=1, reduction="add") }}',
)
def scatter_to_one_hot(m: Match) -> Outcome:
    shape, axis = m.root.type.shape or (), m["a"]
    size, value = shape[axis], _spread(m, m.u)
    if not is_float(m.z) or _spread(m, m.z) != 0.0 or value is None or value == 0.0:
        return refuse("not one number among zeros")
    if not isinstance(size, int) or size < 1 or m.i.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        return refuse("not one place in each line of a known size")
    places = term("Reshape", m.i, shape=(*shape[:axis], *shape[axis + 1 :]))
    values = Constant.of(np.array([0.0, abs(value)]).astype(numpy_dtype(m.z.dtype)))
    last = axis == len(shape) - 1
    hot = term("OneHot", places, Constant.of(np.array(size, np.int64)), values, axis=-1 if last else axis)
    return hot if value > 0 else term("Neg", hot)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The sum of a line of zeros to one place of which a number was added is this number, here as a factor.",
    before='Mul(x, ReduceSum(ScatterElements(z, i, u, axis=a, reduction="add"), axes=b, keepdims=1))',
    after="Mul(x, c)",
    example=f'{_SCATTER} t = ScatterElements(z, i, u, axis=1, reduction="add") s = ReduceSum(t, axes=[1]) '
            "y = Mul(x, s) }",
    near_miss=f'{_SCATTER} t = ScatterElements(z, i, u, axis=1, reduction="add") s = ReduceSum(t, axes=[0]) '
              "y = Mul(x, s) }",
)
def scale_by_scattered(m: Match) -> Outcome:
    axis, shape, value = m["a"], m.z.shape, _spread(m, m.u)
    if m["b"] != (axis,) or not is_float(m.z) or _spread(m, m.z) != 0.0 or value is None:
        return refuse("not the sum along the axis in which a number was added to zeros")
    if m.i.shape != (*shape[:axis], 1, *shape[axis + 1 :]) or m.x.shape != m.root.type.shape:
        return refuse("not one place in each line, or the other factor is smaller than the product")
    return {"c": np.array(value).astype(numpy_dtype(m.z.dtype))}


# Masks -----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="finite", zero_sign=True,
    meaning="What a mask lets through, and zero elsewhere, is a product with the mask as a number (0 times infinity is "
            "NaN).",
    before="Where(c, x, $z)",
    example=f"{_X} {{ o = constant float32[] 0 c = Greater(z, o) y = Where(c, x, o) }}",
    near_miss=f"{_X} {{ o = constant float32[] 1 c = Greater(z, o) y = Where(c, x, o) }}",
)
def where_as_product(m: Match) -> Outcome:
    if not is_number(m.z, 0.0) or not is_float(m.x):
        return refuse("not floats, or another number than zero elsewhere")
    if m.c.shape != m.root.type.shape or m.x.shape != m.root.type.shape:
        return refuse("the mask or what it lets through is smaller than the result")
    return term("Mul", m.x, term("Cast", m.c, to=ONNX_NUMBER[m.x.dtype]))
