"""Gradient rows of pools, written by other operators: sums over windows are a Conv of each channel alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphs.builder import Value
from graphs.operators._windows import explicit_pads, per_axis

from ._windows import padded, spatial_rank, static_window
from .expanded import expanded
from .rows import Grads, Row, linear
from .shapes import full_like, ints, reshape_to, scalar, static_shape
from .site import Site


def _kernel(s: Site) -> tuple[int, ...]:
    return tuple(s.attrs["kernel_shape"])  # type: ignore[arg-type]


def _planes(s: Site, value: Value) -> Value:
    """(N, C, sizes...) as (N C, 1, sizes...): each channel an image of its own."""
    b, known = s.b, static_shape(value)
    if known is not None:
        return b.Reshape(value, [known[0] * known[1], 1, *known[2:]], allowzero=1)
    images = b.ReduceProd(b.Shape(value, end=2), keepdims=1)
    return b.Reshape(value, b.Concat(images, ints(b, (1,)), b.Shape(value, start=2), axis=0), allowzero=1)


def _window_sums(s: Site, value: Value, weight: float = 1.0) -> Value:
    """Of a value of the input's shape: the sum of each window times `weight`, in the shape of the output."""
    b, window = s.b, static_window(s)
    if window is None:
        value, window = padded(s, value)
    weights = b.constant(np.full((1, 1, *_kernel(s)), weight), dtype=s[0].dtype)
    return reshape_to(b, b.Conv(_planes(s, value), weights, **window.attrs), s.out)


def _average(s: Site) -> Sequence[Value]:
    window, padding = static_window(s), bool(s.attrs["count_include_pad"])
    automatic = s.attrs.get("auto_pad", "NOTSET") != "NOTSET"
    unpadded = window is not None and not any((*window.begins, *window.ends))
    # Windows reach beyond the padding that counts only where the number of windows is rounded up.
    if unpadded or (padding and (automatic or not s.attrs["ceil_mode"])):
        return [_window_sums(s, s[0], 1.0 / prod(_kernel(s)))]
    return [_window_sums(s, s[0]) / _counts(s, padding)]


def _counts(s: Site, padding: bool) -> Value:
    """How many elements of each window lie in the input, or in the padding that the node states: (1, 1, windows...)."""
    b, rank, window, known = s.b, spatial_rank(s), static_window(s), static_shape(s[0])
    one = scalar(b, 1.0, s[0])
    plane = (b.constant(np.ones((1, 1, *known[2:])), dtype=s[0].dtype) if known is not None else
             b.Expand(one, b.Concat(ints(b, (1, 1)), b.Shape(s[0], start=2), axis=0)))
    if padding:
        begins, ends = explicit_pads(s.attrs, rank)
        plane = b.Pad(plane, pads=[0, 0, *begins, 0, 0, *ends], constant_value=one)
    if padding or window is None:
        plane, window = padded(s, plane, begun=padding)
    return b.Conv(plane, b.constant(np.ones((1, 1, *_kernel(s))), dtype=s[0].dtype), **window.attrs)


def _taken(s: Site) -> Sequence[Value]:
    """MaxPool as a gather of what it chose, the first of equals. A window that lies in the padding has no element."""
    b = s.b
    rank = spatial_rank(s)
    attrs = {**s.attrs, "storage_order": 0}
    where = b.op("MaxPool", s[0], outputs=2, **attrs)[1] if s.attrs["storage_order"] else s.output(1)  # type: ignore[index, arg-type]
    taken = b.GatherElements(b.Reshape(s[0], [-1]), b.Reshape(where, [-1]))
    y = reshape_to(b, taken, s.out)
    begins, ends = explicit_pads(s.attrs, rank)
    gaps = any(step > 1 for step in per_axis(s.attrs, "dilations", rank))
    if gaps and any((*begins, *ends, s.attrs["auto_pad"] != "NOTSET")):
        lowest = full_like(b, y, -np.inf)
        return [b.Where(b.Equal(s.out, lowest), lowest, y)]
    return [y]


def _highest(s: Site) -> Sequence[Value]:
    """GlobalMaxPool as a gather, the first of equals."""
    b = s.b
    planes = b.Flatten(s[0], axis=2)
    return [reshape_to(b, b.GatherElements(planes, b.ArgMax(planes, axis=1, keepdims=1), axis=1), s.out)]


def power(s: Site, value: Value) -> Value:
    """|x|^p of the attribute p."""
    b, p = s.b, int(s.attrs["p"])  # type: ignore[call-overload]
    if p == 1:
        return b.Abs(value)
    return value * value if p == 2 else b.Pow(b.Abs(value), float(p))


def root(s: Site, total: Value) -> Value:
    """The p-th root, whose derivative at 0 is taken as 0."""
    b, p = s.b, int(s.attrs["p"])  # type: ignore[call-overload]
    if p == 1:
        return total
    zero, one = scalar(b, 0.0, total), scalar(b, 1.0, total)
    empty = b.Equal(total, zero)
    inner = b.Where(empty, one, total)
    return b.Where(empty, zero, b.Sqrt(inner) if p == 2 else b.Pow(inner, scalar(b, 1.0 / p, total)))


def _spatial(s: Site) -> list[int]:
    return list(range(2, s.rank(0)))


def _max_unpool(s: Site, g: Value) -> Grads:
    """What stands where the elements were put."""
    b = s.b
    return [reshape_to(b, b.GatherElements(b.Reshape(g, [-1]), b.Reshape(s[1], [-1])), s[0])]


ROWS: dict[str, Row] = {
    "MaxPool": expanded(_taken),
    "AveragePool": expanded(_average),
    "LpPool": expanded(lambda s: [root(s, _window_sums(s, power(s, s[0])))]),
    "GlobalAveragePool": expanded(lambda s: [s.b.ReduceMean(s[0], axes=_spatial(s))]),
    "GlobalMaxPool": expanded(_highest),
    "GlobalLpPool": expanded(lambda s: [root(s, s.b.ReduceSum(power(s, s[0]), axes=_spatial(s)))]),
    "MaxUnpool": linear(_max_unpool),
}
