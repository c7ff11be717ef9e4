"""A graph as two kernels, where one will not do: the second one reads what the first one wrote.

So a loss is one number for each row of scores, then their mean; and a convolution reads a transposed image that was
copied before.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphs.ir import Graph, Node
from graphs.operators import find

from .lanes import RESIZED, overlaps
from .reduction import LOWERINGS


def cuts(graph: Graph) -> Iterator[tuple[str, Graph, Graph]]:
    """Operands of reductions, and moved images of convolutions and pools, the last ones first, each with the graph that
    computes it and the graph that goes on from there, which has the operand as its last input."""
    makers = graph.producers()
    for node in reversed(graph.nodes):
        reads_image = node.op == "Conv" or node.op in RESIZED or overlaps(node)
        name = node.inputs[0] if node.op in LOWERINGS or reads_image else ""
        if name not in makers:
            continue
        first, rest = _needed(graph, [name], ()), _needed(graph, graph.outputs, (name,))
        if name not in first.inputs and (node.op in LOWERINGS or all(map(_is_movement, first.nodes))):
            yield name, first, rest


def chain(graph: Graph) -> tuple[str, Graph, Graph] | None:
    """What the second of two convolutions reads, if it is a depthwise one and the first one makes it: with the graph
    that computes it and the graph that goes on from there, which has it as its last input."""
    makers, found = graph.producers(), [node for node in graph.nodes if node.op == "Conv"]
    if len(found) != 2 or found[1].inputs[0] not in makers or found[1].attrs["group"] == 1:
        return None
    name = found[1].inputs[0]
    first, rest = _needed(graph, [name], ()), _needed(graph, graph.outputs, (name,))
    return (name, first, rest) if found[0] in first.nodes and found[0] not in rest.nodes else None


def _is_movement(node: Node) -> bool:
    record = find(node.op, node.domain)
    return node.op == "Identity" or (record is not None and record.movement)


def _needed(graph: Graph, outputs: list[str], given: tuple[str, ...]) -> Graph:
    """The part of a graph that computes `outputs`, where more values are `given`."""
    made = graph.copy()
    made.inputs, made.outputs = [*graph.inputs, *given], list(outputs)
    needed, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if not (needed - set(given)).isdisjoint(node.outputs):
            needed.update(node.uses)
            kept.append(node)
    made.nodes = kept[::-1]
    made.constants = {name: each for name, each in graph.constants.items() if name in needed}
    return made
