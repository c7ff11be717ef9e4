"""A failing graph made smaller while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphs.dims import evaluate, symbols
from graphs.errors import EgraftError
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.types import TensorType, Type

Fails = Callable[[Graph], bool]


def shrink(graph: Graph, fails: Fails, tries: int = 150) -> Graph:
    """Drop outputs, nodes (what they made becomes an input), and unused inputs, as long as `fails` says so."""
    best = graph
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(best):
            tries -= 1
            if tries <= 0:
                break
            if fails(smaller):
                best, progress = smaller, True
                break
    return best


def _smaller(graph: Graph) -> Iterator[Graph]:
    for name in graph.outputs if len(graph.outputs) > 1 else []:
        yield from _valid(_only(graph, [out for out in graph.outputs if out != name]))
    for node in graph.nodes:  # what the node read is the output instead of what it made
        for out in node.outputs:
            if out in graph.outputs:
                for name in node.inputs:
                    if name and name not in graph.outputs and name not in graph.constants and name not in graph.inputs:
                        rest = [name if each == out else each for each in graph.outputs]
                        yield from _valid(_only(graph, rest))
    for node in graph.nodes:
        if not any(out in graph.outputs for out in node.outputs):
            yield from _valid(_as_inputs(graph, node))


def _as_inputs(graph: Graph, node: Node) -> Graph:
    new = graph.copy()
    new.nodes = [each for each in new.nodes if each.outputs != node.outputs]
    for out in node.outputs:
        if out:
            new.inputs.append(out)
            new.declared[out] = graph.types[out]
    return _only(new, new.outputs)


def _only(graph: Graph, outputs: list[str]) -> Graph:
    """The part of a graph that these outputs need."""
    new = graph.copy()
    new.outputs = list(outputs)
    needed, kept = set(outputs), []
    for node in reversed(new.nodes):
        if any(out in needed for out in node.outputs):
            kept.append(node)
            needed.update(node.uses)
    new.nodes = kept[::-1]
    new.inputs = [name for name in new.inputs if name in needed]
    new.constants = {name: each for name, each in new.constants.items() if name in needed}
    new.declared = {name: new.types[name] for name in new.inputs}
    new.types = {name: new.types[name] for name in new.inputs}
    return new


def _valid(graph: Graph) -> Iterator[Graph]:
    try:
        infer(graph)
    except EgraftError:
        return
    if graph.nodes and all(map(_known, map(graph.types.get, graph.inputs))):
        yield graph


def _known(type_: Type | None) -> bool:
    """Whether inputs of this type can be drawn."""
    return isinstance(type_, TensorType) and type_.shape is not None and all(
        evaluate(dim, dict.fromkeys(symbols(dim), 2)) is not None for dim in type_.shape)
