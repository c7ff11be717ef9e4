"""Inlining of model-local functions: a call becomes the nodes of the function's body."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from ..canonical import version_at
from ..errors import InvalidModel
from ..inference import infer
from ..ir import Graph, NameSupply, Node
from ..structure import check_structure, drop_unused_constants
from ..types import RawAttribute
from ..versions import Original, verbatim_problem
from .naming import nested_graphs, own_names
from .reader import Lookup, Reader, read_opsets
from .tensors import ExternalFiles
from .values import write_attribute
from .writer import writable

_MAX_DEPTH = 100  # of calls inside calls; ONNX Runtime takes as many
# ONNX Runtime has operators of its own there and prefers them to a function of the same name, which is for others.
RUNTIME_DOMAIN = "com.microsoft"


def inline_functions(graph: Graph, keep: frozenset[tuple[str, str, str]] = frozenset()) -> list[str]:
    """Replace calls of model-local functions by their bodies, in place, nested graphs and calls in bodies included.

    Calls that cannot be inlined stay, with their functions: those in `keep`, those of `com.microsoft`, and those whose
    body means something else at the opsets of the model. Returns the labels of the calls that were inlined. Types are
    inferred anew.
    """
    if not graph.functions:
        return []
    inliner = _Inliner(graph, keep)
    inliner.visit(graph, None, [])
    if inliner.done:
        inliner.finish()
    called = inliner.called()
    graph.functions = {key: value for key, value in graph.functions.items() if key in called}
    return inliner.done


def with_bodies(graph: Graph, keep: frozenset[tuple[str, str, str]] = frozenset()) -> Graph:
    """What a graph computes without calls: a copy with the bodies of functions in their place (but for `keep`), the
    graph itself where it has no functions.
    """
    if not graph.functions:
        return graph
    opened = graph.copy()
    inline_functions(opened, keep)
    return opened


def _key(node: Node) -> tuple[str, str, str]:
    return node.domain, node.op, node.overload


class _Inliner:
    def __init__(self, root: Graph, keep: frozenset[tuple[str, str, str]]) -> None:
        self.root, self.keep = root, keep
        self.names = NameSupply(root.names() | set(root.defaults))
        self.done: list[str] = []
        self.originals: list[tuple[Original, Lookup]] = []
        self.functions: dict[tuple[str, str, str], FunctionProto] = dict(root.functions)  # type: ignore[arg-type]

    def visit(self, graph: Graph, parent: Lookup | None, stack: list[tuple[str, str, str]]) -> None:
        lookup = Lookup(graph, parent)
        lookup.hidden = set(graph.inputs) | {out for node in graph.nodes for out in node.outputs}
        result: list[Node] = []
        for node in graph.nodes:
            result.extend(self.expand(node, graph, lookup, stack))
        graph.nodes = result

    def expand(self, node: Node, graph: Graph, lookup: Lookup, stack: list[tuple[str, str, str]]) -> list[Node]:
        """The nodes that stand for a node: itself, or the body of the function that it calls."""
        for inner in node.graphs:
            self.visit(inner, lookup, stack)
        key = _key(node)
        kept = not node.is_opaque or key in self.keep or node.domain == RUNTIME_DOMAIN
        function = None if kept else self.functions.get(key)
        if function is None:
            return [node]
        if key in stack:
            raise InvalidModel(node.label, f"function {node.op!r} calls itself", "functions may not be recursive")
        if len(stack) >= _MAX_DEPTH:
            raise InvalidModel(node.label, f"functions call each other more than {_MAX_DEPTH} deep", "inline some")
        made = self._body(node, function, graph, lookup)
        if made is None:
            return [node]
        self.done.append(node.label)
        result: list[Node] = []
        for each in made:
            result.extend(self.expand(each, graph, lookup, [*stack, key]))
        return result

    def _body(self, call: Node, function: FunctionProto, graph: Graph, lookup: Lookup) -> list[Node] | None:
        """The nodes of one call, None where they mean something else at the model's opsets."""
        nodes = _instantiate(call, function, self.names)
        opsets = read_opsets(function.opset_import)
        reader = Reader(opsets, max(self.root.ir_version, 4), ExternalFiles(None))
        reader.functions, reader._names = self.functions, self.names
        scratch = Graph(constants={}, types=graph.types)
        inner = Lookup(scratch, lookup)
        reader.nodes(nodes, scratch, inner, [])
        if any(self._problem(node, opsets) for node in scratch.nodes):
            return None
        for node in scratch.nodes:
            node.origins = (call.name,) if call.name else ()
        for each in scratch.walk():
            for node in each.nodes:
                opset = self.root.opsets.setdefault(node.domain, opsets.get(node.domain, 1))
                node.version = version_at(node.op, node.domain, opset) if node.version else 0
        self.originals += reader.originals
        graph.constants.update(scratch.constants)
        return scratch.nodes

    def finish(self) -> None:
        """Infer types; undo what could not be written without them."""
        check_structure(self.root)
        infer(self.root)
        for original, lookup in self.originals:
            original.secure(self.root.opsets.get(original.node.domain, 0), lookup.type)
        for graph in self.root.walk():
            drop_unused_constants(graph)

    def _problem(self, node: Node, opsets: Mapping[str, int]) -> str | None:
        old = opsets.get(node.domain, 0)
        new = self.root.opsets.get(node.domain, old)
        if _key(node) in self.functions or (old == new and not any(node.graphs)):
            return None
        if node.is_opaque:
            problem = verbatim_problem(node, old, new)
        else:
            problem = None if old == new else writable(node, self.root.opset, self.root)
        return problem or next((found for graph in node.graphs for each in graph.nodes
                                if (found := self._problem(each, opsets))), None)

    def called(self) -> set[tuple[str, str, str]]:
        """Functions that are still called, by the graph or by a function that is."""
        found = {_key(node) for graph in self.root.walk() for node in graph.nodes} & self.functions.keys()
        waiting = list(found)
        while waiting:
            for key in _calls(self.functions[waiting.pop()].node) & self.functions.keys():
                if key not in found:
                    found.add(key)
                    waiting.append(key)
        return found


def _calls(nodes: object) -> set[tuple[str, str, str]]:
    found: set[tuple[str, str, str]] = set()
    for node in nodes:  # type: ignore[attr-defined]
        found.add(("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload))
        for graph in nested_graphs(node):
            found |= _calls(graph.node)
    return found


def _instantiate(call: Node, function: FunctionProto, names: NameSupply) -> list[NodeProto]:
    """The body's nodes with the call's names and attributes put in."""
    renaming = dict(zip(function.input, (*call.inputs, *[""] * len(function.input))))
    extra: list[NodeProto] = []
    for inner, outer in zip(function.output, call.outputs):
        if not outer:
            continue
        if inner in renaming:  # an input handed through, or an output named twice
            extra.append(onnx.helper.make_node("Identity", [renaming[inner]], [outer]))
        else:
            renaming[inner] = outer
    attributes = {proto.name: proto for proto in function.attribute_proto}
    for name, value in call.attrs.items():
        if isinstance(value, RawAttribute):
            attributes[name] = AttributeProto.FromString(value.proto)
        else:
            attributes[name] = write_attribute(name, value, None, _no_graph)
    stem = call.name or next((name for name in call.outputs if name), call.op)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in function.node]
    _fill(nodes, renaming, attributes, names, stem)
    return [*nodes, *extra]


def _no_graph(graph: Graph) -> GraphProto:
    raise InvalidModel(f"graph {graph.name!r}", "a function takes a graph as an attribute",
                       "functions with graph attributes cannot be inlined")


def _fill(nodes: object, renaming: dict[str, str], attributes: Mapping[str, AttributeProto], names: NameSupply,
          stem: str) -> None:
    """Fresh names for everything that the nodes define, values for their attribute references; in place."""
    for node in nodes:  # type: ignore[attr-defined]
        for name in node.output:
            if name and name not in renaming:
                renaming[name] = names.fresh(f"{stem}/{name}")
    for node in nodes:  # type: ignore[attr-defined]
        node.input[:] = [renaming.get(name, name) for name in node.input]
        node.output[:] = [renaming.get(name, name) for name in node.output]
        if node.name:
            node.name = f"{stem}/{node.name}"
        _fill_attributes(node, attributes)
        for graph in nested_graphs(node):
            inner = {**renaming, **{name: names.fresh(f"{stem}/{name}") for name in sorted(own_names(graph, False))}}
            for info in (*graph.input, *graph.output, *graph.value_info):
                info.name = inner.get(info.name, info.name)
            for tensor in graph.initializer:
                tensor.name = inner.get(tensor.name, tensor.name)
            for sparse in graph.sparse_initializer:
                sparse.values.name = inner.get(sparse.values.name, sparse.values.name)
            _fill(graph.node, inner, attributes, names, stem)


def _fill_attributes(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    filled: list[AttributeProto] = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            filled.append(attribute)
            continue
        given = attributes.get(attribute.ref_attr_name)
        if given is not None:  # not given and without a default: the node does not have it either
            copy = AttributeProto()
            copy.CopyFrom(given)
            copy.name = attribute.name
            filled.append(copy)
    kept = [AttributeProto.FromString(each.SerializeToString()) for each in filled]
    del node.attribute[:]
    node.attribute.extend(kept)
