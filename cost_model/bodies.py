"""What of nested graphs is computed before they run."""

from __future__ import annotations

from collections.abc import Set

from graphs.ir import Graph, Node
from graphs.unpacking import stays


def computed_on_load(graph: Graph, node: Node, known: Set[str]) -> bool:
    """Whether a node depends on nothing but values that are `known` before the graph runs, and is not kept for what it
    stores in few bits."""
    uses = node.uses
    return bool(uses) and all(name in known for name in uses) and not stays(graph, node)
