"""Contrib operators of ONNX Runtime: arithmetic on quantized tensors, and products with weights of a few bits.

All are pure. ONNX Runtime may round a tie, or the sums of `accuracy_level` 4, another way than the formula says.
"""

from __future__ import annotations

from .. import dims
from ..types import Shape, TensorType, Type
from ._common import broadcast_shapes, integer, shape_of
from ._windows import window_counts
from .contrib import WINDOW, contrib, like
from .convolution import conv_shape
from .linear import _product_shape
from .normalization import normalize_axis
from .record import REQUIRED, Operator, Site

_FEATURES_LAST = "channels_last"


def _binary(site: Site) -> list[Type | None]:
    a, b = shape_of(site, 0), shape_of(site, 3)
    return [like(site, None if a is None or b is None else broadcast_shapes(site, [a, b]))]


def _unary(site: Site) -> list[Type | None]:
    return [like(site, shape_of(site, 0))]


def _softmax(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    if x is not None:
        normalize_axis(site, integer(site, "axis"), len(x))
    return [like(site, x)]


def _where(site: Site) -> list[Type | None]:
    shapes = [shape_of(site, position) for position in (0, 1, 4)]
    return [like(site, broadcast_shapes(site, shapes), 1)]


def _concat(site: Site) -> list[Type | None]:
    """Inputs: scale and zero point of the result, then (tensor, scale, zero point) of each part."""
    shapes = [shape_of(site, position) for position in range(2, len(site.types), 3)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return [like(site, None, 1)]
    axis = normalize_axis(site, integer(site, "axis"), len(known[0]))
    if len({len(shape) for shape in known}) > 1:
        raise site.fail(f"parts of ranks {[len(shape) for shape in known]}")
    total = known[0][axis]
    for shape in known[1:]:
        total = dims.add(total, shape[axis])
    return [like(site, (*known[0][:axis], total, *known[0][axis + 1:]), 1)]


def _spatial(site: Site) -> tuple[Shape, bool] | None:
    x = shape_of(site, 0)
    if x is None:
        return None
    if len(x) < 3:
        raise site.fail(f"input of rank {len(x)} has no spatial dimensions", "give (batch, channels, size...)")
    return x, bool(site.attrs[_FEATURES_LAST])


def _pool(site: Site) -> list[Type | None]:
    found = _spatial(site)
    if found is None:
        return [like(site, None)]
    x, last = found
    sizes = x[1:-1] if last else x[2:]
    kernel: tuple[int, ...] = tuple(site.attrs["kernel_shape"])  # type: ignore[arg-type]
    counts = window_counts(site, sizes, kernel, bool(site.attrs["ceil_mode"]))
    return [like(site, (x[0], *counts, x[-1]) if last else (*x[:2], *counts))]


def _global_pool(site: Site) -> list[Type | None]:
    found = _spatial(site)
    if found is None:
        return [like(site, None)]
    x, last = found
    ones = (1,) * (len(x) - 2)
    return [like(site, (x[0], *ones, x[-1]) if last else (*x[:2], *ones))]


def _convolution(site: Site) -> list[Type | None]:
    """QLinearConv, with features last if so said. The weights keep ONNX's layout."""
    shape, zero, x = shape_of(site, 0), site.type(7), site.type(0)
    last = bool(site.attrs[_FEATURES_LAST])
    if last and x is not None and shape:
        x = x.with_shape((shape[0], shape[-1], *shape[1:-1]))
    first = Site(site.op, site.attrs, [x, *site.types[1:]], site.contents, site.constants, 1, site.label)
    found = conv_shape(first, 0, 3)
    if found is not None and last:
        found = (found[0], *found[2:], found[1])
    return [None if zero is None else TensorType(zero.dtype, found)]


def _max_pool(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    if x is None:
        return [like(site, None)]
    kernel: tuple[int, ...] = tuple(site.attrs["kernel_shape"])  # type: ignore[arg-type]
    return [like(site, (x[0], *window_counts(site, x[1:-1], kernel, bool(site.attrs["ceil_mode"])), x[-1]))]


def _gemm(site: Site) -> list[Type | None]:
    """Quantized where a scale of the result is given, else float."""
    a, b, scale = shape_of(site, 0), shape_of(site, 3), site.type(1)
    result = site.type(8) if len(site.types) > 7 else scale
    if result is None or a is None or b is None:
        return [None if result is None else TensorType(result.dtype)]
    return [TensorType(result.dtype, (a[1 if site.attrs["transA"] else 0], b[0 if site.attrs["transB"] else 1]))]


def _to_float(site: Site) -> list[Type | None]:
    """A product of matrices of 8-bit numbers, or of floats that are quantized on the way."""
    scale = site.type(2)
    return [None if scale is None else TensorType(scale.dtype, _product_shape(site))]


def _few_bits(site: Site) -> list[Type | None]:
    a, inner, outer = shape_of(site, 0), integer(site, "K"), integer(site, "N")
    if a is None or not a:
        return [like(site, None)]
    if isinstance(a[-1], int) and a[-1] != inner:
        raise site.fail(f"{a[-1]} features, but K is {inner}")
    return [like(site, (*a[:-1], outer))]


def _quantize(site: Site) -> list[Type | None]:
    zero = site.type(2)
    if zero is None and len(site.types) > 2:
        return [None]
    return [TensorType("uint8" if zero is None else zero.dtype, shape_of(site, 0))]


def _dequantize(site: Site) -> list[Type | None]:
    return [like(site, shape_of(site, 0), 1)]


_BLOCKS = {"K": REQUIRED, "N": REQUIRED, "accuracy_level": 0, "bits": 4, "block_size": REQUIRED, "weight_prepacked": 0}
_POOL = {"auto_pad": "NOTSET", "ceil_mode": 0, _FEATURES_LAST: 0, "count_include_pad": 0, "kernel_shape": REQUIRED,
         "pads": None, "strides": None}

OPERATORS: list[Operator] = [
    contrib("QLinearAdd", _binary),
    contrib("QLinearMul", _binary),
    contrib("QLinearSigmoid", _unary),
    contrib("QLinearLeakyRelu", _unary, {"alpha": 0.009999999776482582}),
    contrib("QLinearSoftmax", _softmax, {"axis": -1, "opset": REQUIRED}),
    contrib("QLinearWhere", _where),
    contrib("QLinearConcat", _concat, {"axis": REQUIRED}),
    contrib("QLinearAveragePool", _pool, _POOL),
    contrib("QLinearGlobalAveragePool", _global_pool, {_FEATURES_LAST: 0}),
    contrib("NhwcMaxPool", _max_pool, {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": None,
                                       "kernel_shape": REQUIRED, "pads": None, "strides": None}),
    contrib("QLinearConv", _convolution, {**WINDOW, _FEATURES_LAST: 0}),
    contrib("QGemm", _gemm, {"alpha": 1.0, "transA": 0, "transB": 0}),
    contrib("MatMulIntegerToFloat", _to_float),
    contrib("DynamicQuantizeMatMul", _to_float),
    contrib("MatMulNBits", _few_bits, _BLOCKS),
    contrib("QuantizeLinear", _quantize, {"axis": None}),
    contrib("DequantizeLinear", _dequantize, {"axis": None}),
]
