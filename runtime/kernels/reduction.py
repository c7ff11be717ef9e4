"""Kernels of the operators that reduce or scan along axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from . import Arrays, rows
from ._numeric import given, integer, integers, is_floating, narrow, wide
from ._windows import mean_over

KERNELS, kernel = rows()
Reduce = Callable[[np.ndarray, tuple[int, ...], bool], np.ndarray]


def _axes(attrs: Mapping[str, object], rank: int) -> tuple[int, ...]:
    axes = integers(attrs, "axes")
    if not axes:
        return () if attrs["noop_with_empty_axes"] else tuple(range(rank))
    return tuple(axis % rank for axis in axes)


def _reduction(name: str) -> Callable[[Reduce], Reduce]:
    def enter(function: Reduce) -> Reduce:
        def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
            x = given(inputs, 0)
            with np.errstate(all="ignore"):
                result = function(wide(x), _axes(attrs, x.ndim), bool(attrs["keepdims"]))
                return [narrow(result, x.dtype)]

        kernel(name)(run)
        return function

    return enter


@_reduction("ReduceSum")
def _sum(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)


@_reduction("ReduceProd")
def _prod(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)


@_reduction("ReduceMean")
def _mean(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    if is_floating(x.dtype):
        return mean_over(x, axes, keep)
    total = np.sum(x, axis=axes, keepdims=keep, dtype=np.int64)
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return np.sign(total) * (np.abs(total) // count)  # truncated


def _extreme(function: Callable[..., np.ndarray], x: np.ndarray, axes: tuple[int, ...], keep: bool,
             lowest: bool) -> np.ndarray:  # fmt: skip
    start: object = -np.inf if lowest else np.inf
    if x.dtype == bool:
        start = not lowest
    elif x.dtype.kind in "iu":
        start = np.iinfo(x.dtype).min if lowest else np.iinfo(x.dtype).max
    return function(x, axis=axes, keepdims=keep, initial=start)


@_reduction("ReduceMax")
def _max(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return _extreme(np.max, x, axes, keep, lowest=True)


@_reduction("ReduceMin")
def _min(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return _extreme(np.min, x, axes, keep, lowest=False)


@_reduction("ReduceL1")
def _l1(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.sum(np.abs(x), axis=axes, keepdims=keep, dtype=x.dtype)


@_reduction("ReduceL2")
def _l2(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    broad = x if is_floating(x.dtype) else x.astype(np.float64)
    return np.sqrt(np.sum(broad * broad, axis=axes, keepdims=keep))


@_reduction("ReduceSumSquare")
def _sum_square(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype)


@_reduction("ReduceLogSum")
def _log_sum(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    broad = x if is_floating(x.dtype) else x.astype(np.float64)
    return np.log(np.sum(broad, axis=axes, keepdims=keep))


@_reduction("ReduceLogSumExp")
def _log_sum_exp(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    broad = x if is_floating(x.dtype) else x.astype(np.float64)
    top = np.max(broad, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0).astype(broad.dtype)
    total = np.log(np.sum(np.exp(broad - top), axis=axes, keepdims=keep))
    return total + top.reshape(total.shape)


def _arg(
    function: Callable[..., np.ndarray],
) -> Callable[[Mapping[str, object], Arrays], Sequence[np.ndarray]]:
    def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
        x = wide(given(inputs, 0))
        if x.ndim == 0:
            return [np.zeros((), np.int64)]
        axis, keep = integer(attrs, "axis"), bool(attrs["keepdims"])
        if integer(attrs, "select_last_index"):
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keep)
        else:
            found = function(x, axis=axis, keepdims=keep)
        return [np.asarray(found, np.int64)]

    return run


kernel("ArgMax")(_arg(np.argmax))
kernel("ArgMin")(_arg(np.argmin))


def _scan(function: Callable[..., np.ndarray], neutral: int) -> Callable[..., Sequence[np.ndarray]]:
    def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
        x, axis = given(inputs, 0), integer(attrs, "axis")
        data = wide(x)
        axis %= x.ndim
        if attrs["reverse"]:
            data = np.flip(data, axis)
        with np.errstate(all="ignore"):
            result = function(data, axis=axis, dtype=data.dtype)
        if attrs["exclusive"] and x.shape[axis]:
            front = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), neutral, data.dtype)
            rest = np.take(result, range(x.shape[axis] - 1), axis=axis)
            result = np.concatenate([front, rest], axis=axis)
        if attrs["reverse"]:
            result = np.flip(result, axis)
        return [narrow(result, x.dtype)]

    return run


kernel("CumSum")(_scan(np.cumsum, 0))
kernel("CumProd")(_scan(np.cumprod, 1))


@kernel("TopK")
def _top_k(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """The order is sorted also where the operator leaves it open; of equal elements the first comes first."""
    x, axis, k = given(inputs, 0), integer(attrs, "axis"), integer(attrs, "k")
    data = wide(x)
    if attrs["largest"]:
        # A stable ascending sort of the flipped axis, read backwards, is descending and still stable.
        ascending = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(ascending, axis)
    else:
        order = np.argsort(data, axis=axis, kind="stable")
    chosen = np.take(order, range(k), axis=axis).astype(np.int64)
    return [np.take_along_axis(x, chosen, axis), chosen]
