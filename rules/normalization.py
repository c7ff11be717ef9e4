"""LayerNormalization, RMSNormalization and Softmax recognised from their parts."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import numpy_dtype

from .declare import Leaf, Match, Operand, Outcome, Refusal, Rule, refuse, rule, term
from .values import COMMON_FLOATS, finite_constant, is_number, moderate_constant, number, splat_of

FAMILY = "normalization"
_X = "graph opset 17 (x: float32[n, 2, 4]) -> (y)"
_MAX_ELEMENTS = 1 << 20


def _tail(x: Operand, axes: object) -> tuple[int, ...] | Refusal:
    """The sizes of the normalised axes, which must be the last ones."""
    if x.dtype not in COMMON_FLOATS:
        return refuse("the operator computes in float32")
    if not isinstance(axes, tuple) or not axes or axes != tuple(range(x.rank - len(axes), x.rank)):
        return refuse("the axes are not the last ones")
    sizes = [dim for dim in x.shape[-len(axes):] if isinstance(dim, int)]
    if len(sizes) < len(axes) or not 0 < np.prod(sizes, dtype=np.int64) <= _MAX_ELEMENTS:
        return refuse("the sizes of the normalised axes are not known, or zero")
    return tuple(sizes)


def _epsilon(operand: Operand) -> float | None:
    value = number(operand)
    return value if value is not None and 0 <= value < 1 else None


def _ones(dtype: str, shape: tuple[int, ...]) -> Constant:
    return Constant.of(np.ones(shape, numpy_dtype(dtype)))


def _normalized(op: str, m: Match) -> Outcome:
    sizes, epsilon = _tail(m.x, m["a"]), _epsilon(m.eps)
    if isinstance(sizes, Refusal):
        return sizes
    if epsilon is None or any(dim != 1 for dim in m.eps.shape):
        return refuse("epsilon is not one small number")
    return term(op, m.x, _ones(m.x.dtype, sizes), axis=-len(sizes) + m.x.rank, epsilon=epsilon)


# LayerNormalization ----------------------------------------------------------------------------------------

_CENTRED = "Sub(x, ReduceMean(x, axes=a, keepdims=1))"
_MEAN = "m = ReduceMean(x, axes=[-1]) d = Sub(x, m) "
_SQUARES = {"product": (f"Mul({_CENTRED}, {_CENTRED})", "q = Mul(d, d) "),
            "power": (f"Pow({_CENTRED}, $two)", "two = constant float32[] 2 q = Pow(d, two) ")}
_END = "v = ReduceMean(q, axes=[-1]) e = constant float32[] 1e-5 a = Add(v, e) "
_ROOTS = {"root": ("Div({}, Sqrt(Add({}, $eps)))", "r = Sqrt(a) y = Div({}, r)"),
          "reciprocal": ("Mul({}, Reciprocal(Sqrt(Add({}, $eps))))", "r = Sqrt(a) i = Reciprocal(r) y = Mul({}, i)"),
          "power": ("Mul({}, Pow(Add({}, $eps), $exponent))",
                    "h = constant float32[] -0.5 r = Pow(a, h) y = Mul({}, r)"),
          "root-power": ("Div({}, Pow(Add({}, $eps), $exponent))",
                         "h = constant float32[] 0.5 r = Pow(a, h) y = Div({}, r)")}
_EXPONENT = {"power": -0.5, "root-power": 0.5}


def _constants(m: Match, square: str, root: str) -> Refusal | None:
    if square == "power" and not is_number(m.two, 2.0):
        return refuse("the exponent is not 2")
    if root in _EXPONENT and not is_number(m.exponent, _EXPONENT[root]):
        return refuse("the exponent is not that of a root")
    return None


def _layer_norm(square: str, root: str) -> Rule:
    squared, squared_text = _SQUARES[square]
    pattern, text = _ROOTS[root]

    @rule(
        family=FAMILY, exactness="rounding",
        meaning="A value less its mean, over the root of its variance, is LayerNormalization.",
        before=pattern.format(_CENTRED, f"ReduceMean({squared}, axes=a, keepdims=1)"),
        example=f"{_X} {{ {_MEAN}{squared_text}{_END}{text.format('d')} }}",
        near_miss="graph opset 17 (x: float32[4, 4, 4]) -> (y) { "
                  + f"{_MEAN}{squared_text}{_END}{text.format('d')} }}".replace("axes=[-1]", "axes=[-1], keepdims=0"),
    )
    def guard(m: Match) -> Outcome:
        return _constants(m, square, root) or _normalized("LayerNormalization", m)

    return guard.renamed(f"layer-norm-{square}-{root}")


LAYER_NORM = [_layer_norm(square, root) for square in _SQUARES for root in _ROOTS]


_INVERSE = "Reciprocal(Sqrt(Add(ReduceMean(Mul({d}, {d}), axes=a, keepdims=1), $eps)))".replace("{d}", _CENTRED)
_FACTOR = f"Mul({_INVERSE}, $g)"
_TF = _MEAN + "q = Mul(d, d) " + _END + "r = Sqrt(a) i = Reciprocal(r) f = Mul(i, g) p = Mul(x, f) o = Mul(m, f) "


@rule(
    family=FAMILY, exactness="rounding",
    meaning="LayerNormalization as TensorFlow writes it: a factor for x, and a shift less the mean times the factor.",
    before=f"Add(Mul(x, {_FACTOR}), Sub($b, Mul(ReduceMean(x, axes=a, keepdims=1), {_FACTOR})))",
    example=_X + " { g = constant float32[4] [1, 2, 3, 4] b = constant float32[4] [4, 3, 2, 1] " + _TF
            + "s = Sub(b, o) y = Add(p, s) }",
    near_miss=_X + " { g = constant float32[2, 1] [1, 2] b = constant float32[4] [4, 3, 2, 1] " + _TF
              + "s = Sub(b, o) y = Add(p, s) }",
)
def layer_norm_tensorflow(m: Match) -> Outcome:
    sizes, epsilon = _tail(m.x, m["a"]), _epsilon(m.eps)
    if isinstance(sizes, Refusal):
        return sizes
    axis = m.x.rank - len(sizes)
    scale, bias = (_parameter(each, m.x, axis) for each in (m.g, m.b))
    if epsilon is None or any(dim != 1 for dim in m.eps.shape) or scale is None or bias is None:
        return refuse("epsilon is not one small number, or scale and shift vary along other axes")
    if not finite_constant(m.g):
        return refuse("an infinite scale would cancel in the sum only")
    return term("LayerNormalization", m.x, scale, bias, axis=axis, epsilon=epsilon)


def _parameter(operand: Operand, x: Operand, axis: int) -> Leaf | None:
    """A scale or shift of exactly the normalised shape, written so, None where it lies along other axes."""
    wanted = x.shape[axis:]
    if operand.rank > x.rank or not all(isinstance(dim, int) for dim in wanted):
        return None
    shape = (1,) * (x.rank - operand.rank) + operand.shape
    if any(dim != 1 for dim in shape[:axis]) or any(dim not in (1, size) for dim, size in zip(shape[axis:], wanted)):
        return None
    if splat_of(operand) is None and operand.shape == wanted:
        return operand
    value: Leaf = operand if operand.shape == shape[axis:] else term("Reshape", operand, shape=shape[axis:])
    return value if shape[axis:] == wanted else term("Expand", value, shape=wanted)


def _scaled_norm(op: str, opset: int) -> Rule:
    head = f"graph opset {opset} (x: float32[n, 2, 4]) -> (y) {{ one = constant float32[4] [1, 1, 1, 1] "

    @rule(
        family=FAMILY, exactness="rounding", meaning=f"A scale along the normalised axes after {op} is its scale.",
        before=f"Mul(n:{op}(x, $one), $g)",
        example=head + f"g = constant float32[1, 1, 4] [1, 2, 3, 4] t = {op}(x, one) y = Mul(t, g) }}",
        near_miss=head + f"g = constant float32[2, 4] [1, 2, 3, 4, 5, 6, 7, 8] t = {op}(x, one) y = Mul(t, g) }}",
    )
    def guard(m: Match) -> Outcome:
        scale = _parameter(m.g, m.x, m.n.attrs["axis"])
        if scale is None or not is_number(m.one, 1.0):
            return refuse("the scale varies along other axes, or there is a scale already")
        return term(op, m.x, scale, **m.n.attrs)

    return guard.renamed(f"{op.lower()}-scale")


SCALED = [_scaled_norm("LayerNormalization", 17), _scaled_norm("RMSNormalization", 23)]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A shift along the normalised axes after LayerNormalization is its bias.",
    before="Add(n:LayerNormalization(x, g), $b)",
    example=_X + " { g = constant float32[4] [1, 2, 3, 4] b = constant float32[4] [4, 3, 2, 1] "
                 "t = LayerNormalization(x, g) y = Add(t, b) }",
    near_miss=_X + " { g = constant float32[4] [1, 2, 3, 4] b = constant float32[2, 1] [4, 3] "
                   "t = LayerNormalization(x, g) y = Add(t, b) }",
)
def layer_norm_bias(m: Match) -> Outcome:
    bias = _parameter(m.b, m.x, m.n.attrs["axis"])
    if bias is None or m.n.output:
        return refuse("the shift varies along other axes")
    return term("LayerNormalization", m.x, m.g, bias, **m.n.attrs)


# RMSNormalization ------------------------------------------------------------------------------------------


def _rms_norm(square: str, root: str) -> Rule:
    squared, squared_text = _SQUARES[square]
    pattern, text = _ROOTS[root]
    body = f"{squared_text}{_END}{text.format('x')}".replace("(d", "(x").replace(", d)", ", x)")

    @rule(
        family=FAMILY, exactness="rounding",
        meaning="A value over the root of its mean square is RMSNormalization.",
        before=pattern.format("x", f"ReduceMean({squared.replace(_CENTRED, 'x')}, axes=a, keepdims=1)"),
        example=f"graph opset 23 (x: float32[n, 2, 4]) -> (y) {{ {body} }}",
        near_miss="graph opset 23 (x: float32[4, 4, 4]) -> (y) {" + body.replace("axes=[-1]", "axes=[1]") + " }",
    )
    def guard(m: Match) -> Outcome:
        return _constants(m, square, root) or _normalized("RMSNormalization", m)

    return guard.renamed(f"rms-norm-{square}-{root}")


RMS_NORM = [_rms_norm(square, root) for square in _SQUARES for root in _ROOTS]


# What is normalized as a Sum -------------------------------------------------------------------------------

_SUMMED = "graph opset 17 (x: float32[n, 2, 4], z: float32[n, 2, 4]) -> (y) { t = Add(x, z) "


def _is_summed(m: Match) -> Refusal | None:
    """Is this an Add of two activations that a runtime may join with the normalization after it?"""
    if m.x.dtype not in COMMON_FLOATS:
        return refuse("the operator computes in float32")
    if m.x.rank != 3 or m.x.shape != m.z.shape or (m.x.is_constant and m.z.is_constant):
        return refuse("no runtime joins these")
    return None


def _sum_before_norm(bias: str) -> Rule:
    values = "g = constant float32[4] [1, 2, 3, 4] b = constant float32[4] [4, 3, 2, 1] "

    @rule(
        family=FAMILY, exactness="exact",
        meaning="The Add before a LayerNormalization is a Sum: ONNX Runtime joins an Add with it into "
                "SkipLayerNormalization, which is slower on CPUs.",
        before=f"n:LayerNormalization(Add(x, z), g{bias})",
        example=f"{_SUMMED}{values}y = LayerNormalization(t, g{bias}) }}",
        near_miss=f"{_SUMMED}{values}y = LayerNormalization(t, g{bias}) }}".replace("z: float32[n, 2, 4]",
                                                                                   "z: float32[4]"),
    )
    def guard(m: Match) -> Outcome:
        reason = _is_summed(m)
        if reason is not None or m.n.output:
            return reason or refuse("not what is normalized")
        return term("LayerNormalization", term("Sum", m.x, m.z), m.g, *([m.b] if bias else []), **m.n.attrs)

    return guard.renamed("sum-before-layer-norm" + ("-bias" if bias else ""))


SUMMED = [_sum_before_norm(bias) for bias in ("", ", b")]


@rule(
    family=FAMILY, exactness="exact",
    meaning="The Add before a LayerNormalization in parts is a Sum, as for the operator.",
    before="Sub(Add(x, z), ReduceMean(Add(x, z), axes=a, keepdims=1))",
    example=f"{_SUMMED}m = ReduceMean(t, axes=[-1]) y = Sub(t, m) }}",
    near_miss=f"{_SUMMED}m = ReduceMean(t, axes=[1]) y = Sub(t, m) }}",
)
def sum_before_mean(m: Match) -> Outcome:
    reason = _is_summed(m)
    if reason is not None or m["a"] != (m.x.rank - 1,):
        return reason or refuse("the mean is not that of the last axis")
    total = term("Sum", m.x, m.z)
    return term("Sub", total, term("ReduceMean", total, axes=m["a"], keepdims=1))


# Softmax ---------------------------------------------------------------------------------------------------

_SHIFTED = "Sub(x, ReduceMax(x, axes=a, keepdims=1))"
_SHIFT = "m = ReduceMax(x, axes=[-1]) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, axes=[-1]) "


def _one_axis(m: Match) -> Outcome:
    if not isinstance(m["a"], tuple) or len(m["a"]) != 1:
        return refuse("not one axis")
    return {"axis": m["a"][0]}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="exp(x - max) over its sum is Softmax.",
    before=f"Div(Exp({_SHIFTED}), ReduceSum(Exp({_SHIFTED}), axes=a, keepdims=1))", after="Softmax(x, axis=axis)",
    example=f"{_X} {{ {_SHIFT}y = Div(e, s) }}",
    near_miss="graph opset 17 (x: float32[n, 4, 4]) -> (y) { "
              f"{_SHIFT.replace('ReduceSum(e, axes=[-1])', 'ReduceSum(e, axes=[1])')}y = Div(e, s) }}",
)
def softmax_parts(m: Match) -> Outcome:
    return _one_axis(m)


@rule(
    family=FAMILY, exactness="finite",
    meaning="exp(x) over its sum is Softmax, which does not overflow.",
    before="Div(Exp(x), ReduceSum(Exp(x), axes=a, keepdims=1))", after="Softmax(x, axis=axis)",
    example=f"{_X} {{ e = Exp(x) s = ReduceSum(e, axes=[-1]) y = Div(e, s) }}",
    near_miss=f"{_X} {{ e = Exp(x) s = ReduceSum(e, axes=[-1, -2]) y = Div(e, s) }}",
)
def softmax_unshifted(m: Match) -> Outcome:
    return _one_axis(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="x - max - log(sum(exp(x - max))) is LogSoftmax.",
    before=f"Sub({_SHIFTED}, Log(ReduceSum(Exp({_SHIFTED}), axes=a, keepdims=1)))", after="LogSoftmax(x, axis=axis)",
    example=f"{_X} {{ {_SHIFT}l = Log(s) y = Sub(d, l) }}",
    near_miss=f"{_X} {{ {_SHIFT}l = Log(s) y = Sub(x, l) }}",
)
def log_softmax_parts(m: Match) -> Outcome:
    if m.x.dtype not in COMMON_FLOATS:
        return refuse(f"what runtimes make of infinity in LogSoftmax of {m.x.dtype} differs")
    return _one_axis(m)


@rule(
    family=FAMILY, exactness="finite",
    meaning="The logarithm of Softmax is LogSoftmax (which gives finite numbers where Softmax is 0).",
    before="Log(Softmax(x, axis=a))", after="LogSoftmax(x, axis=a)",
    example=f"{_X} {{ s = Softmax(x) y = Log(s) }}",
    near_miss=f"{_X} {{ s = Sigmoid(x) y = Log(s) }}",
)
def log_of_softmax(m: Match) -> Outcome:
    return None


# Parameters inside -----------------------------------------------------------------------------------------

_INSIDE = {
    "reciprocal": ("Mul({d}, Mul(Reciprocal(Sqrt({v})), $g))",
                   "r = Sqrt(a) i = Reciprocal(r) f = Mul(i, g) y = Mul({d}, f)"),
    "quotient": ("Mul({d}, Div($g, Sqrt({v})))", "r = Sqrt(a) f = Div(g, r) y = Mul({d}, f)"),
    "scaled-first": ("Div(Mul({d}, $g), Sqrt({v}))", "r = Sqrt(a) f = Mul({d}, g) y = Div(f, r)"),
}  # fmt: skip


def _scale_inside(op: str, opset: int, form: str) -> Rule:
    value = _CENTRED if op == "LayerNormalization" else "x"
    pattern, text = _INSIDE[form]
    variance = f"Add(ReduceMean(Mul({value}, {value}), axes=a, keepdims=1), $eps)"
    letter = "d" if op == "LayerNormalization" else "x"
    body = (_MEAN if op == "LayerNormalization" else "") + f"q = Mul({letter}, {letter}) " + _END
    head = f"graph opset {opset} (x: float32[n, 2, 4]) -> (y) {{ g = constant float32[4] [1, 2, 3, 4] "

    @rule(
        family=FAMILY, exactness="rounding", meaning=f"{op} whose scale stands before the division.",
        before=pattern.format(d=value, v=variance),
        example=head + body + text.format(d=letter) + " }",
        near_miss=head.replace("[4] [1, 2, 3, 4]", "[2, 1] [1, 2]") + body + text.format(d=letter) + " }",
    )
    def guard(m: Match) -> Outcome:
        sizes, epsilon = _tail(m.x, m["a"]), _epsilon(m.eps)
        if isinstance(sizes, Refusal):
            return sizes
        axis = m.x.rank - len(sizes)
        scale = _parameter(m.g, m.x, axis)
        if epsilon is None or any(dim != 1 for dim in m.eps.shape) or scale is None:
            return refuse("epsilon is not one small number, or the scale varies along other axes")
        if not moderate_constant(m.g):
            return refuse("the scale is not of moderate size: it might overflow before the division")
        return term(op, m.x, scale, axis=axis, epsilon=epsilon)

    return guard.renamed(f"{op.lower()}-{form}")


SCALE_INSIDE = [_scale_inside(op, opset, form) for op, opset in (("LayerNormalization", 17), ("RMSNormalization", 23))
                for form in _INSIDE]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="LayerNormalization over all spatial axes with a scale and a shift for each channel is "
            "InstanceNormalization.",
    before="Add(Mul(n:LayerNormalization(x, $one), $g), $b)",
    example="graph opset 17 (x: float32[n, 2, 4]) -> (y) { one = constant float32[4] [1, 1, 1, 1] "
            "g = constant float32[2, 1] [1, 2] b = constant float32[2, 1] [4, 3] "
            "t = LayerNormalization(x, one) s = Mul(t, g) y = Add(s, b) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4]) -> (y) { one = constant float32[4] [1, 1, 1, 1] "
              "g = constant float32[4] [1, 2, 3, 4] b = constant float32[2, 1] [4, 3] "
              "t = LayerNormalization(x, one) s = Mul(t, g) y = Add(s, b) }",
)
def layer_norm_as_instance_norm(m: Match) -> Outcome:
    if m.x.rank < 3 or m.n.attrs["axis"] != 2 or m.n.output or not is_number(m.one, 1.0) or m.x.dtype != "float32":
        return refuse("not all spatial axes, or there is a scale already")
    scale, bias = (_per_channel(each, m.x) for each in (m.g, m.b))
    if scale is None or bias is None:
        return refuse("scale and shift are not one number for each channel")
    return term("InstanceNormalization", m.x, scale, bias, epsilon=m.n.attrs["epsilon"])


def _per_channel(operand: Operand, x: Operand) -> Leaf | None:
    """A constant with one value for each channel, as a vector."""
    channels = x.shape[1]
    wanted = (1,) * (operand.rank - x.rank + 1) + (channels,) + (1,) * (x.rank - 2)
    if not isinstance(channels, int) or operand.shape != wanted:
        return None
    return term("Reshape", operand, shape=(channels,))
