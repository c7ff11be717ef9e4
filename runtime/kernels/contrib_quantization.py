"""Kernels of ONNX Runtime's quantized arithmetic.

Results are those of the formula in float32: dequantize, compute, quantize. ONNX Runtime takes shorter ways (tables,
fixed factors) and may round what lies on the border of two numbers to the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from . import Arrays, rows
from ._activations import sigmoid
from ._numeric import given, integer, narrow, number, optional, wide
from ._pooling import average_pool, max_pool
from .quantization import dequantize_linear, dynamic_quantize_linear, qlinear_conv, quantize_linear

KERNELS, kernel = rows()
_BITS = (2, 4, 8)
_QUANTIZE: dict[str, object] = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}
_LAST_FLATTENED = 13  # the opset from which Softmax works along one axis


def contrib(name: str) -> str:
    """The name in the table."""
    return f"com.microsoft.{name}"


def real(inputs: Arrays, first: int) -> np.ndarray:
    """The numbers that the three inputs from `first` on (tensor, scale, zero point) stand for."""
    x, scale, zero = given(inputs, first), given(inputs, first + 1), optional(inputs, first + 2)
    if scale.size > 1 or (zero is not None and zero.size > 1):
        raise NotImplementedError("scales per channel")
    whole = x.astype(np.int32) if zero is None else x.astype(np.int32) - zero.reshape(()).astype(np.int32)
    return whole.astype(scale.dtype) * scale.reshape(())


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Rounded to even, plus zero point, clipped."""
    point = np.zeros((), dtype) if zero is None else zero.reshape(())
    return np.asarray(quantize_linear(_QUANTIZE, [x, scale.reshape(()).astype(x.dtype), point])[0])


def _result(x: np.ndarray, inputs: Arrays, position: int, dtype: np.dtype) -> list[np.ndarray]:
    """Quantized by the scale at a position and the zero point behind it."""
    return [quantized(x, given(inputs, position), optional(inputs, position + 1), dtype)]


@kernel(contrib("QLinearAdd"))
def _add(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _result(real(inputs, 0) + real(inputs, 3), inputs, 6, given(inputs, 0).dtype)


@kernel(contrib("QLinearMul"))
def _mul(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _result(real(inputs, 0) * real(inputs, 3), inputs, 6, given(inputs, 0).dtype)


@kernel(contrib("QLinearSigmoid"))
def _sigmoid(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _result(sigmoid(real(inputs, 0)), inputs, 3, given(inputs, 0).dtype)


@kernel(contrib("QLinearLeakyRelu"))
def _leaky_relu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = real(inputs, 0)
    return _result(np.where(x >= 0, x, x.dtype.type(number(attrs, "alpha")) * x), inputs, 3, given(inputs, 0).dtype)


@kernel(contrib("QLinearSoftmax"))
def _softmax(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = real(inputs, 0)
    axis = integer(attrs, "axis") % x.ndim
    flat = x.reshape(prod(x.shape[:axis]), -1) if integer(attrs, "opset") < _LAST_FLATTENED else x
    along = 1 if flat is not x else axis
    powers = np.exp(flat - flat.max(axis=along, keepdims=True))
    y = (powers / powers.sum(axis=along, keepdims=True)).reshape(x.shape)
    return _result(y, inputs, 3, given(inputs, 0).dtype)


@kernel(contrib("QLinearWhere"))
def _where(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _result(np.where(given(inputs, 0), real(inputs, 1), real(inputs, 4)), inputs, 7, given(inputs, 1).dtype)


@kernel(contrib("QLinearConcat"))
def _concat(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    scale, zero = given(inputs, 0), given(inputs, 1)
    parts = [real(inputs, position) for position in range(2, len(inputs), 3)]
    return [quantized(np.concatenate(parts, axis=integer(attrs, "axis")), scale, zero, zero.dtype)]


@kernel(contrib("QLinearAveragePool"), contrib("QLinearGlobalAveragePool"))
def _average_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = real(inputs, 0)
    last = bool(attrs["channels_last"])
    x = np.moveaxis(x, -1, 1) if last else x
    if "kernel_shape" in attrs:
        y = np.asarray(average_pool(attrs, [x])[0])
    else:
        y = np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True, dtype=np.float64)).astype(x.dtype)
    return _result(np.moveaxis(y, 1, -1) if last else y, inputs, 3, given(inputs, 0).dtype)


# Products --------------------------------------------------------------------------------------------------


def _whole(x: np.ndarray, zero: np.ndarray | None, column: bool) -> np.ndarray:
    """8-bit numbers minus their zero point, in a type whose sums of products are exact."""
    if zero is None:
        return x.astype(np.float64)
    shift = zero.reshape(()) if zero.size == 1 else zero if column else zero[..., None]
    return x.astype(np.float64) - shift.astype(np.float64)


def _integer_product(a: np.ndarray, a_scale: np.ndarray, a_zero: np.ndarray | None, b: np.ndarray,
                     b_scale: np.ndarray, b_zero: np.ndarray | None, bias: np.ndarray | None) -> list[np.ndarray]:
    if a_scale.size > 1:
        raise NotImplementedError("scales per row")
    product = np.matmul(_whole(a, a_zero, False), _whole(b, b_zero, True)).astype(b_scale.dtype)
    y = product * (a_scale.reshape(()) * (b_scale.reshape(()) if b_scale.size == 1 else b_scale))
    return [narrow(y if bias is None else y + bias, b_scale.dtype)]


@kernel(contrib("MatMulIntegerToFloat"))
def _to_float(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Product of matrices of 8-bit numbers, as the floats that it stands for, plus bias."""
    a, b, a_scale, b_scale = (given(inputs, index) for index in range(4))
    return _integer_product(a, a_scale, optional(inputs, 4), b, b_scale, optional(inputs, 5), optional(inputs, 6))


@kernel(contrib("DynamicQuantizeMatMul"))
def _dynamic(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """The same after quantizing the first factor by its own range."""
    x, b, b_scale = (given(inputs, index) for index in range(3))
    a, scale, zero = (np.asarray(each) for each in dynamic_quantize_linear({"*outputs": 3}, [x]))
    return _integer_product(a, scale, zero, b, b_scale, optional(inputs, 3), optional(inputs, 4))


@kernel(contrib("QGemm"))
def _gemm(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """alpha * A B + C, where C counts in units of both scales; quantized where the result has a scale."""
    a, a_scale, a_zero, b, b_scale, b_zero = (given(inputs, index) for index in range(6))
    c, y_scale, y_zero = (optional(inputs, index) for index in (6, 7, 8))
    left = (a.T if attrs["transA"] else a).astype(np.float64) - a_zero.reshape(())
    right = (b.T if attrs["transB"] else b).astype(np.float64) - (b_zero.reshape(()) if b_zero.size == 1 else b_zero)
    product = np.matmul(left, right)
    if c is not None:
        product = product + c
    factor = a_scale.dtype.type(number(attrs, "alpha")) * a_scale.reshape(()) * (
        b_scale.reshape(()) if b_scale.size == 1 else b_scale)
    y = product.astype(a_scale.dtype) * factor
    return [y] if y_scale is None or y_zero is None else [quantized(y, y_scale, y_zero, y_zero.dtype)]


@kernel(contrib("QLinearConv"))
def _convolution(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    if not attrs["channels_last"]:
        return qlinear_conv(attrs, inputs)
    y = np.asarray(qlinear_conv(attrs, [np.moveaxis(given(inputs, 0), -1, 1), *inputs[1:]])[0])
    return [np.moveaxis(y, 1, -1)]


@kernel(contrib("NhwcMaxPool"))
def _max_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.moveaxis(np.asarray(max_pool(attrs, [np.moveaxis(given(inputs, 0), -1, 1)])[0]), 1, -1)]


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of a few bits out of bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(*packed.shape[:-1], -1)


def block_weights(attrs: Mapping[str, object], packed: np.ndarray, scales: np.ndarray,
                  zeros: np.ndarray | None) -> np.ndarray:
    """The weights (N, K) of MatMulNBits."""
    bits, block = integer(attrs, "bits"), integer(attrs, "block_size")
    outer, inner = integer(attrs, "N"), integer(attrs, "K")
    blocks = -(-inner // block)
    values = unpacked(packed.reshape(outer, blocks, -1), bits)[..., :block].astype(np.float32)
    if zeros is None:
        shift: np.ndarray = np.full((1, 1), 2 ** (bits - 1), np.float32)
    elif zeros.dtype == np.uint8:
        shift = unpacked(zeros.reshape(outer, -1), bits)[:, :blocks].astype(np.float32)
    else:
        shift = wide(zeros).reshape(outer, blocks)
    weights = (values - shift[..., None]) * wide(scales).reshape(outer, blocks)[..., None]
    return weights.reshape(outer, -1)[:, :inner]


@kernel(contrib("MatMulNBits"))
def _few_bits(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Product with weights of a few bits, each block of which has its own scale and zero point."""
    a, packed, scales, bias = given(inputs, 0), given(inputs, 1), given(inputs, 2), optional(inputs, 5)
    if integer(attrs, "bits") not in _BITS or attrs["weight_prepacked"]:
        raise NotImplementedError("MatMulNBits of prepacked weights, or of other than 2, 4 and 8 bits")
    if optional(inputs, 4) is not None:
        raise NotImplementedError("MatMulNBits with reordered groups")
    weights = block_weights(attrs, packed, scales, optional(inputs, 3))
    data = wide(a)
    y = np.matmul(data, weights.T.astype(data.dtype, copy=False))
    return [narrow(y if bias is None else y + wide(bias), a.dtype)]


@kernel(contrib("QuantizeLinear"))
def _quantize(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return quantize_linear({**_QUANTIZE, **_axis(attrs)}, inputs)


@kernel(contrib("DequantizeLinear"))
def _dequantize(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return dequantize_linear({**_QUANTIZE, **_axis(attrs)}, inputs)


def _axis(attrs: Mapping[str, object]) -> dict[str, object]:
    return {} if attrs["axis"] is None else {"axis": attrs["axis"]}
