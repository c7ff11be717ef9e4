"""Work of the quantization operators."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from . import Row, Types, Work, elements, plain, traffic


def _quantize(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 4.0)


def _dequantize(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 2.0)


def _dynamic(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 6.0)


def _conv(weights: int) -> Row:
    def row(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
        weight = inputs[weights]
        assert weight is not None and weight.shape is not None
        return Work(2.0 * float(prod(weight.shape[1:])) * elements(outputs[0]),  # type: ignore[arg-type]
                    traffic(inputs, outputs))

    return row


def _matmul(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    a = inputs[0]
    assert a is not None and a.shape is not None
    return Work(2.0 * float(a.shape[-1]) * elements(outputs[0]), traffic(inputs, outputs))  # type: ignore[arg-type]


WORK: dict[str, Row] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "QLinearMatMul": _matmul,
}
