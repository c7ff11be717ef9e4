"""Order statistics for small samples of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median as median_of


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with bounds that hold it with the given confidence (0 to 1)."""

    median: float
    low: float
    high: float
    confidence: float


@lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> tuple[int, float]:
    """Largest k so that the k-th smallest and k-th largest of `count` values enclose the median with
    `confidence`.

    That is the sign test turned round: it assumes nothing about the distribution. 1 (the whole range) where
    even that is not enough, with the confidence that it has.
    """
    ways, term, whole = 0, 1, 1 << count  # whole numbers: beyond 1,029 values these are too large for floats
    rank, reached = 1, 1 - 2 / whole
    for k in range(1, count // 2 + 1):
        ways += term
        term = term * (count - k + 1) // k
        outside = ways / whole  # probability that fewer than k values fall below the median
        if 1 - 2 * outside < confidence:
            break
        rank, reached = k, 1 - 2 * outside
    return rank, max(reached, 0.0)


def median_interval(values: Sequence[float], confidence: float = 0.99) -> Interval:
    """Median of `values` (at least one) with its distribution-free confidence interval."""
    ordered = sorted(values)
    rank, reached = _rank(len(ordered), confidence)
    return Interval(float(median_of(ordered)), ordered[rank - 1], ordered[-rank], reached)
