"""A graph as CUDA kernels that read and write whole tensors: planned for the shapes and strides of what it reads.

Matrix products, convolutions and other windows that the engine computes on the CPU have no CUDA reading: a graph with
one of them is cut there before (`runtime.cuda.fused`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.types import TensorType

from .. import address
from ..rowwise import MOST_KEPT
from .cuda import MOST_THREADS, Reading, Variant, block_for, is_flat, kept_by, reading_of
from .launch import NAME
from .losses import parted
from .lowering import Values
from .pieces import grouped, pieces_of
from .stages import cuts
from .text import Writer, Written
from .views import NotFusable


@dataclass(frozen=True)
class Readings:
    """Kernels in the order in which they run, and the element type and shape of what one of them leaves to the next
    (`rooms`) and of the graph's outputs."""

    kernels: tuple[Reading, ...]
    rooms: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]


def readings_of(graph: Graph, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]] | None = None,
                exact: bool = False, variant: Variant | None = None) -> Readings:
    """The kernels for inputs of these shapes and strides (elements; row-major where not given). An index outside of its
    axis reads 0. Raises NotFusable."""
    graph = parted(graph)
    values = replace(Values.for_kernels(graph, shapes, strides or {}), guarded=True)
    outputs = {name: (values.dtypes[name], values.shapes[name]) for name in graph.outputs}
    try:
        return _made([(_written(values, exact, variant), values)], {}, outputs, exact, variant)
    except NotFusable as reason:
        found = _staged(graph, values, outputs, exact, variant)
        if found is None:
            raise reason
        return found


def _staged(graph: Graph, values: Values, outputs: dict[str, tuple[str, tuple[int, ...]]], exact: bool,
            variant: Variant | None) -> Readings | None:
    """Kernels in two steps; None where there are none."""
    for name, first, rest in cuts(graph):
        shapes = {each: values.shapes[each] for each in (*graph.inputs, name)}
        strides = {each: values.strides[each] for each in graph.inputs}
        rest.types[name] = TensorType(values.dtypes[name], values.shapes[name])
        try:
            steps = []
            for part in (first, rest):
                own = replace(Values.of(part, shapes, strides), guarded=True)
                steps.append((_written(own, exact, variant), own))
        except (NotFusable, EgraftError):
            continue
        return _made(steps, {name: (values.dtypes[name], values.shapes[name])}, outputs, exact, variant)
    return None


def _written(values: Values, exact: bool, variant: Variant | None) -> list[Written]:
    pieces = pieces_of(values, exact)
    if any(each.product is not None for each in pieces):
        raise NotFusable("a product, which is no CUDA kernel")
    found = []
    for group in grouped(pieces):
        written = Writer(NAME, group, buffers=variant is None or variant.keeps).made
        if not is_flat(written) and (variant is None or variant.keeps):
            columns = block_for(written, variant)[0]
            if kept_by(written, columns) > (MOST_KEPT if columns < MOST_THREADS else MOST_KEPT // 2):
                written = Writer(NAME, group, buffers=False).made  # a thread has no more registers
        found.append(written)
    return found


def _made(steps: Sequence[tuple[list[Written], Values]], rooms: dict[str, tuple[str, tuple[int, ...]]],
          outputs: dict[str, tuple[str, tuple[int, ...]]], exact: bool, variant: Variant | None) -> Readings:
    kernels: list[Reading] = []
    for number, (written, values) in enumerate(steps):
        given = {*values.graph.inputs, *values.graph.constants, *(rooms if number else ())}
        wide = _is_wide(values)
        kernels += [reading_of(each, given, exact, wide, variant, told=False) for each in written]
    return Readings(tuple(kernels), rooms, outputs)


def _is_wide(values: Values) -> bool:
    """Whether a tensor has so many elements, or lies so far apart, that 32 bits do not tell its places."""
    return any(address.is_wide(shape, values.strides[name]) for name, shape in values.shapes.items())
