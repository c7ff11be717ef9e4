"""Gradient rows of the random operators."""

from __future__ import annotations

from graphs.builder import Value
from graphs.operators import RUNTIME

from .rows import STOPS, Row, pointwise
from .shapes import cast_like, scalar
from .site import Site


def _dropout(s: Site, g: Value) -> Value:
    """What the mask let through, scaled as in the forward pass. The node itself stays one: its mask is read."""
    b, mode = s.b, s.static("training_mode", 2)
    if not isinstance(mode, Value) and not mode:
        return g
    one = scalar(b, 1.0, g)
    if s.attrs["ratio"] is RUNTIME:
        scale = b.Reciprocal(one - cast_like(b, s[1], g))
    else:
        kept = 1.0 - float(s.attrs["ratio"])  # type: ignore[arg-type]
        scale = scalar(b, 1.0 / kept if kept else 0.0, g)  # nothing passes at a ratio of 1
    if isinstance(mode, Value):
        scale = b.Where(mode, scale, one)
    return b.Where(s.output(1), g * scale, scalar(b, 0.0, g))


ROWS: dict[str, Row] = {
    "Dropout": pointwise(_dropout),
    # The numbers do not depend on those of the input; draws have the derivative zero where they have one.
    "RandomNormalLike": STOPS,
    "RandomUniformLike": STOPS,
    "Bernoulli": STOPS,
}

ABSENT: dict[str, str] = {
    "RandomNormal": "it reads no floats",
    "RandomUniform": "it reads no floats",
    "Multinomial": "its output is an index",
}
