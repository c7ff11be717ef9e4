"""Resize, Upsample and GridSample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dims import DimLike, floordiv, mul
from ..types import TensorType, Type
from .record import REQUIRED, RUNTIME, Operator, Site


def scaled(size: DimLike, scale: float) -> DimLike | None:
    """floor(size * scale) as runtimes compute it, in float32. None where that is no exact function of the size."""
    if isinstance(size, int):
        return int(np.floor(np.float32(size) * np.float32(scale)))
    if float(scale).is_integer():
        return mul(size, int(scale))
    inverse = 1.0 / scale
    if inverse.is_integer() and int(inverse) & (int(inverse) - 1) == 0:  # a power of two is exact in float32
        return floordiv(size, int(inverse))
    return None


def kept_aspect(sizes: Sequence[int], wanted: Sequence[int], policy: str) -> tuple[list[int], float]:
    """Sizes after `keep_aspect_ratio_policy` not_larger or not_smaller, and the scale of every axis."""
    ratios = [np.float32(want) / np.float32(size) for want, size in zip(wanted, sizes)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    new = [int(np.floor(np.float32(ratio * np.float32(size)) + np.float32(0.5))) for size in sizes]
    return new, float(ratio)


def resized_axes(attrs_axes: object, rank: int) -> list[int]:
    """The axes that Resize works on."""
    axes = range(rank) if attrs_axes is None else attrs_axes
    return [int(axis) % rank for axis in axes]  # type: ignore[attr-defined]


def _resize(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    if type_ is None or type_.shape is None:
        return [type_]
    shape, rank = list(type_.shape), len(type_.shape)
    axes = resized_axes(site.attrs["axes"], rank)
    sizes, scales = site.attrs["sizes"], site.attrs["scales"]
    if sizes is RUNTIME:
        sizes = site.content(3)
    elif not sizes and not scales and site.attrs["scales"] is not RUNTIME:
        raise site.fail("neither scales nor sizes")
    given: Sequence[object] | None = None
    if sizes:
        given = sizes  # type: ignore[assignment]
    elif isinstance(scales, tuple):
        given = scales
    if given is not None and len(given) != len(axes):
        raise site.fail(f"{len(given)} sizes or scales for {len(axes)} axes")
    policy, cropped = site.attrs["keep_aspect_ratio_policy"], False
    new: list[DimLike | None]
    if given is None:
        new = [None] * len(axes)
    elif given is sizes and policy == "stretch":
        new = list(given)  # type: ignore[arg-type]
    elif given is sizes:
        old = [shape[axis] for axis in axes]
        static = all(isinstance(dim, int) for dim in (*old, *given))
        new = [None] * len(axes)
        if static:
            new = list(kept_aspect(old, given, str(policy))[0])  # type: ignore[arg-type]
    else:
        # Runtimes disagree on whether the region of interest changes the output size.
        cropped = site.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
        new = [None if cropped else scaled(shape[axis], float(scale))  # type: ignore[arg-type]
               for axis, scale in zip(axes, given)]
    for axis, dim in zip(axes, new):
        shape[axis] = site.unknown_dim(axis) if dim is None else dim
    return [TensorType(type_.dtype, tuple(shape))]


def _read_resize(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    for name in ("roi", "scales", "sizes"):  # version 11 wants inputs there even where they are not used
        if isinstance(out.get(name), tuple) and not out[name]:
            out[name] = None
    if out.get("coordinate_transformation_mode") != "tf_crop_and_resize" and out.get("roi") is not RUNTIME:
        out["roi"] = None  # has no effect
    return out


def _write_resize(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    mode = out["coordinate_transformation_mode"]
    if (mode == "half_pixel_symmetric" and version < 19) or (mode == "tf_half_pixel_for_nn" and version > 11):
        return None
    if version < 18:
        if out.pop("antialias", 0) or out.pop("axes", None) is not None:
            return None
        if out.pop("keep_aspect_ratio_policy", "stretch") != "stretch":
            return None
    if version < 13:
        out["roi"] = () if out.get("roi") is None else out["roi"]
        out["scales"] = () if out.get("scales") is None else out["scales"]
    return out


def _upsample(site: Site) -> list[Type | None]:
    type_, scales = site.type(0), site.attrs["scales"]
    if type_ is None or type_.shape is None:
        return [type_]
    if not isinstance(scales, tuple):
        return [TensorType(type_.dtype, tuple(site.unknown_dim(axis) for axis in range(len(type_.shape))))]
    if len(scales) != len(type_.shape):
        raise site.fail(f"{len(scales)} scales for input {type_}")
    new = [scaled(dim, float(scale)) for dim, scale in zip(type_.shape, scales)]
    return [TensorType(type_.dtype, tuple(site.unknown_dim(i) if dim is None else dim for i, dim in enumerate(new)))]


_OLD_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(site: Site) -> list[Type | None]:
    x, grid = site.type(0), site.type(1)
    if x is None or x.shape is None or grid is None or grid.shape is None:
        return [None if x is None else TensorType(x.dtype)]
    if len(x.shape) != len(grid.shape) or len(x.shape) < 3:
        raise site.fail(f"input {x} with grid {grid}")
    if isinstance(grid.shape[-1], int) and grid.shape[-1] != len(x.shape) - 2:
        raise site.fail(f"grid {grid} for {len(x.shape) - 2} spatial dimensions")
    return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


def _read_grid_sample(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    names = {old: new for new, old in _OLD_MODES.items()}
    mode = str(out.get("mode", "linear"))
    out["mode"] = names.get(mode, mode)
    return out


def _write_grid_sample(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    mode = str(attrs["mode"])
    return {**attrs, "mode": _OLD_MODES.get(mode, mode)} if version < 20 else attrs


OPERATORS: list[Operator] = [
    # Version 10 means what Upsample means.
    Operator("Resize", _resize, (11, 13, 18, 19),
             {"antialias": 0, "axes": None, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
              "exclude_outside": 0, "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch",
              "mode": "nearest", "nearest_mode": "round_prefer_floor", "roi": None, "scales": None, "sizes": None},
             static={"roi": 1, "scales": 2, "sizes": 3}, read=_read_resize, write=_write_resize),
    Operator("Upsample", _upsample, (7, 9), {"mode": "nearest", "scales": REQUIRED}, static={"scales": 1}),
    Operator("GridSample", _grid_sample, (16, 20, 22),
             {"align_corners": 0, "mode": "linear", "padding_mode": "zeros"},
             read=_read_grid_sample, write=_write_grid_sample),
]
