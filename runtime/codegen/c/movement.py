"""Operators that move elements, in fused kernels: they only change the view through which their operand is read."""

from __future__ import annotations

from typing import Any

from graphs.ir import Node
from graphs.operators import RUNTIME
from graphs.operators._slicing import slice_range

from .lowering import Lower, Lowering
from .views import ZERO, Coordinate, Cut, NotFusable, View, broadcast, reshaped


def _transpose(lowering: Lowering, node: Node, output: int, view: View) -> int:
    rank = len(lowering.shape(node.inputs[0]))
    perm: Any = node.attrs["perm"]
    order = list(range(rank))[::-1] if perm is None else [axis % rank for axis in perm]
    return lowering.value(node.inputs[0], tuple(view[order.index(axis)] for axis in range(rank)))


def _reshape(lowering: Lowering, node: Node, output: int, view: View) -> int:
    source = lowering.shape(node.inputs[0])
    return lowering.value(node.inputs[0], reshaped(view, lowering.shape(node.outputs[0]), source, lowering.trips))


def _expand(lowering: Lowering, node: Node, output: int, view: View) -> int:
    source = lowering.shape(node.inputs[0])
    return lowering.value(node.inputs[0], broadcast(view, source, lowering.shape(node.outputs[0])))


def _slice(lowering: Lowering, node: Node, output: int, view: View) -> int:
    attrs, source = node.attrs, lowering.shape(node.inputs[0])
    if any(attrs[name] is RUNTIME for name in ("starts", "ends", "axes", "steps")):
        raise NotFusable("a Slice whose bounds only the run gives")
    starts, ends, axes, steps = (_integers(attrs[name]) for name in ("starts", "ends", "axes", "steps"))
    assert starts is not None and ends is not None
    found = list(view)
    for index, (start, end) in enumerate(zip(starts, ends)):
        axis = (index if axes is None else axes[index]) % len(source)
        taken = slice_range(source[axis], start, end, 1 if steps is None else steps[index])
        if source[axis] != 1:
            found[axis] = view[axis].scaled(taken.step, taken.start)
    return lowering.value(node.inputs[0], tuple(found))


def _integers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(value) if isinstance(value, tuple) else (int(value),)


def _split(lowering: Lowering, node: Node, output: int, view: View) -> int:
    axis = int(node.attrs["axis"]) % len(view)  # type: ignore[call-overload]
    before = sum(lowering.shape(name)[axis] for name in node.outputs[:output])
    return lowering.value(node.inputs[0], _shifted(view, axis, before))


def _shifted(view: View, axis: int, by: int) -> View:
    return (*view[:axis], view[axis].scaled(1, by), *view[axis + 1:])


def _concat(lowering: Lowering, node: Node, output: int, view: View) -> int:
    """One of the operands; where the loop runs through several it is cut."""
    axis = int(node.attrs["axis"]) % len(view)  # type: ignore[call-overload]
    place, first = view[axis], 0
    if any(factor != 1 for _, factor in place.terms) or len(place.terms) > 1:
        raise NotFusable("a Concat along an axis that is read in steps")
    last = place.start + (lowering.trips[place.terms[0][0]] - 1 if place.terms else 0)
    for name in node.inputs:
        size = lowering.shape(name)[axis]
        if first <= place.start < first + size:
            if last >= first + size:
                raise Cut(place.terms[0][0], first + size - place.start)
            inside: Coordinate = place.scaled(1, -first) if size != 1 else ZERO
            return lowering.value(name, (*view[:axis], inside, *view[axis + 1:]))
        first += size
    raise NotFusable("a Concat that is smaller than what reads it: sizes that do not fit")


LOWERINGS: dict[str, Lower] = {
    "Transpose": _transpose, "Reshape": _reshape, "Squeeze": _reshape, "Unsqueeze": _reshape, "Flatten": _reshape,
    "Expand": _expand, "Slice": _slice, "Split": _split, "Concat": _concat,
}  # fmt: skip
