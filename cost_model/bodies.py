"""Nested graphs as they run: with what they see of the graph around them."""

from __future__ import annotations

from collections.abc import Set

from graphs.ir import Graph, Node
from graphs.unpacking import stays


def seeing(graph: Graph, body: Graph) -> Graph:
    """The body with types and constants of what it reads from the graph that it stands in; nodes are shared.

    Types of both must have been inferred. What the graph itself sees of graphs around it is seen through it, so that
    of bodies in bodies the outer one comes first.
    """
    captured = [name for name in body.captured() if name]
    types = {name: graph.types[name] for name in captured if name in graph.types}
    known = {name: graph.constants[name] for name in captured if name in graph.constants}
    return Graph(body.name, list(body.inputs), list(body.outputs), body.nodes, {**known, **body.constants},
                 {**types, **body.types}, opsets=graph.opsets)


def computed_on_load(graph: Graph, node: Node, known: Set[str]) -> bool:
    """Whether a node depends on nothing but values that are `known` before the graph runs, and is not kept for what it
    stores in few bits."""
    uses = node.uses
    return bool(uses) and all(name in known for name in uses) and not stays(graph, node)
