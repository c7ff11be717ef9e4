"""Where elements lie, as sums over the loops of a kernel: the coordinates of a value, and what movement does to them.

A coordinate is `start + sum(factor * loop)`. Reading a value through Transpose, Slice, Expand or Reshape only changes
its coordinates. Where a Reshape cuts a loop's range into digits, or a Concat joins two values in the middle of it, the
loop has to be another one: `Refine` and `Cut` say which, and lowering starts again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from .. import address


class NotFusable(Exception):
    """No kernel can be generated for this graph (at these sizes); the text is the reason."""


class NotCompiled(NotFusable):
    """The compiler did not answer or could not write, as on a machine that has too much to do or a full disk: that says
    nothing of the kernel."""


class OutOfRange(NotFusable):
    """An index outside of its axis: the graph run node by node says where."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """`start + sum(factor * loop)`; `terms` are pairs (loop, factor), sorted, no factor 0."""

    start: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    def scaled(self, factor: int, shift: int = 0) -> Coordinate:
        """`factor * self + shift`."""
        terms = tuple((loop, each * factor) for loop, each in self.terms if factor)
        return Coordinate(self.start * factor + shift, terms)

    def plus(self, other: Coordinate) -> Coordinate:
        """The sum of both."""
        total = dict(self.terms)
        for loop, factor in other.terms:
            total[loop] = total.get(loop, 0) + factor
        return Coordinate(self.start + other.start, tuple(sorted((loop, each) for loop, each in total.items() if each)))

    def replaced(self, loop: int, by: Coordinate) -> Coordinate:
        """With a coordinate in the place of a loop."""
        factor = dict(self.terms).get(loop, 0)
        kept = Coordinate(self.start, tuple(term for term in self.terms if term[0] != loop))
        return kept.plus(by.scaled(factor)) if factor else self


ZERO = Coordinate()
View = tuple[Coordinate, ...]  # one for each dimension of a value


@dataclass
class Refine(Exception):
    """A loop has to become two: the outer one of `size / inner` trips, the inner one of `inner`."""

    loop: int
    inner: int


@dataclass
class Cut(Exception):
    """A loop has to become two loops one after the other, the first of `at` trips."""

    loop: int
    at: int


def view_of(loops: Sequence[int], shape: Sequence[int]) -> View:
    """A value whose dimensions are loops; those of size 1 need none."""
    return tuple(ZERO if size == 1 else Coordinate(0, ((loop, 1),)) for loop, size in zip(loops, shape))


def loops_of(view: View) -> set[int]:
    """The loops that a view depends on."""
    return {loop for coordinate in view for loop, _ in coordinate.terms}


def broadcast(view: View, shape: Sequence[int], whole: Sequence[int]) -> View:
    """How an operand of an elementwise operator is read where the result, of shape `whole`, is read through `view`."""
    missing = len(whole) - len(shape)
    return tuple(ZERO if size == 1 else view[missing + axis] for axis, size in enumerate(shape))


def reshaped(view: View, shape: Sequence[int], source: Sequence[int], sizes: Mapping[int, int]) -> View:
    """How the operand of a Reshape from `source` to `shape` is read. `sizes` are the trips of each loop."""
    flat = ZERO
    for coordinate, stride in zip(view, address.contiguous(shape)):
        flat = flat.plus(coordinate.scaled(stride))
    return digits(flat, source, sizes)


def digits(flat: Coordinate, shape: Sequence[int], sizes: Mapping[int, int]) -> View:
    """The coordinates of a row-major index. Raises Refine where a loop runs through more than one digit."""
    found: list[Coordinate] = []
    for axis in range(len(shape) - 1, -1, -1):
        base = shape[axis]
        if axis == 0:
            found.append(flat)
            break
        low = [(loop, factor) for loop, factor in flat.terms if factor % base]
        start = flat.start % base
        for loop, factor in low:
            reach = abs(factor) * sizes[loop]
            if factor > 0 and base % factor == 0 and reach > base and sizes[loop] % (base // factor) == 0:
                raise Refine(loop, base // factor)
        if any(factor < 0 for _, factor in low):
            raise NotFusable("a Reshape of what runs backwards")
        if start + sum(factor * (sizes[loop] - 1) for loop, factor in low) >= base:
            raise NotFusable("a Reshape that cuts a loop unevenly")
        found.append(Coordinate(start, tuple(low)))
        flat = Coordinate(flat.start // base, tuple((loop, factor // base) for loop, factor in flat.terms
                                                    if factor % base == 0))
    return tuple(found[::-1])


@dataclass(frozen=True, slots=True)
class Domain:
    """The loops of a kernel, outermost first, and how they run through its result."""

    loops: tuple[int, ...]
    sizes: tuple[int, ...]
    view: View

    @staticmethod
    def of(shape: Sequence[int]) -> Domain:
        """A loop for each dimension that has more than one place."""
        loops = [axis for axis, size in enumerate(shape) if size != 1]
        return Domain(tuple(loops), tuple(shape[axis] for axis in loops), view_of(range(len(shape)), shape))

    @property
    def trips(self) -> dict[int, int]:
        """Loop -> how often it runs."""
        return dict(zip(self.loops, self.sizes))

    @property
    def elements(self) -> int:
        """How often the innermost loop runs in all."""
        return prod(self.sizes)

    def refined(self, need: Refine) -> Domain:
        """With two loops in the place of one."""
        place, fresh = self.loops.index(need.loop), max(self.loops) + 1
        outer = self.sizes[place] // need.inner
        by = Coordinate(0, ((fresh, need.inner), (fresh + 1, 1)))
        return Domain((*self.loops[:place], fresh, fresh + 1, *self.loops[place + 1:]),
                      (*self.sizes[:place], outer, need.inner, *self.sizes[place + 1:]),
                      tuple(each.replaced(need.loop, by) for each in self.view))

    def cut(self, need: Cut) -> tuple[Domain, Domain]:
        """The part before a place of a loop, and the part from there on."""
        place = self.loops.index(need.loop)
        rest = self.sizes[place] - need.at
        first = Domain(self.loops, (*self.sizes[:place], need.at, *self.sizes[place + 1:]), self.view)
        by = Coordinate(need.at, ((need.loop, 1),))
        return first, Domain(self.loops, (*self.sizes[:place], rest, *self.sizes[place + 1:]),
                             tuple(each.replaced(need.loop, by) for each in self.view))
