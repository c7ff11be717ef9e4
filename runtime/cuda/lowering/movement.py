"""Lowerings of the operators that move elements: views wherever strides can say it, copies elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.operators._slicing import slice_range
from runtime import kernels
from runtime.codegen import address, movement
from runtime.codegen.scalar import DTYPES

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from .elementwise import one_element, scalars_of

LOWERINGS, lowering = rows()


def reshaped(emitter: Emitter, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor's elements in row-major order in another shape: a view, or a view of a copy."""
    strides = address.reshaped(tensor.shape, tensor.strides, shape)
    if strides is not None or not tensor.size:
        return tensor.viewed(tuple(shape), address.contiguous(shape) if strides is None else strides)
    dense = emitter.as_dense(tensor)
    return dense.viewed(tuple(shape), address.contiguous(shape))


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A view with the axes in another order."""
    return tensor.viewed(tuple(tensor.shape[axis] for axis in order), tuple(tensor.strides[axis] for axis in order))


def taken(tensor: Tensor, axis: int, indices: range) -> Tensor:
    """A view of evenly spaced places of an axis."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[axis] = len(indices)
    offset = indices.start * strides[axis] if indices else 0
    strides[axis] *= indices.step
    return tensor.viewed(tuple(shape), tuple(strides), offset)


def whole_numbers(value: Any) -> tuple[int, ...] | None:
    """A list attribute; a scalar counts as a list of one."""
    if value is None:
        return None
    return tuple(int(each) for each in value) if isinstance(value, tuple) else (int(value),)


@lowering("Identity")
def _identity(emitter: Emitter) -> None:
    emitter.view(0, emitter.tensor(0))


@lowering("Transpose")
def _transpose(emitter: Emitter) -> None:
    value = emitter.tensor(0)
    order = emitter.attrs["perm"]
    emitter.view(0, permuted(value, range(value.rank)[::-1] if order is None else order))


@lowering("Reshape")
def _reshape(emitter: Emitter) -> None:
    value = emitter.tensor(0)
    target = list(whole_numbers(emitter.attrs["shape"]) or ())
    if not emitter.attrs["allowzero"]:
        target = [value.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        known = prod(size for size in target if size != -1)
        target[target.index(-1)] = value.size // known if known else 0
    if prod(target) != value.size:
        raise NoKernel(f"a reshape of {list(value.shape)} to {target}")
    emitter.view(0, reshaped(emitter, value, target))


@lowering("Flatten")
def _flatten(emitter: Emitter) -> None:
    value, axis = emitter.tensor(0), int(emitter.attrs["axis"])
    axis = axis + value.rank if axis < 0 else axis
    emitter.view(0, reshaped(emitter, value, (prod(value.shape[:axis]), prod(value.shape[axis:]))))


@lowering("Squeeze")
def _squeeze(emitter: Emitter) -> None:
    value, axes = emitter.tensor(0), whole_numbers(emitter.attrs["axes"])
    gone = {axis % value.rank for axis in axes} if axes else {at for at, size in enumerate(value.shape) if size == 1}
    if any(value.shape[axis] != 1 for axis in gone):
        raise NoKernel(f"axes {axes} of {list(value.shape)} to squeeze")
    kept = [axis for axis in range(value.rank) if axis not in gone]
    emitter.view(0, permuted(value, kept))


@lowering("Unsqueeze")
def _unsqueeze(emitter: Emitter) -> None:
    value, axes = emitter.tensor(0), whole_numbers(emitter.attrs["axes"]) or ()
    rank = value.rank + len(axes)
    new = {axis % rank for axis in axes}
    old = iter(range(value.rank))
    order = [None if axis in new else next(old) for axis in range(rank)]
    emitter.view(0, value.viewed(tuple(1 if axis is None else value.shape[axis] for axis in order),
                                 tuple(0 if axis is None else value.strides[axis] for axis in order)))


@lowering("Expand")
def _expand(emitter: Emitter) -> None:
    value = emitter.tensor(0)
    emitter.view(0, value.broadcast(np.broadcast_shapes(value.shape, whole_numbers(emitter.attrs["shape"]) or ())))


@lowering("Slice")
def _slice(emitter: Emitter) -> None:
    value, attrs = emitter.tensor(0), emitter.attrs
    starts, ends, axes, steps = (whole_numbers(attrs[name]) for name in ("starts", "ends", "axes", "steps"))
    assert starts is not None and ends is not None
    named = range(value.rank) if axes is None else axes
    for axis, start, end, step in zip(named, starts, ends, steps or (1,) * len(starts)):
        value = taken(value, axis % value.rank, slice_range(value.shape[axis], start, end, step))
    emitter.view(0, value)


@lowering("Split")
def _split(emitter: Emitter) -> None:
    value, attrs = emitter.tensor(0), emitter.attrs
    axis, parts = int(attrs["axis"]) % value.rank, whole_numbers(attrs["split"])
    size = value.shape[axis]
    if parts is None:
        count = len(emitter.node.outputs) if attrs["num_outputs"] is None else int(attrs["num_outputs"])
        chunk = -(-size // count)
        parts = tuple(max(0, min(chunk, size - index * chunk)) for index in range(count))
        if attrs["num_outputs"] is None and size % count:
            raise NoKernel(f"an axis of size {size} in {count} equal parts")
    if sum(parts) != size:
        raise NoKernel(f"parts {list(parts)} of an axis of size {size}")
    begin = 0
    for index, part in enumerate(parts):
        emitter.view(index, taken(value, axis, range(begin, begin + part)))
        begin += part


@lowering("Shape")
def _shape(emitter: Emitter) -> None:
    end, shape = emitter.attrs["end"], _given(emitter).shape
    window = shape[int(emitter.attrs["start"]) : None if end is None else int(end)]
    emitter.view(0, Tensor.known(np.array(window, np.int64)))


@lowering("Size")
def _size(emitter: Emitter) -> None:
    emitter.view(0, Tensor.known(np.array(_given(emitter).size, np.int64)))


def _given(emitter: Emitter) -> Tensor:
    """The first input, wherever it lies."""
    value = emitter.inputs[0]
    if value is None:
        raise NoKernel("input 0 is absent")
    return value


@lowering("Concat")
def _concat(emitter: Emitter) -> None:
    parts = [emitter.tensor(index) for index in range(len(emitter.inputs))]
    scalars_of(parts)
    axis = int(emitter.attrs["axis"]) % parts[0].rank
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    made = emitter.output(0, shape)
    begin = 0
    for part in parts:
        emitter.copy(part, taken(made, axis, range(begin, begin + part.shape[axis])))
        begin += part.shape[axis]


@lowering("Tile")
def _tile(emitter: Emitter) -> None:
    value, repeats = emitter.tensor(0), whole_numbers(emitter.attrs["repeats"]) or ()
    if len(repeats) != value.rank:
        raise NoKernel(f"{len(repeats)} repeats for rank {value.rank}")
    pairs = list(zip(repeats, value.shape, value.strides))
    spread = value.viewed(tuple(each for count, size, _ in pairs for each in (count, size)),
                          tuple(each for _, _, stride in pairs for each in (0, stride)))
    emitter.view(0, reshaped(emitter, spread, [count * size for count, size, _ in pairs]))


@lowering("DepthToSpace")
def _depth_to_space(emitter: Emitter) -> None:
    value, block = emitter.tensor(0), int(emitter.attrs["blocksize"])
    n, c, h, w = value.shape
    depth = c // (block * block)
    is_dcr = emitter.attrs["mode"] == "DCR"
    parts = reshaped(emitter, value, (n, block, block, depth, h, w) if is_dcr else (n, depth, block, block, h, w))
    moved = permuted(parts, (0, 3, 4, 1, 5, 2) if is_dcr else (0, 1, 4, 2, 5, 3))
    emitter.view(0, reshaped(emitter, moved, (n, depth, h * block, w * block)))


@lowering("SpaceToDepth")
def _space_to_depth(emitter: Emitter) -> None:
    value, block = emitter.tensor(0), int(emitter.attrs["blocksize"])
    n, c, h, w = value.shape
    parts = reshaped(emitter, value, (n, c, h // block, block, w // block, block))
    moved = permuted(parts, (0, 3, 5, 1, 2, 4) if emitter.attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4))
    emitter.view(0, reshaped(emitter, moved, (n, c * block * block, h // block, w // block)))


@lowering("Pad")
def _pad(emitter: Emitter) -> None:
    value, attrs = emitter.tensor(0), emitter.attrs
    pads, axes = whole_numbers(attrs["pads"]) or (), whole_numbers(attrs["axes"])
    named = range(value.rank) if axes is None else axes
    widths = [(0, 0)] * value.rank
    for index, axis in enumerate(named):
        widths[axis] = (pads[index], pads[index + len(named)])
    fill: Tensor | object = None
    if attrs.is_late("constant_value"):
        fill = one_element(emitter.tensor(2))
    elif attrs["constant_value"] is not None:
        fill = attrs["constant_value"]
    emit_pad(emitter, value, widths, str(attrs["mode"]), 0 if fill is None else fill)


def emit_pad(emitter: Emitter, value: Tensor, widths: Sequence[tuple[int, int]], mode: str, fill: object) -> None:
    """Output 0 is a tensor with elements added (and, where widths are negative, taken away) at the ends of axes."""
    scalars_of([value])
    for axis, (before, after) in enumerate(widths):  # negative widths cut; they do so before the others add
        size = value.shape[axis]
        value = taken(value, axis, range(max(-before, 0), max(size - max(-after, 0), max(-before, 0))))
    begins = tuple(max(before, 0) for before, _ in widths)
    shape = tuple(size + begin + max(after, 0) for size, begin, (_, after) in zip(value.shape, begins, widths))
    if shape == value.shape:
        return emitter.view(0, value)
    if mode != "constant" and not value.size:
        raise NoKernel(f"an empty tensor padded by {mode}")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise NoKernel(f"mode {mode}")
    made = emitter.output(0, shape, value.dtype)
    late = [fill] if isinstance(fill, Tensor) else []
    if late and mode != "constant":
        late = []
    if late and late[0].dtype != value.dtype:
        raise NoKernel(f"{value.dtype} padded with {late[0].dtype}")
    text = "" if late else movement.stored_literal(value.dtype, 0 if isinstance(fill, Tensor) else fill)
    kernel = movement.pad_kernel(value.dtype, mode, value.shape, value.strides, begins, shape, text)
    emitter.launch(kernel, value, *late, made)


@lowering("CenterCropPad")
def _center_crop_pad(emitter: Emitter) -> None:
    value, axes = emitter.tensor(0), whole_numbers(emitter.attrs["axes"])
    widths = [(0, 0)] * value.rank
    named = range(value.rank) if axes is None else axes
    for axis, size in zip(named, whole_numbers(emitter.attrs["shape"]) or ()):
        extra = size - value.shape[axis]
        first = -(-extra // 2) if extra < 0 else extra // 2
        widths[axis] = (first, extra - first)
    emit_pad(emitter, value, widths, "constant", 0)


@lowering("Trilu")
def _trilu(emitter: Emitter) -> None:
    value, attrs = emitter.tensor(0), emitter.attrs
    scalars_of([value])
    late = [one_element(emitter.tensor(1))] if attrs.is_late("k") else []
    if late and late[0].dtype != "int64":
        raise NoKernel(f"a diagonal of {late[0].dtype}")
    diagonal = None if late else (whole_numbers(attrs["k"]) or (0,))[0]
    made = emitter.output(0, value.shape)
    kernel = movement.triangle_kernel(value.dtype, value.shape, value.strides, bool(attrs["upper"]), diagonal)
    emitter.launch(kernel, value, *late, made)


@lowering("EyeLike")
def _eye_like(emitter: Emitter) -> None:
    like, attrs = _given(emitter), emitter.attrs
    dtype = like.dtype if attrs["dtype"] is None else dtypes.FROM_ONNX[int(attrs["dtype"])]
    if dtype not in DTYPES or like.rank != 2:
        raise NoKernel(f"element type {dtype}, rank {like.rank}")
    made = emitter.output(0, like.shape, dtype)
    if like.size:
        emitter.launch(movement.eye_kernel(dtype, *like.shape, int(attrs["k"])), made)


@lowering("ConstantOfShape")
def _constant_of_shape(emitter: Emitter) -> None:
    value, shape = emitter.attrs["value"], tuple(int(size) for size in emitter.host(0))
    fill = value.array.reshape(()) if isinstance(value, Constant) else np.zeros((), np.float32)
    emitter.view(0, emitter.constant(fill).viewed(shape, (0,) * len(shape)))


@lowering("Range")
def _range(emitter: Emitter) -> None:
    function = kernels.find("Range")
    assert function is not None
    attrs: Mapping[str, object] = emitter.node.attrs
    emitter.view(0, Tensor.known(function(attrs, [emitter.host(index) for index in range(3)])[0]))


@lowering("ReverseSequence")
def _reverse_sequence(emitter: Emitter) -> None:
    value, lengths = emitter.tensor(0), emitter.tensor(1)
    scalars_of([value, lengths])
    batch, time = int(emitter.attrs["batch_axis"]), int(emitter.attrs["time_axis"])
    made = emitter.output(0, value.shape)
    kernel = movement.reverse_kernel(value.dtype, value.shape, value.strides, batch, time,
                                     (lengths.dtype, lengths.strides[0]))
    emitter.launch(kernel, value, lengths, made)
