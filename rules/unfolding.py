"""A convolution along one axis as one product of matrices, its windows laid side by side.

Runtimes multiply the weight by the windows of one sample at a time: with few positions and many samples that is many
small products (ONNX Runtime, 32 x 129 x 4 by 3 taps: 975 us, as one product 318 us).
"""

from __future__ import annotations

from graphs.dims import DimLike

from .declare import Leaf, Match, Outcome, Refusal, refuse, rule, term
from .values import is_float

FAMILY = "convolution"
MOST_PARTS = 8  # slices of the input: one for each tap, or for each stride's worth of a window
_END = 2**63 - 1
_W = "w = constant float32[2, 2, 3] [1, -2, 3, 0.5, 5, 6, -1, 2, 0, 4, -3, 2]"


def _plain(m: Match) -> Refusal | tuple[int, int, int, tuple[int, int], int, int]:
    """(output channels, channels, taps, padding, stride, dilation) of a convolution along one axis."""
    attrs, shape = m.c.attrs, m.w.shape
    if m.x.rank != 3 or not is_float(m.x):
        return refuse("it is no convolution of floats along one axis")
    if attrs["group"] != 1 or attrs["auto_pad"] not in ("NOTSET", "VALID"):
        return refuse("it has groups, or pads by itself")
    if m.w.facts is None or not m.w.facts.finite:
        return refuse("the weight is not known to be finite: padding times infinity is NaN")
    outputs, channels, taps = shape
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return refuse("the size of the weight is not known")
    pads = attrs["pads"] if attrs["auto_pad"] == "NOTSET" else None
    padding = (0, 0) if pads is None else (pads[0], pads[1])
    stride, dilation = ((attrs[name] or (1,))[0] for name in ("strides", "dilations"))
    return outputs, channels, taps, padding, stride, dilation  # type: ignore[return-value]


def _product(m: Match, windows: Leaf, shape: tuple[DimLike, ...]) -> Leaf:
    """Windows [n, positions, taps x channels] by the weight, plus the bias, with channels in the second place again."""
    weight = term("Reshape", term("Transpose", m.w, perm=(2, 1, 0)), shape=shape)
    found: Leaf = term("MatMul", windows, weight)
    if m.b is not None:
        found = term("Add", found, m.b)
    return term("Transpose", found, perm=(0, 2, 1))


def _padded(value: Leaf, padding: tuple[int, int], axis: int, rank: int) -> Leaf:
    if padding == (0, 0):
        return value
    before, after = ([size if place == axis else 0 for place in range(rank)] for size in padding)
    return term("Pad", value, mode="constant", pads=(*before, *after), constant_value=None)


def _side_by_side(parts: list[Leaf]) -> Leaf:
    return parts[0] if len(parts) == 1 else term("Concat", *parts, axis=2)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A convolution along one axis is a product of its windows, whose taps lie side by side, and the weight.",
    before="c:Conv(x, $w, $?b)",
    example=f"graph opset 17 (x: float32[n, 2, 5]) -> (y) {{ {_W} b = constant float32[2] [1, -1] "
            "y = Conv(x, w, b, pads=[1, 1], strides=[2]) }",
    near_miss=f"graph opset 17 (x: float32[n, 4, 5]) -> (y) {{ {_W} y = Conv(x, w, group=2) }}",
)
def conv_taps_as_matmul(m: Match) -> Outcome:
    found = _plain(m)
    if isinstance(found, Refusal):
        return found
    outputs, channels, taps, padding, stride, dilation = found
    if taps > MOST_PARTS:
        return refuse(f"it has more than {MOST_PARTS} taps")
    rows = _padded(term("Transpose", m.x, perm=(0, 2, 1)), padding, 1, 3)
    parts: list[Leaf] = []
    for tap in range(taps):
        start, left = tap * dilation, (taps - 1 - tap) * dilation
        whole = (start, left, stride) == (0, 0, 1)
        parts.append(rows if whole else term("Slice", rows, axes=(1,), starts=(start,),
                                             ends=(-left if left else _END,), steps=(stride,)))
    return _product(m, _side_by_side(parts), (taps * channels, outputs))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A convolution of one channel whose window is some strides long (a short-time Fourier transform) is a "
            "product of such pieces, side by side, and the weight.",
    before="c:Conv(x, $w, $?b)",
    example="graph opset 17 (x: float32[n, 1, 10]) -> (y) { w = constant float32[2, 1, 4] [1, -2, 3, 0.5, 5, 6, -1, 2] "
            "y = Conv(x, w, pads=[1, 1], strides=[2]) }",
    near_miss="graph opset 17 (x: float32[n, 1, 10]) -> (y) { w = constant float32[2, 1, 4] "
              "[1, -2, 3, 0.5, 5, 6, -1, 2] y = Conv(x, w, strides=[3]) }",
)
def conv_frames_as_matmul(m: Match) -> Outcome:
    found = _plain(m)
    if isinstance(found, Refusal):
        return found
    outputs, channels, taps, padding, stride, dilation = found
    samples, _, length = m.x.shape
    if channels != 1 or dilation != 1 or taps % stride or stride == 1:
        return refuse("it has several channels, or its window is not some strides long")
    if not isinstance(length, int) or (sum(padding) + length) % stride:
        return refuse("the length is not known to be some strides")
    pieces, count = (sum(padding) + length) // stride, taps // stride
    if count > MOST_PARTS or count > pieces:
        return refuse(f"its window is longer than {MOST_PARTS} strides, or than the input")
    flat = _padded(term("Reshape", m.x, shape=(samples, length)), padding, 1, 2)
    rows = term("Reshape", flat, shape=(samples, pieces, stride))
    positions = pieces - count + 1
    parts: list[Leaf] = [rows if positions == pieces else term("Slice", rows, axes=(1,), starts=(part,),
                                                               ends=(part + positions,), steps=(1,))
                         for part in range(count)]
    return _product(m, _side_by_side(parts), (taps, outputs))
