"""Small questions that guards ask of operands, and constants that right sides need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from graphs.constants import Constant
from graphs.dims import DimLike, Expr, broadcast
from graphs.dtypes import FLOATS, INTEGERS, numpy_dtype

from .declare import Leaf, NodeView, Operand, term

# Element types for which the usual runtimes have kernels of the composite operators (Gelu, HardSwish, ...).
COMMON_FLOATS = frozenset({"float32", "float16"})
# bfloat16 is left out: its constants lose so much when they are joined that results visibly move.
# A factor is moderate where its exponent lies within these bounds: joining two such factors neither hides nor makes
# an overflow or a loss of small values that a user would meet.
_MODERATE = {"float16": 2.0**8, "float32": 2.0**40, "float64": 2.0**300}
_ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def splat_of(operand: Operand | Constant | None) -> float | int | bool | None:
    """The one value of a constant's elements; None for anything else."""
    if operand is None:
        return None
    if isinstance(operand, Constant):
        return operand.facts.splat
    return operand.splat if operand.is_constant else None


def number(operand: Operand | None) -> float | None:
    """The one value of a numeric constant's elements as a Python float, None also for NaN and infinities."""
    value = splat_of(operand)
    if value is None or isinstance(value, (bool, complex)):
        return None
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def is_number(operand: Operand | None, value: float) -> bool:
    """Every element of the constant equals the value (0.0 and -0.0 are equal)."""
    return number(operand) == value


def is_negative_zero(value: float) -> bool:
    """-0.0."""
    return value == 0.0 and math.copysign(1.0, value) < 0


def close(found: float, value: float, dtype: str, ulps: float) -> bool:
    """Equal up to some units in the last place of an element type."""
    return abs(found - value) <= ulps * _ULP.get(dtype, 0.0) * abs(value)


def near(operand: Operand | None, value: float, ulps: float = 2.0) -> bool:
    """Every element of a float constant is close to the value."""
    found = number(operand)
    return found is not None and operand is not None and is_float(operand) and close(found, value, operand.dtype, ulps)


def scalar(dtype: str, value: float) -> Constant:
    """A rank-0 constant."""
    return Constant.of(np.array(value).astype(numpy_dtype(dtype)))


def rounded(dtype: str, value: float) -> float:
    """The value as an element type holds it."""
    with np.errstate(over="ignore"):
        return float(np.array(value).astype(numpy_dtype(dtype)))


def moderate(dtype: str, *values: float) -> bool:
    """All values are finite, nonzero and of moderate size for a float type."""
    limit = _MODERATE.get(dtype)
    return limit is not None and all(1.0 / limit <= abs(value) <= limit for value in values)


def sizes(operand: Operand) -> tuple[float, float] | None:
    """Smallest and largest absolute value of a finite float constant's elements, None where not known."""
    facts = operand.facts
    if not operand.is_constant or facts is None or not facts.finite or operand.dtype not in _MODERATE:
        return None
    if facts.splat is not None:
        return abs(float(facts.splat)), abs(float(facts.splat))
    if facts.low is None or facts.high is None:
        return None
    if facts.low > 0 or facts.high < 0:
        low, high = sorted((abs(facts.low), abs(facts.high)))
        return low, high
    array = operand.array
    if array is None or array.size == 0:
        return None
    wide = np.abs(array.astype(np.float64))
    return float(wide.min()), float(wide.max())


def moderate_constant(operand: Operand) -> bool:
    """A float constant whose elements are all of moderate size, none zero."""
    found = sizes(operand)
    return found is not None and moderate(operand.dtype, *found)


def finite_constant(operand: Operand | None) -> bool:
    """A constant without NaN and infinities, of a float type whose constants may be joined."""
    if operand is None or not operand.is_constant or operand.dtype not in _MODERATE:
        return False
    return operand.facts is not None and operand.facts.finite


def positive_constant(operand: Operand) -> bool:
    """Every element of the constant is above zero."""
    facts = operand.facts
    return finite_constant(operand) and facts is not None and facts.low is not None and facts.low > 0


def is_float(operand: Operand) -> bool:
    """float16, bfloat16, float32 or float64."""
    return operand.dtype in FLOATS


def is_integer(operand: Operand) -> bool:
    """A signed or unsigned integer type."""
    return operand.dtype in INTEGERS


def static(dims: Iterable[DimLike]) -> bool:
    """No symbolic size."""
    return not any(isinstance(dim, Expr) for dim in dims)


def joined_shape(*shapes: Sequence[DimLike]) -> tuple[DimLike, ...] | None:
    """The broadcast of shapes, None where they do not agree."""
    rank = max(map(len, shapes))
    result: list[DimLike] = []
    for axis in range(-rank, 0):
        size: DimLike | None = 1
        for shape in shapes:
            if -axis <= len(shape) and size is not None:
                size = broadcast(size, shape[axis])
        if size is None:
            return None
        result.append(size)
    return tuple(result)


def fits_into(shape: Sequence[DimLike], target: Sequence[DimLike]) -> bool:
    """The shape broadcasts to exactly the target: it widens nothing."""
    return joined_shape(shape, target) == tuple(target)


_FOLD_ELEMENTS = 1 << 16
_FOLDS: Mapping[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Neg": np.negative,
    "Reciprocal": lambda a: (np.ones((), a.dtype) / a).astype(a.dtype),
}  # fmt: skip


def fold(op: str, *args: Leaf) -> Leaf:
    """An operator on constants: computed at once where their elements are at hand and few (then later guards know
    them), else a node that is folded when the graph is built."""
    arrays = [_elements(arg) for arg in args]
    known = [array for array in arrays if array is not None]
    small = len(known) == len(args) and np.broadcast(*known).size <= _FOLD_ELEMENTS
    if not small or (op in ("Div", "Reciprocal") and known[0].dtype.kind in "iu"):
        return term(op, *args)
    with np.errstate(all="ignore"):
        return Constant.of(np.asarray(_FOLDS[op](*known)).astype(known[0].dtype))


def _elements(arg: Leaf) -> np.ndarray | None:
    if isinstance(arg, (Constant, Operand)):
        return arg.array
    return None


# operator -> bounds of its result for every input that is no NaN; NaN gives NaN
_RANGES: Mapping[str, tuple[float, float]] = {
    "Sigmoid": (0, 1), "HardSigmoid": (0, 1), "Softmax": (0, 1), "Tanh": (-1, 1), "Erf": (-1, 1), "Softsign": (-1, 1),
    "Sin": (-1, 1), "Cos": (-1, 1), "Exp": (0, math.inf), "Abs": (0, math.inf), "Relu": (0, math.inf),
    "Softplus": (0, math.inf),
}  # fmt: skip


def known_range(operand: Operand) -> tuple[float, float, NodeView] | None:
    """Bounds of a float value (NaN may be there as well) and a node that shows them."""
    if operand.dtype not in FLOATS:
        return None
    for op, (low, high) in _RANGES.items():
        for view in operand.forms(op):
            return low, high, view
    for view in operand.forms("Clip"):
        low, high = view.attrs["min"], view.attrs["max"]
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= high:
            return low, high, view
    return None


def nonnegative(operand: Operand) -> NodeView | None:
    """A node that shows that no element is below zero (NaN may be there)."""
    found = known_range(operand)
    return found[2] if found is not None and found[0] >= 0 else None


def bounded(operand: Operand) -> NodeView | None:
    """A node that shows that no element is infinite (NaN may be there)."""
    found = known_range(operand)
    return found[2] if found is not None and math.isfinite(found[0]) and math.isfinite(found[1]) else None


# Operators of one input that treat each element by itself (attributes are copied along with them).
UNARY = ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Reciprocal", "Floor", "Ceil", "Round",
         "Sign", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Gelu", "Mish", "Clip",
         "Cast", "Not")  # fmt: skip
# Those that give the same bits wherever the element stands. The others are computed in vectors and a remainder, which
# some runtimes round differently.
STEADY = frozenset({"Relu", "Sqrt", "Abs", "Neg", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "LeakyRelu", "Clip",
                    "Cast", "Not", "Add", "Sub", "Mul", "Div", "Max", "Min"})
