"""Convolutions as one product of matrices: along one axis with the windows side by side, or with few places.

Runtimes multiply the weight by the windows of one sample at a time: with few positions and many samples that is many
small products (ONNX Runtime, 32 x 129 x 4 by 3 taps: 975 us, as one product 318 us).
"""

from __future__ import annotations

from graphs.dims import DimLike

from .declare import Leaf, Match, Outcome, Refusal, refuse, rule, term
from .values import is_float

FAMILY = "convolution"
MOST_PARTS = 8  # slices of the input: one for each tap, or for each stride's worth of a window
MOST_PLACES = 5  # along an axis, of a convolution with few places: 5 is the gradient of a kernel of 5 by 5
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


def _joined(parts: list[Leaf], axis: int) -> Leaf:
    return parts[0] if len(parts) == 1 else term("Concat", *parts, axis=axis)


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
    return _product(m, _joined(parts, 2), (taps * channels, outputs))


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
    return _product(m, _joined(parts, 2), (taps, outputs))


def _image(m: Match) -> Refusal | tuple[int, int, tuple[int, int, int, int]]:
    """(rows, columns of the result, padding) of a plain convolution of images with few places and a large kernel."""
    attrs = m.c.attrs
    if m.x.rank != 4 or not is_float(m.x) or m.root.type.shape is None:
        return refuse("it is no convolution of images of floats")
    if attrs["group"] != 1 or attrs["auto_pad"] not in ("NOTSET", "VALID"):
        return refuse("it has groups, or pads by itself")
    if any(each != 1 for name in ("strides", "dilations") for each in attrs[name] or ()):
        return refuse("it has strides or dilations")
    rows, columns = m.root.type.shape[2:]
    if not (isinstance(rows, int) and isinstance(columns, int) and 0 < rows <= MOST_PLACES
            and 0 < columns <= MOST_PLACES):
        return refuse(f"it does not have 1 to {MOST_PLACES} places along each axis")
    height, width = m.w.shape[2:]
    if not isinstance(height, int) or not isinstance(width, int) or height < 2 * rows or width < 2 * columns:
        return refuse("the kernel is not known to be at least twice as large as the result")
    pads = attrs["pads"] if attrs["auto_pad"] == "NOTSET" else None
    return rows, columns, (0, 0, 0, 0) if pads is None else tuple(pads)  # type: ignore[return-value]


@rule(
    family=FAMILY, exactness="finite",
    meaning="A convolution whose kernel is about as large as the image, as in the gradient by the weight of another "
            "one, is a product: the image for each column of the result, and the kernel for each row, side by side "
            "(zeros around the kernel meet all of the image).",
    before="c:Conv(x, w, $?b)",
    example="graph opset 17 (x: float32[2, n, 4, 4], w: float32[3, n, 4, 4]) -> (y) "
            "{ y = Conv(x, w, pads=[1, 0, 0, 1]) }",
    near_miss="graph opset 17 (x: float32[2, n, 4, 4], w: float32[3, n, 3, 3]) -> (y) { y = Conv(x, w) }",
)
def conv_places_as_matmul(m: Match) -> Outcome:
    found = _image(m)
    if isinstance(found, Refusal):
        return found
    rows, columns, (top, left, bottom, right) = found
    (samples, channels), (outputs, _, height, width) = m.x.shape[:2], m.w.shape
    images = term("Transpose", m.x, perm=(1, 2, 3, 0))
    if any((top, left, bottom, right)):
        images = term("Pad", images, mode="constant", pads=(0, top, left, 0, 0, bottom, right, 0), constant_value=None)
    shifted: list[Leaf] = [images if columns == 1 else term("Slice", images, axes=(2,), starts=(column,),
                                                            ends=(column + width,), steps=(1,))
                           for column in range(columns)]
    kernels: list[Leaf] = [_padded(m.w, (row, rows - 1 - row), 2, 4) for row in range(rows)]
    terms = channels * (height + rows - 1) * width
    left_side = term("Reshape", _joined(kernels, 0), shape=(rows * outputs, terms))
    right_side = term("Reshape", _joined(shifted, 3), shape=(terms, columns * samples))
    product = term("Reshape", term("MatMul", left_side, right_side), shape=(rows, outputs, columns, samples))
    result = term("Transpose", product, perm=(3, 1, 0, 2))
    return result if m.b is None else term("Add", result, term("Reshape", m.b, shape=(1, outputs, 1, 1)))
