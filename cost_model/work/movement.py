"""Work of the operators that move elements: no arithmetic, and bytes only for what really moves."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, elements, traffic


def _view(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """Another shape of the same memory."""
    return Work(0.0, 0.0)


def _copy(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """Every input element is read and every output element written."""
    return Work(0.0, traffic(inputs, outputs))


def _taken(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """Only as many elements are read as are written."""
    return Work(0.0, 2.0 * traffic((), outputs))


def _written(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(0.0, traffic((), outputs))


def _range(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(2.0 * elements(outputs[0]), traffic((), outputs))


WORK: dict[str, Row] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size"), _view),
    **dict.fromkeys(("Transpose", "Concat", "Pad", "Tile", "Expand", "DepthToSpace", "SpaceToDepth", "Trilu"), _copy),
    **dict.fromkeys(("ReverseSequence", "Split", "CenterCropPad"), _copy),
    **dict.fromkeys(("Slice", "Compress"), _taken),
    **dict.fromkeys(("ConstantOfShape", "EyeLike"), _written),
    "Range": _range,
}
