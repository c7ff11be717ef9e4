"""The JSON form of graphs, version 1; `docs/json-form.md` describes it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from . import dtypes
from .canonical import DEFAULT_OPSET, complete, is_default, plain, version_at
from .constants import Constant
from .dims import parse_dim
from .errors import ParseError
from .inference import infer
from .ir import Graph, Node
from .operators import RUNTIME, find
from .structure import FLATTEN, MAX_NESTING, TOO_DEEP, check_structure
from .text_parser import elements_to_array
from .types import OtherType, RawAttribute, TensorType, Type
from .versions import settle_graph

VERSION = 1
_INLINE_ELEMENTS = 64  # larger constants are base64
_BRACKETS = "values lie in one another hundreds deep"
_Json = dict[str, object]


def to_json(graph: Graph) -> _Json:
    """The graph as plain dicts and lists, ready for `json.dumps`."""
    return {"egraft": VERSION, **_graph(graph), "opset": dict(sorted(graph.opsets.items()))}


def dumps(graph: Graph) -> str:
    """The graph as JSON text."""
    return json.dumps(to_json(graph), ensure_ascii=False, indent=1)


def from_json(data: Mapping[str, object] | str | bytes) -> Graph:
    """The graph of JSON text or of its dicts; types are inferred.

    Raises ParseError with the path (or line and column), InvalidModel, InferenceError.
    """
    if isinstance(data, str | bytes):
        try:
            data = json.loads(data)
        except UnicodeDecodeError as error:
            raise ParseError("the JSON", f"it is not UTF-8 ({error.reason})", "write it as UTF-8") from error
        except json.JSONDecodeError as error:
            raise ParseError(f"line {error.lineno}, column {error.colno}", f"the JSON does not parse ({error.msg})",
                             "correct the JSON") from error
        except RecursionError as error:
            raise ParseError("the JSON", _BRACKETS, FLATTEN) from error
        except ValueError as error:
            raise ParseError("the JSON", "it has a number with thousands of digits", "correct the number") from error
    top = _expect(data, dict, "$")
    if top.get("egraft") != VERSION:
        raise ParseError("$.egraft", f"version {top.get('egraft')!r} where {VERSION} should stand",
                         'a graph begins {"egraft": 1, ...}; see docs/json-form.md')
    try:
        return _Reader(top).graph
    except RecursionError as error:
        raise ParseError("$", _BRACKETS, FLATTEN) from error


# Writing


def _graph(graph: Graph) -> _Json:
    out: _Json = {"name": graph.name}
    if graph.doc:
        out["doc"] = graph.doc
    if graph.metadata:
        out["metadata"] = dict(graph.metadata)
    out["inputs"] = [_input(graph, name) for name in graph.inputs]
    out["outputs"] = [_output(graph, name) for name in graph.outputs]
    if graph.constants:
        out["constants"] = {name: _constant(value) for name, value in graph.constants.items()}
    out["nodes"] = [_node(node) for node in graph.nodes]
    return out


def _input(graph: Graph, name: str) -> _Json:
    out: _Json = {"name": name, **_type(graph.types.get(name) or graph.declared.get(name))}
    if name in graph.defaults:
        out["default"] = _constant(graph.defaults[name])
    return out


def _output(graph: Graph, name: str) -> object:
    type_ = graph.declared.get(name)
    return {"name": name, **_type(type_)} if type_ is not None else name


def _type(type_: Type | None) -> _Json:
    if type_ is None:
        return {}
    if isinstance(type_, OtherType):
        return {"proto": base64.b64encode(type_.proto).decode(), "kind": type_.text}
    out: _Json = {"dtype": type_.dtype}
    if type_.shape is not None:
        out["shape"] = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return out


def _constant(constant: Constant) -> _Json:
    out: _Json = {"dtype": constant.dtype, "shape": list(constant.shape)}
    if constant.dtype == "string":
        out["data"] = [_bytes(item) if isinstance(item, bytes) else str(item)
                       for item in constant.array.reshape(-1)]
    elif constant.size <= _INLINE_ELEMENTS and _is_exact(constant):
        out["data"] = constant.array.reshape(-1).astype(_wide(constant.dtype)).tolist()
    else:
        flat = np.ascontiguousarray(constant.array).reshape(-1)
        out["base64"] = base64.b64encode(flat.view(np.uint8).tobytes() if flat.size else b"").decode()
    return out


def _wide(dtype: str) -> type:
    if dtype == "bool":
        return bool
    return int if dtype in dtypes.INTEGERS or "int" in dtype else np.float64  # type: ignore[return-value]


def _is_exact(constant: Constant) -> bool:
    """JSON has no nan, no infinity and no complex numbers, and readers may not know numbers beyond 64 bits."""
    if constant.dtype.startswith("complex"):
        return False
    return _wide(constant.dtype) is not np.float64 or bool(np.isfinite(constant.array.astype(np.float64)).all())


def _bytes(raw: bytes) -> _Json:
    return {"bytes": base64.b64encode(raw).decode()}


def _node(node: Node) -> _Json:
    out: _Json = {"op": node.op}
    for key in ("domain", "name", "overload", "doc"):
        if getattr(node, key):
            out[key] = getattr(node, key)
    record = None if node.is_opaque else find(node.op, node.domain)
    if node.is_opaque and find(node.op, node.domain) is not None:
        out["opaque"] = True
    out["inputs"], out["outputs"] = list(node.inputs), list(node.outputs)
    attrs = {name: _attribute(value) for name, value in node.attrs.items() if not is_default(record, name, value)}
    if attrs:
        out["attributes"] = attrs
    if node.metadata:
        out["metadata"] = dict(node.metadata)
    if node.origins:
        out["origins"] = list(node.origins)
    return out


def _attribute(value: object) -> object:
    if value is RUNTIME:
        return {"runtime": True}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, tuple):
        return [_attribute(item) for item in value]
    if isinstance(value, Constant):
        return {"tensor": _constant(value)}
    if isinstance(value, Graph):
        return {"graph": _graph(value)}
    if isinstance(value, RawAttribute):
        return {"proto": base64.b64encode(value.proto).decode()}
    raise TypeError(f"an attribute cannot be a {type(value).__name__}")


# Reading


def _fail(path: str, found: str) -> NoReturn:
    raise ParseError(path, found, "see docs/json-form.md")


def _expect(value: object, kind: type, path: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {dict: "an object", list: "a list", str: "a text", int: "an integer"}
        _fail(path, f"found {json.dumps(value, default=str)[:40]} where {words[kind]} should stand")
    return value


class _Reader:
    def __init__(self, top: Mapping[str, object]) -> None:
        opsets = top.get("opset", DEFAULT_OPSET)
        if isinstance(opsets, int) and not isinstance(opsets, bool):
            opsets = {"": opsets}
        self.opsets = {("" if domain == "ai.onnx" else domain): int(_expect(version, int, f"$.opset.{domain}"))
                       for domain, version in _expect(opsets, dict, "$.opset").items()}  # type: ignore[call-overload]
        self.depth = -1
        self.graph = self.read(top, "$")
        self.graph.opsets = dict(self.opsets)
        check_structure(self.graph)
        infer(self.graph)
        settle_graph(self.graph, self.opsets)

    def read(self, data: object, path: str) -> Graph:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise ParseError(path, TOO_DEEP, FLATTEN)
        fields = _expect(data, dict, path)
        known = {"egraft", "opset", "name", "doc", "metadata", "inputs", "outputs", "constants", "nodes"}
        for key in fields:
            if key not in known:
                _fail(f"{path}.{key}", f"there is no field {key!r}")
        graph = Graph(name=str(_expect(fields.get("name", "graph"), str, f"{path}.name")))
        graph.doc = str(_expect(fields.get("doc", ""), str, f"{path}.doc"))
        graph.metadata = _texts(fields.get("metadata", {}), f"{path}.metadata")
        for index, item in enumerate(_expect(fields.get("inputs", []), list, f"{path}.inputs")):
            self.input(graph, item, f"{path}.inputs[{index}]")
        for index, item in enumerate(_expect(fields.get("outputs", []), list, f"{path}.outputs")):
            self.output(graph, item, f"{path}.outputs[{index}]")
        for name, item in _expect(fields.get("constants", {}), dict, f"{path}.constants").items():
            graph.constants[name] = self.constant(item, f"{path}.constants.{name}")
        for index, item in enumerate(_expect(fields.get("nodes", []), list, f"{path}.nodes")):
            graph.nodes.append(self.node(item, f"{path}.nodes[{index}]"))
        self.depth -= 1
        return graph

    def input(self, graph: Graph, data: object, path: str) -> None:
        fields = _expect(data, dict, path)
        name = str(_expect(fields.get("name"), str, f"{path}.name"))
        graph.inputs.append(name)
        type_ = self.type(fields, path)
        if type_ is not None:
            graph.types[name] = graph.declared[name] = type_
        if "default" in fields:
            graph.defaults[name] = self.constant(fields["default"], f"{path}.default")

    def output(self, graph: Graph, data: object, path: str) -> None:
        if isinstance(data, str):
            graph.outputs.append(data)
            return
        fields = _expect(data, dict, path)
        name = str(_expect(fields.get("name"), str, f"{path}.name"))
        graph.outputs.append(name)
        type_ = self.type(fields, path)
        if type_ is not None:
            graph.declared[name] = type_

    def type(self, fields: Mapping[str, object], path: str) -> Type | None:
        if "proto" in fields:
            return OtherType(_unbase64(fields["proto"], f"{path}.proto"), str(fields.get("kind", "other")))
        dtype = fields.get("dtype")
        if dtype is None:
            return None
        if dtype not in dtypes.ONNX_NUMBER:
            _fail(f"{path}.dtype", f"{dtype!r} is no element type")
        if fields.get("shape") is None:
            return TensorType(str(dtype))
        dims = []
        for index, dim in enumerate(_expect(fields["shape"], list, f"{path}.shape")):
            where = f"{path}.shape[{index}]"
            try:
                dims.append(parse_dim(dim) if isinstance(dim, str) else _expect(dim, int, where))
            except ParseError as error:
                raise ParseError(where, error.found, error.fix) from error
            if isinstance(dim, int) and dim < 0:
                _fail(where, f"the size {dim} is negative")
        return TensorType(str(dtype), tuple(dims))  # type: ignore[arg-type]

    def constant(self, data: object, path: str) -> Constant:
        fields = _expect(data, dict, path)
        type_ = self.type(fields, path)
        if not isinstance(type_, TensorType) or not type_.is_static:
            _fail(path, "a constant needs a dtype and a shape of integers")
        shape = tuple(int(dim) for dim in type_.shape or ())  # type: ignore[arg-type]
        try:
            if "base64" in fields:
                raw = _unbase64(fields["base64"], f"{path}.base64")
                array = np.frombuffer(raw, dtypes.numpy_dtype(type_.dtype)).reshape(shape)
            else:
                items = _flat(_expect(fields.get("data"), list, f"{path}.data"), f"{path}.data")
                array = elements_to_array(items, type_.dtype).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            _fail(path, f"the data is no {type_} ({error})")
        return Constant(type_, lambda: array)

    def node(self, data: object, path: str) -> Node:
        fields = _expect(data, dict, path)
        known = {"op", "domain", "name", "overload", "doc", "opaque", "inputs", "outputs", "attributes",
                 "metadata", "origins"}
        for key in fields:
            if key not in known:
                _fail(f"{path}.{key}", f"there is no field {key!r}")
        op = str(_expect(fields.get("op"), str, f"{path}.op"))
        text = {key: str(_expect(fields.get(key, ""), str, f"{path}.{key}"))
                for key in ("domain", "name", "overload", "doc")}
        domain = "" if text["domain"] == "ai.onnx" else text["domain"]
        attrs = {name: self.attribute(value, f"{path}.attributes.{name}")
                 for name, value in _expect(fields.get("attributes", {}), dict, f"{path}.attributes").items()}
        version = 0 if fields.get("opaque") else version_at(op, domain, self.opsets.get(domain, 0))
        record = find(op, domain) if version else None
        inputs, outputs = _names(fields, "inputs", path), _names(fields, "outputs", path)
        if record is not None:
            try:
                attrs = complete(record, attrs)
            except ValueError as error:
                _fail(path, str(error))
            while inputs and not inputs[-1]:
                inputs = inputs[:-1]
        return Node(op, inputs, outputs, attrs, domain, text["name"], version, text["doc"],
                    _texts(fields.get("metadata", {}), f"{path}.metadata"), _names(fields, "origins", path),
                    text["overload"])

    def attribute(self, value: object, path: str) -> object:
        if isinstance(value, list):
            return tuple(self.attribute(item, f"{path}[{index}]") for index, item in enumerate(value))
        if not isinstance(value, dict):
            return plain(value)
        if len(value) != 1:
            _fail(path, "an attribute object has one field: tensor, graph, float, bytes, proto or runtime")
        (kind, inner), *_ = value.items()
        if kind == "tensor":
            return self.constant(inner, f"{path}.tensor")
        if kind == "graph":
            return self.read(inner, f"{path}.graph")
        if kind == "float":
            try:
                return float(str(inner))
            except ValueError:
                _fail(path, f"{inner!r} is no number")
        if kind == "runtime":
            return RUNTIME
        if kind in ("bytes", "proto"):
            raw = _unbase64(inner, f"{path}.{kind}")
            return raw if kind == "bytes" else RawAttribute(raw)
        _fail(path, f"there is no kind of attribute {kind!r}")


def _names(fields: Mapping[str, object], key: str, path: str) -> tuple[str, ...]:
    items = _expect(fields.get(key, []), list, f"{path}.{key}")
    return tuple(str(_expect(item, str, f"{path}.{key}[{index}]")) for index, item in enumerate(items))


def _texts(value: object, path: str) -> dict[str, str]:
    return {key: str(_expect(item, str, f"{path}.{key}")) for key, item in _expect(value, dict, path).items()}


def _flat(items: list, path: str) -> list[object]:
    found: list[object] = []
    for index, item in enumerate(items):
        if isinstance(item, list):
            found += _flat(item, f"{path}[{index}]")
        elif isinstance(item, dict):
            found.append(_unbase64(item.get("bytes"), f"{path}[{index}]"))
        else:
            found.append(item)
    return found


def _unbase64(value: object, path: str) -> bytes:
    try:
        return base64.b64decode(str(_expect(value, str, path)), validate=True)
    except binascii.Error as error:
        _fail(path, f"the base64 does not parse ({error})")


__all__ = ["VERSION", "dumps", "from_json", "to_json"]
