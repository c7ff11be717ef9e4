"""Kernels of Resize, Upsample and GridSample.

Interpolation is separable: each axis has, for every output position, a few taps (indices) with weights. Coordinates
are computed in float32 in the order of operations of ONNX Runtime, because `nearest` rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from graphs.operators._resampling import kept_aspect, resized_axes, scaled

from . import Arrays, rows
from ._windows import widen

KERNELS, kernel = rows()
_F = np.float32


def _coordinates(mode: str, count: int, size: int, scale: np.float32, roi: tuple[float, float]) -> np.ndarray:
    """Position in the input of each output position along one axis."""
    at, half = np.arange(count, dtype=_F), _F(0.5)
    if mode == "asymmetric":
        return at / scale
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and count > 1):
        return (at + half) / scale - half
    if mode == "pytorch_half_pixel":
        return np.zeros(count, _F)
    if mode == "align_corners":
        return np.zeros(count, _F) if count == 1 else at * _F(size - 1) / _F(count - 1)
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "half_pixel_symmetric":
        adjustment = _F(count) / (scale * _F(size))
        return _F(size) / _F(2) * (_F(1) - adjustment) + (at + half) / scale - half
    if mode == "tf_crop_and_resize":
        start, end = _F(roi[0]), _F(roi[1])
        if count == 1:
            return np.full(1, half * (start + end) * _F(size - 1), _F)
        return start * _F(size - 1) + at * (end - start) * _F(size - 1) / _F(count - 1)
    raise NotImplementedError(f"coordinate_transformation_mode {mode}")


def _nearest(x: np.ndarray, mode: str) -> np.ndarray:
    if mode == "round_prefer_floor":
        return np.ceil(x - _F(0.5))
    if mode == "round_prefer_ceil":
        return np.floor(x + _F(0.5))
    return np.floor(x) if mode == "floor" else np.ceil(x)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(attrs: Mapping[str, object], x: np.ndarray, size: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices (taps, positions), not yet inside the input, and weights of linear or cubic interpolation."""
    cubic = attrs["mode"] == "cubic"
    shrink = min(float(scale), 1.0) if attrs.get("antialias") else 1.0
    reach = (2 if cubic else 1) / shrink
    first, last = int(np.floor(-reach)) + 1, int(np.ceil(reach))
    wide = x.astype(np.float64)
    base = np.floor(wide)
    offsets = np.arange(first, last + 1)[:, None]
    indices = (base[None, :] + offsets).astype(np.int64)
    distance = (indices - wide[None, :]) * shrink
    if cubic:
        weights = _cubic(distance, float(attrs["cubic_coeff_a"]))  # type: ignore[arg-type]
    else:
        weights = np.clip(1 - np.abs(distance), 0, 1)
    if attrs.get("exclude_outside") or shrink < 1:
        if attrs.get("exclude_outside"):
            weights = np.where((indices >= 0) & (indices < size), weights, 0)
        weights = weights / weights.sum(axis=0, keepdims=True)
    return indices, weights


def _along(data: np.ndarray, axis: int, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    shape = [1] * data.ndim
    shape[axis] = -1
    total: np.ndarray | None = None
    for index, weight in zip(np.clip(indices, 0, data.shape[axis] - 1), weights):
        if not weight.any():
            continue
        term = data.take(index, axis) * weight.astype(data.dtype).reshape(shape)
        total = term if total is None else np.add(total, term, out=total)
    assert total is not None
    return total


def _geometry(attrs: Mapping[str, object], shape: Sequence[int]) -> tuple[list[int], list[int], list[float]]:
    """Axes, their new sizes and their scales."""
    axes = resized_axes(attrs.get("axes"), len(shape))
    old = [shape[axis] for axis in axes]
    sizes, scales = attrs.get("sizes"), attrs.get("scales")
    if sizes:
        new = [int(size) for size in sizes]  # type: ignore[attr-defined]
        if attrs["keep_aspect_ratio_policy"] != "stretch":
            new, common = kept_aspect(old, new, str(attrs["keep_aspect_ratio_policy"]))
            return axes, new, [common] * len(axes)
        return axes, new, [float(_F(n) / _F(o)) for n, o in zip(new, old)]
    factors = [float(scale) for scale in scales]  # type: ignore[attr-defined, union-attr]
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        raise NotImplementedError("Resize by scales of a region of interest")
    return axes, [int(scaled(o, scale)) for o, scale in zip(old, factors)], factors  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """How one axis is resized: indices and weights (taps, positions), the indices not yet inside the input; and
    which positions lie outside of the region of interest. `weights` is None for nearest."""

    axis: int
    indices: np.ndarray
    weights: np.ndarray | None
    outside: np.ndarray | None


def resized(attrs: Mapping[str, object], x_shape: Sequence[int]) -> tuple[tuple[int, ...], list[ResizedAxis]]:
    """The new shape, and the axes along which anything changes (none where one is empty)."""
    axes, new, scales = _geometry(attrs, x_shape)
    mode, roi = str(attrs["coordinate_transformation_mode"]), attrs.get("roi")
    shape, found = list(x_shape), []
    for place, (axis, count, scale) in enumerate(zip(axes, new, scales)):
        size, shape[axis] = x_shape[axis], count
        if count == 0 or size == 0 or (count == size and scale == 1 and mode != "tf_crop_and_resize"):
            continue
        region = (0.0, 1.0) if not roi else (roi[place], roi[place + len(axes)])  # type: ignore[index]
        at = _coordinates(mode, count, size, _F(scale), region)
        outside = (at < 0) | (at > size - 1) if mode == "tf_crop_and_resize" else None
        if attrs["mode"] == "nearest":
            nearest = np.clip(_nearest(at, str(attrs["nearest_mode"])), 0, size - 1).astype(np.int64)
            found.append(ResizedAxis(axis, nearest[None], None, outside))
        else:
            found.append(ResizedAxis(axis, *_taps(attrs, at, size, scale), outside))
    return tuple(shape), found


@kernel("Resize")
def resize(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Interpolation along each axis in turn."""
    x = inputs[0]
    assert x is not None
    shape, axes = resized(attrs, x.shape)
    if 0 in shape or not x.size:
        return [np.zeros(shape, x.dtype)]
    nearest = attrs["mode"] == "nearest"
    y = x if nearest else widen(x) if x.dtype.kind not in "iub" else x.astype(np.float32)
    outside: np.ndarray | None = None
    for each in axes:
        y = y.take(each.indices[0], each.axis) if each.weights is None else _along(y, each.axis, each.indices,
                                                                                   each.weights)
        if each.outside is not None:
            here = each.outside.reshape([-1 if axis == each.axis else 1 for axis in range(x.ndim)])
            outside = here if outside is None else outside | here
    if outside is not None:
        y = np.where(outside, np.asarray(attrs["extrapolation_value"]).astype(y.dtype), y)
    return [y.astype(x.dtype, copy=False)]


@kernel("Upsample")
def upsample(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Resize of opset 10 and before: asymmetric coordinates, rounded down."""
    return resize(upsampling(attrs), inputs[:1])


def upsampling(attrs: Mapping[str, object]) -> dict[str, object]:
    """The attributes of the Resize that an Upsample is."""
    return {"mode": attrs["mode"], "scales": attrs["scales"], "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric"}


def _denormalize(grid: np.ndarray, size: int, corners: bool) -> np.ndarray:
    one, two = grid.dtype.type(1), grid.dtype.type(2)
    if corners:
        return (grid + one) / two * grid.dtype.type(size - 1)
    return ((grid + one) * grid.dtype.type(size) - one) / two


def _reflect(x: np.ndarray, low: float, high: float) -> np.ndarray:
    span = high - low
    if span <= 0:
        return np.zeros_like(x)
    distance = np.where(x < low, low - x, np.where(x > high, x - high, 0))
    turns = np.trunc(distance / span)
    rest = distance - turns * span
    even = turns % 2 == 0
    below = np.where(even, low + rest, high - rest)
    above = np.where(even, high - rest, low + rest)
    return np.where(x < low, below, np.where(x > high, above, x)).astype(x.dtype)


Tap = tuple[np.ndarray, np.ndarray, np.ndarray]


def _grid_taps(attrs: Mapping[str, object], x: np.ndarray, size: int) -> list[Tap]:
    """For one spatial axis: (index, inside, weight) of each tap."""
    padding, corners = attrs["padding_mode"], bool(attrs["align_corners"])
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if attrs["mode"] == "nearest":
        x = np.rint(x)
    if padding == "border" and attrs["mode"] != "cubic":  # there the taps stay where they are, as in PyTorch
        x = np.where((x < low) | (x > high), np.clip(x, 0, size - 1), x)
    elif padding == "reflection":
        x = _reflect(x, low, high)
    base = np.floor(x)
    if attrs["mode"] == "nearest":
        taps = [(np.trunc(x), np.ones_like(x))]
    elif attrs["mode"] == "linear":
        taps = [(base, 1 - (x - base)), (base + 1, x - base)]
    else:
        taps = [(base + k, _cubic(x - base - k, -0.75).astype(x.dtype)) for k in (-1, 0, 1, 2)]
    found = []
    for index, weight in taps:
        if padding == "reflection":
            index = np.trunc(_reflect(index, low, high))
        inside = (index >= 0) & (index < size)
        if padding == "border":
            inside = np.ones_like(inside)
        found.append((np.clip(np.nan_to_num(index), 0, size - 1).astype(np.int64), inside, weight))
    return found


@kernel("GridSample")
def grid_sample(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Samples the input at the normalized positions of a grid (last coordinate first)."""
    x, grid = inputs[0], inputs[1]
    assert x is not None and grid is not None
    sizes, positions = x.shape[2:], grid.shape[1:-1]
    flat = (widen(x) if x.dtype.kind not in "iub" else x.astype(np.float32)).reshape(*x.shape[:2], -1)
    places = widen(grid)[..., ::-1].reshape(grid.shape[0], -1, len(sizes)).astype(flat.dtype, copy=False)
    axes = [_grid_taps(attrs, _denormalize(places[..., k], size, bool(attrs["align_corners"])), size)
            for k, size in enumerate(sizes)]
    y = np.zeros((*x.shape[:2], places.shape[1]), flat.dtype)
    for combination in product(*axes):
        index = np.zeros(places.shape[:2], np.int64)
        inside, weight = np.ones(index.shape, np.bool_), np.ones(index.shape, flat.dtype)
        for size, (at, here, factor) in zip(sizes, combination):
            index, inside, weight = index * size + at, inside & here, weight * factor
        sampled = np.take_along_axis(flat, np.broadcast_to(index[:, None, :], y.shape), axis=2)
        y += np.where(inside[:, None, :], sampled, 0) * weight[:, None, :]
    return [y.reshape(*x.shape[:2], *positions).astype(x.dtype, copy=False)]
