"""Lowerings of Resize and Upsample, which belong to the convolution family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.codegen import resampling
from runtime.codegen.resampling import Gather
from runtime.kernels._resampling import ResizedAxis, resized, upsampling

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from .reduction import scalar_of

LOWERINGS, lowering = rows()


@lowering("Resize", "Upsample")
def _resize(emitter: Emitter) -> None:
    x = emitter.tensor(0)
    attrs = dict(emitter.attrs)
    if emitter.node.op == "Upsample":
        attrs = upsampling(attrs)
    scalar = scalar_of(x)
    if attrs["mode"] == "cubic" and not scalar.is_float:
        raise NoKernel("cubic interpolation of integers, which may leave their range")
    try:
        shape, axes = resized(attrs, x.shape)
    except NotImplementedError as error:
        raise NoKernel(str(error)) from error
    if not axes and 0 not in shape:
        emitter.view(0, x)
        return
    made = emitter.output(0, shape)
    if 0 in shape:
        return
    if not x.size:
        raise NoKernel("something made of nothing")
    _emit_gather(emitter, x, made, axes, attrs)


def _emit_gather(emitter: Emitter, x: Tensor, made: Tensor, axes: Sequence[ResizedAxis],
                 attrs: Mapping[str, Any]) -> None:
    gathers, tables = [], []
    outside = float(attrs["extrapolation_value"]) if any(each.outside is not None for each in axes) else None
    for each in axes:
        indices, weights = np.clip(each.indices, 0, x.shape[each.axis] - 1), each.weights
        if weights is not None:  # taps that no position uses
            used = weights.any(axis=1)
            indices, weights = indices[used], weights[used]
        if each.outside is not None:
            indices = np.where(each.outside[None, :], -1, indices)
        gathers.append(Gather(each.axis, len(indices), weights is not None))
        tables.append(emitter.constant(indices.astype(np.int32)))
        if weights is not None:
            tables.append(emitter.constant(weights.astype(np.float64 if x.dtype == "float64" else np.float32)))
    kernel = resampling.gather_kernel(x.dtype, made.shape, x.strides, tuple(gathers), outside)
    emitter.launch(kernel, x, *tables, made)
