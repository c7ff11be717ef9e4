"""The canonical form of a node's attributes: which version it is, defaults filled in, floats as float32 holds them.

The ONNX reader, the text form, the JSON form and the builder all finish nodes here, so that a node means and prints
the same wherever it came from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import onnx

from . import dtypes
from .constants import Constant
from .ir import Graph
from .operators import REQUIRED, RUNTIME, Operator, find, schema

DEFAULT_OPSET = 21
_KIND = onnx.defs.OpSchema.AttrType
_SCALARS = {_KIND.INT, _KIND.FLOAT}
# Inputs that the schema wants one-dimensional though the attribute of older versions is a number.
VECTOR_INPUTS = {("TopK", "k"), ("TopK", "K")}
# More elements than this are no "small constant that decides the meaning".
MAX_STATIC_ELEMENTS = 4096


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """The newest default opset that the installed `onnx` package knows."""
    return onnx.defs.onnx_opset_version()


@lru_cache(maxsize=1)
def _attribute_kinds() -> dict[tuple[str, str], dict[str, _KIND]]:
    table: dict[tuple[str, str], dict[str, _KIND]] = {}
    for found in onnx.defs.get_all_schemas_with_history():
        kinds = table.setdefault((found.domain, found.name), {})
        for name, attribute in found.attributes.items():
            kinds[name] = attribute.type
    return table


def attribute_kind(op: str, domain: str, name: str) -> onnx.defs.OpSchema.AttrType | None:
    """The ONNX type of an attribute in any version of an operator, None where unknown."""
    return _attribute_kinds().get((domain, op), {}).get(name)


def kind_number(kind: onnx.defs.OpSchema.AttrType) -> int:
    """The AttributeProto number of a schema's attribute type."""
    return int(kind.value)  # type: ignore[attr-defined]


@lru_cache(maxsize=8192)
def version_at(op: str, domain: str, opset: int) -> int:
    """The `since_version` of an operator at an opset, 0 if a node of it must stay opaque there.

    Operators that ONNX itself does not define (contrib operators, `egraft`) count as their record's newest version.
    """
    record = find(op, domain)
    if record is None:
        return 0
    if not record.standard or not any(key[0] == domain for key in _attribute_kinds()):
        return max(record.versions)
    if domain == "" and opset > newest_opset():
        return 0
    found = schema(op, opset, domain)
    return found.since_version if found is not None and found.since_version in record.versions else 0


def round_float(value: float) -> float:
    """The value as an ONNX float attribute holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def plain(value: object) -> object:
    """An attribute value as the graph holds it: plain numbers, str, tuples, Constant, Graph."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return round_float(float(value))
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return Constant.of(value)
    return value


def _as_kind(value: object, kind: onnx.defs.OpSchema.AttrType | None, default: object) -> object:
    """Write integers as floats where the operator wants floats, and the other way never."""
    value = plain(value)
    wants_float = kind in (_KIND.FLOAT, _KIND.FLOATS) or (kind is None and isinstance(default, float))
    if wants_float:
        if isinstance(value, int) and not isinstance(value, bool):
            return round_float(float(value))
        if isinstance(value, tuple) and all(isinstance(item, int | float) for item in value):
            return tuple(round_float(float(item)) for item in value)
    if kind is _KIND.INT and isinstance(value, bool):
        return int(value)
    return value


def default_of(record: Operator, name: str) -> object:
    """The default of a canonical attribute in the form that nodes hold."""
    return plain(record.attrs[name])


_PACKED = {"float32": ("=f", "=I"), "float64": ("=d", "=Q")}
_SAFE = 1e38  # nothing below is infinite in float32


def float_of(bits: int, dtype: str) -> float:
    """The number that has these bits in a float type."""
    code = _PACKED.get(dtype)
    if code is not None:
        return float(struct.unpack(code[0], struct.pack(code[1], bits))[0])
    kind = dtypes.numpy_dtype(dtype)
    return float(np.asarray(bits, f"u{kind.itemsize}").view(kind)[()])


def float_bits(value: float, dtype: str) -> int:
    """The bits of a number rounded to a float type."""
    code = _PACKED.get(dtype)
    if code is not None and -_SAFE < value < _SAFE:  # the same, without an array
        return int(struct.unpack(code[1], struct.pack(code[0], value))[0])
    kind = dtypes.numpy_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.asarray(value, np.float64).astype(kind).view(f"u{kind.itemsize}").item())


def same_attribute(a: object, b: object) -> bool:
    """Equality of attribute values that tells -0.0 from 0.0 and 1 from 1.0, and knows nan."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_attribute, a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return float_bits(a, "float64") == float_bits(b, "float64")  # type: ignore[arg-type]
    return a is b or a == b


def is_default(record: Operator | None, name: str, value: object) -> bool:
    """True where a canonical attribute has its default and so does not print."""
    if record is None or name not in record.attrs or record.attrs[name] is REQUIRED:
        return False
    default = default_of(record, name)
    if isinstance(default, int) and isinstance(value, float):  # a record may write 1 for 1.0
        default = float(default)
    return same_attribute(default, value)


def complete(record: Operator, attrs: Mapping[str, object], where: str = "") -> dict[str, object]:
    """Canonical attributes: every name of the record once, in its order, defaults filled in.

    Raises ValueError with what is wrong: an unknown name or a missing required one.
    """
    for name in attrs:
        if name not in record.attrs:
            raise ValueError(f"{record.name} has no attribute {name!r}")
    done: dict[str, object] = {}
    for name, default in record.attrs.items():
        value = attrs.get(name, default)
        if value is REQUIRED:
            raise ValueError(f"{record.name} needs the attribute {name!r}")
        if value is RUNTIME or value is None or isinstance(value, Constant | Graph):
            done[name] = value
        elif name in record.static:  # an input in newer versions: its element type decides, see settle_numbers
            done[name] = plain(value)
        else:
            done[name] = _as_kind(value, attribute_kind(record.name, record.domain, name), default)
    return done


def settle_numbers(attrs: dict[str, object], record: Operator, dtype_of: Callable[[str], str | None]) -> None:
    """Turn integers of static attributes into floats where the element type that they stand for is a float.

    `dtype_of(name)` tells the element type of a static attribute as an input, None where it is not known.
    """
    for name in record.static:
        value = attrs.get(name)
        items = value if isinstance(value, tuple) else (value,)
        if not items or not all(type(item) is int for item in items):
            continue
        dtype = dtype_of(name)
        if dtype is not None and dtypes.is_float(dtype):
            floats = tuple(round_float(float(item)) for item in items)  # type: ignore[arg-type]
            attrs[name] = floats if isinstance(value, tuple) else floats[0]


def static_value(record: Operator, name: str, constant: Constant) -> object:
    """The attribute value of a constant at a static input, RUNTIME where it is no small number or list.

    Floats become attributes only where float32 holds them exactly, as all float attributes are float32.
    """
    if constant.dtype == "string" or len(constant.shape) > 1 or constant.size > MAX_STATIC_ELEMENTS:
        return RUNTIME
    items = tuple(_number(item) for item in constant.array.reshape(-1).tolist())
    if any(item is None or (isinstance(item, float) and not _is_float32(item)) for item in items):
        return RUNTIME
    if not constant.shape:
        return items[0]
    is_number = attribute_kind(record.name, record.domain, name) in _SCALARS
    return items[0] if is_number and len(items) == 1 else items


def _is_float32(value: float) -> bool:
    return value != value or round_float(value) == value


def _number(item: object) -> int | float | bool | None:
    if isinstance(item, bool | int | float):
        return item
    try:
        return float(item)  # type: ignore[arg-type]  # bfloat16 and the like
    except (TypeError, ValueError):
        return None
