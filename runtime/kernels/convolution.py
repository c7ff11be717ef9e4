"""Kernels of the convolution operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from graphs.operators._windows import SAME, explicit_pads, per_axis

from . import Arrays, _pooling, _resampling, rows
from ._windows import Windows, widen

KERNELS, kernel = rows()
KERNELS.update(_pooling.KERNELS)
KERNELS.update(_resampling.KERNELS)

# Rows of at most this many times the kernel: a banded matrix is faster than one pass for each element of the kernel.
_SHORT = 10
_LEAST_ROWS = 4  # or making the matrix takes longer than what it is for
_COLUMN_BYTES = 1 << 22  # unfold about this much at a time: what the caches hold
_PART_BYTES = 1 << 16  # normalize about this much at a time


def convolve(x: np.ndarray, w: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    """Convolution without bias, in the dtype of `x` and `w` (which must be the same)."""
    group = int(attrs.get("group", 1))  # type: ignore[call-overload]
    windows = Windows.of(attrs, x.shape[2:], w.shape[2:])
    batch, maps = x.shape[0], w.shape[0]
    shape = (batch, maps, *windows.counts)
    if prod(shape) == 0 or w.shape[1] == 0:
        return np.zeros(shape, x.dtype)
    if windows.trivial:
        skipping = tuple(slice(None, None, stride) for stride in windows.strides)
        return _matmul(w, x[(slice(None), slice(None), *skipping)], group).reshape(shape)
    padded = windows.pad(x, 0)
    if w.shape[1] == 1 and maps == group:
        return _depthwise(padded, w, windows)
    out = np.empty(shape, x.dtype)
    rest = (slice(None),) * (len(windows.counts) - 1)
    line = x.shape[1] * prod(w.shape[2:]) * prod(windows.counts[1:]) * x.dtype.itemsize  # bytes, of the first axis
    lines = windows.counts[0]
    samples = max(1, _COLUMN_BYTES // max(line * lines, 1))
    step = lines if samples > 1 else min(lines, max(1, _COLUMN_BYTES // max(line, 1)))
    for sample, start in product(range(0, batch, samples), range(0, lines, step)):
        places: tuple[Any, ...] = (..., slice(start, start + step), *rest)
        columns = windows.view(padded[sample:sample + samples])[places]
        part = out[sample:sample + samples, :, start:start + step]
        part[...] = _matmul(w, columns, group).reshape(part.shape)
    return out


def _matmul(w: np.ndarray, columns: np.ndarray, group: int) -> np.ndarray:
    """(N, group, M/group, positions) from weights and columns (N, C, kernel..., positions...)."""
    depth = prod(w.shape[1:])
    columns = columns.reshape(columns.shape[0], group, depth, -1)
    return np.matmul(w.reshape(group, w.shape[0] // group, depth), columns)


def _depthwise(padded: np.ndarray, w: np.ndarray, windows: Windows) -> np.ndarray:
    # What no window reads decides nothing: the same convolution of a padded input has the same bits.
    padded = padded[(slice(None), slice(None), *map(slice, windows.reach()))]
    band = w.itemsize * w.size // windows.kernel[-1] * padded.shape[-1] * windows.counts[-1]  # bytes
    rows = padded.shape[0] * prod(windows.counts[:-1])  # that each matrix is used for
    short = windows.counts[-1] <= _SHORT * windows.kernel[-1] and rows >= _LEAST_ROWS and band <= _COLUMN_BYTES
    if len(windows.counts) > 1 and short and padded.dtype.kind == "f" and np.isfinite(padded).all():
        return _by_rows(padded, w, windows)
    out = np.zeros((*padded.shape[:2], *windows.counts), padded.dtype)
    term = np.empty_like(out)
    for place, slices in windows.offsets():
        factor = w[:, 0][(slice(None), *place)].reshape(-1, *(1 for _ in slices))  # type: ignore[arg-type]
        np.multiply(padded[(slice(None), slice(None), *slices)], factor, out=term)
        out += term
    return out


def _by_rows(padded: np.ndarray, w: np.ndarray, windows: Windows) -> np.ndarray:
    """Windows along the last of several axes as a product with a banded matrix, for each channel and kernel row: what
    is 0 in it must not meet an infinity or NaN."""
    *rows, width = windows.kernel
    places = np.arange(windows.counts[-1])
    band = np.zeros((w.shape[0], *rows, padded.shape[-1], places.size), w.dtype)
    for at in range(width):
        band[..., places * windows.strides[-1] + at * windows.dilations[-1], places] = w[:, 0, ..., at, None]
    shape = (w.shape[0], *(1 for _ in rows[1:]), *band.shape[-2:])
    out = np.zeros((*padded.shape[:2], *windows.counts), padded.dtype)
    for place, slices in windows.offsets():
        if place[-1] == 0:
            lines: tuple[Any, ...] = (..., *slices[:-1], slice(None))
            row: tuple[Any, ...] = (slice(None), *place[:-1])
            out += np.matmul(padded[lines], band[row].reshape(shape))
    return out


def add_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """`y` (fresh, may be written) plus a bias per channel."""
    if bias is not None:
        y += bias.astype(y.dtype, copy=False).reshape(-1, *(1 for _ in y.shape[2:]))
    return y


@kernel("Conv")
def conv(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Convolution (cross-correlation, as everywhere in machine learning)."""
    x, w = inputs[0], inputs[1]
    bias = inputs[2] if len(inputs) > 2 else None
    assert x is not None and w is not None
    return [add_bias(convolve(widen(x), widen(w), attrs), bias).astype(x.dtype, copy=False)]


@kernel("ConvTranspose")
def conv_transpose(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Transposed convolution: every input element stamps the kernel on the output."""
    x, w = inputs[0], inputs[1]
    bias = inputs[2] if len(inputs) > 2 else None
    assert x is not None and w is not None
    group, rank = int(attrs["group"]), x.ndim - 2  # type: ignore[call-overload]
    wide, kernel_sizes = widen(x), w.shape[2:]
    strides, dilations = per_axis(attrs, "strides", rank), per_axis(attrs, "dilations", rank)
    sizes, begins = transposed_layout(attrs, x.shape[2:], kernel_sizes)
    full = [max((n - 1) * s + (k - 1) * d + 1, 0) if n else 0
            for n, s, k, d in zip(x.shape[2:], strides, kernel_sizes, dilations)]
    # Room for what the stamps reach and for what the output shows beyond.
    room = [max(f, size + begin) for f, size, begin in zip(full, sizes, begins)]
    batch, channels, maps = x.shape[0], x.shape[1], w.shape[1] * group
    stamped = np.zeros((batch, maps, *room), wide.dtype)
    if x.size:
        flat = wide.reshape(batch, group, channels // group, -1)
        weights = widen(w).reshape(group, channels // group, -1).swapaxes(1, 2)  # (group, M/group*K, C/group)
        columns = np.matmul(weights, flat).reshape(batch, maps, *kernel_sizes, *x.shape[2:])
        for place in product(*map(range, kernel_sizes)):
            slices = tuple(slice(at * d, at * d + (n - 1) * s + 1, s)
                           for at, d, n, s in zip(place, dilations, x.shape[2:], strides))
            stamped[(slice(None), slice(None), *slices)] += columns[(slice(None), slice(None), *place)]
    shown = tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes))
    y = np.ascontiguousarray(stamped[(slice(None), slice(None), *shown)])
    return [add_bias(y, bias).astype(x.dtype, copy=False)]


def transposed_layout(attrs: Mapping[str, object], sizes: Sequence[int],
                      kernel_sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Output sizes of ConvTranspose and how much is cut off at the beginning."""
    rank = len(sizes)
    strides, dilations = per_axis(attrs, "strides", rank), per_axis(attrs, "dilations", rank)
    extra, auto = per_axis(attrs, "output_padding", rank, 0), attrs.get("auto_pad", "NOTSET")
    full = [(n - 1) * s + (k - 1) * d + 1 + more
            for n, s, k, d, more in zip(sizes, strides, kernel_sizes, dilations, extra)]
    wanted = attrs.get("output_shape")
    if not wanted and auto not in SAME:
        begins, ends = explicit_pads(attrs, rank)
        return [f - begin - end for f, begin, end in zip(full, begins, ends)], list(begins)
    shape = (list(wanted)[-rank:] if wanted else  # type: ignore[call-overload]
             [min(n * s, f) for n, s, f in zip(sizes, strides, full)])
    totals = [max(f - size, 0) for f, size in zip(full, shape)]
    return shape, [total // 2 if auto == "SAME_UPPER" else -(-total // 2) for total in totals]


@kernel("LRN")
def lrn(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normalization by the sum of squares over neighbouring channels."""
    x = inputs[0]
    assert x is not None
    wide, size = widen(x), int(attrs["size"])  # type: ignore[call-overload]
    alpha, beta, bias = (wide.dtype.type(attrs[name]) for name in ("alpha", "beta", "bias"))  # type: ignore[arg-type]
    before, after, factor = (size - 1) // 2, size - 1 - (size - 1) // 2, alpha / wide.dtype.type(size)
    y = np.empty(x.shape, x.dtype)
    source, target = (each.reshape(*x.shape[:2], prod(x.shape[2:])) for each in (wide, y))
    step = max(1, _PART_BYTES // max(prod(x.shape[:2]) * wide.itemsize, 1))
    for start in range(0, source.shape[2], step):  # places are independent: temporary arrays stay small
        part = source[:, :, start:start + step]
        square = np.square(part)
        total = np.zeros_like(square)
        for shift in range(-before, after + 1):
            if abs(shift) < x.shape[1]:
                own = slice(max(-shift, 0), x.shape[1] - max(shift, 0))
                total[:, own] += square[:, max(shift, 0):x.shape[1] - max(-shift, 0)]
        total *= factor
        total += bias
        np.power(total, beta, out=total)
        target[:, :, start:start + step] = np.divide(part, total, out=total)
    return [y]
