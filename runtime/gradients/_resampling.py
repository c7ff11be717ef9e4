"""Gradient rows of resampling. Resize is linear and works along one axis after the other, each time as a matrix."""

from __future__ import annotations

import numpy as np

from graphs.builder import Value
from graphs.operators import RUNTIME
from graphs.operators._resampling import resized_axes
from runtime.kernels._resampling import ResizedAxis, resized

from . import _grid_sample
from .movement import size_of_axis
from .rows import Grads, Row
from .shapes import ints, scalar, static_shape
from .site import Site

_CROP = "tf_crop_and_resize"


def _resize(s: Site, grads: Grads) -> Grads:
    g = grads[0]
    assert g is not None
    matrices = _constant_matrices(s)
    for axis, matrix in _matrices_of_the_run(s) if matrices is None else matrices:
        g = _along(s, g, axis, matrix)
    return [g]


def _along(s: Site, g: Value, axis: int, matrix: Value) -> Value:
    """The product with a matrix (size of the input, size of the output) along an axis of the output."""
    b, rank = s.b, s.rank(0)
    if axis == rank - 2:
        return matrix @ g
    last = [each for each in range(rank) if each != axis] + [axis]
    moved = g if axis == rank - 1 else b.Transpose(g, perm=last)
    found = moved @ b.Transpose(matrix, perm=[1, 0])
    return found if axis == rank - 1 else b.Transpose(found, perm=np.argsort(last).tolist())


def _constant_matrices(s: Site) -> list[tuple[int, Value]] | None:
    """Of each axis that changes, where all sizes and attributes are known."""
    shape = static_shape(s[0])
    if shape is None or static_shape(s.out) is None or any(s.attrs[name] is RUNTIME
                                                           for name in ("roi", "scales", "sizes")):
        return None
    return [(each.axis, s.b.constant(_matrix(each, shape[each.axis]), dtype=s[0].dtype))
            for each in resized(s.attrs, shape)[1]]


def _matrix(each: ResizedAxis, size: int) -> np.ndarray:
    weights = np.ones(each.indices.shape) if each.weights is None else each.weights
    found = np.zeros((size, each.indices.shape[1]))
    for index, weight in zip(np.clip(each.indices, 0, size - 1), weights):
        np.add.at(found, (index, np.arange(len(index))), weight)
    if each.outside is not None:
        found[:, each.outside] = 0  # a number there, that does not depend on the input
    return found


def _matrices_of_the_run(s: Site) -> list[tuple[int, Value]]:
    """Of each axis that may change: the same Resize along one axis of an identity matrix."""
    b, x, scales = s.b, s[0], s.attrs["scales"]
    if s.attrs["coordinate_transformation_mode"] == _CROP or s.attrs["keep_aspect_ratio_policy"] != "stretch":
        raise s.fail("with these attributes it needs sizes that are known beforehand")
    kept = {name: s.attrs[name] for name in ("antialias", "coordinate_transformation_mode", "cubic_coeff_a",
                                             "exclude_outside", "mode", "nearest_mode")}
    shapes = x.shape, s.out.shape
    found = []
    for place, axis in enumerate(resized_axes(s.attrs["axes"], s.rank(0))):
        if shapes[0] is not None and shapes[1] is not None and shapes[0][axis] == shapes[1][axis] and not (
                isinstance(scales, tuple) and scales[place] != 1):
            continue
        size = size_of_axis(b, x, axis)
        square = b.EyeLike(_zeros(s, size))
        image = b.Unsqueeze(square, axes=[0, 1])
        if scales is RUNTIME:
            scale = b.Slice(s[2], starts=[place], ends=[place + 1], axes=[0])
            made = b.Resize(image, scales=b.Concat(b.constant(np.ones(3, np.float32)), scale, axis=0), **kept)
        elif scales:
            made = b.Resize(image, scales=[1.0, 1.0, 1.0, scales[place]], **kept)  # type: ignore[index]
        else:
            made = b.Resize(image, sizes=b.Concat(ints(b, (1, 1)), size, size_of_axis(b, s.out, axis), axis=0), **kept)
        found.append((axis, b.Squeeze(made, axes=[0, 1])))
    return found


def _zeros(s: Site, size: Value) -> Value:
    """A square of zeros."""
    return s.b.Expand(scalar(s.b, 0.0, s[0]), s.b.Concat(size, size, axis=0))


def _resize_forward(s: Site, tangents: Grads) -> Grads:
    """The same; what is outside of a region of interest does not move."""
    b, t = s.b, tangents[0]
    attrs = {**s.attrs, "extrapolation_value": 0.0}
    return [b.Resize(t, s.get(1), s.get(2), s.get(3), **attrs)]


ROWS: dict[str, Row] = {"Resize": Row(_resize, _resize_forward), **_grid_sample.ROWS}

ABSENT: dict[str, str] = {"Upsample": "it is read as Resize"}
