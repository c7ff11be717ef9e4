"""Kernels of the normalization operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod

import numpy as np

from graphs import dtypes
from graphs.operators.normalization import STASH_DTYPES

from . import OUTPUTS, Arrays, Kernel, rows
from ._windows import mean_over, widen

KERNELS, kernel = rows()


def _outputs(attrs: Mapping[str, object]) -> int:
    return int(attrs.get(OUTPUTS, 1))  # type: ignore[call-overload]


def _channel(vector: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A vector with one element per channel, shaped to broadcast against `x`, (N, C, ...). ValueError for another
    number of elements: one channel or one element must not be broadcast."""
    if x.ndim > 1 and vector.shape != x.shape[1:2]:
        raise ValueError(f"{vector.size} elements, one for each channel, for {x.shape[1]} channels")
    return vector if x.ndim == 1 else vector.reshape(-1, *(1,) * (x.ndim - 2))


@kernel("BatchNormalization")
def batch_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normalization per channel, by given statistics or (training mode) by those of the batch."""
    x, scale, bias, mean, variance = inputs[:5]
    assert x is not None and scale is not None and bias is not None and mean is not None and variance is not None
    wide = widen(x)
    dtype = wide.dtype
    epsilon, momentum = float(attrs["epsilon"]), float(attrs["momentum"])  # type: ignore[arg-type]
    used_mean, used_variance = mean.astype(dtype), variance.astype(dtype)
    found: list[np.ndarray] = []
    if attrs.get("training_mode"):
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        batch_mean, batch_variance = wide.mean(axis=axes), wide.var(axis=axes)
        if _outputs(attrs) > 1:
            keep, take = dtype.type(momentum), dtype.type(1 - momentum)
            found = [(used_mean * keep + batch_mean * take).astype(mean.dtype).reshape(mean.shape),
                     (used_variance * keep + batch_variance * take).astype(variance.dtype).reshape(variance.shape)]
        used_mean, used_variance = np.atleast_1d(batch_mean), np.atleast_1d(batch_variance)
    factor = scale.astype(dtype) / np.sqrt(used_variance + dtype.type(epsilon))
    y = (wide - _channel(used_mean, x)) * _channel(factor, x)
    y += _channel(bias.astype(dtype), x)
    return [y.astype(x.dtype, copy=False), *found][: _outputs(attrs)]


def _stash(attrs: Mapping[str, object], x: np.ndarray) -> np.dtype:
    """dtype of the first stage: never narrower than float32 in memory (bfloat16 is rounded afterwards)."""
    name = STASH_DTYPES[int(attrs.get("stash_type", 1))]  # type: ignore[call-overload]
    if name == "float32" and x.dtype == np.float64:
        return x.dtype  # ONNX Runtime keeps double; a float32 first stage would only lose digits
    return np.dtype(np.float64 if name == "float64" else np.float32)


def _normalized_axes(attrs: Mapping[str, object], x: np.ndarray) -> tuple[int, ...]:
    axis = int(attrs["axis"])  # type: ignore[call-overload]
    return tuple(range(axis % x.ndim if x.ndim else 0, x.ndim))


@kernel("LayerNormalization")
def layer_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normalization over the trailing axes, then scale and bias."""
    x, scale = inputs[0], inputs[1]
    bias = inputs[2] if len(inputs) > 2 else None
    assert x is not None and scale is not None
    wide, axes = x.astype(_stash(attrs, x), copy=False), _normalized_axes(attrs, x)
    mean = mean_over(wide, axes)
    centred = wide - mean
    variance = mean_over(np.square(centred), axes)
    inverse = 1 / np.sqrt(variance + wide.dtype.type(attrs["epsilon"]))  # type: ignore[arg-type]
    y = np.multiply(centred, inverse, out=centred) * scale.astype(wide.dtype, copy=False)
    if bias is not None:
        y = y + bias.astype(wide.dtype, copy=False)
    stash = dtypes.numpy_dtype(STASH_DTYPES[int(attrs.get("stash_type", 1))])  # type: ignore[call-overload]
    return [y.astype(x.dtype, copy=False), mean.astype(stash), inverse.astype(stash)][: _outputs(attrs)]


@kernel("RMSNormalization")
def rms_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Division by the root mean square over the trailing axes, then scale."""
    x, scale = inputs[0], inputs[1]
    assert x is not None and scale is not None
    wide, axes = x.astype(_stash(attrs, x), copy=False), _normalized_axes(attrs, x)
    square = mean_over(np.square(wide), axes)
    y = wide / np.sqrt(square + wide.dtype.type(attrs["epsilon"])) * widen(scale)  # type: ignore[arg-type]
    return [y.astype(scale.dtype, copy=False)]


def _standardize(wide: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = wide - mean_over(wide, axes)
    variance = mean_over(np.square(centred), axes)
    centred *= 1 / np.sqrt(variance + wide.dtype.type(epsilon))
    return centred


@kernel("InstanceNormalization")
def instance_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normalization of each channel of each image."""
    x, scale, bias = inputs[:3]
    assert x is not None and scale is not None and bias is not None
    y = _standardize(widen(x), tuple(range(2, x.ndim)), float(attrs["epsilon"]))  # type: ignore[arg-type]
    y = y * _channel(widen(scale), x) + _channel(widen(bias), x)
    return [y.astype(x.dtype, copy=False)]


@kernel("GroupNormalization")
def group_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normalization of each group of channels of each image."""
    x, scale, bias = inputs[:3]
    assert x is not None and scale is not None and bias is not None
    wide, groups = x.astype(_stash(attrs, x), copy=False), int(attrs["num_groups"])  # type: ignore[call-overload]
    grouped = wide.reshape(x.shape[0], groups, -1)
    y = _standardize(grouped, (2,), float(attrs["epsilon"])).reshape(x.shape)  # type: ignore[arg-type]
    y = y * _channel(widen(scale), x) + _channel(widen(bias), x)
    return [y.astype(x.dtype, copy=False)]


@kernel("LpNormalization")
def lp_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Division by the norm along an axis; zero where the norm is zero."""
    x, axis, p = inputs[0], int(attrs["axis"]), int(attrs["p"])  # type: ignore[call-overload]
    assert x is not None
    wide = widen(x)
    if p == 1:
        norm = np.abs(wide).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt(np.square(wide).sum(axis=axis, keepdims=True))
    y = np.divide(wide, norm, out=np.zeros_like(wide), where=np.broadcast_to(norm != 0, wide.shape))
    return [y.astype(x.dtype, copy=False)]


@kernel("MeanVarianceNormalization")
def mean_variance_normalization(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """(x - mean) / (standard deviation + 1e-9) over some axes.

    The function body of ONNX takes E[x^2] - E[x]^2, which cancels; this form is its exact value.
    """
    x = inputs[0]
    assert x is not None
    axes: tuple[int, ...] = tuple(attrs["axes"])  # type: ignore[arg-type]
    wide = widen(x)
    centred = wide - mean_over(wide, axes)
    deviation = np.sqrt(mean_over(np.square(centred), axes))
    return [(centred / (deviation + wide.dtype.type(1e-9))).astype(x.dtype, copy=False)]


def _along(function: Callable[[np.ndarray, int], np.ndarray]) -> Kernel:
    """A kernel along `axis`, or (flatten=1, before opset 13) over all of the trailing axes as one."""

    @wraps(function)
    def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
        x, axis = inputs[0], int(attrs["axis"])  # type: ignore[call-overload]
        assert x is not None
        wide = widen(x)
        if x.ndim == 0 or x.size == 0:
            y = function(wide.reshape(1), 0).reshape(x.shape) if x.size else wide
        elif attrs.get("flatten"):
            split = axis + x.ndim if axis < 0 else axis
            y = function(wide.reshape(prod(x.shape[:split]), -1), 1).reshape(x.shape)
        else:
            y = function(wide, axis)
        return [y.astype(x.dtype, copy=False)]

    return run


def _exponentials(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted, np.exp(shifted)


@kernel("Softmax")
@_along
def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """exp(x - max) / sum."""
    with np.errstate(invalid="ignore"):
        _, powers = _exponentials(x, axis)
        powers /= powers.sum(axis=axis, keepdims=True)
    return powers


@kernel("LogSoftmax")
@_along
def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """x - max - log(sum)."""
    with np.errstate(invalid="ignore"):
        shifted, powers = _exponentials(x, axis)
        shifted -= np.log(powers.sum(axis=axis, keepdims=True))
    return shifted


@kernel("Hardmax")
@_along
def hardmax(x: np.ndarray, axis: int) -> np.ndarray:
    """One at the first largest element, zero elsewhere."""
    y = np.zeros_like(x)
    np.put_along_axis(y, np.expand_dims(x.argmax(axis=axis), axis), 1, axis)
    return y
