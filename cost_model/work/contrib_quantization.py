"""Work of ONNX Runtime's quantized arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from . import Row, Types, Work, elements, traffic
from .contrib import per_element
from .quantization import WORK as QUANTIZATION


def _product(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    a = inputs[0]
    assert a is not None and a.shape is not None
    return Work(2.0 * float(a.shape[-1]) * elements(outputs[0]), traffic(inputs, outputs))  # type: ignore[arg-type]


def _gemm(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    a = inputs[0]
    assert a is not None and a.shape is not None
    depth = float(a.shape[0 if attrs["transA"] else 1])  # type: ignore[arg-type]
    return Work((2.0 * depth + 6.0) * elements(outputs[0]), traffic(inputs, outputs))


def _few_bits(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    inner, outer = int(attrs["K"]), int(attrs["N"])  # type: ignore[call-overload]
    return Work(2.0 * inner * elements(outputs[0]) + 2.0 * inner * outer, traffic(inputs, outputs))


def _pool(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    window = prod(attrs["kernel_shape"])  # type: ignore[call-overload]
    return Work((window + 5.0) * elements(outputs[0]), traffic(inputs, outputs))


def _global_pool(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(elements(inputs[0]) + 5.0 * elements(outputs[0]), traffic(inputs, outputs))


WORK: dict[str, Row] = {
    "com.microsoft.QLinearAdd": per_element(9.0),
    "com.microsoft.QLinearMul": per_element(9.0),
    "com.microsoft.QLinearSigmoid": per_element(10.0),
    "com.microsoft.QLinearLeakyRelu": per_element(8.0),
    "com.microsoft.QLinearSoftmax": per_element(12.0),
    "com.microsoft.QLinearWhere": per_element(7.0),
    "com.microsoft.QLinearConcat": per_element(6.0),
    "com.microsoft.QLinearAveragePool": _pool,
    "com.microsoft.QLinearGlobalAveragePool": _global_pool,
    "com.microsoft.NhwcMaxPool": _pool,
    "com.microsoft.QLinearConv": QUANTIZATION["QLinearConv"],
    "com.microsoft.QGemm": _gemm,
    "com.microsoft.MatMulIntegerToFloat": _product,
    "com.microsoft.DynamicQuantizeMatMul": _product,
    "com.microsoft.MatMulNBits": _few_bits,
    "com.microsoft.QuantizeLinear": QUANTIZATION["QuantizeLinear"],
    "com.microsoft.DequantizeLinear": QUANTIZATION["DequantizeLinear"],
}
