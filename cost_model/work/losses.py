"""Work of the loss operators."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, elements, traffic


def _cross_entropy(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(12.0 * elements(inputs[0]), traffic(inputs, outputs))  # as LogSoftmax


def _picked(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(3.0 * elements(inputs[1]), traffic(inputs, outputs))


WORK: dict[str, Row] = {"SoftmaxCrossEntropyLoss": _cross_entropy, "NegativeLogLikelihoodLoss": _picked}
