"""How a node of each operator comes about: one line an operator. What the table has and this has not is `NOT_YET`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphs.builder import Builder, Value
from graphs.dtypes import ONNX_NUMBER

from .maker import ANY, FLOAT, INTEGER, NUMBER, Maker, Refused, rank_of, size_of

Recipe = Callable[[Maker], object]


def unary(op: str, dtypes: Sequence[str] = FLOAT, sure: bool = False, **attrs: tuple[Any, ...]) -> Recipe:
    """One operand of any shape; attributes are given as the values to choose from."""
    return lambda m: m.op(op, m.pick(dtypes, sure=sure), **{key: m.one_of(each) for key, each in attrs.items()})


def binary(op: str, dtypes: Sequence[str] = NUMBER, sure: bool = False) -> Recipe:
    """Two operands that broadcast, in either order."""
    def make(m: Maker) -> Value:
        first = m.pick(dtypes, sure=sure)
        second = m.beside(first)
        if sure and m.smooth and second.name in m.rough:
            raise Refused
        return m.op(op, second, first) if m.chance(0.4) else m.op(op, first, second)
    return make


def variadic(op: str, dtypes: Sequence[str] = NUMBER) -> Recipe:
    """Two or three operands that broadcast."""
    def make(m: Maker) -> Value:
        first = m.pick(dtypes)
        return m.op(op, first, *[m.beside(first) for _ in range(m.number(0, 2))])
    return make


def reduction(op: str, dtypes: Sequence[str] = FLOAT) -> Recipe:
    """Some axes, or all."""
    def make(m: Maker) -> Value:
        value = m.pick(dtypes, low=1)
        count = m.number(1, rank_of(value))
        axes = [axis - rank_of(value) if m.chance(0.3) else axis for axis in m.permutation(rank_of(value))[:count]]
        return m.op(op, value, axes=None if m.chance(0.15) else axes, keepdims=m.number(0, 1))
    return make


def along(op: str, dtypes: Sequence[str] = FLOAT, sure: bool = False, **attrs: tuple[Any, ...]) -> Recipe:
    """One axis."""
    def make(m: Maker) -> object:
        value = m.pick(dtypes, low=1, sure=sure)
        return m.op(op, value, axis=m.axis(value), **{key: m.one_of(each) for key, each in attrs.items()})
    return make


def whole(m: Maker, number: int) -> Value:
    """A scalar constant."""
    return m.b.constant(np.array(number, np.int64))


# ---------------------------------------------------------------- operators with a form of their own


def clip(m: Maker) -> Value:
    value = m.pick(NUMBER)
    low, high = m.one_of([(0, 6), (None, 1), (-1, None), (0, 1), (2, -2), (None, None)])
    return m.op("Clip", value, min=low, max=high)


def where(m: Maker) -> Value:
    value = m.pick(ANY)
    assert value.shape is not None
    fit = [each for each in m.values if each.dtype == "bool" and each.shape == value.shape]
    condition = m.one_of(fit) if fit else m.constant("bool", m.part_of(value.shape)) if m.chance(0.4) else (
        m.input("bool", m.part_of(value.shape, static=False)))
    return m.op("Where", condition, value, m.beside(value))


def cast(m: Maker) -> Value:
    value = m.pick(ANY)
    to = m.one_of([each for each in ANY if each != value.dtype] if m.chance(0.9) else ANY)
    if m.smooth and to not in FLOAT and value.name in m.rough:
        to = m.one_of(FLOAT)
    if value.dtype in FLOAT and to in INTEGER:
        value = m.op("Clip", value, min=-100, max=100)  # beyond that, NaN included, a cast is not defined
        value = m.op("Where", m.op("IsNaN", value), m.b.constant(np.zeros((), str(value.dtype))), value)
    return m.op("Cast", value, to=ONNX_NUMBER[to])


def isnan(m: Maker) -> Value:
    return m.op(m.one_of(["IsNaN", "IsInf"]), m.pick(FLOAT, sure=True))


def matmul(m: Maker) -> Value:
    a = m.pick(NUMBER, low=1)
    assert a.shape is not None and a.dtype is not None
    inner = a.shape[-1]
    fit = [each for each in m.values if each.dtype == a.dtype and each.shape and rank_of(each) >= 2
           and each.shape[-2] == inner]
    if fit and m.chance(0.3):
        return m.op("MatMul", a, m.one_of(fit))
    batch = a.shape[:-2] if m.chance(0.15) and rank_of(a) > 2 else ()
    if isinstance(inner, int) and m.chance(0.8):
        return m.op("MatMul", a, m.weights(a.dtype, (*(d if isinstance(d, int) else 1 for d in batch), inner,
                                                     m.number(1, 5))))
    return m.op("MatMul", a, m.input(a.dtype, (*batch, inner, m.number(1, 5))))


def gemm(m: Maker) -> Value:
    a = m.pick(FLOAT, low=2, high=2)
    assert a.dtype is not None
    rows, turned = m.number(0, 1), m.number(0, 1)
    inner, out = size_of(a, 0 if rows else 1), m.number(1, 5)
    weight = m.weights(a.dtype, (out, inner) if turned else (inner, out))
    bias = None if m.chance(0.3) else m.constant(a.dtype, m.one_of([(out,), (), (1, out)]))
    return m.op("Gemm", a, weight, bias, transA=rows, transB=turned, alpha=m.one_of([1.0, 1.0, 0.5, -2.0]),
                beta=m.one_of([1.0, 1.0, 0.0, 2.0]))


def image(m: Maker) -> Value:
    """An operand for windows: batch, channels, and one or two spatial axes."""
    value = m.pick(("float32",), low=3, high=4, where=lambda each: all(
        isinstance(dim, int) and dim > 0 for dim in (each.shape or (0,))[1:]))
    return value


def of_image(op: str, **attrs: Any) -> Recipe:
    """One image, nothing else."""
    return lambda m: m.op(op, image(m), **attrs)


def resize(m: Maker) -> Value:
    value = image(m)
    scales = [1.0, 1.0, *(m.one_of([1.0, 2.0]) for _ in range(rank_of(value) - 2))]
    return m.op("Resize", value, None, np.array(scales, np.float32), mode=m.one_of(["nearest", "linear"]),
                coordinate_transformation_mode="asymmetric")


def cast_like(m: Maker) -> Value:
    value = m.pick(("float32", "float64", "float16"))
    return m.op("CastLike", value, m.pick(FLOAT))


def compress(m: Maker) -> Value:
    value = m.pick(("float32", "int64"), low=1)
    axis = m.axis(value)
    return m.op("Compress", value, np.asarray(m.rng.random(size_of(value, axis)) < 0.6), axis=axis)


def window(m: Maker, value: Value, dilated: bool = True) -> dict[str, Any]:
    spatial = rank_of(value) - 2
    kernel = [m.number(1, min(3, size_of(value, axis + 2))) for axis in range(spatial)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if m.chance(0.4):
        attrs["strides"] = [m.number(1, 2) for _ in kernel]
    if m.chance(0.4):
        attrs["pads"] = [m.number(0, size - 1) for size in kernel * 2]
    elif m.chance(0.15):
        attrs["auto_pad"] = m.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attrs


def conv(m: Maker) -> Value:
    value = image(m)
    attrs, channels = window(m, value), size_of(value, 1)
    group = channels if m.chance(0.25) else 1
    out = group * m.number(1, 3)
    weight = m.weights("float32", (out, channels // group, *attrs["kernel_shape"]))
    return m.op("Conv", value, weight, None if m.chance(0.4) else m.weights("float32", (out,)), group=group, **attrs)


def conv_transpose(m: Maker) -> Value:
    value = image(m)
    attrs, channels = window(m, value), size_of(value, 1)
    if "auto_pad" in attrs:
        raise Refused
    weight = m.weights("float32", (channels, m.number(1, 3), *attrs["kernel_shape"]))
    return m.op("ConvTranspose", value, weight, **attrs)


def pool(op: str) -> Recipe:
    def make(m: Maker) -> Value:
        value = image(m)
        more = {"count_include_pad": m.number(0, 1)} if op == "AveragePool" else {}
        return m.op(op, value, **window(m, value), **more)
    return make


def over_channels(op: str, count: int, dtypes: Sequence[str] = ("float32",)) -> Recipe:
    """Scale, shift, mean and variance by channel."""
    def make(m: Maker) -> Value:
        value = m.pick(dtypes, low=3 if op == "InstanceNormalization" else 2)
        assert value.dtype is not None
        channels = size_of(value, 1)
        tables = [m.weights(value.dtype, (channels,)) for _ in range(count)]
        if count == 4:
            spread = np.abs(m.rng.standard_normal(channels)) + 0.1
            tables[3] = m.b.constant(spread.astype(value.dtype))
        return m.op(op, value, *tables, epsilon=m.one_of([1e-5, 1e-3]))
    return make


def layer_norm(m: Maker) -> Value:
    value = m.pick(("float32", "float64"), low=1)
    assert value.dtype is not None
    last = size_of(value, -1)
    bias = m.weights(value.dtype, (last,)) if m.chance(0.6) else None
    return m.op("LayerNormalization", value, m.weights(value.dtype, (last,)), bias, axis=-1)


def transpose(m: Maker) -> Value:
    value = m.pick(ANY, low=2)
    return m.op("Transpose", value, perm=m.permutation(rank_of(value)))


def reshape(m: Maker) -> Value:
    value = m.pick(ANY)
    assert value.shape is not None
    if not all(isinstance(dim, int) for dim in value.shape):
        keep = m.number(0, rank_of(value))
        return m.op("Reshape", value, shape=[0] * keep + [-1]) if keep < rank_of(value) else m.op(
            "Flatten", value, axis=m.axis(value))
    count = int(np.prod(value.shape, dtype=np.int64))  # type: ignore[arg-type]
    targets = [[count], [1, count], [count, 1], [-1], list(value.shape)[::-1]]
    targets += [[k, count // k] for k in (2, 3, 4) if count and count % k == 0]
    if count:
        targets += [[k, -1, j] for k in (1, 2, 3) for j in (1, 2) if count % (k * j) == 0]
    return m.op("Reshape", value, shape=m.one_of(targets))


def squeeze(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    ones = [axis for axis, dim in enumerate(value.shape or ()) if dim == 1]
    return m.op("Squeeze", value, axes=[m.one_of(ones)])


def unsqueeze(m: Maker) -> Value:
    value = m.pick(ANY, high=3)
    axes = sorted({m.number(0, rank_of(value) + 1) for _ in range(2)})
    return m.op("Unsqueeze", value, axes=axes if axes[-1] < rank_of(value) + len(axes) else [0])


def slices(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    axes = m.permutation(rank_of(value))[: m.number(1, 2)]
    starts = [m.one_of([0, 1, -1, -2, 2]) for _ in axes]
    ends = [m.one_of([1, 2, -1, 2**62, 100]) for _ in axes]
    steps = [m.one_of([1, 1, 1, 2, -1]) for _ in axes]
    return m.op("Slice", value, starts=starts, ends=ends, axes=axes, steps=steps)


def concat(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    assert value.shape is not None
    fit = [each for each in m.values if each.dtype == value.dtype and each.shape == value.shape]
    parts = [value, *(m.one_of(fit) for _ in range(m.number(0, 2)))]
    if m.chance(0.3) and all(isinstance(dim, int) for dim in value.shape):
        parts.append(m.constant(str(value.dtype), value.shape))
    return m.op("Concat", *parts, axis=m.axis(value))


def split(m: Maker) -> object:
    value = m.pick(ANY, low=1)
    axis = m.axis(value)
    size = size_of(value, axis)
    first = m.number(1, size - 1)
    return m.ops("Split", value, axis=axis, split=[first, size - first], outputs=2)


def pad(m: Maker) -> Value:
    value = m.pick(NUMBER, low=1)
    mode = m.one_of(["constant", "constant", "constant", "edge", "reflect"])
    pads = [m.one_of([0, 0, 1, 2] if mode == "constant" else [0, 0, 1]) for _ in range(2 * rank_of(value))]
    if mode != "constant" and any(dim == 0 or dim == 1 or not isinstance(dim, int) for dim in value.shape or ()):
        raise Refused
    filling = m.constant(str(value.dtype), ()) if mode == "constant" and m.chance(0.4) else None
    return m.op("Pad", value, None, filling, pads=pads, mode=mode)


def expand(m: Maker) -> Value:
    value = m.pick(ANY, high=3)
    target = [m.number(2, 3) if dim == 1 else 1 for dim in value.shape or ()]
    return m.op("Expand", value, shape=[2, *target] if m.chance(0.3) else target)


def tile(m: Maker) -> Value:
    value = m.pick(ANY, low=1, high=3)
    return m.op("Tile", value, repeats=[m.one_of([1, 1, 2]) for _ in range(rank_of(value))])


def gather(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    axis = m.axis(value)
    size = size_of(value, axis)
    indices = m.rng.integers(-size, size, m.one_of([(), (1,), (2,), (2, 2)])) if size else np.zeros((0,), np.int64)
    return m.op("Gather", value, np.asarray(indices, np.int64), axis=axis)


def gather_elements(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    axis = m.axis(value)
    shape = tuple(size_of(value, each) for each in range(rank_of(value)))
    if 0 in shape:
        raise Refused
    return m.op("GatherElements", value, m.rng.integers(0, shape[axis], shape), axis=axis)


def loss(op: str) -> Recipe:
    """Scores of classes along axis 1, and labels."""
    def make(m: Maker) -> object:
        scores = m.pick(("float32",), low=2, where=lambda value: size_of(value, 1) > 0)
        batch, classes, *rest = (size_of(scores, each) for each in range(rank_of(scores)))
        labels = m.rng.integers(0, classes, (batch, *rest))
        return m.op(op, scores, labels, reduction=m.one_of(("mean", "sum", "none")))
    return make


def gather_nd(m: Maker) -> Value:
    value = m.pick(ANY, low=1)
    size = size_of(value, 0)
    return m.op("GatherND", value, m.rng.integers(0, m.number(1, size), (m.number(1, 3), 1)))


def scatter_nd(m: Maker) -> Value:
    value = m.pick(("float32", "int64"), low=1)
    shape = tuple(size_of(value, each) for each in range(rank_of(value)))
    row = np.array([[m.number(0, shape[0] - 1)]])
    return m.op("ScatterND", value, row, m.constant(str(value.dtype), (1, *shape[1:])))


def scatter_elements(m: Maker) -> Value:
    value = m.pick(("float32", "int64"), low=1)
    shape = tuple(size_of(value, each) for each in range(rank_of(value)))
    if 0 in shape:
        raise Refused
    one = [1] * len(shape)
    return m.op("ScatterElements", value, np.zeros(one, np.int64), m.constant(str(value.dtype), one))


def one_hot(m: Maker) -> Value:
    value = m.pick(("int64",), low=1, high=3)
    return m.op("OneHot", value, whole(m, m.number(1, 5)), m.b.constant(np.array([0, 1], np.float32)),
                axis=-1)


def top_k(m: Maker) -> object:
    value = m.pick(("float32",), low=1, sure=True)
    axis = m.axis(value)
    return m.ops("TopK", value, np.array([m.number(1, size_of(value, axis))]), axis=axis, outputs=2)


def shape_of(m: Maker) -> Value:
    return m.op(m.one_of(["Shape", "Shape", "Size"]), m.pick(ANY))


def constant_of_shape(m: Maker) -> Value:
    value = m.pick(ANY, low=1, high=3)
    filling = np.array([m.one_of([0, 1, -2])]).astype(m.one_of(["float32", "int64"]))
    return m.op("ConstantOfShape", m.op("Shape", value), value=filling)


def range_(m: Maker) -> Value:
    return m.op("Range", *(whole(m, each) for each in (0, m.number(1, 5), 1)))


def trilu(m: Maker) -> Value:
    return m.op("Trilu", m.pick(("float32", "int64"), low=2), whole(m, m.number(-1, 1)),
                upper=m.number(0, 1))


def cumsum(m: Maker) -> Value:
    value = m.pick(NUMBER, low=1)
    return m.op("CumSum", value, whole(m, m.axis(value)), reverse=m.number(0, 1),
                exclusive=m.number(0, 1))


def einsum(m: Maker) -> Value:
    a = m.pick(("float32",), low=2, high=2)
    return m.op("Einsum", a, m.weights("float32", (size_of(a, 1), 3)), equation=m.one_of(
        ["ij,jk->ik", "ij,jk->ki", "ij,jk->i", "ab,bc"]))


def space_depth(op: str) -> Recipe:
    def make(m: Maker) -> Value:
        channels, side = (4, 3) if op == "DepthToSpace" else (3, 4)
        value = m.input("float32", (m.number(1, 2), channels, side, side))
        more = {"mode": m.one_of(["DCR", "CRD"])} if op == "DepthToSpace" else {}
        return m.op(op, value, blocksize=2, **more)
    return make


def prelu(m: Maker) -> Value:
    value = m.pick(FLOAT, low=1)
    return m.op("PRelu", value, m.weights(str(value.dtype), m.one_of([(1,), (size_of(value, -1),)])))


def quantize(m: Maker) -> Value:
    value = m.pick(("float32",), sure=True)
    scale, zero = m.b.constant(np.array(0.125, np.float32)), m.b.constant(np.array(128, np.uint8))
    return m.op("DequantizeLinear", m.op("QuantizeLinear", value, scale, zero), scale, zero)


def nested_if(m: Maker, outer: Builder | None = None, value: Value | None = None) -> Value:
    """An If whose branches read outer values; its condition is an input, a constant, or computed."""
    value = value or m.pick(("float32", "float64", "int64"))
    kind = m.number(0, 3) if outer is None else 0
    condition = (m.b.constant(np.array(m.chance(0.5))) if kind < 2 else m.input("bool", ()) if kind == 2 else
                 m.op("Equal", m.op("Size", value), whole(m, m.number(1, 6))))
    if outer is not None and m.chance(0.6):
        condition = m.input("bool", ())
    branches, count = [], 1 if outer is not None else m.number(1, 2)
    for name in ("then", "else"):
        inside = (outer or m.b).nested(name)
        for result in [value] * count:
            for _ in range(m.number(0, 3)):
                result = _inner(m, inside, result, value, outer is None)
            inside.output(inside.value("Identity", result) if result is value else result)
        branches.append(inside.graph())
    if outer is None:
        made = m.ops("If", condition, then_branch=branches[0], else_branch=branches[1], outputs=count)
        return made[0] if isinstance(made, tuple) else made
    return outer.value("If", condition, then_branch=branches[0], else_branch=branches[1])


def _inner(m: Maker, inside: Builder, result: Value, value: Value, may_nest: bool) -> Value:
    """A node in a branch, of the type of its operand."""
    kind = m.number(0, 7)
    if kind == 0 and may_nest:
        return nested_if(m, inside, result)
    if kind == 1 and rank_of(result) >= 2:
        order = list(range(rank_of(result)))[::-1]
        return inside.value("Transpose", inside.value("Transpose", result, perm=order), perm=order)
    if kind <= 3:
        number = np.full(m.one_of([(), (1,)]), m.one_of([0, 1, 2, -1])).astype(str(value.dtype))
        return inside.value(m.one_of(["Add", "Mul", "Sub"]), result, number)
    if kind == 4:
        return inside.value("Reshape", result, inside.value("Shape", value)) if result is not value else result
    return inside.value(m.one_of(["Neg", "Abs", "Neg"]), result) if kind < 7 else inside.value("Add", result, value)


POINTWISE: dict[str, Recipe] = {
    **{op: binary(op) for op in ("Add", "Sub", "Mul", "Max", "Min")},
    **{op: variadic(op, FLOAT) for op in ("Sum", "Mean")},
    **{op: binary(op, FLOAT) for op in ("Div", "Pow")},
    **{op: binary(op, NUMBER, sure=True) for op in (
        "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")},
    **{op: binary(op, ("bool",)) for op in ("And", "Or", "Xor")},
    **{op: binary(op, INTEGER) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **{op: unary(op, NUMBER) for op in ("Neg", "Abs")},
    **{op: unary(op) for op in (
        "Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "Tanh", "Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh", "Erf",
        "Relu", "Selu", "HardSwish", "Mish", "Softplus", "Softsign", "Tan", "Asin", "Acos", "Acosh", "Atanh")},
    **{op: unary(op, sure=True) for op in ("Ceil", "Floor", "Round", "Sign")},
    **{op: unary(op, alpha=(1.0, 0.1, 0.5)) for op in ("LeakyRelu", "Elu", "Celu")},
    "ThresholdedRelu": unary("ThresholdedRelu", sure=True, alpha=(1.0, 0.1)),
    "Gelu": unary("Gelu", approximate=("none", "tanh")), "HardSigmoid": unary("HardSigmoid", alpha=(0.2, 1 / 6)),
    "Shrink": unary("Shrink", sure=True, lambd=(0.5, 0.1)), "PRelu": prelu,
    "Not": unary("Not", ("bool",)), "BitwiseNot": unary("BitwiseNot", INTEGER), "Identity": unary("Identity", ANY),
    "Clip": clip, "Where": where, "Cast": cast, "IsNaN": isnan, "IsInf": isnan,
    "Dropout": unary("Dropout"),
}  # fmt: skip

OTHERS: dict[str, Recipe] = {
    "MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Conv": conv, "ConvTranspose": conv_transpose,
    "MaxPool": pool("MaxPool"), "AveragePool": pool("AveragePool"), "LpPool": pool("LpPool"),
    **{op: of_image(op) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "LRN": of_image("LRN", size=3), "MeanVarianceNormalization": of_image("MeanVarianceNormalization", axes=(0, 2)),
    "Resize": resize, "EyeLike": unary("EyeLike", ("float32",), k=(0, 1)), "CastLike": cast_like, "Compress": compress,
    "BatchNormalization": over_channels("BatchNormalization", 4),
    "InstanceNormalization": over_channels("InstanceNormalization", 2), "LayerNormalization": layer_norm,
    "LpNormalization": along("LpNormalization", ("float32",)),
    **{op: loss(op) for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")},
    "Softmax": along("Softmax"), "LogSoftmax": along("LogSoftmax"),
    "Hardmax": along("Hardmax", ("float32",), sure=True),
    **{op: reduction(op, NUMBER) for op in ("ReduceSum", "ReduceMax", "ReduceMin")},
    **{op: reduction(op) for op in (
        "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")},
    **{op: along(op, ("float32", "int32"), sure=True, keepdims=(0, 1), select_last_index=(0, 0, 1)) for op in (
        "ArgMax", "ArgMin")},
    "CumSum": cumsum, "TopK": top_k, "Reshape": reshape, "Transpose": transpose,
    "Flatten": along("Flatten", ANY), "Squeeze": squeeze, "Unsqueeze": unsqueeze,
    "DepthToSpace": space_depth("DepthToSpace"), "SpaceToDepth": space_depth("SpaceToDepth"), "Slice": slices,
    "Pad": pad, "Concat": concat, "Split": split, "Tile": tile, "Expand": expand, "Shape": shape_of,
    "Size": shape_of, "ConstantOfShape": constant_of_shape, "Range": range_, "Trilu": trilu, "Gather": gather,
    "GatherElements": gather_elements, "GatherND": gather_nd, "ScatterND": scatter_nd,
    "ScatterElements": scatter_elements, "OneHot": one_hot, "QuantizeLinear": quantize,
    "DequantizeLinear": quantize, "If": lambda m: nested_if(m),
}  # fmt: skip

RECIPES: dict[str, Recipe] = {**POINTWISE, **OTHERS}

# Operators of the table that no recipe makes yet, neither here nor in `kinds.py`. This list only shrinks.
NOT_YET = frozenset([
    "Mod", "BitShift", "Det", "MaxUnpool", "Upsample", "GridSample", "GroupNormalization", "RMSNormalization", "Swish",
    "CumProd", "CenterCropPad", "ReverseSequence", "Scatter", "NonZero", "Unique", "Attention", "RotaryEmbedding",
])
