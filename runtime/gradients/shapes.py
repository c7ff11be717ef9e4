"""Shapes of cotangents and tangents. Where the static shapes do not decide, nodes compute the shapes at run time."""

from __future__ import annotations

import numpy as np

from graphs.builder import Builder, Value
from graphs.constants import Constant
from graphs.dtypes import ONNX_NUMBER
from graphs.types import Shape, TensorType


def static_shape(value: Value) -> tuple[int, ...] | None:
    """The shape where all sizes are integers, else None."""
    type_ = value.type
    return type_.shape if isinstance(type_, TensorType) and type_.is_static else None  # type: ignore[return-value]


def rank_of(value: Value) -> int | None:
    """The number of axes, None where unknown."""
    return None if value.shape is None else len(value.shape)


def shape_of(b: Builder, value: Value) -> Value:
    """The shape as int64 vector: a constant where it is static."""
    known = static_shape(value)
    return b.Shape(value) if known is None else ints(b, known)


def ints(b: Builder, items: tuple[int, ...] | list[int]) -> Value:
    """A constant int64 vector."""
    return b.constant(np.array(items, np.int64))


def scalar(b: Builder, number: float, like: Value) -> Value:
    """A constant scalar of the element type of `like`."""
    return b.constant(Constant.of(np.float64(number), like.dtype or "float32"))


def cast_like(b: Builder, value: Value, like: Value) -> Value:
    """A value in the element type of another one."""
    if like.dtype is None:
        return b.CastLike(value, like)
    return value if value.dtype == like.dtype else b.Cast(value, to=ONNX_NUMBER[like.dtype])


def same_shape(a: Value, b: Value) -> bool:
    """Whether two values certainly have the same shape."""
    return a.shape is not None and a.shape == b.shape


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros in the type of a value."""
    return full_like(b, value, 0.0)


def full_like(b: Builder, value: Value, number: float) -> Value:
    """A tensor of one number in the type of a value."""
    if value.shape == ():
        return scalar(b, number, value)
    return b.Expand(scalar(b, number, value), shape_of(b, value))


def expand_to(b: Builder, value: Value, like: Value) -> Value:
    """Broadcast a value to the shape of another one."""
    return value if same_shape(value, like) else b.Expand(value, shape_of(b, like))


def reshape_to(b: Builder, value: Value, like: Value) -> Value:
    """Give a value the shape of another one that has as many elements."""
    return value if same_shape(value, like) else b.Reshape(value, shape_of(b, like), allowzero=1)


def sum_to(b: Builder, value: Value, like: Value) -> Value:
    """Sum over the axes along which `like` was broadcast to the shape of `value`: the transpose of `expand_to`."""
    if same_shape(value, like):
        return value
    if value.shape is not None and like.shape is not None and len(value.shape) < len(like.shape):
        return expand_to(b, value, like)  # only in a branch that is never taken: its output has another rank
    lead, inner = _broadcast_axes(value.shape, like.shape)
    if lead is None:
        return _sum_to_runtime_shape(b, value, like)
    if lead:
        value = b.ReduceSum(value, axes=list(range(lead)), keepdims=0)
    if inner:
        value = b.ReduceSum(value, axes=inner, keepdims=1)
    return value


def _broadcast_axes(big: Shape | None, small: Shape | None) -> tuple[int | None, list[int]]:
    """How many leading axes `small` lacks, and which of its axes of size 1 were stretched; None: not decided."""
    if big is None or small is None:
        return None, []
    lead = len(big) - len(small)
    stretched: list[int] = []
    for axis, size in enumerate(small):
        if size == big[lead + axis]:
            continue
        if size != 1:
            return None, []  # a symbol that is 1 or the other size
        stretched.append(axis)
    return lead, stretched


def _sum_to_runtime_shape(b: Builder, value: Value, like: Value) -> Value:
    """As `sum_to`: sum over all axes where the shape of `like`, filled up with ones in front, is 1."""
    small, big = b.Shape(like), b.Shape(value)
    missing = b.Sub(b.Size(big), b.Size(small))
    ones = b.ConstantOfShape(b.Unsqueeze(missing, axes=[0]), value=np.array([1], np.int64))
    filled = b.Concat(ones, small, axis=0)
    axes = b.Squeeze(b.NonZero(b.Equal(filled, ints(b, (1,)))), axes=[0])
    summed = b.ReduceSum(value, axes, keepdims=1, noop_with_empty_axes=1)
    return b.Reshape(summed, small, allowzero=1)
