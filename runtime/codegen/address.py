"""Addresses in kernel texts: a linear index over dimensions, and the element offset of a strided operand."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]
Strides = tuple[int, ...]


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
