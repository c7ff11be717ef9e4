"""Quantization family."""

from __future__ import annotations

from .. import dtypes
from ..types import TensorType, Type
from ._common import needs
from .convolution import conv_shape
from .linear import _product_shape
from .record import Operator, Site

_CONV = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}


def _given_dtype(site: Site) -> str | None:
    number = int(site.attrs.get("output_dtype") or 0)  # type: ignore[call-overload]
    return dtypes.FROM_ONNX.get(number) if number else None


def _quantize(site: Site) -> list[Type | None]:
    x, zero = site.type(0), site.type(2)
    dtype = zero.dtype if zero is not None else _given_dtype(site)
    if dtype is None:
        if len(site.types) > 2:
            return [None]  # a zero point of unknown type
        dtype = "uint8"
    return [TensorType(dtype, None if x is None else x.shape)]


def _dequantize(site: Site) -> list[Type | None]:
    x, scale = site.type(0), site.type(1)
    dtype = _given_dtype(site) or (scale.dtype if scale is not None else None)
    return [None if dtype is None else TensorType(dtype, None if x is None else x.shape)]


def _dynamic_quantize(site: Site) -> list[Type | None]:
    x = site.type(0)
    found: list[Type | None] = [TensorType("uint8", None if x is None else x.shape), TensorType("float32", ()),
                                TensorType("uint8", ())]
    return found[: site.outputs]


def _conv_integer(site: Site) -> list[Type | None]:
    return [TensorType("int32", conv_shape(site))]


def _qlinear_conv(site: Site) -> list[Type | None]:
    zero = site.type(7)
    return [None if zero is None else TensorType(zero.dtype, conv_shape(site, 0, 3))]


def _qlinear_matmul(site: Site) -> list[Type | None]:
    zero = site.type(7)
    factors = Site(site.op, site.attrs, [site.type(0), site.type(3)], [], [], 1, site.label)
    return [None if zero is None else TensorType(zero.dtype, _product_shape(factors))]


OPERATORS: list[Operator] = [
    Operator("QuantizeLinear", _quantize, (10, 13, 19, 21, 23, 24, 25, 28),
             {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1},
             write=needs(axis=(13, 1), saturate=(19, 1), block_size=(21, 0), output_dtype=(21, 0),
                         precision=(23, 0))),
    Operator("DequantizeLinear", _dequantize, (10, 13, 19, 21, 23, 24, 25, 28),
             {"axis": 1, "block_size": 0, "output_dtype": 0},
             write=needs(axis=(13, 1), block_size=(21, 0), output_dtype=(23, 0))),
    Operator("DynamicQuantizeLinear", _dynamic_quantize, (11,)),
    Operator("ConvInteger", _conv_integer, (10,), _CONV),
    Operator("QLinearConv", _qlinear_conv, (10,), _CONV),
    Operator("QLinearMatMul", _qlinear_matmul, (10, 21)),
]
