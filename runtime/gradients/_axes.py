"""Axes split in two and put together, for sizes that are known and for those that only the run knows."""

from __future__ import annotations

from math import prod

from graphs.builder import Builder, Value

from .movement import size_of_axis
from .shapes import ints


def apart(b: Builder, value: Value, axis: int, groups: int) -> Value:
    """An axis split into (groups, size of a group)."""
    shape = value.shape
    assert shape is not None
    axis %= len(shape)
    size = shape[axis]
    inner = ints(b, (size // groups,)) if isinstance(size, int) else b.Div(size_of_axis(b, value, axis),
                                                                            ints(b, (groups,)))
    return _reshaped(b, value, axis, 1, [ints(b, (groups,)), inner])


def together(b: Builder, value: Value, axis: int) -> Value:
    """An axis and the next one as one."""
    sizes = (value.shape or ())[axis:axis + 2]
    joined = (ints(b, (prod(sizes),)) if all(isinstance(size, int) for size in sizes) else  # type: ignore[arg-type]
              b.Mul(size_of_axis(b, value, axis), size_of_axis(b, value, axis + 1)))
    return _reshaped(b, value, axis, 2, [joined])


def _reshaped(b: Builder, value: Value, axis: int, taken: int, middle: list[Value]) -> Value:
    rank = len(value.shape or ())
    parts = [*([b.Shape(value, end=axis)] if axis else []), *middle,
             *([b.Shape(value, start=axis + taken)] if axis + taken < rank else [])]
    return b.Reshape(value, b.Concat(*parts, axis=0), allowzero=1)
