"""BatchNormalization and constants per channel as the affine maps that they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.constants import Constant
from graphs.dims import DimLike
from graphs.dtypes import FLOATS, numpy_dtype

from .declare import Operand

_LIMIT = {"float16": 6e4, "float32": 1e38, "float64": 1e300}


def vector(operand: Operand) -> np.ndarray | None:
    """A constant's elements in float64, None unless they are at hand and finite."""
    array = operand.array
    if array is None or operand.dtype not in FLOATS:
        return None
    wide = array.astype(np.float64)
    return wide if bool(np.isfinite(wide).all()) else None


def per_channel(operand: Operand, channels: DimLike, rank: int) -> np.ndarray | None:
    """One value for each channel (axis 1) of a value of some rank, in float64.

    None where the constant varies along another axis, raises the rank, or is not at hand.
    """
    array = vector(operand)
    if array is None or operand.rank > rank or not isinstance(channels, int):
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if rank < 2 or any(dim != 1 for axis, dim in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,)).copy()


def batch_norm(scale: Operand, bias: Operand, mean: Operand, variance: Operand,
               epsilon: float) -> tuple[np.ndarray, np.ndarray] | None:
    """(factor, shift) of an inference BatchNormalization in float64, None where its constants are not at hand."""
    found = [vector(each) for each in (scale, bias, mean, variance)]
    if any(each is None or each.ndim != 1 for each in found):
        return None
    s, b, m, v = (each for each in found if each is not None)
    if not len(s) == len(b) == len(m) == len(v) or not (v + epsilon > 0).all():
        return None
    factor = s / np.sqrt(v + epsilon)
    return factor, b - m * factor


def narrowed(dtype: str, array: np.ndarray, shape: Sequence[int] | None = None) -> Constant | None:
    """The array as a constant, None where an element would overflow (and for bfloat16, which would lose too much)."""
    if dtype not in _LIMIT or not np.isfinite(array).all() or (array.size and np.abs(array).max() > _LIMIT[dtype]):
        return None
    value = array.astype(numpy_dtype(dtype))
    return Constant.of(value if shape is None else value.reshape(tuple(shape)))
