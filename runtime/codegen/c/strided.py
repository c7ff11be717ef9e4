"""Tensors that a kernel reads across their memory, as behind a Transpose: rows of them are turned around first, some at
a time, so that its innermost loop runs through neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from graphs import dtypes

from .. import address
from .lowering import Address, Lowering
from .text import Written
from .views import Coordinate

LEAST_ROWS, LEAST_COLUMNS, MOST_COLUMNS = 16, 8, 1024  # of what is turned around
SHORT = 3  # strides that kernels read as they are
MOST = 4  # tensors of one kernel
TURNED = "\0"  # in names of what is turned around: no value of a graph is called so
ELEMENT = 4  # bytes
_CACHED = 1 << 15  # bytes of rows at a time
_FEW, _MANY = 16, 32  # rows at a time


@dataclass(frozen=True)
class Turned:
    """A tensor whose element `start + batch * i + j + step * k` is read in row `i * rows + j`, at column `k`."""

    tensor: str
    start: int
    batches: int
    batch: int
    rows: int
    columns: int
    step: int

    @property
    def at_once(self) -> int:
        """How many rows are turned around at a time."""
        return _MANY if _MANY * self.columns * ELEMENT <= _CACHED else _FEW

    @property
    def room(self) -> int:
        """Bytes that they take."""
        return self.at_once * self.columns * ELEMENT


def with_turned(piece: Lowering) -> tuple[Lowering, dict[str, Turned]]:
    """The piece with what it reads across memory in rows of names of their own, and what these are."""
    order = [*piece.domain.loops, *(loop for loop in piece.columns or () if loop not in piece.domain.loops)]
    if piece.indices or piece.product is not None or len(order) < 2 or piece.columns not in (None, (order[-1],)):
        return piece, {}
    needed = piece.needed()
    reads = dict.fromkeys(item.address for number, item in enumerate(piece.items)
                          if number in needed and item.address is not None)
    found = {where: made for where in reads if (made := _turned(piece, where, order)) is not None}
    if not found or len(found) > MOST or len({(each.batches, each.rows) for each in found.values()}) > 1:
        return piece, {}
    return _reading(piece, order, found)


def _turned(piece: Lowering, where: Address, order: list[int]) -> Turned | None:
    steps, sizes = dict(where.place.terms), [piece.trips[loop] for loop in order]
    if dtypes.numpy_dtype(piece.values.dtypes[where.tensor]).itemsize != ELEMENT or steps.keys() != set(order):
        return None
    collapsed, (strides,) = address.collapse(sizes[:-1], [tuple(steps[loop] for loop in order[:-1])])
    if not collapsed:
        return None
    (*outer, rows), (*batch, one), step = collapsed, strides, steps[order[-1]]
    if one != 1 or len(outer) > 1 or step <= SHORT or rows < LEAST_ROWS \
            or not LEAST_COLUMNS <= sizes[-1] <= MOST_COLUMNS:
        return None
    return Turned(where.tensor, where.place.start, prod(outer), prod(batch), rows, sizes[-1], step)


def _reading(piece: Lowering, order: list[int], found: dict[Address, Turned]) -> tuple[Lowering, dict[str, Turned]]:
    sizes = [piece.trips[loop] for loop in order]
    place = Coordinate(0, tuple(sorted(zip(order, address.contiguous(sizes)))))
    names = {where: f"{where.tensor}{TURNED}{number}" for number, where in enumerate(found)}
    values = piece.values
    made = copy(piece)
    made.values = replace(
        values, shapes={**values.shapes, **{name: tuple(sizes) for name in names.values()}},
        strides={**values.strides, **{name: address.contiguous(sizes) for name in names.values()}},
        dtypes={**values.dtypes, **{name: values.dtypes[where.tensor] for where, name in names.items()}})
    made.items = [replace(item, address=Address(names[item.address], place)) if item.address in names else item
                  for item in piece.items]
    return made, {names[where]: each for where, each in found.items()}


def trips_of_a_row(turned: Iterable[Turned], written: Written) -> int | None:
    """How many trips a row has of the loop that is shared; None where a kernel cannot be called for some rows at a
    time, since that loop does not run through rows alone."""
    (first, *_) = turned
    rows = first.batches * first.rows
    trips = 0 if written.split is None else [*written.sizes.values()][written.split]
    return trips // rows if trips in (rows, rows * first.columns) else None
