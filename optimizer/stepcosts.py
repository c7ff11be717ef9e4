"""Predicted seconds of the graph before and after each step of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cost_model.node_costs import NodeCosts
from cost_model.signature import alike
from graphs.ir import Graph, Node
from search.steps import Rewriter

from . import journal
from .replay import Stored, rewrite_of


class _Total:
    """The predicted seconds of a graph that changes: only nodes that changed are priced again, and nodes that are alike
    once."""

    def __init__(self, graph: Graph, costs: NodeCosts) -> None:
        self.costs = costs
        self._alike: dict[tuple[object, ...], float] = {}
        self.start(graph)

    def start(self, graph: Graph) -> None:
        """Price another graph."""
        self.rewriter = Rewriter(graph)
        self._prices: dict[int, float] = {}
        self._constant = set(graph.constants)
        self._price(self.rewriter.graph.nodes)

    def price_changes(self) -> None:
        """Price what the last patch changed, and what became or ceased to be constant by it."""
        self._constant.update(self.rewriter.graph.constants)
        self._price(self.rewriter.changed)
        for node in self.rewriter.removed:
            self._prices.pop(id(node), None)

    @property
    def seconds(self) -> float:
        """Of the whole graph, the same in whatever order the nodes came."""
        return math.fsum(self._prices.values())

    def _price(self, nodes: Iterable[Node]) -> None:
        graph, uses, constant = self.rewriter.graph, self.rewriter.uses, self._constant
        waiting = list(nodes)[::-1]
        while waiting:
            node = waiting.pop()
            read, outputs = node.uses, [name for name in node.outputs if name]
            folded = bool(read) and all(name in constant for name in read)  # it depends on constants alone
            if folded != (bool(outputs) and outputs[0] in constant):
                constant.difference_update(outputs)
                constant.update(outputs if folded else ())
                waiting += [reader for name in outputs for reader in uses.readers(name) if id(reader) in self._prices]
            self._prices[id(node)] = 0.0 if folded else self._seconds(graph, node)

    def _seconds(self, graph: Graph, node: Node) -> float:
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
    if not steps:
        return
    stored = Stored(graph)
    total = _Total(graph, costs)
    before, patched = total.seconds, False
    for step in steps:
        if step["patch"].get("kind") == "diff":
            if patched:  # else what is dead is part of the difference
                graph = total.rewriter.finish()
            graph, patched = journal.apply(graph, step["patch"]), False
            stored.see(graph)
            total.start(graph)
        else:
            total.rewriter.apply(rewrite_of(step, stored).patch)
            total.price_changes()
            patched = True
        after = total.seconds
        step["cost_before"], step["cost_after"] = before, after
        step["cost_source"] = "sum of node times: " + "/".join(sorted(costs.sources()))
        before = after
