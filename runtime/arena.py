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
