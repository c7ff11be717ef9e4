"""Types and attributes of ONNX files and of graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import onnx
from onnx import AttributeProto, TypeProto, ValueInfoProto

from .. import dtypes
from ..canonical import attribute_kind, kind_number, round_float
from ..constants import Constant
from ..dims import DimLike, Expr, depends_on_data, symbol, unquote_name
from ..ir import Graph, NameSupply
from ..types import OtherType, RawAttribute, TensorType, Type
from .tensors import ExternalFiles, read_tensor, write_tensor

UNNAMED = "?"  # symbols that begin with it stand for dimensions without a name
# Exporters write these for "any size": two dimensions of this "name" are not the same. Behind the mark in the name
# of the symbol stands what is written back.
_PLACEHOLDER = re.compile(r"\W+|-1|None|unknown", re.IGNORECASE)
_PLACEHOLDER_MARK = ":"

_A = AttributeProto
_EMPTY_KINDS = {_A.FLOATS, _A.STRINGS, _A.TENSORS, _A.GRAPHS}


def read_type(proto: TypeProto, name: str, symbols: NameSupply) -> Type | None:
    """The type of a TypeProto, None where not even the element type is given."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return OtherType(proto.SerializeToString(deterministic=True), kind.removesuffix("_type"))
    tensor = proto.tensor_type
    dtype = dtypes.FROM_ONNX.get(tensor.elem_type)
    if dtype is None:
        return None
    if not tensor.HasField("shape"):
        return TensorType(dtype)
    dims: list[DimLike] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif _PLACEHOLDER.fullmatch(dim.dim_param):
            dims.append(symbol(symbols.fresh(f"{UNNAMED}{name}.{axis}{_PLACEHOLDER_MARK}{dim.dim_param}")))
        elif dim.dim_param:
            dims.append(symbol(dim.dim_param))
        else:
            dims.append(symbol(symbols.fresh(f"{UNNAMED}{name}.{axis}")))
    return TensorType(dtype, tuple(dims))


def is_unnamed(dim: DimLike) -> bool:
    """Does a file leave this dimension open for want of a name, though not only data decide it?"""
    return isinstance(dim, Expr) and UNNAMED in str(dim) and not depends_on_data(dim)


def write_tied(info: ValueInfoProto, type_: Type | None, tied: Collection[DimLike]) -> None:
    """Name those dimensions of a value of this type that are `tied` to others. Their symbols are the names: a reader
    gives them to no other dimension, and the user knows them already."""
    if isinstance(type_, TensorType) and type_.rank == len(info.type.tensor_type.shape.dim):
        for proto, dim in zip(info.type.tensor_type.shape.dim, type_.shape or ()):
            if dim in tied:
                proto.dim_param = "".join(unquote_name(part) for part in str(dim).split("`"))


def write_type(type_: Type | None) -> TypeProto:
    """The TypeProto of a type. Dimensions that only data decide, or that have no name, stay open."""
    proto = TypeProto()
    if isinstance(type_, OtherType):
        proto.ParseFromString(type_.proto)
    elif type_ is not None:
        proto.tensor_type.elem_type = dtypes.ONNX_NUMBER[type_.dtype]
        if type_.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in type_.shape:
                _write_dim(proto.tensor_type.shape.dim.add(), dim)
    return proto


def _write_dim(proto: onnx.TensorShapeProto.Dimension, dim: DimLike) -> None:
    if not isinstance(dim, Expr):
        proto.dim_value = dim
        return
    text = str(dim)
    if text.startswith("`") and text.count("`") == 2:
        text = unquote_name(text[1:-1])
        placeholder = text.rpartition(_PLACEHOLDER_MARK)[2] if text.startswith(UNNAMED) else ""
        if _PLACEHOLDER.fullmatch(placeholder):
            proto.dim_param = placeholder
            return
    if not depends_on_data(dim) and not is_unnamed(dim):
        proto.dim_param = text


def value_info(name: str, type_: Type | None) -> ValueInfoProto:
    """A ValueInfoProto; without a type where nothing is known."""
    proto = ValueInfoProto(name=name)
    if type_ is not None:
        proto.type.CopyFrom(write_type(type_))
    return proto


def read_attribute(proto: AttributeProto, op: str, domain: str, files: ExternalFiles,
                   graph: Callable[[onnx.GraphProto], Graph]) -> object:
    """The value of an attribute as a node holds it; `graph` reads nested graphs."""
    kind = proto.type or _guess_kind(proto)
    if proto.ref_attr_name:
        return RawAttribute(proto.SerializeToString(deterministic=True))
    if kind == _A.INT:
        return proto.i
    if kind == _A.FLOAT:
        return proto.f
    if kind == _A.STRING:
        return _text(proto.s)
    if kind == _A.TENSOR:
        return read_tensor(proto.t, files)
    if kind == _A.GRAPH:
        return graph(proto.g)
    lists: dict[int, Callable[[], tuple]] = {
        _A.INTS: lambda: tuple(proto.ints),
        _A.FLOATS: lambda: tuple(proto.floats),
        _A.STRINGS: lambda: tuple(map(_text, proto.strings)),
        _A.TENSORS: lambda: tuple(read_tensor(tensor, files) for tensor in proto.tensors),
        _A.GRAPHS: lambda: tuple(map(graph, proto.graphs)),
    }
    if kind in lists:
        found = lists[kind]()
        known = attribute_kind(op, domain, proto.name)
        if found or kind not in _EMPTY_KINDS or (known is not None and kind_number(known) == kind):
            return found
    return RawAttribute(proto.SerializeToString(deterministic=True))


def _guess_kind(proto: AttributeProto) -> int:
    """The type of an attribute of an old file that does not state it."""
    for field, kind in (("f", _A.FLOAT), ("i", _A.INT), ("s", _A.STRING), ("t", _A.TENSOR), ("g", _A.GRAPH)):
        if proto.HasField(field):
            return kind
    for field, kind in (("floats", _A.FLOATS), ("ints", _A.INTS), ("strings", _A.STRINGS),
                        ("tensors", _A.TENSORS), ("graphs", _A.GRAPHS)):
        if len(getattr(proto, field)):
            return kind
    return _A.INTS


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def write_attribute(name: str, value: object, kind: int | None,
                    graph: Callable[[Graph], onnx.GraphProto]) -> AttributeProto:
    """The AttributeProto of a value, of the ONNX type `kind` where that is known."""
    if isinstance(value, RawAttribute):
        proto = AttributeProto()
        proto.ParseFromString(value.proto)
        proto.name = name
        return proto
    if isinstance(value, tuple):
        return _write_list(name, value, kind, graph)
    if kind in (_A.INTS, _A.FLOATS, _A.STRINGS, _A.TENSORS, _A.GRAPHS):
        return _write_list(name, (value,), kind, graph)
    proto = AttributeProto(name=name)
    if isinstance(value, int) and kind != _A.FLOAT:
        proto.type, proto.i = _A.INT, int(value)
    elif isinstance(value, int | float):
        proto.type, proto.f = _A.FLOAT, round_float(float(value))
    elif isinstance(value, str | bytes):
        proto.type, proto.s = _A.STRING, value.encode() if isinstance(value, str) else value
    elif isinstance(value, Constant):
        proto.type = _A.TENSOR
        proto.t.CopyFrom(write_tensor(value, ""))
    elif isinstance(value, Graph):
        proto.type = _A.GRAPH
        proto.g.CopyFrom(graph(value))
    else:
        raise TypeError(f"attribute {name!r} cannot be a {type(value).__name__}")
    return proto


def _write_list(name: str, value: tuple, kind: int | None,
                graph: Callable[[Graph], onnx.GraphProto]) -> AttributeProto:
    proto = AttributeProto(name=name)
    first = value[0] if value else None
    if kind == _A.FLOATS or any(isinstance(item, float) for item in value):
        proto.type = _A.FLOATS
        proto.floats.extend(round_float(float(item)) for item in value)
    elif kind == _A.STRINGS or isinstance(first, str | bytes):
        proto.type = _A.STRINGS
        proto.strings.extend(item.encode() if isinstance(item, str) else item for item in value)
    elif kind == _A.TENSORS or isinstance(first, Constant):
        proto.type = _A.TENSORS
        proto.tensors.extend(write_tensor(item, "") for item in value)
    elif kind == _A.GRAPHS or isinstance(first, Graph):
        proto.type = _A.GRAPHS
        proto.graphs.extend(map(graph, value))
    else:
        proto.type = _A.INTS
        proto.ints.extend(int(item) for item in value)
    return proto
