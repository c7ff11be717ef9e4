"""Work of the random operators."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, plain


def _draw(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 20.0)  # a random number costs about as much as an exponential or two


def _dropout(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 20.0 if attrs.get("training_mode") else 0.0)


WORK: dict[str, Row] = {
    "RandomNormal": _draw,
    "RandomUniform": _draw,
    "RandomNormalLike": _draw,
    "RandomUniformLike": _draw,
    "Bernoulli": _draw,
    "Multinomial": _draw,
    "Dropout": _dropout,
}
