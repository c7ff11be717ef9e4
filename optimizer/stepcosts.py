"""Predicted seconds of the graph before and after each step of a trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from cost_model.node_costs import NodeCosts
from graphs.ir import Graph, Node
from graphs.unpacking import stays
from search.steps import Rewriter

from . import journal
from .replay import Stored, rewrite_of

SUM_OF_TIMES = "sum of node times: "  # what a predicted time is
FREE = (0.0, "")  # what a node over constants costs


class _Total:
    """The predicted seconds of a graph that changes: only nodes that changed are priced again."""

    def __init__(self, graph: Graph, costs: NodeCosts) -> None:
        self.costs = costs
        self.start(graph)

    def start(self, graph: Graph) -> None:
        """Price another graph."""
        self.graph = graph
        self._rewriter: Rewriter | None = None
        self._prices: dict[int, tuple[float, str]] = {}
        self._constant = set(graph.constants)
        for node in graph.nodes:  # they are in order
            read = node.uses
            folded = bool(read) and self._constant.issuperset(read) and not stays(graph, node)
            self._constant.update(node.outputs if folded else ())
            self._prices[id(node)] = FREE if folded else self._cost(graph, node)

    @property
    def rewriter(self) -> Rewriter:
        """What applies patches to a copy of the graph, made when the first is to be applied."""
        if self._rewriter is None:
            self._rewriter = Rewriter(self.graph)
            self._prices = {id(node): self._prices[id(old)] for old, node in zip(
                self.graph.nodes, self._rewriter.graph.nodes, strict=True)}
        return self._rewriter

    def price_changes(self) -> str:
        """Price what the last patch changed, and what became or ceased to be constant by it; where those prices come
        from."""
        self._constant.update(self.rewriter.graph.constants)
        touched = self._price(self.rewriter.changed)
        touched += [self._prices.pop(id(node), FREE) for node in self.rewriter.removed]
        return sources_of(touched)

    def prices(self) -> Counter[tuple[float, str]]:
        """How often each price is paid, wherever in the graph."""
        return Counter(self._prices.values())

    @property
    def seconds(self) -> float:
        """Of the whole graph, the same in whatever order the nodes came."""
        return math.fsum(seconds for seconds, _ in self._prices.values())

    def _price(self, nodes: Iterable[Node]) -> list[tuple[float, str]]:
        """Price some nodes; the prices that are paid no more, and those that came in their place."""
        touched: list[tuple[float, str]] = []
        graph, uses, constant = self.rewriter.graph, self.rewriter.uses, self._constant
        waiting = list(nodes)[::-1]
        while waiting:
            node = waiting.pop()
            read, outputs = node.uses, [name for name in node.outputs if name]
            # it depends on constants alone
            folded = bool(read) and all(name in constant for name in read) and not stays(graph, node)
            if folded != (bool(outputs) and outputs[0] in constant):
                constant.difference_update(outputs)
                constant.update(outputs if folded else ())
                waiting += [reader for name in outputs for reader in uses.readers(name) if id(reader) in self._prices]
            new, old = FREE if folded else self._cost(graph, node), self._prices.get(id(node), FREE)
            touched += [old, new] if old != new else []
            self._prices[id(node)] = new
        return touched

    def _cost(self, graph: Graph, node: Node) -> tuple[float, str]:
        cost = self.costs.node_in(graph, node)
        return FREE if math.isinf(cost.seconds) else (cost.seconds, cost.source)


def sources_of(prices: Iterable[tuple[float, str]]) -> str:
    """Where prices come from, `measured/roofline`; '' of those that are nothing."""
    return "/".join(sorted({source for seconds, source in prices if seconds}))


def add_costs(graph: Graph, steps: list[dict[str, Any]], costs: NodeCosts) -> None:
    """Write `cost_before` and `cost_after` (predicted seconds of the whole graph), `cost_source`, and `change_source`
    (where the times of those nodes come from that the step took away or put in) into each step, in place.

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
            old = total.prices()
            total.start(graph)
            new = total.prices()
            step["change_source"] = sources_of([*(old - new), *(new - old)])
        else:
            total.rewriter.apply(rewrite_of(step, stored).patch)
            step["change_source"] = total.price_changes()
            patched = True
        after = total.seconds
        step["cost_before"], step["cost_after"] = before, after
        step["cost_source"] = SUM_OF_TIMES + "/".join(sorted(costs.sources()))
        before = after
