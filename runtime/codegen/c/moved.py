"""A product whose result is only moved: it is written to where its elements belong, and lies nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from .. import address
from .lowering import Lowering
from .operands import Operands


def moved(lowered: Lowering, operands: Operands, output: str) -> Operands | None:
    """The same product with `starts` and `step` of the output; None where more than movement follows, or where a row
    of the product is no row of the output."""
    assert lowered.product is not None
    found = lowered.items[lowered.results[0]]
    if found.kind != "load" or found.address is None or found.address.tensor != lowered.product.outputs[0]:
        return None
    inside = dict(found.address.place.terms)
    outside = dict(Lowering.place(lowered.stored(output), address.contiguous(lowered.shape(output))).terms)
    loops = sorted(lowered.domain.loops, key=lambda loop: -inside.get(loop, 0))
    sizes = [lowered.trips[loop] for loop in loops]
    if found.address.place.start or [inside.get(loop, 0) for loop in loops] != list(address.contiguous(sizes)):
        return None  # not each element once
    columns = _last(loops, lowered.trips, operands.n)
    rows = _last(loops[:len(loops) - len(columns)], lowered.trips, operands.m)
    batches = loops[:len(loops) - len(columns) - len(rows)]
    counts = [prod(lowered.trips[loop] for loop in each) for each in (columns, rows, batches)]
    if counts != [operands.n, operands.m, len(operands.starts)]:
        return None
    step = outside[rows[-1]] if rows else operands.n
    for each, least in ((columns, 1), (rows, step)):
        for loop in reversed(each):
            if outside[loop] != least:
                return None
            least *= lowered.trips[loop]
    places = product(*(range(lowered.trips[loop]) for loop in batches))
    starts = tuple(sum(at * outside[loop] for at, loop in zip(place, batches)) for place in places)
    return replace(operands, starts=starts, step=step)


def _last(loops: Sequence[int], trips: dict[int, int], wanted: int) -> list[int]:
    """The loops at the end that make `wanted` trips, or more."""
    found: list[int] = []
    for loop in reversed(loops):
        if prod(trips[each] for each in found) >= wanted:
            break
        found.insert(0, loop)
    return found
