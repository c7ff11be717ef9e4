"""Gradient rows of ONNX Runtime's own operators (contrib) that its optimizer writes; attention is in a file of its own.

Each is written by ONNX's operators; formulas as in the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from graphs.builder import Value
from graphs.operators.contrib import DOMAIN, OPERATORS, turned

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


def _activated(s: Site, x: Value, numbers: Sequence[float]) -> Value:
    """The activation that a fused node ends with."""
    b, name, (first, second) = s.b, str(s.attrs["activation"]), (*numbers, 0.0, 0.0)[:2]
    if name in ("Relu", "Tanh", "Sigmoid"):
        return b.value(name, x)
    if name == "LeakyRelu":
        return b.LeakyRelu(x, alpha=first)
    if name == "HardSigmoid":
        return b.HardSigmoid(x, alpha=first, beta=second)
    if name == "Clip":
        return b.Clip(x, scalar(b, first, x), scalar(b, second, x))
    if name:
        raise s.fail(f"the activation {name!r} is not written")
    return x


def _fused_conv(s: Site) -> Sequence[Value]:
    """activation(convolution + bias + Z)."""
    window = {name: s.attrs[name] for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
              if s.attrs.get(name) is not None}
    y, more = s.b.Conv(s[0], s[1], s.get(2), **window), s.get(3)
    return [_activated(s, y if more is None else y + more, list(s.attrs["activation_params"] or ()))]  # type: ignore[call-overload]


def _fused_gemm(s: Site) -> Sequence[Value]:
    given = [s.attrs[f"activation_{name}"] for name in ("alpha", "beta", "gamma")]
    attrs = {name: s.attrs[name] for name in ("alpha", "beta", "transA", "transB")}
    y = s.b.Gemm(s[0], s[1], s.get(2), **attrs)
    return [_activated(s, y, [float(number) for number in given if number is not None])]  # type: ignore[arg-type]


def _fused_matmul(s: Site) -> Sequence[Value]:
    """alpha times the product of both factors, each with its axes turned first."""
    factors = []
    for index, side in enumerate("AB"):
        order = turned(range(s.rank(index)), s.attrs[f"trans{side}"], s.attrs.get(f"transBatch{side}"))
        factors.append(s.b.Transpose(s[index], perm=order))
    product = factors[0] @ factors[1]
    alpha = float(s.attrs["alpha"])  # type: ignore[arg-type]
    return [product if alpha == 1.0 else product * alpha]


def _embedding(s: Site) -> Sequence[Value]:
    """Sum of the embeddings of words, positions and segments, normalized; the second output counts the mask."""
    b, segments, kinds, places = s.b, s.get(1), s.get(4), s.get(8)
    total = b.Gather(s[2], s[0])
    if places is None:
        length = b.Squeeze(b.Shape(s[0], start=1, end=2), axes=[0])
        places = b.Unsqueeze(b.Range(b.constant(0), length, b.constant(1)), axes=[0])
    total = total + b.Gather(s[3], places)
    if kinds is not None and segments is not None:
        total = total + b.Gather(kinds, segments)
    around = total - b.ReduceMean(total, axes=[-1])
    square = b.ReduceMean(around * around, axes=[-1])
    y = around / b.Sqrt(square + scalar(b, float(s.attrs["epsilon"]), square)) * s[5] + s[6]  # type: ignore[arg-type]
    return [y, s.output(1), total]


ROWS: dict[str, Row] = {
    f"{DOMAIN}.FusedMatMul": expanded(_fused_matmul),
    f"{DOMAIN}.TransposeMatMul": expanded(_fused_matmul),
    f"{DOMAIN}.FusedGemm": expanded(_fused_gemm),
    f"{DOMAIN}.FusedConv": expanded(_fused_conv),
    f"{DOMAIN}.BiasAdd": expanded(lambda s: [s[0] + s[1] + s[2]]),
    f"{DOMAIN}.EmbedLayerNormalization": expanded(_embedding),
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
