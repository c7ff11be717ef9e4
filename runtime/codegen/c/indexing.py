"""Operators that pick elements by index, in fused kernels: the index is a coordinate of what is picked from."""

from __future__ import annotations

from graphs.ir import Node

from .lowering import Lower, Lowering
from .views import View

GATHERS = frozenset({"Gather", "GatherElements"})


def _gather(lowering: Lowering, node: Node, output: int, view: View) -> int:
    data, indices = node.inputs
    shape, rank = lowering.shape(data), len(lowering.shape(indices))
    axis = int(node.attrs["axis"]) % len(shape)  # type: ignore[call-overload]
    place = lowering.index(lowering.value(indices, view[axis:axis + rank]), shape[axis])
    return lowering.picked(lowering.value(data, (*view[:axis], place, *view[axis + rank:])), place)


def _gather_elements(lowering: Lowering, node: Node, output: int, view: View) -> int:
    data, indices = node.inputs
    shape = lowering.shape(data)
    axis = int(node.attrs["axis"]) % len(shape)  # type: ignore[call-overload]
    place = lowering.index(lowering.value(indices, view), shape[axis])
    return lowering.picked(lowering.value(data, (*view[:axis], place, *view[axis + 1:])), place)


LOWERINGS: dict[str, Lower] = {"Gather": _gather, "GatherElements": _gather_elements}
