"""Gradient rows of ONNX Runtime's own operators (contrib): activations and normalizations that its optimizer writes.

Each is written by ONNX's operators; formulas as in the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from graphs.builder import Value
from graphs.operators.contrib import DOMAIN, OPERATORS

from .expanded import expanded
from .normalization import rms_row
from .rows import Row
from .shapes import cast_like, scalar
from .site import Site


def _biased(s: Site) -> Value:
    bias = s.get(1)
    return s[0] if bias is None else s[0] + bias


def _gelu(s: Site) -> Sequence[Value]:
    """x / 2 (1 + erf(x / sqrt 2))."""
    x = _biased(s)
    return [x * 0.5 * (s.b.Erf(x / sqrt(2.0)) + 1.0)]


def _fast_gelu(s: Site) -> Sequence[Value]:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    x = _biased(s)
    return [x * 0.5 * (s.b.Tanh((x + x * x * x * 0.044715) * sqrt(2.0 / pi)) + 1.0)]


def _quick_gelu(s: Site) -> Sequence[Value]:
    """x sigmoid(alpha x)."""
    return [s[0] * s.b.Sigmoid(s[0] * scalar(s.b, float(s.attrs["alpha"]), s[0]))]  # type: ignore[arg-type]


def _skipping(s: Site, centred: bool, beta: Value | None, bias: Value | None) -> Sequence[Value]:
    """Normalization of x + skip + bias over the last axis, half precision in float32; the sum is an output too."""
    b, x = s.b, s[0]
    half = x.dtype in ("float16", "bfloat16")

    def wide(value: Value) -> Value:
        return b.Cast(value, to=1) if half else value

    total = wide(x) + wide(s[1])
    if bias is not None:
        total = total + wide(bias)
    mean = b.ReduceMean(total, axes=[-1])
    around = total - mean if centred else total
    square = b.ReduceMean(around * around, axes=[-1])
    inverse = b.Reciprocal(b.Sqrt(square + scalar(b, float(s.attrs["epsilon"]), square)))  # type: ignore[arg-type]
    y = around * inverse * wide(s[2])
    if beta is not None:
        y = y + wide(beta)
    return [cast_like(b, y, x), b.Cast(mean, to=1), b.Cast(inverse, to=1), cast_like(b, total, x)]


ROWS: dict[str, Row] = {
    f"{DOMAIN}.Gelu": expanded(_gelu),
    f"{DOMAIN}.BiasGelu": expanded(_gelu),
    f"{DOMAIN}.FastGelu": expanded(_fast_gelu),
    f"{DOMAIN}.QuickGelu": expanded(_quick_gelu),
    "SimplifiedLayerNormalization": rms_row,
    f"{DOMAIN}.SkipLayerNormalization": expanded(lambda s: _skipping(s, True, s.get(3), s.get(4))),
    f"{DOMAIN}.SkipSimplifiedLayerNormalization": expanded(lambda s: _skipping(s, False, None, s.get(3))),
}

_REASON = "not yet: differentiate the model before ONNX Runtime's own operators are put in"

ABSENT: dict[str, str] = {name: _REASON for each in OPERATORS
                          if (name := f"{each.domain}.{each.name}".lstrip(".")) not in ROWS}
