"""Kernels of Cast and CastLike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from graphs import dtypes

from . import Arrays, rows
from ._numeric import given, integer, is_floating

KERNELS, kernel = rows()
_SATURATING = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def convert(x: np.ndarray, target: str, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """Elements in another type, as the Cast operator does it."""
    dtype = dtypes.numpy_dtype(target)
    if x.dtype.kind in "OUS":
        return _from_text(x, target, saturate)
    if target == "string":
        return x.astype(np.str_).astype(object)
    if target == "float8_e8m0fnu":
        return onnx.numpy_helper.to_float8e8m0(x, saturate, round_mode).astype(dtype)
    with np.errstate(all="ignore"):
        if target in _SATURATING and saturate:
            return onnx.numpy_helper.saturate_cast(x, dtype)
        if target == "bool" and is_floating(x.dtype):
            return np.asarray(x.astype(np.float64) != 0)
        return x.astype(dtype)


def _from_text(x: np.ndarray, target: str, saturate: bool) -> np.ndarray:
    if target == "string":
        return x
    texts = [item.decode() if isinstance(item, bytes) else str(item) for item in x.ravel()]
    if target in dtypes.INTEGERS:
        values = [int(text) if text.strip().lstrip("+-").isdigit() else int(float(text)) for text in texts]
        return np.array(values, dtype=object).astype(dtypes.numpy_dtype(target)).reshape(x.shape)
    return convert(np.array([float(text) for text in texts], np.float64).reshape(x.shape), target, saturate)


@kernel("Cast")
def _cast(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    target = dtypes.FROM_ONNX[integer(attrs, "to")]
    return [convert(given(inputs, 0), target, bool(attrs["saturate"]), str(attrs["round_mode"]))]


@kernel("CastLike")
def _cast_like(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    target = dtypes.name_of(given(inputs, 1).dtype)
    return [convert(given(inputs, 0), target, bool(attrs["saturate"]), str(attrs["round_mode"]))]
