"""A graph as two kernels, where one will not do: the second one reads what the first one wrote.

So a loss is one number for each row of scores, then their mean; and a convolution reads a transposed image that was
copied before.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphs.ir import Graph
from graphs.operators import find

from .product import PRODUCTS
from .reduction import LOWERINGS


def cuts(graph: Graph) -> Iterator[tuple[str, Graph, Graph]]:
    """Operands of reductions, and moved ones of products, the last ones first, each with the graph that computes it and
    the graph that goes on from there, which has the operand as its last input."""
    makers = graph.producers()
    for node in reversed(graph.nodes):
        for name in node.inputs[:1] if node.op in LOWERINGS else node.inputs[:2] if node.op in PRODUCTS else ():
            if name not in makers:
                continue
            first, rest = _needed(graph, [name], ()), _needed(graph, graph.outputs, (name,))
            moved = all(each.op == "Identity" or getattr(find(each.op, each.domain), "movement", False)
                        for each in first.nodes)
            if name not in first.inputs and (moved or node.op in LOWERINGS):
                yield name, first, rest


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
