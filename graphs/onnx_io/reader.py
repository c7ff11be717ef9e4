"""ModelProto to Graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NoReturn

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from ..constants import Constant
from ..errors import EgraftError, InvalidModel
from ..inference import infer
from ..ir import WRITTEN, Graph, NameSupply, Node
from ..structure import check_structure, drop_unused_constants
from ..types import TensorType, Type
from ..versions import Original, canonicalize
from .annotations import EXTRA, annotated
from .naming import nested_graphs, own_names, rename_definitions
from .stated import keep
from .tensors import SPARSE, ExternalFiles, read_sparse, read_tensor
from .values import read_attribute, read_type

_FIX = "correct the model"
_MAX_NODES = 2_000_000  # of a model with all functions inlined
_CALL_DEPTH = 64


def read_model(model: ModelProto, files: ExternalFiles) -> Graph:
    """The graph of a model, checked, in canonical form, with inferred types. The proto is taken apart."""
    reader = Reader(read_opsets(model.opset_import), model.ir_version or 3, files)
    reader.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions
                        if not _is_standard(_domain(f.domain), f.name, reader.opsets)}
    _check_expansion(model.graph, reader.functions)
    if reader.ir_version < 3 and not model.opset_import:
        reader.opsets = {"": 1}
    proto = model.graph
    written = _operators(proto.node)  # before it is taken apart
    graph = reader.graph(proto, [])
    _check_opsets(graph, reader.opsets)
    graph.opsets, graph.ir_version = reader.opsets, model.ir_version
    graph.functions = dict(reader.functions)
    graph.doc = _clean(model.doc_string)
    graph.metadata = _metadata(model.metadata_props)
    check_structure(graph)
    graph.extras[EXTRA] = annotated(proto, graph)
    graph.extras[WRITTEN] = dict(written)
    _infer(graph, reader)
    for field in ("node", "initializer", "sparse_initializer", "input", "output", "value_info"):
        proto.ClearField(field)
    for field in ("functions", "opset_import", "metadata_props"):
        model.ClearField(field)
    graph.extras["model"] = model.SerializeToString(deterministic=True)  # producer, training, annotations, ...
    graph.extras["external"] = files.paths
    return graph


def _infer(graph: Graph, reader: Reader) -> None:
    infer(graph)
    for original, lookup in reader.originals:
        original.secure(reader.opsets.get(original.node.domain, 0), lookup.type)
    for each in graph.walk():
        drop_unused_constants(each, reader.lookups[id(each)].listed)


def read_opsets(imports: object) -> dict[str, int]:
    """Domain -> version; '' and 'ai.onnx' are the same domain."""
    found: dict[str, int] = {}
    for entry in imports:  # type: ignore[attr-defined]
        _check_text(entry.domain)
        domain = _domain(entry.domain)
        if found.setdefault(domain, entry.version) != entry.version:
            raise InvalidModel("opset_import", f"domain {domain!r} is imported at two versions", "import it once")
    return found


def _domain(text: str) -> str:
    return "" if text == "ai.onnx" else text


def _check_expansion(proto: GraphProto, functions: Mapping[tuple[str, str, str], onnx.FunctionProto]) -> None:
    """A few functions that call each other twice stand for more nodes than any runtime holds."""
    calls = {key: _operators(function.node) for key, function in functions.items()}
    sizes = dict.fromkeys(calls, 1)
    for _ in range(_CALL_DEPTH if calls else 0):
        former = sizes
        sizes = {key: min(_MAX_NODES + 1, sum(count * former.get(name, 1) for name, count in called.items()))
                 for key, called in calls.items()}
        if sizes == former:
            break
    total = sum(count * sizes.get(name, 1) for name, count in _operators(proto.node).items()) if calls else 0
    if total > _MAX_NODES:
        raise InvalidModel("functions", f"its calls stand for more than {_MAX_NODES} nodes", "inline fewer calls, or "
                           "correct functions that call themselves")


def _is_standard(domain: str, name: str, opsets: Mapping[str, int]) -> bool:
    """A function of this name is never called: runtimes take the operator that ONNX defines (as ONNX Runtime does)."""
    return domain in opsets and onnx.defs.has(name, opsets[domain], domain)


def _operators(nodes: Iterable[NodeProto]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for node in nodes:
        found[_domain(node.domain), node.op_type, node.overload] += 1
        for inner in nested_graphs(node):
            found += _operators(inner.node)
    return found


def _check_opsets(graph: Graph, opsets: Mapping[str, int]) -> None:
    if opsets.get("", 0) < 1 and any(node.domain == "" for each in graph.walk() for node in each.nodes):
        raise InvalidModel("opset_import", "the model does not say which opset its operators belong to",
                           "the file is cut short, or its writer forgot the opset")


class Lookup:
    """Names that a graph sees while it is read: its own constants and types, then those around it."""

    def __init__(self, graph: Graph, parent: Lookup | None) -> None:
        self.graph, self.parent = graph, parent
        self.hidden: set[str] = set()  # names of this graph that are no constants
        self.listed: set[str] = set()  # initializers that are also inputs of an old file: they stay

    def constant(self, name: str) -> Constant | None:
        """The constant of a name, None if it is none."""
        lookup: Lookup | None = self
        while lookup is not None:
            if name in lookup.graph.constants:
                return lookup.graph.constants[name]
            if name in lookup.hidden:
                return None
            lookup = lookup.parent
        return None

    def type(self, name: str) -> Type | None:
        """The type of a name."""
        lookup: Lookup | None = self
        while lookup is not None:
            if name in lookup.graph.constants:
                return lookup.graph.constants[name].type
            if name in lookup.graph.types:
                return lookup.graph.types[name]
            lookup = lookup.parent
        return None


class Reader:
    """Reads the graphs of one model."""

    def __init__(self, opsets: dict[str, int], ir_version: int, files: ExternalFiles) -> None:
        self.opsets, self.ir_version, self.files = opsets, ir_version, files
        self.functions: dict[tuple[str, str, str], onnx.FunctionProto] = {}
        self.symbols = NameSupply(set())
        self.originals: list[tuple[Original, Lookup]] = []
        self.lookups: dict[int, Lookup] = {}
        self._names: NameSupply | None = None

    def graph(self, proto: GraphProto, outer: list[set[str]], parent: Lookup | None = None) -> Graph:
        """A graph or nested graph; `outer` holds the names that the graphs around it define."""
        if self._names is None:
            self._names = NameSupply(own_names(proto, nested=True))
            self.symbols.taken |= _symbols(proto)
        if outer:
            rename_definitions(proto, outer, self._names)
        graph = Graph(name=_clean(proto.name), doc=_clean(proto.doc_string))
        lookup = Lookup(graph, parent)
        self.lookups[id(graph)] = lookup
        self._initializers(proto, graph)
        self._interface(proto, graph, lookup)
        own = own_names(proto, nested=False)
        lookup.hidden = own
        self.nodes(proto.node, graph, lookup, [*outer, own])
        self._stated_types(proto, graph)
        return graph

    def _initializers(self, proto: GraphProto, graph: Graph) -> None:
        sifted, self.files.weights = self.files.weights, {}  # of the outermost graph, which is read first
        for position, tensor in enumerate(proto.initializer):
            self._define(graph, tensor.name, read_tensor(tensor, self.files, sifted.get(position)))
        for sparse in proto.sparse_initializer:
            self._define(graph, sparse.values.name, read_sparse(sparse, self.files))

    def _define(self, graph: Graph, name: str, constant: Constant) -> None:
        _check_text(name)
        if not name:
            raise InvalidModel(f"graph {graph.name!r}", "an initializer has no name", _FIX)
        if name in graph.constants and graph.constants[name] != constant:
            _written_twice(name, "two initializers")
        graph.constants[name] = constant

    def _interface(self, proto: GraphProto, graph: Graph, lookup: Lookup) -> None:
        infos: dict[str, tuple[Type | None, bytes]] = {}
        for info in (*proto.input, *proto.output):
            _check_text(info.name, *(dim.dim_param for dim in info.type.tensor_type.shape.dim))
        for info in proto.input:
            type_ = read_type(info.type, info.name, self.symbols)
            infos[info.name] = (type_, info.SerializeToString(deterministic=True))
            constant = graph.constants.get(info.name)
            if constant is not None and self.ir_version < 4:
                lookup.listed.add(info.name)  # not an input: old files list all initializers as inputs
                continue
            if constant is not None:
                graph.defaults[info.name] = graph.constants.pop(info.name)
                type_ = type_ or constant.type
            graph.inputs.append(info.name)
            if type_ is not None:
                graph.types[info.name] = graph.declared[info.name] = type_
        for info in proto.output:
            graph.outputs.append(info.name)
            type_ = read_type(info.type, info.name, self.symbols)
            infos.setdefault(info.name, (type_, info.SerializeToString(deterministic=True)))
            if type_ is not None:
                graph.declared.setdefault(info.name, type_)
        graph.extras["value_infos"] = infos
        graph.extras["input_order"] = tuple(info.name for info in proto.input)

    def _stated_types(self, proto: GraphProto, graph: Graph) -> None:
        """What the file states of the outputs of opaque nodes, which inference cannot know."""
        wanted = {name for node in graph.nodes if node.is_opaque for name in node.outputs if name}
        infos: dict = graph.extras["value_infos"]  # type: ignore[assignment]
        for info in proto.value_info:
            if info.name in wanted and info.name not in infos:
                type_ = read_type(info.type, info.name, self.symbols)
                infos[info.name] = (type_, info.SerializeToString(deterministic=True))
                if type_ is not None:
                    graph.declared.setdefault(info.name, type_)
        keep(graph, (info for info in proto.value_info if info.name not in wanted))

    def nodes(self, protos: object, graph: Graph, lookup: Lookup, outer: list[set[str]]) -> None:
        """Add nodes to a graph; Constant nodes become constants."""
        rest: list[NodeProto] = []
        for proto in protos:  # type: ignore[attr-defined]
            constant = self._constant(proto)
            if constant is None:
                rest.append(proto)
                continue
            name = proto.output[0]
            if name in graph.constants or name in graph.inputs:
                _written_twice(name, "a Constant node and another place")
            graph.constants[name] = constant
        for proto in rest:
            graph.nodes.append(self._node(proto, graph, lookup, outer))

    def _constant(self, proto: NodeProto) -> Constant | None:
        if proto.op_type != "Constant" or _domain(proto.domain) or len(proto.attribute) != 1 or proto.input:
            return None
        if len(proto.output) != 1 or not proto.output[0]:
            return None
        attribute = proto.attribute[0]
        if attribute.ref_attr_name:
            return None
        if attribute.name == "value":
            return read_tensor(attribute.t, self.files)
        if attribute.name == "sparse_value":
            constant = read_sparse(attribute.sparse_tensor, self.files)
            constant.__dict__[SPARSE] = attribute  # ONNX infers a dense tensor for the node, none for an initializer
            return constant
        kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64",
                 "value_string": "string", "value_strings": "string"}
        dtype = kinds.get(attribute.name)
        if dtype is None:
            return None
        value = read_attribute(attribute, "Constant", "", self.files, self._refuse_graph)
        if dtype == "string":
            return _strings(value)
        return Constant.of(value, dtype)  # type: ignore[arg-type]

    def _refuse_graph(self, proto: GraphProto) -> NoReturn:
        raise InvalidModel("Constant", "its value is a graph", _FIX)

    def _node(self, proto: NodeProto, graph: Graph, lookup: Lookup, outer: list[set[str]]) -> Node:
        domain = _domain(proto.domain)
        if not proto.op_type:
            raise InvalidModel(f"node {proto.name!r}", "it names no operator", _FIX)
        _check_text(proto.op_type, proto.name, domain, proto.overload, *proto.input, *proto.output,
                    *(attribute.name for attribute in proto.attribute))
        node = Node(proto.op_type, tuple(proto.input), tuple(proto.output), {}, domain, proto.name,
                    doc=_clean(proto.doc_string), metadata=_metadata(proto.metadata_props),
                    overload=proto.overload)
        for attribute in proto.attribute:
            if attribute.name in node.attrs:
                raise InvalidModel(node.label, f"attribute {attribute.name!r} is given twice", "give it once")
            try:
                node.attrs[attribute.name] = read_attribute(
                    attribute, node.op, domain, self.files, lambda g: self.graph(g, outer, lookup))
            except EgraftError as error:
                raise type(error)(f"{node.label}, {error.where}", error.found, error.fix) from error
        if (domain, node.op, node.overload) in self.functions:
            return node
        original = Original(node, node.inputs, node.attrs)
        canonicalize(node, self.opsets.get(domain, 0), lookup.constant)
        if not node.is_opaque:
            self.originals.append((original, lookup))
        return node


def _check_text(*texts: str | bytes) -> None:
    """Names must be UTF-8; protobuf reads others (as bytes) but cannot write them."""
    for text in texts:
        if isinstance(text, bytes):
            raise InvalidModel(f"name {_clean(text)!r}", "it is not UTF-8", "write the model with names in UTF-8")


def _clean(text: str | bytes) -> str:
    """A text that may be lost in part (documentation) without what is not UTF-8."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _metadata(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    return {_clean(entry.key): _clean(entry.value) for entry in entries}


def _written_twice(name: str, by: str) -> NoReturn:
    raise InvalidModel(f"value {name!r}", f"it is written twice, by {by}", "give each value a name of its own")


def _strings(value: object) -> Constant:
    import numpy as np

    if isinstance(value, tuple):
        array = np.empty(len(value), object)
        array[:] = value
    else:
        array = np.empty((), object)
        array[()] = value
    return Constant(TensorType("string", array.shape), lambda: array)


def _symbols(proto: GraphProto) -> set[str]:
    """Every name of a dimension in the interface of a graph."""
    return {dim.dim_param for info in (*proto.input, *proto.output)
            for dim in info.type.tensor_type.shape.dim if dim.dim_param}
