"""Kernels of the loss operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import OUTPUTS, Arrays, rows
from ._numeric import given, narrow, optional, wide

KERNELS, kernel = rows()


def _reduced(attrs: Mapping[str, object], logs: np.ndarray, labels: np.ndarray,
             weights: np.ndarray | None) -> np.ndarray:
    """Minus the logarithm at each label times the weight of the label, reduced; a mean is over the weights."""
    ignored = labels == attrs["ignore_index"] if attrs["ignore_index"] is not None else np.zeros(labels.shape, bool)
    safe = np.where(ignored, 0, labels)
    each = -np.take_along_axis(logs, np.expand_dims(safe, 1), axis=1).squeeze(1)
    factor = np.ones(labels.shape, logs.dtype) if weights is None else weights[safe]
    factor = np.where(ignored, logs.dtype.type(0), factor)
    each = np.where(ignored, logs.dtype.type(0), each * factor)
    if attrs["reduction"] == "none":
        return each
    total = np.sum(each, dtype=logs.dtype)
    return total if attrs["reduction"] == "sum" else np.asarray(total / np.sum(factor, dtype=logs.dtype))


@kernel("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, weights = given(inputs, 0), optional(inputs, 2)
    with np.errstate(all="ignore"):
        found = _reduced(attrs, wide(x), given(inputs, 1), None if weights is None else wide(weights))
    return [narrow(found, x.dtype)]


@kernel("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, weights = given(inputs, 0), optional(inputs, 2)
    scores = wide(x)
    with np.errstate(all="ignore"):
        shifted = scores - np.max(scores, axis=1, keepdims=True, initial=-np.inf)
        logs = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
        found = _reduced(attrs, logs, given(inputs, 1), None if weights is None else wide(weights))
    return [narrow(found, x.dtype), narrow(logs, x.dtype)][: int(attrs.get(OUTPUTS, 1))]  # type: ignore[call-overload]
