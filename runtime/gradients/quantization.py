"""Gradient rows of the quantization family: only the scale of a dequantization is a float that moves."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.builder import Value

from .expanded import expanded
from .rows import Row
from .shapes import cast_like, scalar
from .site import Site


def _dequantize(s: Site) -> Sequence[Value]:
    """(x - zero point) * scale, in the type of the scale."""
    b, scale = s.b, s[1]
    if s.attrs["block_size"]:
        raise s.fail("scales of blocks are not written yet")
    shift = s.get(2)
    number = cast_like(b, s[0], scale)
    offset = None if shift is None else cast_like(b, shift, scale)
    if s.rank(1) == 1:
        rank = s.rank(0)
        axis = int(s.attrs["axis"]) % rank  # type: ignore[call-overload]
        others = [each for each in range(rank) if each != axis]
        scale = b.Unsqueeze(scale, axes=others)
        offset = None if offset is None else b.Unsqueeze(offset, axes=others)
    return [(number if offset is None else number - offset) * scale]


def _dynamic(s: Site) -> Sequence[Value]:
    """(max(x, 0) - min(x, 0)) / 255 of the whole tensor: the scale is the only float among the outputs, and it is 1
    where there is no range."""
    b, x = s.b, s[0]
    zero = scalar(b, 0.0, x)
    span = b.Max(b.ReduceMax(x, keepdims=0), zero) - b.Min(b.ReduceMin(x, keepdims=0), zero)
    return [s.out, b.Where(b.Equal(span, zero), scalar(b, 1.0, x), span / 255.0)]


ROWS: dict[str, Row] = {
    "DequantizeLinear": expanded(_dequantize),
    "DynamicQuantizeLinear": expanded(_dynamic),
}

ABSENT: dict[str, str] = {
    "QuantizeLinear": "its output is an integer",
    "ConvInteger": "its output is an integer",
    "QLinearConv": "its output is an integer",
    "QLinearMatMul": "its output is an integer",
}
