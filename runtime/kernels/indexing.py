"""Kernels of the operators that pick or place elements by index. An index outside of its axis is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import Arrays, rows
from ._numeric import given, integer, narrow, wide

KERNELS, kernel = rows()
_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@kernel("Gather")
def _gather(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, indices, axis = given(inputs, 0), given(inputs, 1), integer(attrs, "axis")
    if indices.ndim == 0:  # one place of an axis is a view
        place: tuple[Any, ...] = (*[slice(None)] * (axis % x.ndim), int(indices), ...)
        return [x[place]]
    return [np.take(x, indices, axis=axis)]


def _along(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Index arrays that pick along one axis and stay in place along the others."""
    grid = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
    grid[axis] = indices
    return tuple(grid)


@kernel("GatherElements")
def _gather_elements(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [given(inputs, 0)[_along(given(inputs, 1), integer(attrs, "axis"))]]


@kernel("GatherND")
def _gather_nd(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    data, indices, batch = given(inputs, 0), given(inputs, 1), integer(attrs, "batch_dims")
    head = np.ogrid[tuple(slice(size) for size in indices.shape[:batch])] if batch else ()
    places = [each.reshape(each.shape + (1,) * (indices.ndim - 1 - batch)) for each in head]
    return [data[(*places, *np.moveaxis(indices, -1, 0))]]


def _place(
    data: np.ndarray, where: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str
) -> np.ndarray:
    if reduction == "none":
        result = data.copy()
        result[where] = updates
        return result
    result = wide(data).copy()
    with np.errstate(all="ignore"):
        _REDUCTIONS[reduction].at(result, where, wide(updates))
    return narrow(result, data.dtype)


@kernel("ScatterElements")
def _scatter_elements(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    where = _along(given(inputs, 1), integer(attrs, "axis"))
    return [_place(given(inputs, 0), where, given(inputs, 2), str(attrs["reduction"]))]


@kernel("Scatter")
def _scatter(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    where = _along(given(inputs, 1), integer(attrs, "axis"))
    return [_place(given(inputs, 0), where, given(inputs, 2), "none")]


@kernel("ScatterND")
def _scatter_nd(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    where = tuple(np.moveaxis(given(inputs, 1), -1, 0))
    return [_place(given(inputs, 0), where, given(inputs, 2), str(attrs["reduction"]))]


@kernel("OneHot")
def _one_hot(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    values = given(inputs, 2)
    depth = int(given(inputs, 1).reshape(-1)[0])
    indices = given(inputs, 0).astype(np.int64)
    wrapped = np.where(indices < 0, indices + depth, indices)  # outside of [-depth, depth) nothing is hot
    axis = integer(attrs, "axis")
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    slots = np.arange(depth).reshape((depth,) + (1,) * (indices.ndim - axis))
    hot = np.expand_dims(wrapped, axis) == slots
    return [np.where(hot, values[1], values[0]).astype(values.dtype, copy=False)]


@kernel("NonZero")
def _non_zero(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    return [np.array(np.nonzero(np.atleast_1d(wide(x))), np.int64)]


@kernel("Unique")
def _unique(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    axis = None if attrs["axis"] is None else integer(attrs, "axis")
    unique: Callable[..., tuple[np.ndarray, ...]] = np.unique
    values, first, inverse, counts = unique(wide(x), True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not attrs["sorted"]:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return [narrow(values, x.dtype), *(each.astype(np.int64) for each in (first, inverse, counts))]
