"""A product whose result is written to where the elements of the kernel's output belong, and lies nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from .. import address
from .lowering import Address, Held, Lowering
from .operands import Operands
from .views import Domain, Refine


def held_in(lowered: Lowering, output: str) -> Held | None:
    """Where an output holds what the kernel reads of its product; None where it reads an element in two ways."""
    assert lowered.product is not None
    read = {item.address.place for item in lowered.items
            if item.address and item.address.tensor == lowered.product.outputs[0]}
    if len(read) != 1:
        return None
    where = Lowering.place(lowered.stored(output), address.contiguous(lowered.shape(output)))
    return Held(read.pop(), Address(output, where))


def is_moved_only(lowered: Lowering) -> bool:
    """Whether the result of the kernel's product is its result."""
    found = lowered.items[lowered.results[0]]
    assert lowered.product is not None
    return found.address is not None and found.address.tensor == lowered.product.outputs[0]


def in_groups(lowered: Lowering, operands: Operands, held: Held) -> Domain:
    """The kernel's loops with one over the maps of all groups as two."""
    inside, outermost = dict(held.place.terms), operands.m * operands.n
    for loop in lowered.domain.loops:
        trips = lowered.trips[loop]
        if inside.get(loop) == operands.n and trips > operands.m and trips * operands.n % outermost == 0:
            return lowered.domain.refined(Refine(loop, operands.m))
    return lowered.domain


@dataclass(frozen=True)
class Laid:
    """A product with `starts` and `step` of an output, and the kernel's loops in the order of its elements there."""

    operands: Operands
    loops: list[int]


def laid(lowered: Lowering, operands: Operands, held: Held, exchanged: bool = False) -> Laid | None:
    """The product as it is written to the output; None where a row of it is no row of the output. `exchanged`: with its
    columns as rows."""
    inside, outside = dict(held.place.terms), dict(held.address.place.terms)
    loops = sorted(lowered.domain.loops, key=lambda loop: -inside.get(loop, 0))
    sizes = [lowered.trips[loop] for loop in loops]
    if held.place.start or [inside.get(loop, 0) for loop in loops] != list(address.contiguous(sizes)):
        return None  # not each element once
    columns = _last(loops, lowered.trips, operands.n)
    rest = loops[:len(loops) - len(columns)]
    rows = _last(rest, lowered.trips, operands.m)
    while rows and any(outside[one] != outside[next_] * lowered.trips[next_] for one, next_ in pairwise(rows)):
        rows = rows[1:]
    batches = rest[:len(rest) - len(rows)]
    counts = [prod(lowered.trips[loop] for loop in each) for each in (columns, rows, batches)]
    if counts[0] != operands.n or counts[1] * counts[2] != operands.m * len(operands.starts):
        return None
    if counts[1] != operands.m:
        if operands.m % counts[1] or operands.image or operands.lanes:
            return None
        operands = operands.in_parts(counts[1])
    if exchanged:
        operands, rows, columns = operands.exchanged(), columns, rows
    step = outside[rows[-1]] if rows else operands.n
    for each, least in ((columns, 1), (rows, step)):
        for loop in reversed(each):
            if outside[loop] != least:
                return None
            least *= lowered.trips[loop]
    places = product(*(range(lowered.trips[loop]) for loop in batches))
    starts = tuple(held.address.place.start + sum(at * outside[loop] for at, loop in zip(place, batches))
                   for place in places)
    return Laid(replace(operands, starts=starts, step=step), [*batches, *rows, *columns])


def _last(loops: Sequence[int], trips: dict[int, int], wanted: int) -> list[int]:
    """The loops at the end that make `wanted` trips, or more."""
    found: list[int] = []
    for loop in reversed(loops):
        if prod(trips[each] for each in found) >= wanted:
            break
        found.insert(0, loop)
    return found
