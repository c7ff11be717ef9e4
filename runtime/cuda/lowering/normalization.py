"""Lowerings of the normalization operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphs.operators.normalization import STASH_DTYPES
from runtime.codegen import address, normalization
from runtime.codegen.normalization import Normal, Parts
from runtime.codegen.rowwise import Layout, Operand, is_own

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from .elementwise import emit_pointwise
from .reduction import reduced, scalar_of

LOWERINGS, lowering = rows()
_EPSILON = 1e-5  # of the contrib operators, which have no record


@lowering("Softmax", "LogSoftmax", "Hardmax")
def _softmax(emitter: Emitter) -> None:
    x, op = emitter.tensor(0), emitter.node.op
    scalar_of(x, floats=True)
    made = emitter.output(0, x.shape)
    axis = int(emitter.attrs["axis"])
    if not x.rank:
        x = x.viewed((1,), (1,))
    if emitter.attrs.get("flatten"):
        axes = tuple(range(axis + x.rank if axis < 0 else axis, x.rank))
    else:
        axes = (axis % x.rank,)
    layout = Layout(x.shape, axes)
    read = layout.operand(x.dtype, x.strides)
    written = layout.operand(x.dtype, address.contiguous(x.shape))
    own = is_own(layout, x.strides)
    if op == "Hardmax":
        emitter.launch(normalization.hardmax_kernel(layout, read, written, own), x, made)
    else:
        emitter.launch(normalization.softmax_kernel(layout, read, written, op == "LogSoftmax", own), x, made)


def _whole(x: Tensor, other: Tensor, layout: Layout) -> Operand:
    """Another tensor as it is read beside x."""
    return layout.operand(other.dtype, address.broadcast(other.shape, other.strides, x.shape))


def _emit_normal(emitter: Emitter, name: str, normal: Normal, x: Tensor, layout: Layout, y: Tensor, *,
                 added: Sequence[Tensor] = (), scale: Tensor | None = None, bias: Tensor | None = None,
                 mean: Tensor | None = None, inverse: Tensor | None = None, total: Tensor | None = None) -> None:
    """x has the layout's shape; y and total are row-major, mean and inverse have one element for each row."""
    each_row, nothing = address.contiguous(layout.rows), (0,) * len(layout.columns)

    def beside(tensor: Tensor | None) -> Operand | None:
        return None if tensor is None else _whole(x, tensor, layout)

    def whole(dtype: str) -> Operand:
        return layout.operand(dtype, address.contiguous(layout.shape))

    parts = Parts(
        layout.operand(x.dtype, x.strides), whole(y.dtype), tuple(_whole(x, each, layout) for each in added),
        beside(scale), beside(bias), None if mean is None else Operand(mean.dtype, each_row, nothing),
        None if inverse is None else Operand(inverse.dtype, each_row, nothing),
        None if total is None else whole(total.dtype))
    kernel = normalization.normal_kernel(name, layout, normal, parts, is_own(layout, x.strides))
    tensors = [x, *added, *(each for each in (scale, bias, y, mean, inverse, total) if each is not None)]
    emitter.launch(kernel, *tensors)


def _statistics(emitter: Emitter, x: Tensor) -> str:
    """The dtype of the first stage. Never narrower than float32, nor than x."""
    kind = STASH_DTYPES.get(int(emitter.attrs.get("stash_type", 1)), "float32")
    return "float64" if kind == "float64" or x.dtype == "float64" else "float32"


@lowering("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_normalization(emitter: Emitter) -> None:
    x, scale, attrs = emitter.tensor(0), emitter.tensor(1), emitter.attrs
    bias = emitter.tensor(2) if emitter.has(2) else None
    for each in (x, scale, *([bias] if bias else [])):
        scalar_of(each, floats=True)
    if not x.rank:
        raise NoKernel("the rows of a scalar")
    axis, op = int(attrs.get("axis", -1)) % x.rank, emitter.node.op
    layout = Layout(x.shape, tuple(range(axis, x.rank)))
    stash = STASH_DTYPES.get(int(attrs.get("stash_type", 1)), "float32")
    shape, centred = reduced(x.shape, layout.axes, True), op == "LayerNormalization"
    y = emitter.output(0, x.shape, x.dtype if centred else scale.dtype)
    mean = emitter.output(1, shape, stash) if centred and emitter.wants(1) else None
    place = 2 if centred else 1
    inverse = emitter.output(place, shape, stash) if emitter.wants(place) else None
    normal = Normal(_statistics(emitter, x), float(attrs.get("epsilon", _EPSILON)), centred)
    _emit_normal(emitter, "layer_normalization" if centred else "rms_normalization", normal, x, layout, y,
                 scale=scale, bias=bias, mean=mean, inverse=inverse)


@lowering("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip_layer_normalization(emitter: Emitter) -> None:
    """Inputs: x, skip, scale, (bias after it, only of the first operator), bias of the sum. Outputs: y, mean,
    inverse, sum."""
    x, centred = emitter.tensor(0), emitter.node.op == "SkipLayerNormalization"
    inside = 4 if centred else 3
    bias = emitter.tensor(3) if centred and emitter.has(3) else None
    added = [emitter.tensor(1), *([emitter.tensor(inside)] if emitter.has(inside) else [])]
    scale = emitter.tensor(2)
    for each in (x, scale, *added):
        scalar_of(each, floats=True)
    layout = Layout(x.shape, (x.rank - 1,))
    shape = reduced(x.shape, layout.axes, True)
    y = emitter.output(0, x.shape)
    mean = emitter.output(1, shape, "float32") if centred and emitter.wants(1) else None
    inverse = emitter.output(2, shape, "float32") if emitter.wants(2) else None
    if not centred and emitter.wants(1):
        raise NoKernel("the mean of what is not centred")
    total = emitter.output(3, x.shape) if emitter.wants(3) else None
    normal = Normal("float64" if x.dtype == "float64" else "float32",
                    float(emitter.attrs.get("epsilon", 1e-12 if centred else _EPSILON)), centred)
    _emit_normal(emitter, "skip_layer_normalization" if centred else "skip_rms_normalization", normal, x, layout, y,
                 added=added, scale=scale, bias=bias, mean=mean, inverse=inverse, total=total)


def _channels(x: Tensor, vector: Tensor) -> Tensor:
    """A vector with an element for each channel, to be read beside (N, C, ...)."""
    if x.rank == 1:
        return vector
    return vector.viewed((vector.size, *(1,) * (x.rank - 2)), (vector.strides[0], *(0,) * (x.rank - 2)))


@lowering("BatchNormalization")
def _batch_normalization(emitter: Emitter) -> None:
    if emitter.attrs.get("training_mode") or emitter.wants(1):
        raise NoKernel("training")
    x = emitter.tensor(0)
    scalar = scalar_of(x, floats=True)
    vectors = [_channels(x, emitter.tensor(index)) for index in range(1, 5)]
    kind, f = scalar.compute, normalization.suffix(scalar)
    scale, bias, mean, variance = (f"({kind})a{index}" for index in range(1, 5))
    epsilon = scalar.literal(float(emitter.attrs["epsilon"]))
    text = f"(a0 - {mean}) * ({scale} / sqrt{f}({variance} + {epsilon})) + {bias}"
    emit_pointwise(emitter, "batch_normalization", [x, *vectors], x.dtype, text)


@lowering("InstanceNormalization", "GroupNormalization")
def _group_normalization(emitter: Emitter) -> None:
    """Groups become a dimension of their own; those of InstanceNormalization are the channels."""
    x = emitter.tensor(0)
    scalar_of(x, floats=True)
    groups = int(emitter.attrs.get("num_groups", x.shape[1]))
    each = x.shape[1] // max(groups, 1)
    shape = (x.shape[0], groups, each, *x.shape[2:])
    step = x.strides[1]
    grouped = x.viewed(shape, (x.strides[0], step * each, step, *x.strides[2:]))
    scale, bias = (vector.viewed((groups, each, *(1,) * (x.rank - 2)),
                                 (vector.strides[0] * each, vector.strides[0], *(0,) * (x.rank - 2)))
                   for vector in (emitter.tensor(1), emitter.tensor(2)))
    for vector in (scale, bias):
        scalar_of(vector, floats=True)
    layout = Layout(shape, tuple(range(2, len(shape))))
    normal = Normal(_statistics(emitter, x), float(emitter.attrs["epsilon"]))
    name = "instance_normalization" if each == 1 else "group_normalization"
    _emit_normal(emitter, name, normal, grouped, layout, emitter.output(0, x.shape), scale=scale, bias=bias)


@lowering("LpNormalization")
def _lp_normalization(emitter: Emitter) -> None:
    x = emitter.tensor(0)
    scalar_of(x, floats=True)
    if not x.rank:
        raise NoKernel("the norm of a scalar")
    made = emitter.output(0, x.shape)
    layout = Layout(x.shape, (int(emitter.attrs["axis"]) % x.rank,))
    kernel = normalization.norm_kernel(layout, layout.operand(x.dtype, x.strides),
                                       layout.operand(x.dtype, made.strides), int(emitter.attrs["p"]),
                                       is_own(layout, x.strides))
    emitter.launch(kernel, x, made)


@lowering("MeanVarianceNormalization")
def _mean_variance_normalization(emitter: Emitter) -> None:
    x = emitter.tensor(0)
    scalar_of(x, floats=True)
    layout = Layout(x.shape, tuple(sorted({int(axis) % x.rank for axis in emitter.attrs["axes"]})))
    normal = Normal("float64" if x.dtype == "float64" else "float32", 1e-9, after=True)
    _emit_normal(emitter, "mean_variance_normalization", normal, x, layout, emitter.output(0, x.shape))


@lowering("LRN")
def _lrn(emitter: Emitter) -> None:
    x, attrs = emitter.tensor(0), emitter.attrs
    scalar_of(x, floats=True)
    if not prod(x.shape):
        emitter.output(0, x.shape)
        return
    kernel = normalization.lrn_kernel(x.dtype, x.shape, x.strides, int(attrs["size"]), float(attrs["alpha"]),
                                      float(attrs["beta"]), float(attrs["bias"]))
    emitter.launch(kernel, x, emitter.output(0, x.shape))


