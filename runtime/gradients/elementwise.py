"""Gradient rows of the elementwise operators."""

from __future__ import annotations

from .rows import Row, pointwise, variadic

ROWS: dict[str, Row] = {
    "Add": pointwise(lambda s, g: g, lambda s, g: g),
    "Sub": pointwise(lambda s, g: g, lambda s, g: -g),
    "Mul": pointwise(lambda s, g: g * s[1], lambda s, g: g * s[0]),
    "Neg": pointwise(lambda s, g: -g),
    "Exp": pointwise(lambda s, g: g * s.out),
    "Log": pointwise(lambda s, g: g / s[0]),
    "Sin": pointwise(lambda s, g: g * s.b.Cos(s[0])),
    "Cos": pointwise(lambda s, g: -(g * s.b.Sin(s[0]))),
    "Sum": variadic(lambda s, index, g: g),
    "Identity": pointwise(lambda s, g: g),
}

ABSENT: dict[str, str] = {}
