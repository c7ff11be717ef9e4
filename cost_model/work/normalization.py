"""Work of the normalization operators."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, plain


def _each(count: float) -> Row:
    def row(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
        return plain(inputs, outputs, count)

    return row


# Operations per element; an exponential counts 8.
WORK: dict[str, Row] = {
    "BatchNormalization": _each(2),
    "LayerNormalization": _each(8),
    "InstanceNormalization": _each(8),
    "GroupNormalization": _each(8),
    "RMSNormalization": _each(5),
    "LpNormalization": _each(4),
    "MeanVarianceNormalization": _each(6),
    "Softmax": _each(12),
    "LogSoftmax": _each(12),
    "Hardmax": _each(2),
}
