"""Kernels of the quantization operators.

Integer products run through floating-point BLAS where that is exact: float32 holds every sum below 2**24, float64
every sum of products of 8-bit numbers that fits in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx.numpy_helper

from graphs import dtypes

from . import OUTPUTS, Arrays, rows
from ._windows import HALF, widen
from .convolution import convolve

KERNELS, kernel = rows()

_INTEGER_RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "uint4": (0, 15),
    "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1),
}  # fmt: skip


def _get(inputs: Arrays, index: int) -> np.ndarray | None:
    return inputs[index] if index < len(inputs) else None


def _number(attrs: Mapping[str, object], name: str) -> int:
    return int(attrs.get(name) or 0)  # type: ignore[call-overload]


def _spread(value: np.ndarray, shape: Sequence[int], axis: int, block: int) -> np.ndarray:
    """A scale or zero point, shaped to broadcast against the data: per tensor, per axis or per block."""
    if value.size == 1 and value.ndim <= 1:
        return value.reshape(())
    if not block:
        aligned = [1] * len(shape)
        aligned[axis] = -1
        return value.reshape(aligned)
    repeated = np.repeat(value, block, axis=axis)
    return repeated.take(np.arange(shape[axis]), axis=axis)


def _as_float(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.name in ("float32", "float64") else array.astype(np.float32)


def _saturated(ratio: np.ndarray, zero: np.ndarray | int, dtype: np.dtype) -> np.ndarray:
    """round to even, plus zero point, clipped to an integer type."""
    low, high = _INTEGER_RANGES[dtype.name]
    with np.errstate(invalid="ignore"):
        return np.clip(np.rint(ratio) + zero, low, high).astype(np.int32).astype(dtype)


@kernel("QuantizeLinear")
def quantize_linear(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """saturate(round(x / scale) + zero point)."""
    x, scale, zero = inputs[0], inputs[1], _get(inputs, 2)
    assert x is not None and scale is not None
    number = _number(attrs, "output_dtype")
    dtype = zero.dtype if zero is not None else dtypes.numpy_dtype(dtypes.FROM_ONNX[number] if number else "uint8")
    axis, block = int(attrs["axis"]), _number(attrs, "block_size")  # type: ignore[call-overload]
    divisor = _spread(scale, x.shape, axis, block)
    ratio = np.divide(_as_float(x), _as_float(divisor))
    precision = dtypes.FROM_ONNX.get(_number(attrs, "precision"))
    if precision in HALF:
        ratio = ratio.astype(dtypes.numpy_dtype(precision)).astype(np.float32)  # type: ignore[arg-type]
    if dtype.name in _INTEGER_RANGES:
        shift = 0 if zero is None else _spread(zero, x.shape, axis, block).astype(np.float32)
        return [_saturated(ratio, shift, dtype)]
    if dtype.name.startswith("float8") and attrs["saturate"]:
        return [onnx.numpy_helper.saturate_cast(ratio, dtype=dtype)]
    if zero is not None and not dtype.name.startswith("float8"):
        ratio = ratio + _spread(zero, x.shape, axis, block).astype(np.float32)
    return [ratio.astype(dtype)]


@kernel("DequantizeLinear")
def dequantize_linear(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """(x - zero point) * scale."""
    x, scale, zero = inputs[0], inputs[1], _get(inputs, 2)
    assert x is not None and scale is not None
    axis, block = int(attrs["axis"]), _number(attrs, "block_size")  # type: ignore[call-overload]
    if x.dtype.name.startswith("float"):
        difference = x.astype(np.float32)
    else:
        whole = x.astype(np.int64 if x.dtype == np.int32 else np.int32)
        if zero is not None:
            whole = whole - _spread(zero, x.shape, axis, block).astype(whole.dtype)
        difference = whole.astype(np.float32)
    number = _number(attrs, "output_dtype")
    dtype = dtypes.numpy_dtype(dtypes.FROM_ONNX[number]) if number else scale.dtype
    return [(difference * _as_float(_spread(scale, x.shape, axis, block))).astype(dtype, copy=False)]


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Quantizes to uint8 by the range of the data, zero included."""
    x = inputs[0]
    assert x is not None
    low = np.minimum(x.min(initial=np.float32(0)), np.float32(0))
    high = np.maximum(x.max(initial=np.float32(0)), np.float32(0))
    scale = np.float32(1) if high == low else np.float32((high - low) / np.float32(255))
    zero = np.rint(np.clip(-low / scale, np.float32(0), np.float32(255)))
    y = _saturated(x / scale, zero, np.dtype(np.uint8))
    return [y, np.asarray(scale, np.float32), np.asarray(zero).astype(np.uint8)][: _number(attrs, OUTPUTS) or 1]


def _centred(array: np.ndarray, zero: np.ndarray | None, depth: int) -> np.ndarray:
    """8-bit numbers minus their zero point, in a floating type whose sums of `depth` products are exact."""
    dtype = np.float32 if depth * 255 * 255 < 1 << 24 else np.float64
    centred = array.astype(dtype)
    return centred if zero is None else centred - zero.astype(dtype)


def _per_map(value: np.ndarray | None, rank: int) -> np.ndarray | None:
    """A scale or zero point per output channel, shaped like weights of that rank."""
    if value is None or value.size == 1:
        return None if value is None else value.reshape(())
    return value.reshape(-1, *(1,) * (rank - 1))


def _int32(sums: np.ndarray) -> np.ndarray:
    return sums.astype(np.int64).astype(np.int32)


@kernel("ConvInteger")
def conv_integer(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Convolution of 8-bit numbers into int32."""
    x, w = inputs[0], inputs[1]
    assert x is not None and w is not None
    depth = prod(w.shape[1:])
    wide = _centred(x, _get(inputs, 2), depth)
    return [_int32(convolve(wide, _centred(w, _per_map(_get(inputs, 3), w.ndim), depth), attrs))]


def _requantized(sums: np.ndarray, ratio: np.ndarray, zero: np.ndarray) -> np.ndarray:
    product = sums.astype(np.float32) * ratio.astype(np.float32)
    return _saturated(product, zero.reshape(()).astype(np.float32), zero.dtype)


@kernel("QLinearConv")
def qlinear_conv(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Convolution of quantized numbers, quantized again."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    bias = _get(inputs, 8)
    assert x is not None and w is not None and x_scale is not None and w_scale is not None
    assert x_zero is not None and y_scale is not None and y_zero is not None
    depth = prod(w.shape[1:])
    sums = convolve(_centred(x, x_zero.reshape(()), depth), _centred(w, _per_map(w_zero, w.ndim), depth), attrs)
    whole = sums.astype(np.int64)
    if bias is not None:
        whole = whole + bias.reshape(-1, *(1,) * (x.ndim - 2))
    scales = w_scale.reshape(()) if w_scale.size == 1 else w_scale.reshape(-1, *(1,) * (x.ndim - 2))
    return [_requantized(whole, x_scale.reshape(()) * scales / y_scale.reshape(()), y_zero)]


def _row_or_column(value: np.ndarray, column: bool) -> np.ndarray:
    if value.size == 1:
        return value.reshape(())
    if value.ndim == 1:
        return value if column else value[:, None]
    return value


@kernel("QLinearMatMul")
def qlinear_matmul(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Product of quantized matrices, quantized again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs[:8]
    assert a is not None and b is not None and a_scale is not None and b_scale is not None
    assert a_zero is not None and b_zero is not None and y_scale is not None and y_zero is not None
    if a.dtype.name.startswith("float8") or y_scale.size > 1 or y_zero.size > 1:
        raise NotImplementedError("QLinearMatMul of float8 or with an output scale per row")
    depth = a.shape[-1]
    product = np.matmul(_centred(a, _row_or_column(a_zero, False), depth),
                        _centred(b, _row_or_column(b_zero, True), depth))
    ratio = (widen(_row_or_column(a_scale, False)) * widen(_row_or_column(b_scale, True))
             / widen(y_scale.reshape(())))
    return [_requantized(product.astype(np.int64), ratio, y_zero)]
