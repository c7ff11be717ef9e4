"""How large the numbers around an element of an output are: the level that its rounding is judged by.

One output may hold numbers that have nothing to do with each other: attention scores beside -1e9 where a mask is,
two results side by side. What rounding does to the large ones is no excuse for the others. So elements are parted
where their orders of magnitude leave a gap, and each part has levels of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

GROUP = 8  # a row or column of fewer elements says nothing about noise
GAP = 12  # powers of two that no element has, between two parts
WIDE_GAP = 30  # the same between a few numbers and larger ones in float64, which rounding leaves apart
BAND = 2  # powers of two that differ by less are of one size


@dataclass(frozen=True, slots=True)
class Levels:
    """The elements of an output that can be compared, in parts by their size (masks, smallest numbers first)."""

    usable: np.ndarray
    parts: tuple[np.ndarray, ...]
    common: int = 0  # the part of the smallest numbers of which there are some

    @classmethod
    def of(cls, sizes: np.ndarray, usable: np.ndarray, parted: bool = True, least: int = GROUP,
           sure: int | None = None) -> Levels:
        """`sizes`: the numbers without signs. A part of fewer than `least` goes to the next larger one: what few
        of them hide of their rounding is seen by nothing else (erf(x) + 1 may be exact by luck), unless the gap is
        `sure`. A zero is of the smallest numbers of which there are some (the rest of a Relu, say): it may have been
        computed from such."""
        some = usable & (sizes > 0)
        if not parted or not bool(some.any()):
            return cls(usable, (usable,))
        powers = np.frexp(sizes)[1]
        held = np.unique(powers[some])
        gaps = np.diff(held)
        certain = set(held[1:][gaps > sure].tolist()) if sure is not None else set()
        ends = _ends(powers[some], held[1:][gaps > GAP], least, certain)
        if not ends.size:
            return cls(usable, (usable,))
        numbers = np.asarray(np.searchsorted(ends, powers, side="right"))
        counts = np.bincount(numbers[some], minlength=len(ends) + 1)
        common = int(np.argmax(counts >= min(GROUP, counts.max())))
        numbers[~some] = common
        return cls(usable, tuple(usable & (numbers == number) for number in range(len(counts))), common)

    def local(self, values: np.ndarray) -> np.ndarray:
        """How large the values are around each element: see `local_level`."""
        return self._by_part(values, local_level)

    def whole(self, values: np.ndarray) -> np.ndarray:
        """The root mean square of each element's part."""
        return self._by_part(values, lambda own, part: np.full(own.shape, _root_mean_square(own, part)))

    def _by_part(self, values: np.ndarray, level: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        if len(self.parts) == 1:
            return level(values, self.usable)
        found = np.zeros(values.shape)
        for part in self.parts:
            found[part] = level(np.where(part, values, 0.0), part)[part]
        return found

    def neighbours(self, at: tuple[int, ...]) -> int:
        """Of how many elements the part of this one is."""
        return next((int(part.sum()) for part in self.parts if part[at]), 0)


def band_level(values: np.ndarray, sizes: np.ndarray, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the root mean square of the values of all elements of about one size, for each element; how many those are).

    Zeros are of any size: they get the largest of those, and infinity where all are zeros, of which sizes say nothing.
    """
    some = usable & (sizes > 0)
    bands = np.where(some, np.frexp(np.where(some, sizes, 1.0))[1] // BAND, 0)
    first = int(bands.min(initial=0))
    numbers = (bands - first)[some]
    counts = np.bincount(numbers)
    with np.errstate(over="ignore"):
        sums = np.bincount(numbers, weights=values[some] ** 2)
    levels = np.sqrt(sums / np.maximum(counts, 1))
    found = np.full(values.shape, levels.max() if levels.size else np.inf)
    many = np.full(values.shape, int(usable.sum()))
    found[some], many[some] = levels[numbers], counts[numbers]
    return found, many


def sure_gap(dtype: np.dtype) -> int | None:
    """The gap that parts even few numbers from larger ones: in float64 rounding at the larger ones is far below."""
    return WIDE_GAP if dtype == np.float64 else None


def _ends(powers: np.ndarray, ends: np.ndarray, least: int, certain: Collection[int]) -> np.ndarray:
    """Those of the ends between parts that are certain, or leave no part but the largest numbers with fewer than
    `least`."""
    left: list[int] = []
    before = 0
    for end in ends.tolist():
        below = int((powers < end).sum())
        if below - before >= least or end in certain:
            left.append(end)
            before = below
    return np.array(left, np.int64)


def local_level(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """How large the usable values are around each element: level of its row times level of its column by that of
    all, but no less than the quieter of the two (where a few huge values make up the level of all). Others are 0.

    Rows are the last axis (more of them where it is short), so that channels and tokens that differ in size keep a
    level each. Groups of few usable elements count as the whole.
    """
    count = int(usable.sum())
    if not count:
        return np.zeros(values.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values * values
        total = float(squares.sum() / count)
        width = 1
        for size in reversed(values.shape):
            width *= size
            if width >= GROUP:
                break
        if width < GROUP or total == 0 or not np.isfinite(total):
            return np.full(values.shape, np.sqrt(total))
        table, counted = squares.reshape(-1, width), usable.reshape(-1, width)
        rows, columns = (_level_along(table, counted, axis, total) for axis in (1, 0))
        levels = np.sqrt(np.maximum(rows * (columns / total), np.minimum(rows, columns)))
        return np.broadcast_to(levels, table.shape).reshape(values.shape)


def _level_along(table: np.ndarray, counted: np.ndarray, axis: int, total: float) -> np.ndarray:
    count = counted.sum(axis=axis, keepdims=True)
    return np.where(count >= GROUP, table.sum(axis=axis, keepdims=True) / np.maximum(count, 1), total)


def _root_mean_square(values: np.ndarray, usable: np.ndarray) -> float:
    count = int(usable.sum())
    with np.errstate(over="ignore"):
        return float(np.sqrt((values * values).sum() / count)) if count else 0.0
