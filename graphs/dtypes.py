"""Element types: one name each (NumPy's, ml_dtypes' or `string`), and their ONNX numbers."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import onnx

_TP = onnx.TensorProto
# name -> ONNX TensorProto.DataType
ONNX_NUMBER: dict[str, int] = {
    "float32": _TP.FLOAT, "uint8": _TP.UINT8, "int8": _TP.INT8, "uint16": _TP.UINT16, "int16": _TP.INT16,
    "int32": _TP.INT32, "int64": _TP.INT64, "string": _TP.STRING, "bool": _TP.BOOL, "float16": _TP.FLOAT16,
    "float64": _TP.DOUBLE, "uint32": _TP.UINT32, "uint64": _TP.UINT64, "complex64": _TP.COMPLEX64,
    "complex128": _TP.COMPLEX128, "bfloat16": _TP.BFLOAT16, "float8_e4m3fn": _TP.FLOAT8E4M3FN,
    "float8_e4m3fnuz": _TP.FLOAT8E4M3FNUZ, "float8_e5m2": _TP.FLOAT8E5M2, "float8_e5m2fnuz": _TP.FLOAT8E5M2FNUZ,
    "uint4": _TP.UINT4, "int4": _TP.INT4,
}  # fmt: skip
for _name in ("float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2"):  # newer ONNX only
    _number = {"float4_e2m1fn": "FLOAT4E2M1", "float8_e8m0fnu": "FLOAT8E8M0", "uint2": "UINT2", "int2": "INT2"}
    if hasattr(_TP, _number[_name]) and hasattr(ml_dtypes, _name):
        ONNX_NUMBER[_name] = getattr(_TP, _number[_name])
FROM_ONNX: dict[int, str] = {number: name for name, number in ONNX_NUMBER.items()}

FLOATS = frozenset({"float32", "float16", "float64", "bfloat16"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS = SIGNED | UNSIGNED
BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2, "bool": 8}


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an element type (`string` is an object array)."""
    if name == "string":
        return np.dtype(object)
    if name in ("bool",):
        return np.dtype(np.bool_)
    extension = getattr(ml_dtypes, name, None)
    return np.dtype(extension if extension is not None else name)


def name_of(dtype: np.dtype) -> str:
    """The element type's name of a NumPy dtype."""
    return "string" if dtype.kind in "OUS" else dtype.name


def is_float(name: str) -> bool:
    """float16, bfloat16, float32, float64."""
    return name in FLOATS


@cache
def item_bytes(name: str) -> float:
    """Bytes an element takes in a file (half a byte for 4-bit types)."""
    if name in BITS:
        return BITS[name] / 8
    return 16.0 if name == "string" else float(numpy_dtype(name).itemsize)


_SCHEMA_SPELLING = {
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz", "float4_e2m1fn": "float4e2m1",
    "float8_e8m0fnu": "float8e8m0",
}  # fmt: skip


def schema_type(name: str) -> str:
    """How ONNX schemas spell a tensor of an element type, `tensor(float)`."""
    return f"tensor({_SCHEMA_SPELLING.get(name, name)})"
