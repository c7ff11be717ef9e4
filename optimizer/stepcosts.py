"""Predicted seconds of the graph before and after each step of a trace."""

from __future__ import annotations

import math
from typing import Any

from cost_model.node_costs import NodeCosts
from cost_model.signature import alike
from graphs.ir import Graph, NameSupply, Node
from rules.apply import remove_dead
from search.steps import apply_patch

from . import journal
from .replay import Stored, rewrite_of

LIMIT = 250_000  # steps times nodes: beyond, pricing each prefix would take longer than the search


class _Total:
    """The predicted seconds of a graph that changes, each node priced once, and nodes that are alike together."""

    def __init__(self, costs: NodeCosts) -> None:
        self.costs = costs
        self._known: dict[int, tuple[Node, tuple[str, ...], float | None]] = {}
        self._alike: dict[tuple[object, ...], float] = {}

    def __call__(self, graph: Graph) -> float:
        total = 0.0
        constant = set(graph.constants)
        for node in graph.nodes:
            known = self._known.get(id(node))
            if known is None or known[0] is not node or known[1] != node.inputs:
                known = self._known[id(node)] = (node, node.inputs, self._price(graph, node, constant))
            if known[2] is None:
                constant.update(node.outputs)
            else:
                total += known[2]
        return total

    def _price(self, graph: Graph, node: Node, constant: set[str]) -> float | None:
        """Seconds of a node, None where it depends on constants alone and is folded."""
        if node.uses and all(name in constant for name in node.uses):
            return None
        key = alike(graph, node)
        found = self._alike.get(key) if key is not None else None
        if found is None:
            seconds = self.costs.node_in(graph, node).seconds
            found = 0.0 if math.isinf(seconds) else seconds
            if key is not None:
                self._alike[key] = found
        return found


def add_costs(graph: Graph, steps: list[dict[str, Any]], costs: NodeCosts) -> None:
    """Write `cost_before` and `cost_after` (predicted seconds) and `cost_source` into each step, in place.

    `graph` is where the trace starts.
    """
    if len(steps) * len(graph.nodes) > LIMIT:
        for step in steps:
            step["cost_before"] = step["cost_after"] = None
            step["cost_source"] = f"not worked out for a trace of {len(steps)} steps over {len(graph.nodes)} nodes"
        return
    stored = Stored(graph)
    total = _Total(costs)
    graph = graph.copy()
    names = NameSupply(graph.names())
    before = total(graph)
    for step in steps:
        if step["patch"].get("kind") == "diff":
            graph = journal.apply(graph, step["patch"])
            names.taken |= graph.names()
            stored.see(graph)
        else:
            patch = rewrite_of(step, stored).patch
            apply_patch(graph, patch, names)
            graph.types.update(patch.types)
            graph.sort()
            remove_dead(graph)
        after = total(graph)
        step["cost_before"], step["cost_after"] = before, after
        step["cost_source"] = "sum of node times: " + "/".join(sorted(costs.sources()))
        before = after
