"""Gradient rows of reductions and scans.

A reduction states the derivative of its result by each element, its weight w: reverse mode spreads g * w, forward
mode sums t * w over the same axes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.builder import Value
from graphs.operators import RUNTIME

from .rows import Grads, Row, linear
from .shapes import cast_like, expand_to, full_like, reshape_to, scalar, static_shape, zeros_like
from .site import Site

Weight = Callable[[Site], Value]


def _keeps_all(s: Site) -> bool:
    """Whether no axis is named and none is reduced."""
    return not s.attrs["axes"] and bool(s.attrs["noop_with_empty_axes"])


def kept(s: Site, value: Value) -> Value:
    """A value of the result's shape with the reduced axes back in, of size 1; at least it broadcasts like that."""
    axes = s.attrs["axes"]
    if s.attrs["keepdims"] or (not axes and axes is not RUNTIME):
        return value  # a scalar where all axes are reduced
    return s.b.Unsqueeze(value, s.static("axes", 1))


def total(s: Site, value: Value, keepdims: bool) -> Value:
    """The sum of a value of the input's shape over the axes of the reduction."""
    axes = s.static("axes", 1)
    if axes == () or axes is None:
        return value if _keeps_all(s) else s.b.ReduceSum(value, keepdims=int(keepdims))
    return s.b.ReduceSum(value, axes=axes, keepdims=int(keepdims),
                         noop_with_empty_axes=s.attrs["noop_with_empty_axes"])


def _weighted(weight: Weight) -> Row:
    def vjp(s: Site, grads: Grads) -> Grads:
        assert grads[0] is not None
        return [expand_to(s.b, kept(s, grads[0]) * weight(s), s[0])]

    def jvp(s: Site, tangents: Grads) -> Grads:
        assert tangents[0] is not None
        return [total(s, tangents[0] * weight(s), bool(s.attrs["keepdims"]))]

    return Row(vjp, jvp)


def _spread(s: Site, g: Value) -> Grads:
    return [expand_to(s.b, kept(s, g), s[0])]


def _mean(s: Site, g: Value) -> Grads:
    return [expand_to(s.b, kept(s, g * _one_over_count(s, g)), s[0])]


def _one_over_count(s: Site, like: Value) -> Value:
    """1 over the number of elements that are reduced to one."""
    b, whole, reduced = s.b, static_shape(s[0]), static_shape(s.out)
    if whole is not None and reduced is not None:
        return scalar(b, 1.0 / max(int(np.prod(whole)) // max(int(np.prod(reduced)), 1), 1), like)
    size = b.Size(s[0])
    if reduced is None or np.prod(reduced) != 1:
        size = b.Div(size, b.Max(b.Size(s.out), b.constant(1)))  # in integers: a size may be beyond float16
    return b.Reciprocal(cast_like(b, size, like))


def _share(s: Site) -> Value:
    """Of ReduceMax and ReduceMin: elements that are equal to the result share equally."""
    hits = cast_like(s.b, s.b.Equal(s[0], kept(s, s.out)), s[0])
    return hits / total(s, hits, keepdims=True)


def _others(s: Site) -> Value:
    """Of ReduceProd: the product of all other elements, without dividing, which zeros would forbid."""
    b, x, rank = s.b, s[0], s.rank(0)
    axes = s.attrs["axes"]
    if axes is RUNTIME:
        raise s.fail("its axes are not constant")
    if _keeps_all(s):
        return full_like(b, x, 1.0)
    named = sorted(axis % rank for axis in axes or range(rank))  # type: ignore[attr-defined]
    order = [axis for axis in range(rank) if axis not in named] + named
    moved = b.Transpose(x, perm=order) if rank else x
    flat = b.Flatten(moved, axis=rank - len(named))  # [kept, reduced]
    one = scalar(b, 1.0, x)
    count = b.Shape(flat, start=1)
    places = b.Range(b.constant(0), b.Squeeze(count, axes=[0]), b.constant(1))
    itself = b.Equal(b.Unsqueeze(places, axes=[0]), b.Unsqueeze(places, axes=[1]))
    rest = b.ReduceProd(b.Where(itself, one, b.Unsqueeze(flat, axes=[1])), axes=[2], keepdims=0)
    back = reshape_to(b, rest, moved)
    return b.Transpose(back, perm=np.argsort(order).tolist()) if rank else back


def _l2(s: Site) -> Value:
    """x / |x|, and 0 where |x| is 0."""
    b, norm = s.b, kept(s, s.out)
    flat = b.Equal(norm, scalar(b, 0.0, norm))
    one, zero = scalar(b, 1.0, norm), scalar(b, 0.0, norm)
    return b.Where(flat, zero, s[0] / b.Where(flat, one, norm))


def _cumsum(s: Site, g: Value) -> Grads:
    reverse = 0 if s.attrs["reverse"] else 1
    return [s.b.CumSum(g, axis=s.static("axis", 1), exclusive=s.attrs["exclusive"], reverse=reverse)]


def _cumprod(s: Site, grads: Grads) -> Grads:
    """dx_i = (product before i) sum over t of g_t (product between i and t): nothing is divided, zeros are nothing
    special. The products between take a matrix for each line."""
    b, g, axis, rank = s.b, grads[0], s.attrs["axis"], s.rank(0)
    assert g is not None
    if axis is RUNTIME:
        raise s.fail("its axis is not constant")
    order = [each for each in range(rank) if each != axis % rank] + [axis % rank]  # type: ignore[operator]
    x, g = (b.Transpose(each, perm=order) for each in (s[0], g))
    exclusive, reverse = int(s.attrs["exclusive"]), int(s.attrs["reverse"])  # type: ignore[call-overload]
    places = b.Range(b.constant(0), b.Squeeze(b.Shape(x, start=-1), axes=[0]), b.constant(1))
    own, other = b.Unsqueeze(places, axes=[1]), b.Unsqueeze(places, axes=[0])
    later = b.Less(other, own) if reverse else b.Greater(other, own)
    factors = b.Where(later, b.Unsqueeze(x, axes=[-2]), scalar(b, 1.0, x))
    between = b.CumProd(factors, axis=rank, exclusive=exclusive, reverse=reverse)
    reached = later if exclusive else b.Not(b.Greater(other, own) if reverse else b.Less(other, own))
    rest = b.Where(reached, between, scalar(b, 0.0, x)) @ b.Unsqueeze(g, axes=[-1])
    found = b.CumProd(x, axis=rank - 1, exclusive=1, reverse=reverse) * b.Squeeze(rest, axes=[-1])
    return [b.Transpose(found, perm=np.argsort(order).tolist())]


def _top_k(s: Site, grads: Grads) -> Grads:
    if grads[0] is None:
        return []
    return [s.b.ScatterElements(zeros_like(s.b, s[0]), s.output(1), grads[0], axis=s.attrs["axis"])]


def _top_k_forward(s: Site, tangents: Grads) -> Grads:
    return [s.b.GatherElements(tangents[0], s.output(1), axis=s.attrs["axis"]), None]


ROWS: dict[str, Row] = {
    "ReduceSum": linear(_spread),
    "ReduceMean": linear(_mean),
    "ReduceMax": _weighted(_share),
    "ReduceMin": _weighted(_share),
    "ReduceProd": _weighted(_others),
    "ReduceL1": _weighted(lambda s: s.b.Sign(s[0])),
    "ReduceL2": _weighted(_l2),
    "ReduceLogSum": _weighted(lambda s: s.b.Reciprocal(total(s, s[0], keepdims=True))),
    "ReduceLogSumExp": _weighted(lambda s: s.b.Exp(s[0] - kept(s, s.out))),
    "ReduceSumSquare": _weighted(lambda s: s[0] * 2.0),
    "CumSum": linear(_cumsum),
    "CumProd": Row(_cumprod),
    "TopK": Row(_top_k, _top_k_forward),
}

ABSENT: dict[str, str] = {
    "ArgMax": "its output is an index",
    "ArgMin": "its output is an index",
}
