"""Planes of many channels, each on its own: convolutions of as many groups as channels, pools, and resizing.

The engine has a channel in each place of a vector (`native/lanes.h`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from graphs.ir import Node
from runtime.kernels._resampling import ResizedAxis, resized, upsampling
from runtime.kernels._windows import Windows

from .. import address

LEAST_CHANNELS = 8  # for which half of a vector may be empty
_DIMENSIONS = 3
_SUMS, _MAXIMA, _MEANS, _MIXED = range(4)
RESIZED = frozenset({"Resize", "Upsample"})


@dataclass(frozen=True)
class Lanes:
    """Windows over planes of three dimensions (`sizes`; `room` with their padding): an `eg_lanes`. `counted`: of means,
    what the sum of each window is divided by."""

    kind: int
    sizes: tuple[int, ...]
    windows: Windows
    room: tuple[int, ...]
    counted: np.ndarray | None = None

    @property
    def elements(self) -> int:
        """Of a window."""
        return prod(self.windows.kernel)

    @cached_property
    def taps(self) -> np.ndarray:
        """The places of a window's elements in the room."""
        steps = address.contiguous(self.room)
        own = [[element * dilation * step for element in range(length)]
               for length, dilation, step in zip(self.windows.kernel, self.windows.dilations, steps)]
        return np.array([sum(each) for each in product(*own)], np.int64)

    def words(self) -> list[int]:
        """As the engine reads it; addresses are those of arrays that this object keeps."""
        windows, axis = self.windows, 0 if self.windows.counts[0] > 1 else 1
        reach = (windows.kernel[axis] - 1) * windows.dilations[axis] + 1
        whole = axis == 1 and windows.kernel[0] > 1  # places in the room depend on all of its lines
        dense = windows.kernel[0] == 1 and set(windows.dilations) == {1}
        return [self.kind, *self.sizes, *windows.begins, *self.room, *windows.counts, *windows.strides, axis, reach,
                whole, self.taps.ctypes.data, _address(self.counted), *[0] * (3 * _DIMENSIONS),
                *(windows.kernel[1:] if dense else (0, 0))]


@dataclass(frozen=True)
class Resized:
    """Planes of `sizes` that are resized to `counts`: along each axis as many places are mixed as `places` has for each
    result, by `factors`; without those it is one place as it is."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    places: tuple[np.ndarray, ...]
    factors: tuple[np.ndarray | None, ...]

    @property
    def elements(self) -> int:
        """That a result is mixed from."""
        return prod(each.shape[1] for each in self.places)

    def words(self) -> list[int]:
        """As the engine reads it; addresses are those of arrays that this object keeps."""
        return [_MIXED, *self.sizes, *[0] * _DIMENSIONS, *self.sizes, *self.counts, *[1] * _DIMENSIONS,
                0 if self.counts[0] > 1 else 1, 1, self.counts[0] == 1 < self.sizes[0], 0, 0,
                *(each.shape[1] for each in self.places), *map(_address, self.places), *map(_address, self.factors),
                0, 0]


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


def of_resize(node: Node, shape: tuple[int, ...]) -> Resized | None:
    """That of a Resize or Upsample of planes; None where other axes change, parts are cut out, or channels are few."""
    if shape[1] < LEAST_CHANNELS or not 3 <= len(shape) <= 2 + _DIMENSIONS:
        return None
    try:
        whole, axes = resized(upsampling(node.attrs) if node.op == "Upsample" else node.attrs, shape)
    except NotImplementedError:
        return None
    if 0 in whole or whole[:2] != shape[:2] or any(each.axis < 2 or each.outside is not None for each in axes):
        return None
    missing = (1,) * (2 + _DIMENSIONS - len(shape))
    changed = {each.axis: each for each in axes}
    mixes = [*[_mix(None, 1)] * len(missing), *(_mix(changed.get(axis), shape[axis]) for axis in range(2, len(shape)))]
    places, factors = zip(*mixes)
    return Resized(missing + shape[2:], missing + tuple(whole[2:]), places, factors)


def _mix(axis: ResizedAxis | None, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Places and factors of each result; places of no weight anywhere are left out, as NumPy's operator does it."""
    if axis is None:
        return np.arange(size, dtype=np.int64)[:, None], None
    places = np.clip(axis.indices, 0, size - 1)
    if axis.weights is None:
        return np.ascontiguousarray(places.T), None
    kept = axis.weights.any(axis=1)
    return np.ascontiguousarray(places[kept].T), np.ascontiguousarray(axis.weights[kept].T.astype(np.float32))


def of_convolution(node: Node, shape: tuple[int, ...], weights: tuple[int, ...], maps: int) -> Lanes | None:
    """Those of a Conv; None where groups have several channels or maps, or there are few of them."""
    group = int(node.attrs["group"])  # type: ignore[call-overload]
    if not group == shape[1] == maps or maps < LEAST_CHANNELS or not 3 <= len(shape) <= 2 + _DIMENSIONS:
        return None
    return _lanes(_SUMS, shape[2:], Windows.of(node.attrs, shape[2:], weights[2:]))


def of_pool(node: Node, shape: tuple[int, ...]) -> Lanes | None:
    """Those of a MaxPool or AveragePool whose windows overlap; None for others."""
    if not overlaps(node) or shape[1] < LEAST_CHANNELS or not 3 <= len(shape) <= 2 + _DIMENSIONS:
        return None
    kernel: tuple[int, ...] = node.attrs["kernel_shape"]  # type: ignore[assignment]
    windows = Windows.of(node.attrs, shape[2:], kernel, bool(node.attrs.get("ceil_mode")))
    if node.op == "MaxPool":
        return _lanes(_MAXIMA, shape[2:], windows)
    counts = [windows.counted(axis, size, bool(node.attrs["count_include_pad"])) for axis, size in enumerate(shape[2:])]
    total = counts[0]
    for each in counts[1:]:
        total = total[..., None] * each
    return _lanes(_MEANS, shape[2:], windows, total.reshape(-1).astype(np.float32)) if total.all() else None


def overlaps(node: Node) -> bool:
    """Whether windows of a pool have elements in common."""
    kernel = node.attrs.get("kernel_shape")
    if node.op not in ("MaxPool", "AveragePool") or not isinstance(kernel, tuple) or sum(map(bool, node.outputs)) > 1:
        return False
    strides = node.attrs.get("strides")
    steps = strides if isinstance(strides, tuple) else (1,) * len(kernel)
    return any(length > step for length, step in zip(kernel, steps))


def _lanes(kind: int, sizes: tuple[int, ...], windows: Windows, counted: np.ndarray | None = None) -> Lanes | None:
    if min(windows.begins) < 0 or min(windows.counts) < 1:
        return None
    missing = _DIMENSIONS - len(sizes)
    ones, zeros = (1,) * missing, (0,) * missing
    whole = Windows(ones + windows.kernel, ones + windows.strides, ones + windows.dilations, zeros + windows.begins,
                    zeros + windows.ends, ones + windows.counts)
    room = [max(begin + size, reach) for begin, size, reach in zip(windows.begins, sizes, windows.reach())]
    return Lanes(kind, ones + sizes, whole, ones + tuple(room), counted)
