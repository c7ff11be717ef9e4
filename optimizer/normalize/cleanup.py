"""Clean-up passes that need no types: dead code, identities, equal constants and nodes."""

from __future__ import annotations

from collections import Counter

from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, is_pure, schema
from graphs.types import TensorType
from graphs.uses import Uses


def drop_dead_nodes(graph: Graph) -> list[str]:
    """Remove nodes and constants that no output needs."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    dropped: list[str] = []
    for node in reversed(graph.nodes):
        if any(out in needed for out in node.outputs if out):
            kept.append(node)
            needed.update(node.uses)
        else:
            dropped.append(next((out for out in node.outputs if out), node.name))
    graph.nodes = kept[::-1]
    unread = [name for name in graph.constants if name not in needed]
    for name in unread:
        del graph.constants[name]
    alive = set(graph.inputs) | set(graph.constants) | {out for node in graph.nodes for out in node.outputs}
    graph.types = {name: type_ for name, type_ in graph.types.items() if name in alive}
    return dropped[::-1] + unread


def drop_unused_outputs(graph: Graph) -> list[str]:
    """Blank optional outputs that nobody reads, so that such nodes have one output less."""
    read = set(graph.outputs)
    for node in graph.nodes:
        read.update(node.uses)
    changed: list[str] = []
    for node in graph.nodes:
        if node.is_opaque or len(node.outputs) < 2 or not is_pure(node):
            continue  # training-mode BatchNormalization must name all its outputs
        found = schema(node.op, graph.opset, node.domain) if node.domain == "" else None
        if found is None:
            continue
        outputs, before = list(node.outputs), len(changed)
        for index, out in enumerate(outputs):
            formal = found.outputs[min(index, len(found.outputs) - 1)]
            optional = formal.option == type(formal.option).Optional
            if out and out not in read and optional and index > 0:
                outputs[index] = ""
                changed.append(out)
        while outputs and not outputs[-1]:
            outputs.pop()
        if len(changed) > before:  # else nothing happened that a trace would tell
            node.outputs = tuple(outputs)
    return changed


def replace_value(graph: Graph, old: str, new: str, uses: Uses | None = None) -> bool:
    """Let all readers of `old` read `new`; False where the contract forbids it (nothing is changed then).

    If `old` is an output of the graph, the producer of `new` takes over the name `old`, which is possible only if
    `new` is made by a node of this graph and is no output itself. `uses` is the graph's index where there is one.
    """
    uses = Uses(graph) if uses is None else uses
    if old not in graph.outputs:
        uses.rename(old, new)
        return True
    maker, old_maker = uses.makers.get(new), uses.makers.get(old)
    if maker is None or new in graph.outputs or maker.is_opaque:
        return False
    if old_maker is not None:
        uses.rename_output(old_maker, old, "")
    uses.rename_output(maker, new, old)
    uses.rename(new, old)
    graph.types[old] = graph.types.pop(new, graph.types.get(old, TensorType("float32")))
    return True


def remove_identities(graph: Graph) -> list[str]:
    """Remove Identity and inference-mode Dropout (an unread or constant mask included)."""
    through = [node for node in graph.nodes if _hands_through(node)]
    uses = Uses(graph) if through else None
    changed: list[str] = []
    gone: set[int] = set()
    for node in through:
        source, target = node.inputs[0], node.outputs[0]
        if target and not replace_value(graph, target, source, uses):
            continue
        gone.add(id(node))
        changed.append(target)
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    return changed


def _hands_through(node: Node) -> bool:
    if node.domain != "" or node.is_opaque:
        return False
    if node.op == "Identity":
        return True
    if node.op != "Dropout" or len([out for out in node.outputs if out]) != 1 or not node.outputs[0]:
        return False
    mode = node.attrs.get("training_mode")
    return mode is not RUNTIME and not mode


def merge_equal_constants(graph: Graph) -> list[str]:
    """Constants of equal dtype, shape and content become the first of them (outputs keep theirs)."""
    first: dict[tuple[str, tuple[int, ...], bytes], list[str]] = {}
    renaming: dict[str, str] = {}
    for name, constant in graph.constants.items():
        if name in graph.outputs:
            continue
        key = (constant.dtype, constant.shape, constant.sample)
        for other in first.setdefault(key, []):
            if graph.constants[other].digest == constant.digest:
                renaming[name] = other
                break
        else:
            first[key].append(name)
    graph.rename_uses(renaming)
    for name in renaming:
        del graph.constants[name]
    return list(renaming)


def merge_equal_nodes(graph: Graph) -> list[str]:
    """Merge pure nodes of equal operator, attributes and inputs (opaque nodes and nested graphs never)."""
    seen: dict[tuple[object, ...], Node] = {}
    changed: list[str] = []
    gone: set[int] = set()
    uses = Uses(graph)
    for node in graph.nodes:
        if node.is_opaque or not is_pure(node) or any(True for _ in node.graphs):
            continue
        attrs = tuple(sorted((name, _frozen(value)) for name, value in node.attrs.items()))
        key = (node.domain, node.op, node.inputs, attrs, tuple(bool(out) for out in node.outputs))
        twin = seen.setdefault(key, node)
        if twin is node:
            continue
        if any(out in graph.outputs for out in node.outputs):
            if any(out in graph.outputs for out in twin.outputs):
                continue  # two outputs of the graph keep their names, so both nodes stay
            uses.drop(node)
            for old, new in zip(twin.outputs, node.outputs, strict=True):
                if old:
                    uses.rename_output(twin, old, new)
                    uses.rename(old, new)
            changed += [out for out in twin.outputs if out]
        else:
            for old, new in zip(node.outputs, twin.outputs, strict=True):
                if old:
                    replace_value(graph, old, new, uses)
                    changed.append(old)
        gone.add(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    return changed


def _frozen(value: object) -> tuple[str, object]:
    """A hashable attribute; -0.0 and 0.0 differ, 1 and 1.0 and True differ."""
    return (type(value).__name__, repr(value) if isinstance(value, (float, tuple)) else value)


def reader_counts(graph: Graph) -> Counter[str]:
    """How many nodes read each value, outputs of the graph counted."""
    counts: Counter[str] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(node.uses)
    return counts
