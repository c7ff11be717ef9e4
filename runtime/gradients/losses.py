"""Gradient rows of the loss operators, by the operators that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.builder import Value

from .expanded import expanded
from .rows import Row
from .shapes import full_like, scalar
from .site import Site


def _picked(s: Site, logs: Value) -> Value:
    """Minus the logarithm at each label times its weight, reduced."""
    b, labels, ignored = s.b, s[1], None
    if s.attrs["ignore_index"] is not None:
        ignored = b.Equal(labels, scalar(b, float(s.attrs["ignore_index"]), labels))  # type: ignore[arg-type]
        labels = b.Where(ignored, scalar(b, 0.0, labels), labels)
    each = -b.Squeeze(b.GatherElements(logs, b.Unsqueeze(labels, axes=[1]), axis=1), axes=[1])
    factor = b.Gather(s[2], labels) if s.get(2) is not None else None
    if ignored is not None:
        zero = scalar(b, 0.0, logs)
        factor = b.Where(ignored, zero, full_like(b, each, 1.0) if factor is None else factor)
        each = b.Where(ignored, zero, each)
    each = each if factor is None else each * factor
    if s.attrs["reduction"] == "none":
        return each
    if s.attrs["reduction"] == "mean" and factor is None:
        return b.ReduceMean(each, keepdims=0)
    total = b.ReduceSum(each, keepdims=0)
    return total if factor is None or s.attrs["reduction"] == "sum" else total / b.ReduceSum(factor, keepdims=0)


def _cross_entropy(s: Site) -> Sequence[Value]:
    logs = s.b.LogSoftmax(s[0], axis=1)
    return [_picked(s, logs), logs]


ROWS: dict[str, Row] = {
    "SoftmaxCrossEntropyLoss": expanded(_cross_entropy),
    "NegativeLogLikelihoodLoss": expanded(lambda s: [_picked(s, s[0])]),
}

ABSENT: dict[str, str] = {}
