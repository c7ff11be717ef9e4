"""Quantized operators: by tensor, by axis and by block, signed and unsigned, zero points there or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.builder import Value
from graphs.dtypes import ONNX_NUMBER

from .maker import Maker, Refused, rank_of, size_of
from .operators import Recipe, image

BYTE = ("uint8", "int8")
SCALES = (0.125, 0.125, 0.5, 1.0, 0.1, 0.0371)


def kinds(m: Maker) -> Sequence[str]:
    """Integer types that this opset can quantize to."""
    return ("uint8", "int8", "uint16", "int16") if m.opset >= 21 and m.chance(0.3) else BYTE


def whole(m: Maker, dtype: str, shape: Sequence[int]) -> Value:
    """A constant of a small integer type, extremes among the elements."""
    info = np.iinfo(dtype)
    array = np.asarray(m.rng.integers(info.min, info.max + 1, tuple(shape)))
    if m.chance(0.3):
        array = np.asarray(m.rng.choice([info.min, info.max, 0, 1], tuple(shape)))
    return m.b.constant(np.asarray(array).astype(dtype))


def zero(m: Maker, dtype: str, shape: Sequence[int] = ()) -> Value:
    """A zero point: nothing, the middle, an end, or anything."""
    info = np.iinfo(dtype)
    number = m.one_of([0, (info.max + info.min + 1) // 2, info.min, info.max, int(m.rng.integers(info.min, info.max))])
    return m.b.constant(np.full(tuple(shape), number, dtype))


def scale(m: Maker, shape: Sequence[int] = ()) -> Value:
    """Scales, equal or not."""
    if m.chance(0.5):
        return m.b.constant(np.full(tuple(shape), m.one_of(SCALES), np.float32))
    return m.b.constant(np.asarray(m.rng.choice(SCALES, tuple(shape))).astype(np.float32))


def parameters(m: Maker, value: Value, dtype: str) -> tuple[list[Value | None], dict[str, object]]:
    """(scale and zero point, attributes) for one tensor or one axis."""
    shape: tuple[int, ...] = ()
    attrs: dict[str, object] = {}
    if m.opset >= 13 and rank_of(value) > 0 and m.chance(0.5):
        axis = m.axis(value)
        shape, attrs = (size_of(value, axis),), {"axis": axis}
    elif m.opset >= 13 and m.chance(0.15):
        attrs = {"axis": 0}
    point = None if dtype == "uint8" and m.chance(0.2) else zero(m, dtype, shape)
    return [scale(m, shape), point], attrs


def quantize(m: Maker) -> Value:
    """Float to integer; half of the time with a Clip or Relu before it."""
    value = m.pick(("float32",), sure=True)
    if m.chance(0.3):
        value = m.op("Relu", value) if m.chance(0.5) else m.op("Clip", value, min=0, max=6)
        if m.smooth and value.name in m.rough:
            m.rough.discard(value.name)  # it only chooses
    more, attrs = parameters(m, value, m.one_of(kinds(m)))
    return m.op("QuantizeLinear", value, *more, **attrs)


def dequantize(m: Maker) -> Value:
    """Integer to float: a value, or a constant."""
    value = m.pick(BYTE) if m.chance(0.7) else whole(m, m.one_of(kinds(m)), [m.number(1, 4), m.number(1, 4)])
    more, attrs = parameters(m, value, str(value.dtype))
    return m.op("DequantizeLinear", value, *more, **attrs)


def pair(m: Maker) -> Value:
    """Quantized and back by the same parameters, twice now and then; or with others."""
    value = m.pick(("float32",), sure=True)
    dtype = m.one_of(kinds(m))
    more, attrs = parameters(m, value, dtype)
    for _ in range(m.one_of([1, 1, 2])):
        coded = m.op("QuantizeLinear", value, *more, **attrs)
        if m.chance(0.35):
            coded = moved(m, coded) if not attrs else coded
        if m.chance(0.2):
            more, attrs = parameters(m, coded, dtype)
        value = m.op("DequantizeLinear", coded, *more, **attrs)
    return value


def moved(m: Maker, value: Value) -> Value:
    """A quantized value in another shape or order."""
    kind = m.number(0, 3)
    if kind == 0 and rank_of(value) >= 2:
        return m.op("Transpose", value, perm=m.permutation(rank_of(value)))
    if kind == 1:
        return m.op("Reshape", value, shape=[-1])
    return m.op("Identity", value) if kind == 2 else m.op("Unsqueeze", value, axes=[0])


def requantize(m: Maker) -> Value:
    """Back to float and to integer again."""
    value = m.pick(BYTE)
    more, attrs = parameters(m, value, str(value.dtype))
    real = m.op("DequantizeLinear", value, *more, **attrs)
    m.rough.discard(real.name)  # no rule computes it another way
    if m.chance(0.4):
        more, attrs = parameters(m, real, str(value.dtype))
    return m.op("QuantizeLinear", real, *more, **attrs)


def weights(m: Maker) -> Value:
    """A product or a convolution by quantized weights, the usual form of an int8 model."""
    if m.chance(0.5):
        value = m.pick(("float32",), low=2, high=3)
        shape = [size_of(value, -1), m.number(1, 4)]
        code = whole(m, m.one_of(BYTE), shape)
        axis = m.one_of([1, -1])
    else:
        value = image(m)
        shape = [m.number(1, 3), size_of(value, 1), *[1] * (rank_of(value) - 2)]
        code, axis = whole(m, "int8", shape), 0
    per_axis = m.opset >= 13 and m.chance(0.6)
    sizes = [shape[axis]] if per_axis else []
    more: dict[str, object] = {"axis": axis} if per_axis else {}
    point = None if m.chance(0.4) else zero(m, str(code.dtype), sizes)
    real = m.op("DequantizeLinear", code, scale(m, sizes), point, **more)
    if rank_of(real) > 2:
        return m.op("Conv", value, real)
    if m.chance(0.3):
        real = m.op("Transpose", m.op("Transpose", real, perm=[1, 0]), perm=[1, 0])
    return m.op("MatMul", value, real)


def blocks(m: Maker) -> Value:
    """Blocks of an axis with a scale each."""
    if m.opset < 21:
        raise Refused
    code = whole(m, m.one_of(BYTE), [m.number(1, 3), 4])
    count = size_of(code, 0)
    more = [scale(m, [count, 2]), zero(m, str(code.dtype), [count, 2])]
    return m.op("DequantizeLinear", code, *more, axis=1, block_size=2)


def dynamic(m: Maker) -> Value:
    """Quantized by its own range, multiplied as integers, scaled back."""
    value = m.pick(("float32",), low=1, high=3, sure=True)
    code, size, point = m.ops("DynamicQuantizeLinear", value, outputs=3)
    if m.chance(0.3):
        return m.op("DequantizeLinear", code, size, point)
    weight = whole(m, m.one_of(BYTE), [size_of(code, -1), m.number(1, 4)])
    made = m.op("MatMulInteger", code, weight, point, zero(m, str(weight.dtype)) if m.chance(0.5) else None)
    real = m.op("Cast", made, to=ONNX_NUMBER["float32"])
    return m.op("Mul", real, m.op("Mul", size, m.b.constant(np.array(0.05, np.float32))))


def matmul_integer(m: Maker) -> Value:
    a = m.pick(BYTE, low=1, high=3)
    b = whole(m, m.one_of(BYTE), [size_of(a, -1), m.number(1, 4)])
    points = [zero(m, str(each.dtype)) if m.chance(0.5) else None for each in (a, b)]
    made = m.op("MatMulInteger", a, b, *points)
    return m.op("Cast", made, to=ONNX_NUMBER["float32"]) if m.chance(0.6) else made


def qlinear_matmul(m: Maker) -> Value:
    a = m.pick(BYTE, low=2, high=3)
    b = whole(m, str(a.dtype), [size_of(a, -1), m.number(1, 4)])
    dtype = str(a.dtype)
    return m.op("QLinearMatMul", a, scale(m), zero(m, dtype), b, scale(m), zero(m, dtype), scale(m), zero(m, dtype))


def _picture(m: Maker) -> Value:
    return m.pick(("uint8",), low=3, high=4, where=lambda each: all(
        isinstance(dim, int) and dim > 0 for dim in (each.shape or (0,))[1:]))


def conv_integer(m: Maker) -> Value:
    x = _picture(m)
    w = whole(m, "uint8", [m.number(1, 3), size_of(x, 1), *[1] * (rank_of(x) - 2)])
    points = [zero(m, "uint8") if m.chance(0.5) else None for _ in range(2)]
    return m.op("ConvInteger", x, w, *points, pads=[m.number(0, 1)] * (2 * (rank_of(x) - 2)))


def qlinear_conv(m: Maker) -> Value:
    x = _picture(m)
    channels = m.number(1, 3)
    w = whole(m, m.one_of(BYTE), [channels, size_of(x, 1), *[1] * (rank_of(x) - 2)])
    per_axis = [channels] if m.chance(0.4) else []
    bias = m.b.constant(np.asarray(m.rng.integers(-99, 100, channels)).astype(np.int32)) if m.chance(0.5) else None
    point = m.b.constant(np.full(per_axis, 0 if w.dtype == "int8" else 128, str(w.dtype)))
    return m.op("QLinearConv", x, scale(m), zero(m, "uint8"), w, scale(m, per_axis), point, scale(m),
                zero(m, "uint8"), bias, pads=[m.number(0, 1)] * (2 * (rank_of(x) - 2)))


RECIPES: dict[str, Recipe] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "a pair": pair, "requantized": requantize,
    "quantized weights": weights, "blocks": blocks, "DynamicQuantizeLinear": dynamic,
    "MatMulInteger": matmul_integer, "QLinearMatMul": qlinear_matmul, "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}  # fmt: skip
