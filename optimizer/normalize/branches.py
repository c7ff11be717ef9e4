"""Control flow whose course is known: constant conditions, outputs that nobody reads."""

from __future__ import annotations

from graphs.ir import Graph, NameSupply, Node, is_fused
from graphs.operators import schema

from .cleanup import drop_dead_nodes, reader_counts, replace_value

MOST_SUNK = 4 << 20  # bytes of a constant: larger ones may lie in a file beside the model, from where they are mapped


def inline_constant_branches(graph: Graph) -> list[str]:
    """Put the taken branch of an If with a constant condition in the place of the If."""
    changed: list[str] = []
    names: NameSupply | None = None
    open_ = list(graph.nodes)
    while open_:
        node = open_.pop(0)
        if node.op != "If" or node.domain != "" or node.is_opaque or node.inputs[0] not in graph.constants:
            continue
        taken = bool(graph.constants[node.inputs[0]].array.reshape(-1)[0])
        branch = node.attrs["then_branch" if taken else "else_branch"]
        assert isinstance(branch, Graph)
        names = names or NameSupply(graph.names())
        open_ = inline_branch(graph, node, branch, names) + open_  # an If inside may have a constant condition as well
        changed.append(next(out for out in node.outputs if out))
    return changed


def inline_branch(graph: Graph, node: Node, branch: Graph, names: NameSupply) -> list[Node]:
    """Put a branch in the place of its If; the nodes that it brought."""
    body = branch.copy()
    own = list(body.constants) + [out for inner in body.nodes for out in inner.outputs if out]
    renaming = {name: names.fresh(name) for name in own}
    _rename_definitions(body, renaming, names)
    position = graph.nodes.index(node)
    graph.nodes[position : position + 1] = body.nodes
    graph.constants.update(body.constants)
    graph.types.update(body.types)
    inner_producers = {out for inner in body.nodes for out in inner.outputs}
    taken_names: dict[str, str] = {}
    for out, inner in zip(node.outputs, body.outputs, strict=True):
        if not out:
            continue
        inner = taken_names.get(inner, inner)
        if inner in inner_producers and replace_value(graph, out, inner):
            if out in graph.outputs:
                taken_names[inner] = out
            continue
        if out not in graph.outputs:
            graph.rename_uses({out: inner})
            continue
        found = schema("Identity", graph.opset)
        version = found.since_version if found is not None else 1
        identity = Node("Identity", (inner,), (out,), {}, "", names.fresh(f"{node.name or out}_identity"), version)
        graph.nodes.insert(graph.nodes.index(body.nodes[-1]) + 1 if body.nodes else position, identity)
    return list(body.nodes)


def sink_constants(graph: Graph) -> list[str]:
    """Put a constant that one nested graph alone reads into that graph; its name.

    Runtimes prepare a graph's own weights when they load it. What a nested graph takes from around it they do not
    prepare: ONNX Runtime's silero_vad (two branches) takes 4 % longer.
    """
    readers: dict[str, list[Graph | None]] = {name: [None] for name in graph.outputs}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(None)
        for body in node.graphs:
            own = None if node.is_opaque or is_fused(node) else body
            for name in body.captured():
                readers.setdefault(name, []).append(own)
    moved: list[str] = []
    for name in list(graph.constants):
        reader, *others = readers.get(name, [None])
        if reader is not None and not others and graph.constants[name].nbytes <= MOST_SUNK:
            reader.constants[name] = graph.constants.pop(name)
            moved.append(name)
    inner = [body for node in graph.nodes if not node.is_opaque and not is_fused(node) for body in node.graphs]
    return moved + [name for body in inner for name in sink_constants(body)]


def _rename_definitions(body: Graph, renaming: dict[str, str], names: NameSupply) -> None:
    body.rename_uses(renaming, outputs=True)
    for inner in body.nodes:
        inner.outputs = tuple(renaming.get(out, out) for out in inner.outputs)
        if inner.name:
            inner.name = names.fresh(inner.name)
    body.constants = {renaming.get(name, name): constant for name, constant in body.constants.items()}
    body.types = {renaming.get(name, name): type_ for name, type_ in body.types.items()}


def narrow_branches(graph: Graph) -> list[str]:
    """Remove outputs of an If that nobody reads (at least one stays), and what made them."""
    readers = reader_counts(graph)
    changed: list[str] = []
    for node in graph.nodes:
        if node.op != "If" or node.domain != "" or node.is_opaque:
            continue
        keep = [index for index, out in enumerate(node.outputs) if out and readers[out]]
        if not keep or len(keep) == len(node.outputs):
            continue
        changed += [out for index, out in enumerate(node.outputs) if index not in keep]
        node.outputs = tuple(node.outputs[index] for index in keep)
        for branch in node.graphs:
            branch.outputs = [branch.outputs[index] for index in keep]
            while drop_dead_nodes(branch) or narrow_branches(branch):
                pass
    return [out or "unnamed output" for out in changed]
