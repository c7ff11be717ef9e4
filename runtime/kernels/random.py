"""Kernels of the random operators. They draw from the generator that the engine hands them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphs import dtypes

from . import GENERATOR, OUTPUTS, Arrays, rows

KERNELS, kernel = rows()


def _generator(attrs: Mapping[str, object]) -> np.random.Generator:
    generator = attrs.get(GENERATOR)
    return generator if isinstance(generator, np.random.Generator) else np.random.default_rng()


def _dtype(attrs: Mapping[str, object], otherwise: np.dtype | None = None) -> np.dtype:
    number = attrs.get("dtype")
    if number is None:
        assert otherwise is not None
        return otherwise
    return dtypes.numpy_dtype(dtypes.FROM_ONNX[int(number)])  # type: ignore[call-overload]


def _normal(attrs: Mapping[str, object], shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    drawn = _generator(attrs).standard_normal(tuple(shape))
    return (drawn * float(attrs["scale"]) + float(attrs["mean"])).astype(dtype)  # type: ignore[arg-type]


def _uniform(attrs: Mapping[str, object], shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    low, high = float(attrs["low"]), float(attrs["high"])  # type: ignore[arg-type]
    return (_generator(attrs).random(tuple(shape)) * (high - low) + low).astype(dtype)


@kernel("RandomNormal")
def random_normal(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normal numbers of a given shape."""
    return [_normal(attrs, attrs["shape"], _dtype(attrs))]  # type: ignore[arg-type]


@kernel("RandomUniform")
def random_uniform(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Uniform numbers of a given shape."""
    return [_uniform(attrs, attrs["shape"], _dtype(attrs))]  # type: ignore[arg-type]


@kernel("RandomNormalLike")
def random_normal_like(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Normal numbers of the shape of the input."""
    x = inputs[0]
    assert x is not None
    return [_normal(attrs, x.shape, _dtype(attrs, x.dtype))]


@kernel("RandomUniformLike")
def random_uniform_like(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Uniform numbers of the shape of the input."""
    x = inputs[0]
    assert x is not None
    return [_uniform(attrs, x.shape, _dtype(attrs, x.dtype))]


@kernel("Bernoulli")
def bernoulli(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """1 with the probability that the input holds."""
    x = inputs[0]
    assert x is not None
    return [(_generator(attrs).random(x.shape) < x.astype(np.float64)).astype(_dtype(attrs, x.dtype))]


@kernel("Multinomial")
def multinomial(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Classes drawn by unnormalized log-probabilities."""
    x = inputs[0]
    assert x is not None
    wide = x.astype(np.float64)
    odds = np.exp(wide - wide.max(axis=1, keepdims=True)).cumsum(axis=1)
    drawn = _generator(attrs).random((x.shape[0], int(attrs["sample_size"]))) * odds[:, -1:]  # type: ignore
    found = (drawn[:, :, None] >= odds[:, None, :]).sum(axis=2)
    return [np.minimum(found, x.shape[1] - 1).astype(_dtype(attrs))]


@kernel("Dropout")
def dropout(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """The input itself, or in training mode some elements of it, scaled up, and zeros."""
    x = inputs[0]
    assert x is not None
    mask_dtype = x.dtype if attrs.get("legacy_mask") else np.dtype(np.bool_)
    wants_mask = int(attrs.get(OUTPUTS, 1)) > 1  # type: ignore[call-overload]
    ratio = float(attrs["ratio"])  # type: ignore[arg-type]
    if not attrs.get("training_mode") or ratio == 0:
        return [x, np.ones(x.shape, mask_dtype)] if wants_mask else [x]
    mask = _generator(attrs).random(x.shape) >= ratio
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    y = np.where(mask, wide / np.asarray(1 - ratio, wide.dtype), 0).astype(x.dtype)
    return [y, mask.astype(mask_dtype)] if wants_mask else [y]
