"""Gradient rows of the operators that move elements. All are linear.

Where the transpose has no operator of its own, `by_positions` runs the operator on the numbers of the elements and
adds each cotangent to the element that it came from; that works for every size and every run-time attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.builder import Builder, Value
from graphs.operators import RUNTIME

from .rows import STOPS, Grads, Row, jointly_linear, linear
from .shapes import cast_like, ints, reshape_to, scalar, shape_of, static_shape, sum_to, zeros_like
from .site import Site


def positions(b: Builder, value: Value, first: int = 0) -> Value:
    """The elements' numbers in row-major order, in the shape of a value: int64."""
    known = static_shape(value)
    if known is not None:
        return b.constant(np.arange(first, first + int(np.prod(known)), dtype=np.int64).reshape(known))
    end = b.Size(value) if not first else b.Add(b.Size(value), b.constant(first))
    numbers = b.Range(b.constant(first), end, b.constant(1))
    return b.Reshape(numbers, b.Shape(value), allowzero=1)


def add_at(b: Builder, size: Value, places: Value, parts: Value) -> Value:
    """A vector of `size` (int64 vector of one element) zeros to which the parts are added at their places."""
    zeros = b.Expand(scalar(b, 0.0, parts), size)
    return b.ScatterElements(zeros, b.Reshape(places, [-1]), b.Reshape(parts, [-1]), reduction="add")


def by_positions(s: Site, g: Value) -> Grads:
    """The transpose of an operator whose output elements are elements of input 0."""
    b, x = s.b, s[0]
    taken = s.again([positions(b, x), *s.operands[1:]])[0]
    assert taken is not None
    size = b.Unsqueeze(b.Size(x), axes=[0])
    return [b.Reshape(add_at(b, size, taken, g), shape_of(b, x), allowzero=1)]


def by_positions_or_none(s: Site, g: Value) -> Grads:
    """As `by_positions` for an operator that also makes zeros: the numbers start at 1, and 0 is nobody's."""
    b, x = s.b, s[0]
    taken = s.again([positions(b, x, first=1), *s.operands[1:]])[0]
    assert taken is not None
    size = b.Unsqueeze(b.Add(b.Size(x), b.constant(1)), axes=[0])
    own = b.Slice(add_at(b, size, taken, g), starts=[1], ends=[np.iinfo(np.int64).max], axes=[0])
    return [b.Reshape(own, shape_of(b, x), allowzero=1)]


def size_of_axis(b: Builder, value: Value, axis: int) -> Value:
    """The size of an axis as int64 vector of one element."""
    size = None if value.shape is None else value.shape[axis]
    if isinstance(size, int):
        return ints(b, (size,))
    return b.Shape(value, start=axis) if axis == -1 else b.Shape(value, start=axis, end=axis + 1)


def _reshaped(s: Site, g: Value) -> Grads:
    return [reshape_to(s.b, g, s[0])]


def _transpose(s: Site, g: Value) -> Grads:
    perm: Sequence[int] | None = s.attrs["perm"]  # type: ignore[assignment]
    return [s.b.Transpose(g) if perm is None else s.b.Transpose(g, perm=np.argsort(perm).tolist())]


def _depth_to_space(s: Site, g: Value) -> Grads:
    b, x, block = s.b, s[0], int(s.attrs["blocksize"])  # type: ignore[call-overload]
    if s.attrs["mode"] == "DCR":
        return [b.SpaceToDepth(g, blocksize=block)]
    once = ints(b, (block,))
    split = b.Concat(size_of_axis(b, x, 0), ints(b, (-1,)), size_of_axis(b, x, 2), once, size_of_axis(b, x, 3), once,
                     axis=0)
    return [reshape_to(b, b.Transpose(b.Reshape(g, split), perm=[0, 1, 3, 5, 2, 4]), x)]


def _space_to_depth(s: Site, g: Value) -> Grads:
    return [s.b.DepthToSpace(g, blocksize=s.attrs["blocksize"], mode=s.attrs["mode"])]


def _slice(s: Site, g: Value) -> Grads:
    """Zeros around the part where that is one block at a known place, else by positions."""
    pads = _slice_pads(s)
    if pads is None:
        return by_positions(s, g)
    return [s.b.Pad(g, pads=pads) if any(pads) else g]


def _slice_pads(s: Site) -> list[int] | None:
    shape, given = s[0].shape, [s.attrs[name] for name in ("starts", "ends", "axes", "steps")]
    if shape is None or any(each is RUNTIME for each in given):
        return None
    starts, ends, axes, steps = given
    count = len(starts)  # type: ignore[arg-type]
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes or range(count), steps or (1,) * count):  # type: ignore[call-overload]
        size = shape[axis]
        if not isinstance(size, int) or step != 1:
            return None
        first, last, _ = slice(start, end).indices(size)
        before[axis], after[axis] = first, size - max(first, last)
    return before + after


def _pad(s: Site, grads: Grads) -> Grads:
    b, g = s.b, grads[0]
    assert g is not None
    if s.attrs["mode"] != "constant":
        return by_positions(s, g)
    axes = s.static("axes", 3)
    pads = s.attrs["pads"]
    opposite = b.Neg(s[1]) if pads is RUNTIME else [-pad for pad in pads]  # type: ignore[attr-defined]
    inside = b.Pad(g, pads=opposite, **({} if axes is None else {"axes": axes}))
    # The number that fills what is padded has the sum of the cotangents there.
    around = b.Sub(b.ReduceSum(g, keepdims=0), b.ReduceSum(inside, keepdims=0)) if s.wants(2) else None
    return [inside, None, None if around is None else reshape_to(b, around, s[2])]


def _pad_forward(s: Site, tangents: Grads) -> Grads:
    b, rest = s.b, s.operands[1:]
    inner = tangents[0] if tangents[0] is not None else zeros_like(b, s[0])
    if s.attrs["mode"] == "constant":
        number = tangents[2] if len(tangents) > 2 else None
        if number is None:
            number = scalar(b, 0.0, inner)
        attrs = {name: s.static(name, index) for name, index in (("pads", 1), ("axes", 3))}
        return [b.Pad(inner, **{**attrs, "constant_value": number})]
    return s.again([inner, *rest])


def _concat(s: Site, g: Value) -> Grads:
    axis = int(s.attrs["axis"])  # type: ignore[call-overload]
    count = len(s.node.inputs)
    if count == 1:
        return [g]
    b = s.b
    sizes = [size_of_axis(b, s[index], axis) for index in range(count)]
    known = [b.scope.lookup(size.name)[2] for size in sizes]
    if all(each is not None for each in known):
        split: object = [int(each.array[0]) for each in known if each is not None]
    else:
        split = b.Concat(*sizes, axis=0)
    return list(b.Split(g, outputs=count, axis=axis, split=split))


def _split(s: Site, grads: Grads) -> Grads:
    parts = [zeros_like(s.b, s.output(index)) if g is None else g for index, g in enumerate(grads)]
    return [s.b.Concat(*parts, axis=s.attrs["axis"])]


def _tile(s: Site, g: Value) -> Grads:
    """Each axis apart into repeats and size, and the sum over the repeats."""
    b, x, rank = s.b, s[0], s.rank(0)
    repeats, shape = s.static("repeats", 1), static_shape(x)
    if isinstance(repeats, tuple) and shape is not None:
        apart = ints(b, [size for pair in zip(repeats, shape) for size in pair])
    else:
        times = repeats if isinstance(repeats, Value) else ints(b, repeats)  # type: ignore[arg-type]
        apart = b.Reshape(b.Concat(b.Unsqueeze(times, axes=[1]), b.Unsqueeze(shape_of(b, x), axes=[1]), axis=1), [-1])
    if not rank:
        return [g]
    return [reshape_to(b, b.ReduceSum(b.Reshape(g, apart, allowzero=1), axes=list(range(0, 2 * rank, 2)), keepdims=0),
                       x)]


def _range_steps(s: Site) -> Value:
    """0, 1, 2, ... as many as the result has."""
    b, zero, one = s.b, s.b.constant(0), s.b.constant(1)
    return cast_like(b, b.Range(zero, b.Size(s.out), one), s.out)


def _range(s: Site, grads: Grads) -> Grads:
    b, g = s.b, grads[0]
    assert g is not None
    found = [b.ReduceSum(g, keepdims=0), None, b.ReduceSum(g * _range_steps(s), keepdims=0)]
    return [None if each is None else reshape_to(b, each, s[index]) for index, each in enumerate(found)]


def _range_forward(s: Site, tangents: Grads) -> Grads:
    b, start, step = s.b, tangents[0], tangents[2]
    total = zeros_like(b, s.out)
    total = total if start is None else total + start
    return [total if step is None else total + _range_steps(s) * step]


ROWS: dict[str, Row] = {
    **{op: linear(_reshaped) for op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")},
    "Transpose": linear(_transpose),
    "DepthToSpace": linear(_depth_to_space),
    "SpaceToDepth": linear(_space_to_depth),
    "Slice": linear(_slice),
    "Pad": Row(_pad, _pad_forward),
    "CenterCropPad": linear(by_positions_or_none),
    "Concat": linear(_concat, data=None),
    "Split": jointly_linear(_split),
    "Tile": linear(_tile),
    "Expand": linear(lambda s, g: [sum_to(s.b, g, s[0])]),
    "Range": Row(_range, _range_forward),
    "EyeLike": STOPS,
    "Trilu": linear(lambda s, g: [s.b.Trilu(g, k=s.static("k", 1), upper=s.attrs["upper"])]),
    "Compress": linear(by_positions),
    # Reversing twice is doing nothing.
    "ReverseSequence": linear(lambda s, g: s.again([g, s[1]])),
}

ABSENT: dict[str, str] = {
    "Shape": "its output is an integer",
    "Size": "its output is an integer",
    "ConstantOfShape": "it reads no floats",
}
