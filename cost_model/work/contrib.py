"""Work of ONNX Runtime's contrib operators: fused arithmetic, normalization, embedding."""

from __future__ import annotations

from collections.abc import Mapping

from graphs.operators.contrib import turned

from . import Row, Types, Work, elements, plain, traffic
from .convolution import WORK as CONVOLUTION
from .linear import WORK as LINEAR


def per_element(operations: float) -> Row:
    """A row of so many operations for each element of the first output."""
    return lambda attrs, inputs, outputs: plain(inputs, outputs, operations)


def _fused_matmul(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    a = inputs[0]
    assert a is not None and a.shape is not None
    axis = turned(range(len(a.shape)), attrs["transA"], attrs.get("transBatchA"))[-1]
    depth = a.shape[axis]
    return Work((2.0 * float(depth) + (attrs["alpha"] != 1.0)) * elements(outputs[0]),  # type: ignore[arg-type]
                traffic(inputs, outputs))


def _embedding(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """Of the tables only the rows that are looked up are read."""
    made = outputs[0]
    tables = [inputs[index] if index < len(inputs) else None for index in (2, 3, 4)]
    others = [type_ for type_ in inputs if type_ not in tables]
    rows = sum(table is not None for table in tables) * ((made.static_bytes or 0.0) if made is not None else 0.0)
    return Work(12.0 * elements(made), traffic(others, outputs) + rows)


def _distances(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    a = inputs[0]
    assert a is not None and a.shape is not None
    return Work(3.0 * float(a.shape[-1]) * elements(outputs[0]), traffic(inputs, outputs))  # type: ignore[arg-type]


def _inverse(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    x = inputs[0]
    assert x is not None and x.shape is not None
    return Work(2.0 * float(x.shape[-1]) * elements(x), traffic(inputs, outputs))  # type: ignore[arg-type]


WORK: dict[str, Row] = {
    "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.TransposeMatMul": _fused_matmul,
    "com.microsoft.FusedGemm": LINEAR["Gemm"],
    "com.microsoft.FusedConv": CONVOLUTION["Conv"],
    "com.microsoft.ConvTransposeWithDynamicPads": CONVOLUTION["ConvTranspose"],
    "com.microsoft.GridSample": CONVOLUTION["GridSample"],
    "com.microsoft.CDist": _distances,
    "com.microsoft.Inverse": _inverse,
    "com.microsoft.Gelu": per_element(10.0),
    "com.microsoft.BiasGelu": per_element(11.0),
    "com.microsoft.FastGelu": per_element(11.0),
    "com.microsoft.QuickGelu": per_element(6.0),
    "com.microsoft.BiasSplitGelu": per_element(13.0),
    "com.microsoft.BiasAdd": per_element(2.0),
    "com.microsoft.BiasSoftmax": per_element(6.0),
    "SimplifiedLayerNormalization": per_element(5.0),
    "com.microsoft.SkipLayerNormalization": per_element(9.0),
    "com.microsoft.SkipSimplifiedLayerNormalization": per_element(6.0),
    "com.microsoft.EmbedLayerNormalization": _embedding,
}
