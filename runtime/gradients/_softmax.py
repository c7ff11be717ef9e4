"""Gradient rows of Softmax and its kin."""

from __future__ import annotations

from graphs.builder import Value

from .rows import STOPS, Grads, Row
from .site import Site


def _along(s: Site, value: Value) -> Value:
    """The sum over the axes that are normalized together."""
    axis = int(s.attrs["axis"])  # type: ignore[call-overload]
    axes = [axis]
    if s.attrs["flatten"]:  # before opset 13: a matrix, split before the axis
        rank = s.rank(0)
        axes = list(range(axis % rank if axis < 0 else axis, rank))
        if not axes:
            return value
    return s.b.ReduceSum(value, axes=axes, keepdims=1)


def _softmax(s: Site, grads: Grads) -> Grads:
    """y (g - sum(g y)): the Jacobian is symmetric."""
    g, y = grads[0], s.out
    assert g is not None
    return [y * (g - _along(s, g * y))]


def _log_softmax(s: Site, grads: Grads) -> Grads:
    g = grads[0]
    assert g is not None
    return [g - s.b.Exp(s.out) * _along(s, g)]


def _log_softmax_forward(s: Site, tangents: Grads) -> Grads:
    t = tangents[0]
    assert t is not None
    return [t - _along(s, s.b.Exp(s.out) * t)]


ROWS: dict[str, Row] = {
    "Softmax": Row(_softmax, _softmax),
    "LogSoftmax": Row(_log_softmax, _log_softmax_forward),
    "Hardmax": STOPS,
}
