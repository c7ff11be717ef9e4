"""Pools in fused kernels: the elements of a window, one by one, where all windows of a piece have the same ones.

Windows of float32 that overlap are the engine's (`lanes`); here are the others.
At the rim a window reaches into the padding: there the loop is cut, so that of each piece it is known which elements
of the window lie inside.
"""

from __future__ import annotations

from itertools import product
from math import prod

from graphs.ir import Node
from runtime.kernels._windows import Windows

from .lanes import of_pool
from .lowering import Lower, Lowering, is_floating
from .reduction import mean
from .views import ZERO, Coordinate, Cut, NotFusable, View

MOST_TAPS = 49  # elements of a window


def _taps(lowering: Lowering, place: Coordinate, windows: Windows, axis: int,
          size: int) -> tuple[list[Coordinate], int]:
    """Where the elements of a window lie along an axis, those outside left out, and how many are in the padding that
    was declared or inside. Raises Cut where that differs along the loop."""
    stride, dilation, begin = windows.strides[axis], windows.dilations[axis], windows.begins[axis]
    inside, declared = [], 0
    for element in range(windows.kernel[axis]):
        shift = element * dilation - begin
        if _within(lowering, place, stride, shift, 0, size):
            inside.append(place.scaled(stride, shift) if size != 1 else ZERO)
        declared += _within(lowering, place, stride, shift, -begin, size + windows.ends[axis])
    return inside, declared


def _within(lowering: Lowering, place: Coordinate, stride: int, shift: int, low: int, high: int) -> bool:
    """Whether `place * stride + shift` is in [low, high), for all trips of its loops."""
    first, end = -((shift - low) // stride), (high - 1 - shift) // stride + 1  # of places
    last = place.start + sum(factor * (lowering.trips[loop] - 1) for loop, factor in place.terms)
    if any(factor < 0 for _, factor in place.terms):
        raise NotFusable("a pool that is read backwards")
    if first <= place.start and last < end:
        return True
    if last < first or place.start >= end:
        return False
    if len(place.terms) != 1 or place.terms[0][1] != 1:
        raise NotFusable("the rim of a pool that is read in steps")
    raise Cut(place.terms[0][0], (first if place.start < first else end) - place.start)


def _pool(lowering: Lowering, node: Node, output: int, view: View) -> int:
    shape, dtype = lowering.shape(node.inputs[0]), lowering.dtype(node.inputs[0])
    if sum(map(bool, node.outputs)) > 1 or dtype == "bool":
        raise NotFusable("MaxPool with places, or of bool")
    if is_floating(dtype):
        lowering.needs_rounding(node.op)
    if dtype == "float32" and of_pool(node, tuple(shape)) is not None:
        return lowering.product_of(node, view)
    kernel = node.attrs["kernel_shape"]
    windows = Windows.of(node.attrs, shape[2:], kernel, bool(node.attrs.get("ceil_mode")))  # type: ignore[arg-type]
    if prod(windows.kernel) > MOST_TAPS or min(windows.begins) < 0:
        raise NotFusable("a pool with large windows or negative padding")
    along = [_taps(lowering, place, windows, axis, size) for axis, (place, size) in
             enumerate(zip(view[2:], shape[2:]))]
    taken = [lowering.value(node.inputs[0], (*view[:2], *places)) for places in product(*(each for each, _ in along))]
    if any(map(_overlap, windows.kernel, windows.strides)) and not all(_is_read(lowering, each) for each in taken):
        raise NotFusable("windows that overlap over what is computed: it would be computed for each of them")
    if node.op == "AveragePool":
        count = prod(declared if node.attrs["count_include_pad"] else len(each) for each, declared in along)
        return _mean(lowering, taken, count, dtype)
    if not taken:
        raise NotFusable("a window of nothing but padding")
    text = "eg_max(a0, a1)"
    found = taken[0]
    for each in taken[1:]:
        found = lowering.op(text, dtype, found, each)
    return found


def _overlap(length: int, stride: int) -> bool:
    return length > stride


def _is_read(lowering: Lowering, number: int) -> bool:
    """An element of an input."""
    address = lowering.items[number].address
    return address is not None and address.tensor not in lowering.values.producers


def _mean(lowering: Lowering, taken: list[int], count: int, dtype: str) -> int:
    if not is_floating(dtype) or not count or not taken:
        raise NotFusable("the mean of nothing, or of integers")
    found = taken[0]
    for each in taken[1:]:
        found = lowering.op("a0 + a1", dtype, found, each)
    return lowering.op("a0 / a1", dtype, found, lowering.literal(count, dtype))


def _global(lowering: Lowering, node: Node, output: int, view: View) -> int:
    shape = lowering.shape(node.inputs[0])
    found = lowering.value(node.inputs[0], lowering.reduced(view, shape, range(2, len(shape))))
    if not is_floating(lowering.items[found].dtype):
        raise NotFusable(f"{node.op} of integers")
    lowering.needs_rounding(node.op)
    return mean(lowering, found) if node.op == "GlobalAveragePool" else lowering.fold("larger", found)


LOWERINGS: dict[str, Lower] = {
    "MaxPool": _pool, "AveragePool": _pool, "GlobalAveragePool": _global, "GlobalMaxPool": _global,
}  # fmt: skip
