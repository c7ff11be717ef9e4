"""Normalizations in fused kernels, in the operations that the NumPy kernels do."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.ir import Node

from .lowering import Lower, Lowering, computed, is_floating
from .reduction import function, mean, square
from .views import ZERO, NotFusable, View, broadcast, reshaped


def _start(lowering: Lowering, node: Node, output: int, axes: Sequence[int], view: View) -> tuple[int, View, str]:
    """The operand's element, the view of a column of it, and the dtype."""
    name = node.inputs[0]
    dtype = lowering.dtype(name)
    if not is_floating(dtype) or output:
        raise NotFusable(f"{node.op} of {dtype}, output {output}")
    lowering.needs_rounding(node.op)
    rows = tuple(ZERO if axis in axes else each for axis, each in enumerate(view))
    inside = lowering.reduced(rows, lowering.shape(name), axes)
    return lowering.value(name, view), inside, dtype


def _axis(node: Node, rank: int) -> int:
    if not rank:
        raise NotFusable(f"{node.op} of a scalar")
    return int(node.attrs["axis"]) % rank  # type: ignore[call-overload]


def _along(lowering: Lowering, node: Node) -> tuple[int, ...]:
    rank = len(lowering.shape(node.inputs[0]))
    axis = _axis(node, rank)
    return tuple(range(axis, rank)) if node.attrs.get("flatten") else (axis,)


def _softmax(lowering: Lowering, node: Node, output: int, view: View) -> int:
    x, inside, dtype = _start(lowering, node, output, _along(lowering, node), view)
    column = lowering.value(node.inputs[0], inside)
    if node.op == "LogSoftmax":
        return _logarithm(lowering, x, column, dtype)
    top = lowering.fold("larger", column)
    exponential = f"{function('exp', dtype)}(a0 - a1)"
    total = lowering.fold("sum", lowering.op(exponential, dtype, column, top, cost=12))
    inverse = lowering.op("a0 / a1", dtype, lowering.literal(1, dtype), total, cost=10)  # total is at least 1
    return lowering.op("a0 * a1", dtype, lowering.op(exponential, dtype, x, top, cost=12), inverse)


def _logarithm(lowering: Lowering, x: int, column: int, dtype: str) -> int:
    top = lowering.fold("larger", column)
    total = lowering.fold("sum", lowering.op(f"{function('exp', dtype)}(a0 - a1)", dtype, column, top, cost=12))
    logarithm = lowering.op(f"{function('log', dtype)}(a0)", dtype, total, cost=20)
    return lowering.op("(a0 - a1) - a2", dtype, x, top, logarithm, cost=2)


def log_softmax(lowering: Lowering, name: str, axis: int, view: View) -> int:
    """The logarithm of the softmax of a value along an axis, through a view."""
    rows = tuple(ZERO if each == axis else place for each, place in enumerate(view))
    inside = lowering.reduced(rows, lowering.shape(name), (axis,))
    return _logarithm(lowering, lowering.value(name, view), lowering.value(name, inside), lowering.dtype(name))


def _inverse_root(lowering: Lowering, squares: int, node: Node, dtype: str) -> int:
    epsilon = lowering.literal(computed(dtype).type(node.attrs["epsilon"]).item(), dtype)  # type: ignore[call-overload]
    return lowering.op(f"1 / {function('sqrt', dtype)}(a0 + a1)", dtype, mean(lowering, squares), epsilon, cost=20)


def _standardized(lowering: Lowering, node: Node, output: int, axes: Sequence[int], view: View) -> tuple[int, str]:
    x, inside, dtype = _start(lowering, node, output, axes, view)
    column = lowering.value(node.inputs[0], inside)
    average = mean(lowering, column)
    squares = square(lowering, lowering.op("a0 - a1", dtype, column, average))
    inverse = _inverse_root(lowering, squares, node, dtype)
    return lowering.op("a0 * a1", dtype, lowering.op("a0 - a1", dtype, x, average), inverse), dtype


def _layer_normalization(lowering: Lowering, node: Node, output: int, view: View) -> int:
    rank = len(view)
    found, dtype = _standardized(lowering, node, output, range(_axis(node, rank), rank), view)
    for index, text in ((1, "a0 * a1"), (2, "a0 + a1")):
        if index < len(node.inputs) and node.inputs[index]:
            found = lowering.op(text, dtype, found, lowering.operand(node, index, view))
    return found


def _rms_normalization(lowering: Lowering, node: Node, output: int, view: View) -> int:
    rank = len(view)
    x, inside, dtype = _start(lowering, node, output, range(_axis(node, rank), rank), view)
    inverse = _inverse_root(lowering, square(lowering, lowering.value(node.inputs[0], inside)), node, dtype)
    found = lowering.op("a0 * a1", dtype, x, inverse)
    return lowering.op("a0 * a1", dtype, found, lowering.operand(node, 1, view))


def _channel(lowering: Lowering, node: Node, index: int, view: View) -> int:
    name = node.inputs[index]
    return lowering.value(name, broadcast((view[1],), lowering.shape(name), lowering.shape(node.inputs[0])[1:2]))


def _instance_normalization(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found, dtype = _standardized(lowering, node, output, range(2, len(view)), view)
    found = lowering.op("a0 * a1", dtype, found, _channel(lowering, node, 1, view))
    return lowering.op("a0 + a1", dtype, found, _channel(lowering, node, 2, view))


def _group_normalization(lowering: Lowering, node: Node, output: int, view: View) -> int:
    name, dtype = node.inputs[0], lowering.dtype(node.inputs[0])
    shape, groups = lowering.shape(name), int(node.attrs["num_groups"])  # type: ignore[call-overload]
    if not is_floating(dtype) or output or lowering.shape(node.inputs[1]) != shape[1:2]:
        raise NotFusable(f"{node.op} of {dtype}, or with a scale for each group")
    lowering.needs_rounding(node.op)
    each = shape[1] // groups
    grouped = (shape[0], groups, each, *shape[2:])
    split = reshaped(view, shape, grouped, lowering.trips)
    rows = (*split[:2], *[ZERO] * (len(grouped) - 2))
    inside = lowering.reduced(rows, grouped, range(2, len(grouped)))
    column = lowering.value(name, (inside[0], inside[1].scaled(each).plus(inside[2]), *inside[3:]))
    average = mean(lowering, column)
    squares = square(lowering, lowering.op("a0 - a1", dtype, column, average))
    inverse = _inverse_root(lowering, squares, node, dtype)
    centred = lowering.op("a0 - a1", dtype, lowering.value(name, view), average)
    found = lowering.op("a0 * a1", dtype, centred, inverse)
    found = lowering.op("a0 * a1", dtype, found, _channel(lowering, node, 1, view))
    return lowering.op("a0 + a1", dtype, found, _channel(lowering, node, 2, view))


def _batch_normalization(lowering: Lowering, node: Node, output: int, view: View) -> int:
    dtype = lowering.dtype(node.inputs[0])
    if node.attrs.get("training_mode") or not is_floating(dtype) or len(view) < 2 or output:
        raise NotFusable(f"{node.op} of {dtype} in training mode or of rank {len(view)}")
    x = lowering.value(node.inputs[0], view)
    scale, bias, average, variance = (_channel(lowering, node, index, view) for index in range(1, 5))
    if {lowering.items[each].dtype for each in (scale, bias, average, variance)} != {dtype}:
        raise NotFusable("BatchNormalization of mixed types")
    epsilon = lowering.literal(computed(dtype).type(node.attrs["epsilon"]).item(), dtype)  # type: ignore[call-overload]
    factor = lowering.op(f"a0 / {function('sqrt', dtype)}(a1 + a2)", dtype, scale, variance, epsilon, cost=20)
    return lowering.op("(a0 - a1) * a2 + a3", dtype, x, average, factor, bias, cost=3)


LOWERINGS: dict[str, Lower] = {
    "Softmax": _softmax, "LogSoftmax": _softmax, "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization, "InstanceNormalization": _instance_normalization,
    "BatchNormalization": _batch_normalization, "GroupNormalization": _group_normalization,
}  # fmt: skip
