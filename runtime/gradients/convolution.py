"""Gradient rows of the convolution family: Conv and ConvTranspose; pools and resampling are in files of their own.

Conv is bilinear. Its transpose by the input is a ConvTranspose with the same weights. Its transpose by the weights is
a Conv of the input with the cotangent for weights: batch and channels change places, strides and dilations too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.builder import Builder, Value
from graphs.operators._windows import SAME, explicit_pads, per_axis

from . import _pooling, _resampling
from ._axes import apart, together
from ._windows import END, Window, cut, kernel_sizes, leftover, padded, spatial_rank, static_window
from .expanded import expanded
from .rows import Grads, Row
from .shapes import expand_to, ints, scalar, shape_of
from .site import Site


def _channelwise(s: Site, vector: Value) -> Value:
    """A vector with one element per channel, shaped to broadcast against (N, C, ...)."""
    return s.b.Unsqueeze(vector, axes=list(range(1, 1 + spatial_rank(s))))


def _bias_part(s: Site, g: Value) -> Value:
    rank = spatial_rank(s)
    return s.b.ReduceSum(g, axes=[0, *range(2, 2 + rank)], keepdims=0)


def by_weights(b: Builder, x: Value, g: Value, like: Value, window: Window, group: int, exact: bool,
               more: Sequence[int] = ()) -> Value:
    """The transpose of a convolution by its weights (shape of `like`) from its input x and the cotangent g.

    dW[m, c, k] is the sum over images n and places o of g[n, m, o] x[n, c, o stride + k dilation - begin]. `more`
    elements at the end of x belong to no window, even where a stride reaches them.
    """
    rank = len(window.strides)
    space = list(range(2, 2 + rank))
    spare = any(extra >= stride for extra, stride in zip(more, window.strides))
    if not spare and group == 1 and like.shape is not None and like.shape[2:] == (1,) * rank and not any(
            (*window.begins, *window.ends)):
        return _by_pointwise_weights(b, x, g, window)
    if group == 1:
        images = b.Transpose(x, perm=[1, 0, *space])
    else:  # (N, group * C, ...) as (C, group * N, ...)
        split = apart(b, x, 1, group)
        images = together(b, b.Transpose(split, perm=[2, 1, 0, *(axis + 1 for axis in space)]), 1)
    turned = Window(window.dilations, window.strides, window.begins, window.ends)
    found = b.Conv(images, b.Transpose(g, perm=[1, 0, *space]), group=group, **turned.attrs)
    found = b.Transpose(found, perm=[1, 0, *space])
    return found if exact else cut(b, found, shape_of(b, like), rank)


def _by_pointwise_weights(b: Builder, x: Value, g: Value, window: Window) -> Value:
    """The same for a kernel of one element: a product of matrices for each image, summed."""
    space = list(range(2, 2 + len(window.strides)))
    if any(stride > 1 for stride in window.strides):
        x = b.Slice(x, starts=[0] * len(space), ends=[END] * len(space), axes=space, steps=window.strides)
    for _ in space[1:]:
        x, g = together(b, x, 2), together(b, g, 2)
    found = b.ReduceSum(g @ b.Transpose(x, perm=[0, 2, 1]), axes=[0], keepdims=0)
    return b.Unsqueeze(found, axes=space)


def _conv(s: Site, grads: Grads) -> Grads:
    b, g, window = s.b, grads[0], static_window(s)
    if window is None:
        return _conv_of_padded.vjp(s, grads)
    assert g is not None
    group, rank = int(s.attrs["group"]), spatial_rank(s)  # type: ignore[call-overload]
    sizes, counts = ((value.shape or ())[2:] for value in (s[0], s.out))
    spare = leftover(window, sizes, counts, kernel_sizes(s))
    found: list[Value | None] = [None, None, None]
    if s.wants(0):
        known = all(each is not None for each in spare)
        more = [stride - 1 if each is None else each for each, stride in zip(spare, window.strides)]
        part = b.ConvTranspose(g, s[1], group=group, output_padding=more, **window.attrs)
        found[0] = part if known else cut(b, part, shape_of(b, s[0]), rank)
    if s.wants(1):
        exact = all(each is not None and each < dilation for each, dilation in zip(spare, window.dilations))
        found[1] = by_weights(b, s[0], g, s[1], window, group, exact)
    if s.wants(2):
        found[2] = _bias_part(s, g)
    return found


def _apart(s: Site) -> Sequence[Value]:
    """Automatic padding of sizes that only the run knows: the padding by an operator of its own."""
    x, window = padded(s, s[0])
    return [s.b.Conv(x, s[1], s.get(2), group=s.attrs["group"], **window.attrs)]


_conv_of_padded = expanded(_apart)


def _bilinear(s: Site, tangents: Grads) -> Grads:
    """Of Conv and ConvTranspose: each of input and weights moved alone, without the bias, and the bias's tangent."""
    x, w, bias = (*tangents, None, None)[:3]
    parts: list[Value | None] = []
    if x is not None:
        parts += s.again([x, s[1]])
    if w is not None:
        parts += s.again([s[0], w])
    total: Value | None = None
    for part in parts:
        total = part if total is None or part is None else total + part
    if bias is None:
        return [total]
    moved = _channelwise(s, bias)
    return [expand_to(s.b, moved, s.out) if total is None else total + moved]


def _stamped(s: Site) -> Window | None:
    """The window of the Conv that a ConvTranspose transposes, None where that depends on sizes of the run."""
    rank = spatial_rank(s)
    if s.attrs.get("output_shape") or s.attrs.get("auto_pad", "NOTSET") in SAME:
        return None
    return Window(per_axis(s.attrs, "strides", rank), per_axis(s.attrs, "dilations", rank),
                  *explicit_pads(s.attrs, rank))


def _conv_transpose(s: Site, grads: Grads) -> Grads:
    b, g, window = s.b, grads[0], _stamped(s)
    if window is None:
        return _cut_transposed.vjp(s, grads)
    assert g is not None
    group, rank = int(s.attrs["group"]), spatial_rank(s)  # type: ignore[call-overload]
    more = per_axis(s.attrs, "output_padding", rank, 0)
    found: list[Value | None] = [None, None, None]
    if s.wants(0):
        part = b.Conv(g, s[1], group=group, **window.attrs)
        exact = all(extra < stride for extra, stride in zip(more, window.strides))
        found[0] = part if exact else cut(b, part, shape_of(b, s[0]), rank)
    if s.wants(1):
        exact = all(extra < dilation for extra, dilation in zip(more, window.dilations))
        found[1] = by_weights(b, g, s[0], s[1], window, group, exact, more)
    if s.wants(2):
        found[2] = _bias_part(s, g)
    return found


def _all_then_cut(s: Site) -> Sequence[Value]:
    """ConvTranspose to a given size: all that it stamps, then zeros added or elements cut off on both sides."""
    b = s.b
    kept = {name: s.attrs[name] for name in ("strides", "dilations", "group", "output_padding")}
    full = b.ConvTranspose(s[0], s[1], **kept)
    reached, wanted = b.Shape(full, start=2), b.Shape(s.out, start=2)
    total = b.Max(b.Sub(reached, wanted), ints(b, (0,)))
    half = b.Div(total, ints(b, (2,)))
    begins = half if s.attrs.get("auto_pad") == "SAME_UPPER" else b.Sub(total, half)
    both = ints(b, (0, 0))
    ends = b.Sub(b.Add(wanted, begins), reached)
    y = b.Pad(full, pads=b.Concat(both, b.Neg(begins), both, ends, axis=0))
    bias = s.get(2)
    return [y if bias is None else y + _channelwise(s, bias)]


_cut_transposed = expanded(_all_then_cut)



def _lrn(s: Site) -> Sequence[Value]:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ^ beta."""
    b, x, rank, size = s.b, s[0], spatial_rank(s), int(s.attrs["size"])  # type: ignore[call-overload]
    alpha, beta, bias = (float(s.attrs[name]) for name in ("alpha", "beta", "bias"))  # type: ignore[arg-type]
    weights = b.constant(np.full((1, 1, size, *(1,) * rank), alpha / size), dtype=x.dtype)
    before = (size - 1) // 2
    pads = [before, *(0,) * rank, size - 1 - before, *(0,) * rank]
    total = b.Squeeze(b.Conv(b.Unsqueeze(x * x, axes=[1]), weights, pads=pads), axes=[1])
    return [x / b.Pow(total + bias, scalar(b, beta, x))]


ROWS: dict[str, Row] = {
    "Conv": Row(_conv, _bilinear),
    "ConvTranspose": Row(_conv_transpose, _bilinear),
    "LRN": expanded(_lrn),
    **_pooling.ROWS,
    **_resampling.ROWS,
}

ABSENT: dict[str, str] = {**_resampling.ABSENT}
