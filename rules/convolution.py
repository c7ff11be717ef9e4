"""Convolution rules: BatchNormalization, scales, shifts and padding around a convolution move into it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.constants import Constant
from graphs.dims import DimLike

from .affine import batch_norm, narrowed, per_channel, vector
from .declare import Leaf, Match, NodeView, Operand, Outcome, Refusal, Rule, refuse, rule, term
from .padding import pad_value, padding_of
from .values import finite_constant, fold, is_float

FAMILY = "convolution"
_CONV = ("x: float32[n, 2, 4, 4]", "w = constant float32[3, 2, 1, 1] [1, -2, 3, 0.5, 5, 6]", "Conv")
_DECONV = ("x: float32[n, 2, 4, 4]", "w = constant float32[2, 3, 1, 1] [1, -2, 3, 0.5, 5, 6]", "ConvTranspose")
_BN = ("s = constant float32[3] [1, 2, -1] b = constant float32[3] [0.5, 0, 1] m = constant float32[3] [1, 2, 3] "
       "v = constant float32[3] [1, 4, 0.25]")


def _channels(view: NodeView) -> DimLike:
    return view.type.shape[1] if view.type.shape is not None and len(view.type.shape) > 2 else 0


def _scaled_weight(view: NodeView, weight: Operand, factor: np.ndarray) -> Leaf | None:
    """The weight of a Conv or ConvTranspose with each output channel scaled."""
    tail = (1,) * (weight.rank - 2)
    if view.op == "Conv":
        shaped = factor.reshape(-1, 1, *tail)
    else:  # [in, out / group, ...]: the channels of a group along axis 1, the groups along axis 0
        rows, groups = weight.shape[0], view.attrs["group"]
        if not isinstance(rows, int) or rows % groups or len(factor) % groups:
            return None
        by_group = factor.reshape(groups, 1, -1).repeat(rows // groups, axis=1)
        shaped = by_group.reshape(rows, len(factor) // groups, *tail)
    return _times(weight, shaped)


def _times(weight: Operand, factor: np.ndarray) -> Leaf | None:
    """The weight times a factor, None where NaN, infinities or an overflow are in the way."""
    facts, scale = weight.facts, narrowed(weight.dtype, factor)
    if scale is None or (facts is not None and not facts.finite):
        return None
    if facts is not None and facts.low is not None and facts.high is not None:
        largest = max(abs(facts.low), abs(facts.high)) * float(np.abs(factor).max(initial=0.0))
        if narrowed(weight.dtype, np.array(largest)) is None:
            return None
    return fold("Mul", weight, scale)


def _affine(m: Match, view: NodeView, factor: np.ndarray | None, shift: np.ndarray | None) -> Outcome:
    """The convolution with its result scaled and shifted per channel."""
    weight, bias = m.w, m.b
    if factor is not None and not (np.abs(factor) < 2.0**40).all():
        return refuse("the scale is too large")
    new_weight: Leaf | None = weight if factor is None else _scaled_weight(view, weight, factor)
    if new_weight is None:
        return refuse("the scaled weight would not be finite")
    new_bias: Leaf | None = bias
    known = None if bias is None else vector(bias)
    if bias is not None and known is None:
        return refuse("the bias is not known to be finite")
    total = np.zeros(len(factor) if factor is not None else len(shift)) if known is None else known  # type: ignore[arg-type]
    total = total if factor is None else total * factor
    total = total if shift is None else total + shift
    if bias is not None or shift is not None:
        new_bias = narrowed(weight.dtype, total)
        if new_bias is None:
            return refuse("the new bias would overflow")
    return term(view.op, m.x, new_weight, new_bias, **view.attrs)


def _after(op: str, name: str, before: str, body: str, miss: str,
           change: Callable[[np.ndarray], tuple[np.ndarray | None, np.ndarray | None]]) -> Rule:
    inputs, weight, conv = _CONV if op == "Conv" else _DECONV
    head = f"graph opset 17 ({inputs}) -> (y) {{ {weight} c = constant float32[3, 1, 1] [0.5, 2, -3] t = {conv}(x, w) "

    @rule(
        family=FAMILY, exactness="rounding",
        meaning=f"A constant per channel after a {op} moves into its weight and bias.",
        before=before, example=head + body + " }",
        near_miss=head.replace("[3, 1, 1] [0.5, 2, -3]", "[4] [1, 2, 3, 4]") + miss + " }",
    )
    def guard(m: Match) -> Outcome:
        constant = per_channel(m.k, _channels(m.c), m.c.type.rank or 0)
        if constant is None:
            return refuse("the constant is not one number or one a channel")
        return _affine(m, m.c, *change(constant))

    return guard.renamed(f"{op.lower()}-then-{name}")


def _quotient(constant: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    with np.errstate(all="ignore"):
        factor = 1.0 / constant
    return np.where(np.isfinite(factor), factor, np.inf), None


AFTER = [each for op in ("Conv", "ConvTranspose") for each in (
    _after(op, "mul", f"Mul(c:{op}(x, $w, $?b), $k)", "y = Mul(t, c)", "y = Mul(t, c)", lambda k: (k, None)),
    _after(op, "div", f"Div(c:{op}(x, $w, $?b), $k)", "y = Div(t, c)", "y = Div(c, t)", _quotient),
    _after(op, "add", f"Add(c:{op}(x, $w, $?b), $k)", "y = Add(c, t)", "y = Add(c, t)", lambda k: (None, k)),
    _after(op, "sub", f"Sub(c:{op}(x, $w, $?b), $k)", "y = Sub(t, c)", "y = Sub(t, c)", lambda k: (None, -k)),
)]  # fmt: skip


def _then_batch_norm(op: str) -> Rule:
    inputs, weight, conv = _CONV if op == "Conv" else _DECONV
    head = f"graph opset 17 ({inputs}) -> (y) {{ {weight} {_BN} t = {conv}(x, w) "

    @rule(
        family=FAMILY, exactness="rounding",
        meaning=f"An inference BatchNormalization after a {op} moves into its weight and bias.",
        before=f"n:BatchNormalization(c:{op}(x, $w, $?b), $s, $h, $m, $v)",
        example=head + "y = BatchNormalization(t, s, b, m, v) }",
        near_miss=head.replace("[1, 4, 0.25]", "[1, -4, 0.25]") + "y = BatchNormalization(t, s, b, m, v) }",
    )
    def guard(m: Match) -> Outcome:
        if m.n.attrs["training_mode"] or m.root.output:
            return refuse("in training the statistics come from the batch")
        found = batch_norm(m.s, m.h, m.m, m.v, m.n.attrs["epsilon"])
        if found is None:
            return refuse("the statistics are not known, or give no finite scale")
        return _affine(m, m.c, *found)

    return guard.renamed(f"{op.lower()}-then-batch-norm")


BATCH_NORM = [_then_batch_norm("Conv"), _then_batch_norm("ConvTranspose")]


# Before the convolution ------------------------------------------------------------------------------------


def _by_input(view: NodeView, weight: Operand, values: np.ndarray) -> np.ndarray | None:
    """Values of the input channels laid out like the first two axes of a Conv weight."""
    outputs, inputs, groups = weight.shape[0], weight.shape[1], view.attrs["group"]
    if not isinstance(outputs, int) or not isinstance(inputs, int):
        return None
    if groups < 1 or outputs % groups or len(values) != inputs * groups:
        return None
    rows = values.reshape(groups, 1, inputs).repeat(outputs // groups, axis=1)
    return rows.reshape(outputs, inputs, *(1,) * (weight.rank - 2))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A scale before a Conv moves into its weight; padding stays zero.",
    before="c:Conv(Mul(x, $k), $w, ?b)",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[2, 1, 1, 1] [1, 2] "
            "k = constant float32[2, 1, 1] [0.5, 3] t = Mul(x, k) y = Conv(t, w, group=2, pads=[1, 1, 1, 1]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[2, 1, 1, 1] [1, 2] "
              "k = constant float32[4, 1] [0.5, 3, 1, 2] t = Mul(x, k) y = Conv(t, w, group=2) }",
)
def scale_then_conv(m: Match) -> Outcome:
    values = per_channel(m.k, m.x.shape[1] if m.x.rank > 2 else 0, m.x.rank)
    if values is None or not (np.abs(values) < 2.0**40).all():
        return refuse("the scale is not one number or one a channel")
    shaped = _by_input(m.c, m.w, values)
    weight = None if shaped is None else _times(m.w, shaped)
    if weight is None:
        return refuse("the scaled weight would not be finite")
    return term("Conv", m.x, weight, m.b, **m.c.attrs)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A division before a Conv moves into its weight; padding stays zero.",
    before="c:Conv(Div(x, $k), $w, ?b)",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
            "k = constant float32[] 255 t = Div(x, k) y = Conv(t, w, pads=[1, 1, 1, 1]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
              "k = constant float32[] 0 t = Div(x, k) y = Conv(t, w, pads=[1, 1, 1, 1]) }",
)
def division_then_conv(m: Match) -> Outcome:
    values = per_channel(m.k, m.x.shape[1] if m.x.rank > 2 else 0, m.x.rank)
    if values is None or not (np.abs(values) > 2.0**-40).all():
        return refuse("the divisor is not one number or one a channel, or zero")
    shaped = _by_input(m.c, m.w, 1.0 / values)
    weight = None if shaped is None else _times(m.w, shaped)
    if weight is None:
        return refuse("the scaled weight would not be finite")
    return term("Conv", m.x, weight, m.b, **m.c.attrs)


def _unpadded(view: NodeView) -> bool:
    return view.attrs["auto_pad"] == "VALID" or (view.attrs["auto_pad"] == "NOTSET"
                                                 and not any(view.attrs["pads"] or ()))


def _input_shift(m: Match, factor: np.ndarray | None, shift: np.ndarray) -> Outcome:
    """Conv(x * factor + shift) without padding."""
    if not _unpadded(m.c):
        return refuse("the padding is not shifted")
    array = m.w.array
    shaped = _by_input(m.c, m.w, shift)
    if array is None or shaped is None or not finite_constant(m.w):
        return refuse("the weight is not known")
    wide = array.astype(np.float64)
    moved = (wide * shaped).reshape(len(wide), -1).sum(axis=1)
    known = None if m.b is None else vector(m.b)
    if m.b is not None and known is None:
        return refuse("the bias is not known to be finite")
    bias = narrowed(m.w.dtype, moved if known is None else moved + known)
    weight: Constant | Operand | None = m.w
    if factor is not None:
        scale = _by_input(m.c, m.w, factor)
        weight = None if scale is None else narrowed(m.w.dtype, wide * scale)
    if bias is None or weight is None:
        return refuse("the new weight or bias would overflow")
    return term("Conv", m.x, weight, bias, **m.c.attrs)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A shift before a Conv without padding becomes a bias.",
    before="c:Conv(Add(x, $k), $w, $?b)",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
            "k = constant float32[2, 1, 1] [0.5, 3] t = Add(x, k) y = Conv(t, w) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
              "k = constant float32[2, 1, 1] [0.5, 3] t = Add(x, k) y = Conv(t, w, pads=[1, 1, 1, 1]) }",
)
def shift_then_conv(m: Match) -> Outcome:
    values = per_channel(m.k, m.x.shape[1] if m.x.rank > 2 else 0, m.x.rank)
    return refuse("the shift is not one number or one a channel") if values is None else _input_shift(m, None, values)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An inference BatchNormalization before a Conv without padding moves into its weight and bias.",
    before="c:Conv(n:BatchNormalization(x, $s, $h, $m, $v), $w, $?b)",
    example="graph opset 17 (x: float32[n, 3, 4, 4]) -> (y) { w = constant float32[1, 3, 1, 1] [1, 2, 3] " + _BN
            + " t = BatchNormalization(x, s, b, m, v) y = Conv(t, w) }",
    near_miss="graph opset 17 (x: float32[n, 3, 4, 4]) -> (y) { w = constant float32[1, 3, 1, 1] [1, 2, 3] " + _BN
              + " t = BatchNormalization(x, s, b, m, v) y = Conv(t, w, auto_pad=\"SAME_UPPER\", strides=[3, 3]) }",
)
def batch_norm_then_conv(m: Match) -> Outcome:
    if m.n.attrs["training_mode"] or m.n.output:
        return refuse("in training the statistics come from the batch")
    found = batch_norm(m.s, m.h, m.m, m.v, m.n.attrs["epsilon"])
    return refuse("the statistics are not known") if found is None else _input_shift(m, *found)


# Padding ---------------------------------------------------------------------------------------------------


def _joined_pads(m: Match, value: float = 0.0) -> tuple[int, ...] | Refusal:
    """The pads of a window operator `c` with those of a Pad `p` with a value before it."""
    padding = padding_of(m.p)
    if padding is None or len(m.p.args) != 1 or pad_value(m.p) != value or m.x.rank < 3:
        return refuse(f"the Pad does not fill in {value}, or its pads are not known")
    if any(map(any, padding[:2])) or any(side < 0 for pair in padding for side in pair):
        return refuse("the Pad reaches batch or channels, or cuts off")
    if m.c.attrs["auto_pad"] not in ("NOTSET", "VALID"):
        return refuse("automatic padding depends on the size of the input")
    if 0 in m.x.shape[2:]:
        return refuse("runtimes want windows over something that is not empty")
    spatial = m.x.rank - 2
    own = (m.c.attrs["pads"] if m.c.attrs["auto_pad"] == "NOTSET" else None) or (0,) * 2 * spatial
    before = tuple(own[axis] + padding[axis + 2][0] for axis in range(spatial))
    return before + tuple(own[axis + spatial] + padding[axis + 2][1] for axis in range(spatial))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A Conv pads with zeros itself.",
    before="c:Conv(p:Pad(x), w, ?b)",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
            "t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 2]) y = Conv(t, w, auto_pad=\"VALID\") }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
              "t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 2], constant_value=1.0) y = Conv(t, w) }",
)
def pad_then_conv(m: Match) -> Outcome:
    pads = _joined_pads(m)
    if isinstance(pads, Refusal):
        return pads
    return term("Conv", m.x, m.w, m.b, **{**m.c.attrs, "auto_pad": "NOTSET", "pads": pads})


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An AveragePool that counts its padding takes over a zero Pad.",
    before="c:AveragePool(p:Pad(x))",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) "
            "{ t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 1]) y = AveragePool(t, kernel_shape=[2, 2]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 1]) "
              "y = AveragePool(t, kernel_shape=[2, 2], pads=[1, 1, 1, 1]) }",
)
def pad_then_average(m: Match) -> Outcome:
    pads = _joined_pads(m)
    if isinstance(pads, Refusal):
        return pads
    attrs = m.c.attrs
    if attrs["ceil_mode"]:
        return refuse("windows that reach past the end count differently")
    if not attrs["count_include_pad"] and not _unpadded(m.c):
        return refuse("the pool leaves its own padding out of the count")
    if not _small_pads(m, pads):
        return refuse("runtimes want pads smaller than the window")
    return term("AveragePool", m.x, **{**attrs, "auto_pad": "NOTSET", "pads": pads, "count_include_pad": 1})


def _small_pads(m: Match, pads: tuple[int, ...]) -> bool:
    spatial, kernel = m.x.rank - 2, m.c.attrs["kernel_shape"]
    return all(pads[axis] < size and pads[axis + spatial] < size for axis, size in enumerate(kernel))


@rule(
    family=FAMILY, exactness="finite",
    meaning="A MaxPool takes over a Pad with minus infinity, which is what its own padding counts as.",
    before="c:MaxPool(p:Pad(x))",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) "
            "{ t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 1], constant_value=-inf) y = MaxPool(t, kernel_shape=[2, 2]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) "
              "{ t = Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 1], constant_value=0.0) y = MaxPool(t, kernel_shape=[2, 2]) }",
)
def pad_then_max(m: Match) -> Outcome:
    if not is_float(m.x):
        return refuse("integers have no minus infinity to pad with")
    pads = _joined_pads(m, -np.inf)
    if isinstance(pads, Refusal):
        return pads
    if m.c.attrs["ceil_mode"] or not _small_pads(m, pads):
        return refuse("windows that reach past the end, or pads as large as the window")
    return term("MaxPool", m.x, **{**m.c.attrs, "auto_pad": "NOTSET", "pads": pads})


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A bias of zeros adds nothing.",
    before="c:Conv(x, w, $b)", after="Conv(x, w, *c)",
    example="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
            "b = constant float32[1] [0] y = Conv(x, w, b) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4, 4]) -> (y) { w = constant float32[1, 2, 1, 1] [1, 2] "
              "b = constant float32[1] [1] y = Conv(x, w, b) }",
)
def conv_zero_bias(m: Match) -> Outcome:
    return None if m.b.splat == 0 else refuse("the bias is not 0 everywhere")
