"""Addresses in kernel texts: a linear index over dimensions, and the element offset of a strided operand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = tuple[int, ...]
Strides = tuple[int, ...]
# Indices are 32 bits below this: the last step of a thread that walks a grid goes beyond what it walks over.
WIDE = (1 << 31) - (1 << 26)


def contiguous(shape: Sequence[int]) -> Strides:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def broadcast(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> Strides:
    """Strides of an operand read in a larger shape: 0 where it is repeated (NumPy's rule)."""
    missing = len(to) - len(shape)
    own = [0 if size == 1 and wanted != 1 else stride for size, stride, wanted in zip(shape, strides, to[missing:])]
    return (*(0 for _ in range(missing)), *own)


def collapse(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[Shape, list[Strides]]:
    """Merge neighbouring dimensions that every operand walks through evenly, and drop those of size 1."""
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(own[-1] == each[axis] * size for own, each in zip(kept, strides)):
            sizes[-1] *= size
            for own, each in zip(kept, strides):
                own[-1] = each[axis]
            continue
        sizes.append(size)
        for own, each in zip(kept, strides):
            own.append(each[axis])
    return tuple(sizes), [tuple(own) for own in kept]


def coordinates(index: str, shape: Sequence[int]) -> list[str]:
    """The text of each coordinate of a linear index. Sizes are baked in, so that division is cheap."""
    found: list[str] = []
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        text = index if step == 1 else f"({index} / {step})"
        found.append(text if axis == 0 else f"({text} % {shape[axis]})")
        step *= shape[axis]
    return found[::-1]


def offset(index: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """The element offset of an operand at a linear index over `shape`."""
    sizes, (own,) = collapse(shape, [tuple(strides)])
    terms = []
    for coordinate, stride in zip(coordinates(index, sizes), own):
        if stride:
            terms.append(coordinate if stride == 1 else f"{coordinate} * {stride}")
    return " + ".join(terms) or "0"


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Least and one past the greatest element offset that a strided operand touches."""
    if 0 in shape:
        return 0, 0
    low = sum((size - 1) * stride for size, stride in zip(shape, strides) if stride < 0)
    high = sum((size - 1) * stride for size, stride in zip(shape, strides) if stride > 0)
    return low, high + 1


def is_wide(shape: Sequence[int], *strides: Sequence[int]) -> bool:
    """Indices over `shape`, or offsets of an operand with one of these strides, need 64 bits."""
    reaches = [extent(shape, each) for each in strides]
    return max([prod(shape), *(max(high, -low) for low, high in reaches)]) >= WIDE


def reshaped(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> Strides | None:
    """Strides of a row-major reshape that moves nothing; None where elements have to move."""
    if prod(shape) <= 1:
        return contiguous(to)
    sizes, (steps,) = collapse(shape, [tuple(strides)])
    found: list[int] = []
    left, axis = list(to), 0
    for size, step in zip(sizes, steps):  # each run of evenly spaced elements becomes some of the new dimensions
        run: list[int] = []
        while axis < len(left) and (prod(run) < size or left[axis] == 1):
            run.append(left[axis])
            axis += 1
        if prod(run) != size:
            return None
        found.extend(each * step for each in contiguous(run))
    return tuple(found)
