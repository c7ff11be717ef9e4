"""Work of the convolution operators."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from . import Row, Types, Work, elements, plain, traffic


def _conv(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    weight = inputs[1]
    assert weight is not None and weight.shape is not None
    per_output = 2.0 * float(prod(weight.shape[1:]))  # type: ignore[arg-type]
    bias = 1.0 if len(inputs) > 2 and inputs[2] is not None else 0.0
    return Work((per_output + bias) * elements(outputs[0]), traffic(inputs, outputs))


def _conv_transpose(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    weight = inputs[1]
    assert weight is not None and weight.shape is not None
    per_input = 2.0 * float(prod(weight.shape[1:]))  # type: ignore[arg-type]
    return Work(per_input * elements(inputs[0]) + elements(outputs[0]), traffic(inputs, outputs))


def _pool(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, float(prod(attrs["kernel_shape"])))  # type: ignore[call-overload]


def _global_pool(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(elements(inputs[0]), traffic(inputs, outputs))


def _lrn(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 2.0 * float(attrs["size"]) + 12.0)  # type: ignore[arg-type]


_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}


def _resample(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    x = inputs[0]
    axes = max(1, (x.rank or 2) - 2) if x is not None else 1
    taps = _TAPS.get(str(attrs.get("mode")), 2)
    return plain(inputs, outputs, 2.0 * taps**axes if taps > 1 else 1.0)


WORK: dict[str, Row] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GlobalLpPool": _global_pool,
    "LRN": _lrn,
    "Resize": _resample,
    "Upsample": _resample,
    "GridSample": _resample,
}
