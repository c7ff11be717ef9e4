"""Kernels of pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from . import OUTPUTS, Arrays, rows
from ._windows import Windows, mean_over, widen

KERNELS, kernel = rows()
_PLANE_BYTES = 1 << 16  # of planes that are pooled at a time


def _lowest(dtype: np.dtype) -> object:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _windows(attrs: Mapping[str, object], x: np.ndarray) -> Windows:
    return Windows.of(attrs, x.shape[2:], attrs["kernel_shape"], bool(attrs.get("ceil_mode")))  # type: ignore[arg-type]


@kernel("MaxPool")
def max_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Largest element of each window.

    A NaN anywhere in a window makes NaN. (ONNX Runtime's answer depends on which of its loops runs and on where in
    the window the NaN stands; this is the only choice that does not depend on the order of elements.)
    """
    x = inputs[0]
    assert x is not None
    windows = _windows(attrs, x)
    if int(attrs.get(OUTPUTS, 1)) > 1:  # type: ignore[call-overload]
        return _max_pool_indices(attrs, x, windows.pad(x, _lowest(x.dtype)), windows)
    out = np.empty((*x.shape[:2], *windows.counts), x.dtype)
    step = max(1, _PLANE_BYTES // max(x[:1, :1].nbytes, 1))
    for batch in range(x.shape[0]):  # some planes at a time stay in the cache
        for first in range(0, x.shape[1], step):
            planes = slice(first, first + step)
            _max_into(out[batch, planes], x[batch, planes], windows)
    return [out]


def _max_into(out: np.ndarray, part: np.ndarray, windows: Windows) -> None:
    """Axis by axis, the last one at the end: its elements do not lie beside each other, and fewer are left by then."""
    axes = zip(windows.kernel, windows.strides, windows.dilations, windows.begins, windows.counts)
    for axis, (length, stride, dilation, begin, count) in enumerate(axes, 1):
        size, lead = part.shape[axis], (slice(None),) * axis
        shape = *part.shape[:axis], count, *part.shape[axis + 1:]
        best = out if axis == part.ndim - 1 else np.empty(shape, part.dtype)
        best.fill(_lowest(part.dtype))
        for shift in range(-begin, length * dilation - begin, dilation):  # of an element from where its window begins
            first, end = max(-(shift // stride), 0), min((size - 1 - shift) // stride + 1, count)
            if first < end:
                inside = best[(*lead, slice(first, end))]
                start = first * stride + shift
                taken = part[(*lead, slice(start, start + (end - first - 1) * stride + 1, stride))]
                np.maximum(inside, taken, out=inside)
        part = best


def _max_pool_indices(attrs: Mapping[str, object], x: np.ndarray, padded: np.ndarray,
                      windows: Windows) -> Sequence[np.ndarray]:
    sizes = x.shape[2:]
    order = "F" if int(attrs.get("storage_order", 0)) else "C"  # type: ignore[call-overload]
    plane = np.arange(prod(sizes), dtype=np.int64).reshape(sizes, order=order)  # type: ignore[call-overload]
    inside = windows.pad(plane[None, None], -1)
    best: np.ndarray | None = None
    for _, slices in windows.offsets():
        part = padded[(slice(None), slice(None), *slices)]
        places = np.broadcast_to(inside[(slice(None), slice(None), *slices)], part.shape)
        if best is None:
            best, where = part.copy(), places.copy()
            continue
        # The first of equals wins; a window's padding never does; a NaN stays.
        better = (places >= 0) & ((part > best) | ((part != part) & (best == best)) | (where < 0))
        np.copyto(best, part, where=better)
        np.copyto(where, places, where=better)
    assert best is not None
    images = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(*x.shape[:2], *(1 for _ in sizes))
    return [best, where + images * prod(sizes)]


def _sums(x: np.ndarray, windows: Windows) -> np.ndarray:
    padded = windows.pad(x, 0)
    total: np.ndarray | None = None
    for _, slices in windows.offsets():
        part = padded[(slice(None), slice(None), *slices)]
        total = part.copy() if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


@kernel("AveragePool")
def average_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Mean of each window over the elements inside the input (or inside the declared padding)."""
    x = inputs[0]
    assert x is not None
    wide, windows = widen(x), _windows(attrs, x)
    padding = bool(attrs.get("count_include_pad"))
    count = np.ones((1,) * x.ndim, wide.dtype)
    for axis, size in enumerate(x.shape[2:]):
        shape = [1] * x.ndim
        shape[axis + 2] = windows.counts[axis]
        count = count * windows.counted(axis, size, padding).reshape(shape).astype(wide.dtype)
    with np.errstate(invalid="ignore", divide="ignore"):
        return [(_sums(wide, windows) / count).astype(x.dtype, copy=False)]


@kernel("LpPool")
def lp_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """p-norm of each window."""
    x, p = inputs[0], int(attrs["p"])  # type: ignore[call-overload]
    assert x is not None
    wide, windows = widen(x), _windows(attrs, x)
    return [_root(_sums(_power(wide, p), windows), p).astype(x.dtype, copy=False)]


def _power(x: np.ndarray, p: int) -> np.ndarray:
    return np.abs(x) if p == 1 else np.square(x) if p == 2 else np.abs(x) ** x.dtype.type(p)


def _root(x: np.ndarray, p: int) -> np.ndarray:
    return x if p == 1 else np.sqrt(x) if p == 2 else x ** x.dtype.type(1 / p)


def _spatial(x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@kernel("GlobalAveragePool")
def global_average_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Mean over all spatial positions."""
    x = inputs[0]
    assert x is not None
    return [mean_over(widen(x), _spatial(x)).astype(x.dtype, copy=False)]


@kernel("GlobalMaxPool")
def global_max_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Largest element over all spatial positions."""
    x = inputs[0]
    assert x is not None
    return [x.max(axis=_spatial(x), keepdims=True)]


@kernel("GlobalLpPool")
def global_lp_pool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """p-norm over all spatial positions."""
    x, p = inputs[0], int(attrs["p"])  # type: ignore[call-overload]
    assert x is not None
    return [_root(_power(widen(x), p).sum(axis=_spatial(x), keepdims=True), p).astype(x.dtype, copy=False)]


@kernel("MaxUnpool")
def max_unpool(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Puts elements back where MaxPool took them from, zeros elsewhere."""
    x, indices = inputs[0], inputs[1]
    wanted = inputs[2] if len(inputs) > 2 else None
    assert x is not None and indices is not None
    rank, kernel_shape = x.ndim - 2, attrs["kernel_shape"]
    strides = attrs.get("strides") or (1,) * rank
    pads = attrs.get("pads") or (0,) * (2 * rank)
    sizes = [(n - 1) * s + k - b - e for n, s, k, b, e
             in zip(x.shape[2:], strides, kernel_shape, pads[:rank], pads[rank:])]  # type: ignore[index, call-overload]
    if wanted is not None and tuple(wanted.tolist()[2:]) != tuple(sizes):
        # Indices count in the shape without output_shape; runtimes differ in what they do with another one.
        raise NotImplementedError("MaxUnpool with an output_shape other than the inferred one")
    out = np.zeros(prod((*x.shape[:2], *sizes)), x.dtype)
    out[indices.ravel()] = x.ravel()
    return [out.reshape(*x.shape[:2], *sizes)]
