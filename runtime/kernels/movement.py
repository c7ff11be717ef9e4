"""Kernels of the operators that move elements or ask for shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.operators._slicing import slice_range

from . import OUTPUTS, Arrays, rows
from ._numeric import given, integer, integers, is_floating, narrow, wide

KERNELS, kernel = rows()


@kernel("Reshape")
def _reshape(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, target = given(inputs, 0), list(integers(attrs, "shape") or ())
    if not attrs["allowzero"]:
        target = [x.shape[index] if size == 0 else size for index, size in enumerate(target)]
    return [x.reshape(target)]


@kernel("Transpose")
def _transpose(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.transpose(given(inputs, 0), integers(attrs, "perm"))]


@kernel("Flatten")
def _flatten(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, axis = given(inputs, 0), integer(attrs, "axis")
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))]


@kernel("Squeeze")
def _squeeze(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.squeeze(given(inputs, 0), integers(attrs, "axes") or None)]  # no axes: all, as in ONNX Runtime


@kernel("Unsqueeze")
def _unsqueeze(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.expand_dims(given(inputs, 0), integers(attrs, "axes") or ())]


@kernel("Expand")
def _expand(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, integers(attrs, "shape") or ()))]


@kernel("Concat")
def _concat(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    arrays = [given(inputs, position) for position in range(len(inputs))]
    return [np.concatenate(arrays, axis=integer(attrs, "axis"))]


@kernel("Split")
def _split(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, axis, parts = given(inputs, 0), integer(attrs, "axis"), integers(attrs, "split")
    if parts is None:
        count = attrs["num_outputs"] if attrs["num_outputs"] is not None else attrs[OUTPUTS]
        assert isinstance(count, int)
        size = x.shape[axis]
        chunk = -(-size // count)
        if attrs["num_outputs"] is None and size % count:
            raise ValueError(f"an axis of size {size} does not split into {count} equal parts")
        parts = tuple(max(0, min(chunk, size - index * chunk)) for index in range(count))
    if sum(parts) != x.shape[axis]:
        raise ValueError(f"parts {list(parts)} of an axis of size {x.shape[axis]}")
    lead = (slice(None),) * (axis % x.ndim)
    ends = list(accumulate(parts))
    return [x[(*lead, slice(end - size, end))] for end, size in zip(ends, parts)]  # np.split takes ten times as long


@kernel("Slice")
def _slice(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    starts, ends = integers(attrs, "starts") or (), integers(attrs, "ends") or ()
    axes, steps = integers(attrs, "axes"), integers(attrs, "steps")
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes or range(x.ndim), starts, ends, steps or (1,) * len(starts)):
        taken = slice_range(x.shape[axis], start, end, step)
        index[axis] = slice(taken.start, None if taken.stop < 0 else taken.stop, taken.step)
    return [x[tuple(index)]]


@lru_cache(maxsize=256)
def _reached(mode: str, size: int, before: int, after: int) -> np.ndarray:
    """Which places of an axis lie in its padding and between."""
    places = np.arange(-before, size + after)
    if mode == "edge":
        return places.clip(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(2 * (size - 1), 1)
    return np.minimum(places % period, -places % period)


def _repeated(x: np.ndarray, added: Sequence[tuple[int, int]], mode: str) -> np.ndarray:
    """What `np.pad` gives, which takes ten times as long for small arrays."""
    if 0 in x.shape or mode not in ("edge", "wrap", "reflect"):
        return np.pad(x, added, mode=mode)  # type: ignore[call-overload, no-any-return]
    for axis, (before, after) in enumerate(added):
        if before or after:
            x = x.take(_reached(mode, x.shape[axis], before, after), axis)
    return x


@kernel("Pad")
def _pad(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, pads, axes = given(inputs, 0), integers(attrs, "pads") or (), integers(attrs, "axes")
    widths = [(0, 0)] * x.ndim
    named = range(x.ndim) if axes is None else axes
    for index, axis in enumerate(named):
        widths[axis] = (pads[index], pads[index + len(named)])
    # Negative pads cut; they do so before the others add.
    cut = tuple(slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(x.shape, widths))
    added = [(max(a, 0), max(b, 0)) for a, b in widths]
    if attrs["mode"] != "constant":
        return [_repeated(x[cut], added, str(attrs["mode"]))]
    value = attrs["constant_value"]
    fill = np.zeros((), x.dtype) if value is None else np.asarray(value).reshape(()).astype(x.dtype)
    if x.dtype.kind == "O" and value is None:
        fill = np.asarray("", dtype=object)
    result = np.full([size + a + b for size, (a, b) in zip(x[cut].shape, added)], fill, x.dtype)
    result[tuple(slice(a, a + size) for size, (a, _) in zip(x[cut].shape, added))] = x[cut]
    return [result]


@kernel("CenterCropPad")
def _center_crop_pad(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, sizes, axes = given(inputs, 0), integers(attrs, "shape") or (), integers(attrs, "axes")
    for axis, size in zip(range(x.ndim) if axes is None else axes, sizes):
        extra = size - x.shape[axis]
        if extra < 0:
            first = -extra // 2
            x = np.take(x, range(first, first + size), axis=axis)
        elif extra > 0:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (extra // 2, extra - extra // 2)
            x = np.pad(x, widths)
    return [x]


@kernel("Tile")
def _tile(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.tile(given(inputs, 0), integers(attrs, "repeats") or ())]


@kernel("DepthToSpace")
def _depth_to_space(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, block = given(inputs, 0), integer(attrs, "blocksize")
    n, c, h, w = x.shape
    depth = c // (block * block)
    if attrs["mode"] == "DCR":
        moved = x.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [moved.reshape(n, depth, h * block, w * block)]


@kernel("SpaceToDepth")
def _space_to_depth(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, block = given(inputs, 0), integer(attrs, "blocksize")
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 3, 5, 1, 2, 4) if attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return [blocks.transpose(order).reshape(n, c * block * block, h // block, w // block)]


@kernel("Shape")
def _shape(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    end = attrs["end"]
    window = given(inputs, 0).shape[integer(attrs, "start") : None if end is None else int(end)]  # type: ignore[call-overload]
    return [np.array(window, np.int64)]


@kernel("Size")
def _size(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.array(given(inputs, 0).size, np.int64)]


@kernel("ConstantOfShape")
def _constant_of_shape(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    value = attrs["value"]
    fill = value.array.reshape(()) if isinstance(value, Constant) else np.zeros((), np.float32)
    return [np.full(tuple(given(inputs, 0).tolist()), fill, fill.dtype)]


@kernel("Range")
def _range(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    first = given(inputs, 0)
    # Graphs in the wild give one-element vectors where scalars are asked for.
    start, limit, delta = (wide(given(inputs, position)).reshape(()) for position in range(3))
    if is_floating(first.dtype):
        count = int(np.ceil(float(limit - start) / float(delta)))
    else:
        count = -((int(start) - int(limit)) // int(delta))
    steps = np.arange(max(count, 0)).astype(start.dtype)
    return [narrow(start + steps * delta, first.dtype)]


@kernel("EyeLike")
def _eye_like(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    dtype = x.dtype if attrs["dtype"] is None else dtypes.numpy_dtype(dtypes.FROM_ONNX[integer(attrs, "dtype")])
    return [np.eye(x.shape[0], x.shape[1], k=integer(attrs, "k")).astype(dtype)]


@kernel("Trilu")
def _trilu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    k = 0 if attrs["k"] is None else integer(attrs, "k")
    row, column = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None, :]
    kept = column - row >= k if attrs["upper"] else column - row <= k
    return [np.where(kept, x, np.zeros((), x.dtype)).astype(x.dtype, copy=False)]


@kernel("Compress")
def _compress(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    axis = None if attrs["axis"] is None else integer(attrs, "axis")
    return [np.compress(given(inputs, 1), given(inputs, 0), axis=axis)]


@kernel("ReverseSequence")
def _reverse_sequence(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, lengths = given(inputs, 0), given(inputs, 1)
    batch, time = integer(attrs, "batch_axis"), integer(attrs, "time_axis")
    result = x.copy()
    source, target = np.moveaxis(x, (batch, time), (0, 1)), np.moveaxis(result, (batch, time), (0, 1))
    for index, count in enumerate(lengths.tolist()):
        target[index, :count] = source[index, :count][::-1]
    return [result]
