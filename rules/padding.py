"""Movement rules: Pad, Tile, Resize, Expand and pools that add up or do nothing."""

from __future__ import annotations

from collections.abc import Mapping

from .declare import Match, NodeView, Outcome, Rule, refuse, rule, term
from .slicing import slice_rows
from .values import is_float

FAMILY = "movement"


def padding_of(view: NodeView) -> list[tuple[int, int]] | None:
    """(before, after) for each axis of a Pad node's input, None where they are not known."""
    pads, axes, source = view.attrs["pads"], view.attrs["axes"], view.args[0]
    if not isinstance(pads, tuple) or source is None or (axes is not None and not isinstance(axes, tuple)):
        return None
    rank = source.rank
    chosen = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    if len(pads) != 2 * len(chosen) or len(set(chosen)) != len(chosen):
        return None
    result = [(0, 0)] * rank
    for position, axis in enumerate(chosen):
        result[axis] = (pads[position], pads[position + len(chosen)])
    return result


def pad_value(view: NodeView) -> float | None:
    """The number that a Pad node of mode `constant` fills in, None for other modes and unknown values."""
    value = view.attrs["constant_value"]
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if value is None:
        value = 0.0
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    return value if view.attrs["mode"] == "constant" and known else None


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Pad by nothing does nothing.",
    before="p:Pad(x)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { y = Pad(x, pads=[0, 0, 0, 0]) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { y = Pad(x, pads=[0, 1, 0, -1]) }",
)
def pad_nothing(m: Match) -> Outcome:
    padding = padding_of(m.p)
    return None if padding is not None and not any(map(any, padding)) else refuse("something is added or cut off")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two Pads with the same value add up.",
    before="o:Pad(i:Pad(x))",
    example="graph opset 17 (x: float32[n, 4]) -> (y) "
            "{ t = Pad(x, pads=[0, 1, 0, 0]) y = Pad(t, pads=[0, 2, 0, 2], constant_value=0.0) }",
    near_miss="graph opset 17 (x: float32[n, 4]) -> (y) "
              "{ t = Pad(x, pads=[0, 1, 0, 0]) y = Pad(t, pads=[0, 2, 0, 2], constant_value=1.0) }",
)
def pad_pad(m: Match) -> Outcome:
    inner, outer = padding_of(m.i), padding_of(m.o)
    if inner is None or outer is None or len(m.i.args) != 1 or len(m.o.args) != 1:
        return refuse("the pads are not known")
    value = pad_value(m.o)
    if value is None or value != pad_value(m.i) or str(float(value)) != str(float(pad_value(m.i) or 0)):
        return refuse("the filled-in values differ or are not known")
    if any(side < 0 for pair in (*inner, *outer) for side in pair):
        return refuse("a negative pad cuts off")
    before = tuple(a[0] + b[0] for a, b in zip(inner, outer, strict=True))
    after = tuple(a[1] + b[1] for a, b in zip(inner, outer, strict=True))
    return term("Pad", m.x, mode="constant", pads=before + after, constant_value=m.o.attrs["constant_value"])


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Tile that repeats once does nothing.",
    before="Tile(x, repeats=r)", after="x",
    example="graph opset 17 (x: int64[n, 3]) -> (y) { y = Tile(x, repeats=[1, 1]) }",
    near_miss="graph opset 17 (x: int64[n, 3]) -> (y) { y = Tile(x, repeats=[1, 2]) }",
)
def tile_once(m: Match) -> Outcome:
    return None if isinstance(m["r"], tuple) and all(n == 1 for n in m["r"]) else refuse("something is repeated")


_PLAIN_RESIZE = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")


def _keeps_sizes(attrs: Mapping[str, object]) -> bool:
    scales, sizes = attrs["scales"], attrs["sizes"]
    if isinstance(scales, tuple) and scales:
        return not sizes and all(scale == 1.0 for scale in scales)
    return isinstance(sizes, tuple) and bool(sizes)


@rule(
    family=FAMILY, exactness="exact",
    meaning="A nearest Resize to the size that is there copies every element.",
    before="r:Resize(x)", after="x",
    example="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) { y = Resize(x, scales=[1.0, 1.0, 1.0, 1.0]) }",
    near_miss="graph opset 17 (x: float32[1, 2, 3, 3]) -> (y) { y = Resize(x, scales=[1.0, 1.0, 1.1, 1.0]) }",
)
def resize_by_one(m: Match) -> Outcome:
    attrs = m.r.attrs
    if attrs["mode"] != "nearest" or attrs["coordinate_transformation_mode"] not in _PLAIN_RESIZE:
        return refuse("only nearest sampling copies elements as they are")
    return None if _keeps_sizes(attrs) else refuse("the scales are not all 1")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A nearest Upsample by 1 copies every element.",
    before="r:Upsample(x)", after="x",
    example="graph opset 9 (x: float32[n, 2, 3, 3]) -> (y) { y = Upsample(x, scales=[1.0, 1.0, 1.0, 1.0]) }",
    near_miss="graph opset 9 (x: float32[1, 2, 3, 3]) -> (y) { y = Upsample(x, scales=[1.0, 1.0, 1.1, 1.0]) }",
)
def upsample_by_one(m: Match) -> Outcome:
    scales = m.r.attrs["scales"]
    if m.r.attrs["mode"] != "nearest" or not isinstance(scales, tuple):
        return refuse("only nearest sampling copies elements as they are")
    return None if all(scale == 1.0 for scale in scales) else refuse("the scales are not all 1")


@rule(
    family=FAMILY, exactness="finite",
    meaning="An interpolating Resize to the size that is there gives finite elements as they are.",
    before="r:Resize(x)", after="x",
    example="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) "
            "{ y = Resize(x, mode=\"linear\", scales=[1.0, 1.0, 1.0, 1.0]) }",
    near_miss="graph opset 17 (x: float32[1, 2, 3, 3]) -> (y) "
              "{ y = Resize(x, mode=\"linear\", scales=[1.0, 1.0, 1.1, 1.0]) }",
)
def resize_by_one_interpolated(m: Match) -> Outcome:
    attrs = m.r.attrs
    if not is_float(m.x) or attrs["coordinate_transformation_mode"] not in _PLAIN_RESIZE:
        return refuse("the sampled positions are not those of the elements")
    return None if _keeps_sizes(attrs) else refuse("the scales are not all 1")


# Expand ----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two Expands in a row are one.",
    before="Expand(Expand(x, shape=s), shape=t)", after="Expand(x, shape=t)",
    example="graph opset 17 (x: float32[1, 3]) -> (y) { t = Expand(x, shape=[2, 3]) y = Expand(t, shape=[4, 2, 3]) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { t = Expand(x, shape=[2, 3]) y = Reshape(t, shape=[3, 2]) }",
)
def expand_expand(m: Match) -> Outcome:
    return None


def _expand_in(op: str, side: int) -> Rule:
    before = f"{op}(Expand(x, shape=s), y)" if side == 0 else f"{op}(y, Expand(x, shape=s))"
    use = f"{op}(t, z)" if side == 0 else f"{op}(z, t)"

    @rule(
        family=FAMILY, exactness="exact",
        meaning="An operator that broadcasts needs no Expand before it, if the other operand has the size.",
        before=before, after=f"{op}(x, y)" if side == 0 else f"{op}(y, x)",
        example="graph opset 17 (x: float32[1, 3], z: float32[4, 3]) -> (y) "
                f"{{ t = Expand(x, shape=[4, 3]) y = {use} }}",
        near_miss="graph opset 17 (x: float32[1, 3], z: float32[1, 3]) -> (y) "
                  f"{{ t = Expand(x, shape=[4, 3]) y = {use} }}",
    )
    def guard(m: Match) -> Outcome:
        return None

    return guard.renamed(f"expand-in-{op.lower()}" + ("-right" if side else ""))


EXPAND_IN = [_expand_in(op, side) for op, side in (("Add", 0), ("Mul", 0), ("Sub", 0), ("Sub", 1), ("Div", 0),
                                                   ("Div", 1))]


# Pools of one element --------------------------------------------------------------------------------------


def _window_of_one(view: NodeView) -> bool:
    attrs = view.attrs
    return (all(size == 1 for size in attrs["kernel_shape"]) and all(step == 1 for step in attrs["strides"] or ())
            and not any(attrs["pads"] or ()))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The average of one element is the element.",
    before="p:AveragePool(x)", after="x",
    example="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) { y = AveragePool(x, kernel_shape=[1, 1]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) "
              "{ y = AveragePool(x, kernel_shape=[1, 1], strides=[2, 2]) }",
)
def average_of_one(m: Match) -> Outcome:
    return None if _window_of_one(m.p) else refuse("the window holds more, or moves in larger steps")


@rule(
    family=FAMILY, exactness="finite",
    meaning="The maximum of one element is the element (what a MaxPool makes of NaN is not defined).",
    before="p:MaxPool(x)", after="x",
    example="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) { y = MaxPool(x, kernel_shape=[1, 1]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 3, 3]) -> (y) { y = MaxPool(x, kernel_shape=[2, 1]) }",
)
def maximum_of_one(m: Match) -> Outcome:
    return None if _window_of_one(m.p) else refuse("the window holds more, or moves in larger steps")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The average over spatial axes of size 1 is the element.",
    before="GlobalAveragePool(x)", after="x",
    example="graph opset 17 (x: float32[n, 2, 1, 1]) -> (y) { y = GlobalAveragePool(x) }",
    near_miss="graph opset 17 (x: float32[n, 2, 1, 3]) -> (y) { y = GlobalAveragePool(x) }",
)
def global_average_of_one(m: Match) -> Outcome:
    return None if all(dim == 1 for dim in m.x.shape[2:]) else refuse("a spatial axis holds more than one element")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Slice that keeps all of what was padded only cuts padding off.",
    before="s:Slice(p:Pad(x))",
    example="graph opset 17 (x: float32[n, 4]) -> (y) "
            "{ t = Pad(x, pads=[0, 2, 0, 2]) y = Slice(t, starts=[1], ends=[7], axes=[1]) }",
    near_miss="graph opset 17 (x: float32[n, 4]) -> (y) "
              "{ t = Pad(x, pads=[0, 2, 0, 2]) y = Slice(t, starts=[3], ends=[8], axes=[1]) }",
)
def slice_of_pad(m: Match) -> Outcome:
    padding, rows = padding_of(m.p), slice_rows(m.s.attrs)
    if padding is None or rows is None or len(m.p.args) != 1 or pad_value(m.p) is None:
        return refuse("the pads or the range are not known, or the Pad repeats elements")
    left = list(padding)
    for axis, (start, end, step) in rows.items():
        size, (before, after) = m.x.shape[axis], padding[axis]
        if not isinstance(size, int) or step != 1 or min(before, after) < 0:
            return refuse("the size is not known, or the range skips elements")
        taken = range(before + size + after)[start:end]
        if len(taken) == 0 or taken[0] > before or taken[-1] + 1 < before + size:
            return refuse("the range cuts elements off")
        left[axis] = (before - taken[0], taken[-1] + 1 - before - size)
    if not any(map(any, left)):
        return m.x
    pads = tuple(pair[0] for pair in left) + tuple(pair[1] for pair in left)
    return term("Pad", m.x, mode="constant", pads=pads, constant_value=m.p.attrs["constant_value"])


# Tile ------------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two Tiles in a row are one.",
    before="Tile(Tile(x, repeats=r), repeats=s)", after="Tile(x, repeats=t)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { t = Tile(x, repeats=[1, 2]) y = Tile(t, repeats=[3, 2]) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { t = Tile(x, repeats=[1, 2]) y = Relu(t) }",
)
def tile_tile(m: Match) -> Outcome:
    if not isinstance(m["r"], tuple) or not isinstance(m["s"], tuple):
        return refuse("the repeats are not known")
    return {"t": tuple(first * second for first, second in zip(m["r"], m["s"], strict=True))}


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Tile along axes of one element is an Expand.",
    before="Tile(x, repeats=r)", after="Expand(x, shape=s)",
    example="graph opset 17 (x: float32[1, 3]) -> (y) { y = Tile(x, repeats=[4, 1]) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { y = Tile(x, repeats=[4, 2]) }",
)
def tile_of_ones(m: Match) -> Outcome:
    repeats = m["r"]
    if not isinstance(repeats, tuple) or 0 in repeats:
        return refuse("the repeats are not known, or nothing is left")
    if any(count != 1 and size != 1 for count, size in zip(repeats, m.x.shape, strict=True)):
        return refuse("an axis of several elements is repeated")
    return {"s": m.root.type.shape}
