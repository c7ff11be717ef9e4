"""Gradient rows of the normalization family.

What subtracts a mean and divides by a deviation is y = z scale + bias with z = (x - mean) r, r = 1 / sqrt(var + eps).
From the cotangent d of z comes that of x: r (d - mean(d) - z mean(d z)), the means over the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from graphs.builder import Value
from graphs.dtypes import ONNX_NUMBER
from graphs.operators.normalization import STASH_DTYPES

from . import _softmax
from .expanded import expanded
from .movement import size_of_axis
from .rows import Grads, Row
from .shapes import cast_like, ints, reshape_to, scalar, sum_to
from .site import Site


@dataclass
class Standardized:
    """One normalization: x as it is reduced (in the type of the first stage), the axes, scale and bias fitting it.

    `centred` False: the mean stays (root mean square).
    """

    s: Site
    x: Value
    axes: Sequence[int]
    scale: Value
    bias: Value | None
    centred: bool = True

    def __post_init__(self) -> None:
        b = self.s.b
        self.mean = b.ReduceMean(self.x, axes=self.axes) if self.centred else None
        self.around = self.x if self.mean is None else self.x - self.mean
        variance = b.ReduceMean(self.around * self.around, axes=self.axes)
        self.inverse = b.Reciprocal(b.Sqrt(variance + scalar(b, float(self.s.attrs["epsilon"]), self.x)))  # type: ignore[arg-type]
        self.z = self.around * self.inverse

    def back(self, d: Value) -> Value:
        """The cotangent of `x` from that of `z`."""
        b = self.s.b
        rest = d - self.z * b.ReduceMean(d * self.z, axes=self.axes)
        if self.centred:
            rest = rest - b.ReduceMean(d, axes=self.axes)
        return rest * self.inverse

    def whole(self) -> list[Value]:
        """All outputs, written out: y, mean, inverse."""
        y = self.z * self.scale
        if self.bias is not None:
            y = y + self.bias
        y = cast_like(self.s.b, reshape_to(self.s.b, y, self.s.out), self.s.out)
        return [y, *([] if self.mean is None else [self.mean]), self.inverse]


def _row(make: Callable[[Site], Standardized]) -> Row:
    """The row of a normalization; cotangents of other outputs than the first go through what is written out."""
    written = expanded(lambda s: make(s).whole())

    def vjp(s: Site, grads: Grads) -> Grads:
        g = grads[0]
        if g is None or any(each is not None for each in grads[1:]):
            return written.vjp(s, grads)
        n = make(s)
        g = reshape_to(s.b, cast_like(s.b, g, n.x), n.x)
        found: list[Value | None] = [None, None, None]
        if s.wants(0):
            found[0] = cast_like(s.b, reshape_to(s.b, n.back(g * n.scale), s[0]), s[0])
        if s.wants(1):
            found[1] = _vector(s, g * n.z, n.scale, 1)
        if s.wants(2) and n.bias is not None:
            found[2] = _vector(s, g, n.bias, 2)
        return found

    return Row(vjp, written.jvp)


def _vector(s: Site, value: Value, fitting: Value, index: int) -> Value:
    """The cotangent of a scale or bias: the sum over what it was broadcast along."""
    return cast_like(s.b, reshape_to(s.b, sum_to(s.b, value, fitting), s[index]), s[index])


def _staged(s: Site, value: Value) -> Value:
    """In the type of the first stage, if that is wider."""
    stage = STASH_DTYPES[int(s.attrs["stash_type"])]  # type: ignore[call-overload]
    narrow = value.dtype in ("float16", "bfloat16") or (value.dtype == "float32" and stage == "float64")
    return s.b.Cast(value, to=ONNX_NUMBER[stage]) if narrow and value.dtype != stage else value


def _trailing(s: Site) -> list[int]:
    rank, axis = s.rank(0), int(s.attrs["axis"])  # type: ignore[call-overload]
    return list(range(axis % max(rank, 1), rank))


def _layer(s: Site) -> Standardized:
    bias = s.get(2)
    return Standardized(s, _staged(s, s[0]), _trailing(s), _staged(s, s[1]),
                        None if bias is None else _staged(s, bias))


def _rms(s: Site) -> Standardized:
    return Standardized(s, _staged(s, s[0]), _trailing(s), _staged(s, s[1]), None, centred=False)


def _per_channel(s: Site, vector: Value) -> Value:
    """A vector with one element per channel, shaped to broadcast against (N, C, ...)."""
    return s.b.Unsqueeze(vector, axes=list(range(1, s.rank(0) - 1))) if s.rank(0) > 2 else vector


def _instance(s: Site) -> Standardized:
    return Standardized(s, s[0], list(range(2, s.rank(0))), _per_channel(s, s[1]), _per_channel(s, s[2]))


def _rows(s: Site, x: Value, groups: int) -> Value:
    """(N, C, ...) as (N, groups, elements of a group)."""
    b, known = s.b, (x.shape or ())[1:]
    if known and all(isinstance(size, int) for size in known):
        each = ints(b, (prod(known) // groups,))  # type: ignore[arg-type]
    else:
        each = b.Div(b.ReduceProd(b.Shape(x, start=1), keepdims=1), ints(b, (groups,)))
    return b.Reshape(x, b.Concat(size_of_axis(b, x, 0), ints(b, (groups,)), each, axis=0), allowzero=1)


def _group(s: Site) -> Sequence[Value]:
    """Each group of channels of an image as one row."""
    b, x, groups = s.b, _staged(s, s[0]), int(s.attrs["num_groups"])  # type: ignore[call-overload]
    rows = _rows(s, x, groups)
    around = rows - b.ReduceMean(rows, axes=[2])
    variance = b.ReduceMean(around * around, axes=[2])
    z = around / b.Sqrt(variance + scalar(b, float(s.attrs["epsilon"]), x))  # type: ignore[arg-type]
    y = reshape_to(b, z, x) * _staged(s, _per_channel(s, s[1])) + _staged(s, _per_channel(s, s[2]))
    return [cast_like(b, y, s.out)]


def _by_given_statistics(s: Site) -> Sequence[Value]:
    b, x = s.b, s[0]
    scale, bias, mean, variance = (cast_like(b, s[index], x) for index in (1, 2, 3, 4))
    factor = scale / b.Sqrt(variance + scalar(b, float(s.attrs["epsilon"]), x))  # type: ignore[arg-type]
    return [(x - _per_channel(s, mean)) * _per_channel(s, factor) + _per_channel(s, bias)]


def _batch_axes(s: Site) -> list[int]:
    return [axis for axis in range(s.rank(0)) if axis != 1]


def _by_batch(s: Site) -> Standardized:
    b, x = s.b, s[0]
    scale, bias = (_per_channel(s, cast_like(b, s[index], x)) for index in (1, 2))
    return Standardized(s, x, _batch_axes(s), scale, bias)


def _running(s: Site) -> Sequence[Value]:
    """y and the running statistics of training: old * momentum + that of the batch * (1 - momentum)."""
    b, keep = s.b, float(s.attrs["momentum"])  # type: ignore[arg-type]
    n = _by_batch(s)
    axes = _batch_axes(s)
    variance = b.ReduceMean(n.around * n.around, axes=axes)
    found = [n.whole()[0]]
    for index, of_batch in ((3, n.mean), (4, variance)):
        assert of_batch is not None
        new = cast_like(b, b.Reshape(of_batch, [-1]), s[index])
        found.append(s[index] * scalar(b, keep, s[index]) + new * scalar(b, 1.0 - keep, new))
    return found


_inference, _training, _with_running = expanded(_by_given_statistics), _row(_by_batch), expanded(_running)


def _batch_vjp(s: Site, grads: Grads) -> Grads:
    if not s.attrs["training_mode"]:
        return _inference.vjp(s, grads)
    if any(each is not None for each in grads[1:]):
        return _with_running.vjp(s, grads)
    return _training.vjp(s, grads)


def _batch_jvp(s: Site, tangents: Grads) -> Grads:
    row = _with_running if s.attrs["training_mode"] else _inference
    assert row.jvp is not None
    return row.jvp(s, tangents)


def _lp(s: Site) -> Sequence[Value]:
    """x over its norm along an axis, 0 where that is 0."""
    b, x, axis = s.b, s[0], int(s.attrs["axis"])  # type: ignore[call-overload]
    norm = (b.ReduceL1 if int(s.attrs["p"]) == 1 else b.ReduceL2)(x, axes=[axis], keepdims=1)  # type: ignore[call-overload]
    zero, one = scalar(b, 0.0, x), scalar(b, 1.0, x)
    empty = b.Equal(norm, zero)
    return [b.Where(empty, zero, x / b.Where(empty, one, norm))]


def _mean_variance(s: Site) -> Sequence[Value]:
    b, x, axes = s.b, s[0], list(s.attrs["axes"])  # type: ignore[call-overload]
    around = x - b.ReduceMean(x, axes=axes)
    return [around / (b.Sqrt(b.ReduceMean(around * around, axes=axes)) + scalar(b, 1e-9, x))]


rms_row = _row(_rms)

ROWS: dict[str, Row] = {
    **_softmax.ROWS,
    "BatchNormalization": Row(_batch_vjp, _batch_jvp),
    "LayerNormalization": _row(_layer),
    "RMSNormalization": rms_row,
    "InstanceNormalization": _row(_instance),
    "GroupNormalization": expanded(_group),
    "LpNormalization": expanded(_lp),
    "MeanVarianceNormalization": expanded(_mean_variance),
}

ABSENT: dict[str, str] = {}
