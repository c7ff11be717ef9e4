"""Where blocks lie in one arena, so that two that are needed at the same time never overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 256  # what CUDA's own allocations have


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """A size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arrange(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The offset of each span and the size of the arena.

    The largest are placed first, each into the smallest gap that holds it among those that are needed at the same
    time, else behind them.
    """
    offsets = [0] * len(spans)
    order = sorted(range(len(spans)), key=lambda index: (-spans[index].size, spans[index].first, index))
    first, last, begin, end = (np.zeros(len(spans), np.int64) for _ in range(4))
    arena = 0
    for placed, index in enumerate(order):
        span = spans[index]
        size = aligned(span.size)
        if not size:
            first[placed], last[placed] = 1, 0  # needed never
            continue
        beside = (first[:placed] <= span.last) & (last[:placed] >= span.first)
        offset = _best_fit(begin[:placed][beside], end[:placed][beside], size)
        first[placed], last[placed], begin[placed], end[placed] = span.first, span.last, offset, offset + size
        offsets[index] = offset
        arena = max(arena, offset + size)
    return offsets, arena


def _best_fit(begin: np.ndarray, end: np.ndarray, size: int) -> int:
    """The offset of the smallest gap of `size` bytes or more between blocks, else behind all."""
    if not begin.size:
        return 0
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(end[order])
    starts = np.concatenate(([0], reached[:-1]))
    gaps = begin[order] - starts
    fitting = np.flatnonzero(gaps >= size)
    if not fitting.size:
        return int(reached[-1])
    return int(starts[fitting[np.argmin(gaps[fitting])]])


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes that others may use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def in_regions(regions: Sequence[Region], spans: Sequence[Span], fitting: Sequence[int]) -> dict[int, tuple[int, int]]:
    """What of the spans lies in regions, so that the others need little memory: index -> region and offset. A span may
    lie in the first `fitting` regions.

    As long as one that is needed while most is needed fits into a region, the largest such goes there.
    """
    numbers = np.array([(span.first, span.last, span.size) for span in spans], np.int64).reshape(-1, 3)
    first, last, size = numbers.T
    inside: list[list[int]] = [[] for _ in regions]
    offsets: dict[int, tuple[int, int]] = {}
    waiting = size > 0
    while waiting.any():
        change = np.zeros(int(last.max()) + 2, np.int64)
        np.add.at(change, first[waiting], size[waiting])
        np.add.at(change, last[waiting] + 1, -size[waiting])
        most = int(np.argmax(np.cumsum(change)))
        there = np.flatnonzero(waiting & (first <= most) & (last >= most))
        for index in sorted(there.tolist(), key=lambda each: -spans[each].size):
            place = next((place for place in range(min(fitting[index], len(regions)))
                          if _fits(regions[place], [spans[each] for each in (*inside[place], index)])), None)
            if place is not None:
                inside[place].append(index)
                waiting[index] = False
                break
        else:
            break
    for place, taken in enumerate(inside):
        offsets |= {index: (place, offset) for index, offset in zip(taken, arrange([spans[each] for each in taken])[0])}
    return offsets


def _fits(region: Region, spans: Sequence[Span]) -> bool:
    if any(span.first < region.first or span.last > region.last or span.size > region.size for span in spans):
        return False
    return all(offset + span.size <= region.size for offset, span in zip(arrange(spans)[0], spans))
