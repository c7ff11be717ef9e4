"""Where blocks lie in one arena, so that two that are needed at the same time never overlap."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

ALIGNMENT = 256  # what CUDA's own allocations have
TRIES = 60  # orders in which blocks are placed
_COMPARED = 1 << 19  # pairs of blocks, in all tries after the first one


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """A size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes that others may use from step `first` to step `last`, both included; and `more` behind them, which count as
    the arena does."""

    size: int
    first: int
    last: int
    more: int = 0


def arrange(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The offset of each span and the size of the arena."""
    places, arena = in_regions((), spans, (0,) * len(spans))
    return [offset for _, offset in places], arena


def in_regions(regions: Sequence[Region], spans: Sequence[Span],
               fitting: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Where each span lies, so that little memory is needed beside the regions: the number of a region, or that of all
    of them for the arena, and an offset; and the size of the arena. A span may lie in the first `fitting` regions.

    The largest are placed first, each into the smallest gap that holds it among those that are needed at the same
    time. Then others are tried first: what ended at the top of the arena.
    """
    order = sorted(range(len(spans)), key=lambda index: (-spans[index].size, spans[index].first, index))
    given = sum(region.size for region in regions)
    least = _needed(spans) - given
    chance = random.Random(0)
    best: tuple[int, list[tuple[int, int]], int] | None = None
    for _ in range(1 + min(TRIES, _COMPARED // max(len(spans) ** 2, 1))):
        places, reached = _placed(regions, spans, fitting, order)
        arena, needed = reached[-1], sum(reached) - given
        if best is None or needed < best[0]:
            best = needed, places, arena
        top = [index for index, (number, offset) in enumerate(places)
               if number == len(regions) and offset + aligned(spans[index].size) == arena]
        if best[0] <= least or not arena:
            break
        for index in top:
            place = order.index(index)
            order.insert(chance.randrange(place + 1), order.pop(place))
    assert best is not None
    return best[1], best[2]


def _needed(spans: Sequence[Span]) -> int:
    """Bytes at the step that needs most."""
    change = [0] * (max((span.last for span in spans), default=0) + 2)
    for span in spans:
        change[span.first] += span.size
        change[span.last + 1] -= span.size
    return max(accumulate(change))


def _placed(regions: Sequence[Region], spans: Sequence[Span], fitting: Sequence[int],
            order: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Spans placed in an order, each where the least memory is needed for it, in regions first; and how far each region
    and the arena are taken."""
    taken: list[list[tuple[int, int, Span]]] = [[] for _ in range(len(regions) + 1)]
    reached, limits = [*(region.size for region in regions), 0], [region.size + region.more for region in regions]
    places = [(len(regions), 0)] * len(spans)
    for index in order:
        span, size = spans[index], aligned(spans[index].size)
        if not size:
            continue  # needed never
        found = None
        for number in (*range(min(fitting[index], len(regions))), len(regions)):
            if number < len(regions) and not regions[number].first <= span.first <= span.last <= regions[number].last:
                continue
            offset = _best_fit(taken[number], span, size)
            end = offset + (span.size if number < len(regions) else size)
            growth = max(end - reached[number], 0)
            cost = growth, growth > 0 and number < len(regions)
            if (number == len(regions) or end <= limits[number]) and (found is None or cost < found[0]):
                found = cost, number, offset
        assert found is not None
        (growth, _), number, offset = found
        reached[number] += growth
        insort(taken[number], (offset, offset + size, span), key=lambda block: block[:2])
        places[index] = number, offset
    return places, reached


def _best_fit(blocks: Sequence[tuple[int, int, Span]], span: Span, size: int) -> int:
    """The offset of the smallest gap of `size` bytes or more between blocks (in the order in which they lie) that are
    needed while a span is, else behind all of those."""
    reached, found, least, first, last = 0, -1, 0, span.first, span.last
    for begin, end, other in blocks:
        if other.first > last or other.last < first:
            continue
        if begin - reached >= size and (found < 0 or begin - reached < least):
            found, least = reached, begin - reached
        if end > reached:
            reached = end
    return found if found >= 0 else reached
