"""Work of the operators that contract axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from graphs.operators.linear import parse_equation

from . import Row, Types, Work, elements, traffic


def _sizes(types: Types, position: int) -> tuple[int, ...]:
    type_ = types[position]
    if type_ is None or type_.shape is None:
        raise ValueError(f"operand {position} without a shape")
    return tuple(int(size) for size in type_.shape)  # type: ignore[arg-type]


def _matmul(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    depth = _sizes(inputs, 0)[-1]
    return Work(2.0 * depth * elements(outputs[0]), traffic(inputs, outputs))


def _gemm(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    rows, columns = _sizes(inputs, 0)
    depth = rows if attrs["transA"] else columns
    scale = (attrs["alpha"] != 1.0) + (2 if len(inputs) > 2 and inputs[2] is not None else 0)
    return Work((2.0 * depth + scale) * elements(outputs[0]), traffic(inputs, outputs))


def _einsum(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """All operands at once; a runtime that contracts three or more in pairs does less."""
    shapes = [_sizes(inputs, position) for position in range(len(inputs))]
    operands, _, _ = parse_equation(str(attrs["equation"]), [len(shape) for shape in shapes])
    extent: dict[str, int] = {}
    for labels, shape in zip(operands, shapes):
        for label, size in zip(labels, shape):
            extent[label] = max(size, extent.get(label, 1))
    return Work(float(max(len(shapes), 1)) * prod(extent.values()), traffic(inputs, outputs))


def _det(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    side = _sizes(inputs, 0)[-1]
    return Work(2.0 / 3.0 * side**3 * elements(outputs[0]), traffic(inputs, outputs))


WORK: dict[str, Row] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Det": _det,
}
