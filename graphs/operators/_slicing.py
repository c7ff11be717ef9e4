"""Records of Slice, Pad and CenterCropPad."""

from __future__ import annotations

import numpy as np

from .. import dims
from ..dims import DimLike
from ..types import Type
from ._common import (
    FAR,
    array_of,
    as_contents,
    axes_of,
    certainly,
    elements,
    integers,
    larger,
    length,
    smaller,
)  # fmt: skip
from .record import REQUIRED, RUNTIME, Contents, Operator, Site


def _bound(value: DimLike, size: DimLike) -> DimLike | None:
    """Where a start or end lies in [0, size] when steps go forward, None where its sign is not certain."""
    if isinstance(value, int) and value >= FAR:
        return size
    if isinstance(value, int) and value <= -FAR:
        return 0
    if value == size:
        return size
    if certainly(value, 0):
        return smaller(value, size)
    if certainly(-1, value):
        return larger(dims.add(size, value), 0)
    return None


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """The indices that a slice takes of an axis: a start before the front is the front, whichever way steps go."""
    first = start + size if start < 0 else start
    last = end + size if end < 0 else end
    if not size:
        return range(0)
    if step > 0:
        return range(min(max(first, 0), size), min(max(last, 0), size), step)
    return range(min(max(first, 0), size - 1), min(max(last, -1), size), step)


def slice_length(size: DimLike, start: DimLike, end: DimLike, step: int) -> DimLike | None:
    """How many elements a slice takes of an axis, None where that is not certain."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(slice_range(size, start, end, step))
    if step < 0:
        from_end = isinstance(start, int) and (start == -1 or start >= FAR)
        to_front = isinstance(end, int) and end <= -FAR
        return dims.ceildiv(size, -step) if from_end and to_front else None
    first, last = _bound(start, size), _bound(end, size)
    if first is None or last is None:
        return None
    if first == 0:
        count = last  # in [0, size] already
    elif last == size and certainly(start, 0):
        count = larger(dims.sub(size, start), 0)  # the same as size - min(start, size), and plainer
    else:
        count = larger(dims.sub(last, first), 0)
    return count if step == 1 else dims.ceildiv(count, step)


def _slice_axes(site: Site, rank: int, count: int) -> list[int] | None:
    if site.attrs["axes"] is None:
        return list(range(count))
    axes = integers(site, "axes", 3)
    return None if axes is None else axes_of(site, axes, rank)


def _slice_steps(site: Site, count: int) -> tuple[int, ...] | None:
    return (1,) * count if site.attrs["steps"] is None else integers(site, "steps", 4)


def _slice(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    result = list(data.shape)
    counts = [length(site, name, position) for name, position in (("starts", 1), ("ends", 2), ("axes", 3))
              if site.attrs[name] is not None]  # fmt: skip
    count = next((number for number in counts if number is not None), None)
    axes = None if count is None else _slice_axes(site, len(result), count)
    if count is None or axes is None:
        return [data.with_shape(tuple(site.unknown_dim(index) for index in range(len(result))))]
    starts, ends = elements(site, "starts", 1), elements(site, "ends", 2)
    steps = _slice_steps(site, count)
    if any(each is not None and len(each) != count for each in (starts, ends, axes, steps)) or count > len(result):
        raise site.fail("starts, ends, axes and steps of different lengths")
    for index, axis in enumerate(axes):
        found = None
        if steps is not None and steps[index] == 0:
            raise site.fail("a step of 0")
        if starts is not None and ends is not None and steps is not None:
            found = slice_length(data.shape[axis], starts[index], ends[index], steps[index])
        result[axis] = site.unknown_dim(axis) if found is None else found
    return [data.with_shape(tuple(result))]


def _slice_contents(site: Site) -> Contents | None:
    data, type_ = array_of(site, 0), site.type(0)
    if data is None or type_ is None:
        return None
    starts, ends = integers(site, "starts", 1), integers(site, "ends", 2)
    if starts is None or ends is None:
        return None
    axes, steps = _slice_axes(site, data.ndim, len(starts)), _slice_steps(site, len(starts))
    if axes is None or steps is None:
        return None
    for axis, start, end, step in zip(axes, starts, ends, steps):
        data = np.take(data, slice_range(data.shape[axis], start, end, step), axis=axis)
    return as_contents(data, type_.dtype)


def _write_slice(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if version >= 10:
        return attrs
    kept = dict(attrs)
    steps = kept.pop("steps", None)
    return kept if steps is None or (isinstance(steps, tuple) and set(steps) <= {1}) else None


def _pad(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    rank = len(data.shape)
    pads = elements(site, "pads", 1)
    axes: list[int] | None = list(range(rank))
    if site.attrs["axes"] is not None:
        given = integers(site, "axes", 3)
        axes = None if given is None else axes_of(site, given, rank)
    if axes is None:
        return [data.with_shape(tuple(site.unknown_dim(index) for index in range(rank)))]
    result = list(data.shape)
    if pads is None:
        for axis in axes:
            result[axis] = site.unknown_dim(axis)
        return [data.with_shape(tuple(result))]
    if len(pads) != 2 * len(axes):
        raise site.fail(f"{len(pads)} pads for {len(axes)} axes", "give a begin and an end for each axis")
    for index, axis in enumerate(axes):
        result[axis] = dims.add(result[axis], dims.add(pads[index], pads[index + len(axes)]))
        size = result[axis]
        if isinstance(size, int) and size < 0:
            raise site.fail(f"pads that leave size {size} of axis {axis}")
    return [data.with_shape(tuple(result))]


def _read_pad(attrs: dict[str, object], version: int) -> dict[str, object]:
    if version >= 11:
        return attrs
    kept = dict(attrs)
    if "paddings" in kept:
        kept["pads"] = kept.pop("paddings")
    value = kept.pop("value", 0.0)
    is_default = value == 0.0 and not np.signbit(value)  # type: ignore[call-overload]
    return {**kept, "constant_value": None if is_default else value}


def _write_pad(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    mode = attrs["mode"]
    if (mode == "wrap" and version < 19) or (version < 18 and attrs["axes"] is not None):
        return None
    kept = dict(attrs)
    if version < 18:
        kept.pop("axes")
    if version >= 11:
        return kept
    value = kept.pop("constant_value")
    value = 0.0 if value is None else value
    if not isinstance(value, (int, float)) or kept["pads"] is RUNTIME:
        return None
    if value == value and float(np.float32(value)) != value:
        return None
    kept["value"] = float(value)
    if version == 1:
        kept["paddings"] = kept.pop("pads")
    return kept


def _center_crop_pad(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    result = list(data.shape)
    given = site.attrs["axes"]
    axes = range(len(result)) if given is None else axes_of(site, given, len(result))  # type: ignore[arg-type]
    sizes = elements(site, "shape", 1)
    if sizes is not None and len(sizes) != len(axes):
        raise site.fail(f"{len(sizes)} sizes for {len(axes)} axes")
    for index, axis in enumerate(axes):
        result[axis] = site.unknown_dim(axis) if sizes is None else sizes[index]
    return [data.with_shape(tuple(result))]


OPERATORS: list[Operator] = [
    Operator("Slice", _slice, (1, 10, 11, 13),
             {"starts": REQUIRED, "ends": REQUIRED, "axes": None, "steps": None},
             {"starts": 1, "ends": 2, "axes": 3, "steps": 4}, movement=True, contents=_slice_contents,
             write=_write_slice),
    Operator("Pad", _pad, (1, 2, 11, 13, 18, 19, 21, 23, 24, 25),
             {"mode": "constant", "pads": REQUIRED, "constant_value": None, "axes": None},
             {"pads": 1, "constant_value": 2, "axes": 3}, read=_read_pad, write=_write_pad),
    Operator("CenterCropPad", _center_crop_pad, (18,), {"shape": REQUIRED, "axes": None}, {"shape": 1}),
]  # fmt: skip
