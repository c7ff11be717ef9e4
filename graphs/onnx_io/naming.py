"""Names of values in GraphProtos: who defines them, and giving nested definitions names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import AttributeProto, GraphProto, NodeProto

from ..ir import NameSupply


def own_names(proto: GraphProto, nested: bool) -> set[str]:
    """Names that a graph defines, with those of its nested graphs if wanted."""
    names = {info.name for info in proto.input} | {tensor.name for tensor in proto.initializer}
    names |= {sparse.values.name for sparse in proto.sparse_initializer}
    for node in proto.node:
        names.update(node.output)
        if nested:
            for graph in nested_graphs(node):
                names |= own_names(graph, True)
    names.discard("")
    return names


def nested_graphs(node: NodeProto) -> Iterable[GraphProto]:
    """Graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def rename_definitions(proto: GraphProto, outer: list[set[str]], names: NameSupply) -> None:
    """Rename what a nested graph defines under a name that a graph around it also defines (shadowing)."""
    clashes = sorted(name for name in own_names(proto, nested=False) if any(name in each for each in outer))
    if clashes:
        rename_graph(proto, {name: names.fresh(name) for name in clashes})


def rename_graph(proto: GraphProto, renaming: Mapping[str, str]) -> None:
    """Rename definitions and uses in a graph, and uses in its nested graphs."""
    for info in (*proto.input, *proto.output, *proto.value_info):
        info.name = renaming.get(info.name, info.name)
    for tensor in proto.initializer:
        tensor.name = renaming.get(tensor.name, tensor.name)
    for sparse in proto.sparse_initializer:
        sparse.values.name = renaming.get(sparse.values.name, sparse.values.name)
    rename_nodes(proto.node, renaming)


def rename_nodes(nodes: Iterable[NodeProto], renaming: Mapping[str, str]) -> None:
    """Rename inputs and outputs of nodes; nested graphs keep names that they define themselves."""
    for node in nodes:
        node.input[:] = [renaming.get(name, name) for name in node.input]
        node.output[:] = [renaming.get(name, name) for name in node.output]
        for graph in nested_graphs(node):
            own = own_names(graph, nested=False)
            inner = {old: new for old, new in renaming.items() if old not in own}
            if inner:
                rename_nodes(graph.node, inner)
                for info in graph.output:
                    info.name = inner.get(info.name, info.name)
