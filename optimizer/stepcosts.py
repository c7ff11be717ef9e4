"""Predicted seconds of a graph that changes step by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cost_model.bodies import computed_on_load
from cost_model.node_costs import NodeCosts
from graphs.ir import Graph, Node
from search.steps import Rewriter

SUM_OF_TIMES = "sum of node times: "  # what a predicted time is
ESTIMATED = "roofline"  # the source of a price that nobody measured
FREE = (0.0, "")  # what a node over constants costs
_UNIT = 1074  # 2**-1074 divides every float, so that a sum that is kept up to date stays exact


Price = tuple[float, str]  # seconds, and where they come from


@dataclass
class Change:
    """The prices that a step takes away (`old`) and puts in (`new`)."""

    old: list[Price]
    new: list[Price]

    def to_dict(self) -> dict[str, Any]:
        """`change_source`, and whether both sides are `comparable`: an estimate, which is optimistic, beside a measured
        time would look like a change of cost."""
        old, new = sources_of(self.old), sources_of(self.new)
        alike = not old or not new or _kinds(old) == _kinds(new)
        return {"change_source": sources_of([*self.old, *self.new]) if alike else f"{old} -> {new}",
                "comparable": alike}


def changed(old: Counter[Price], new: Counter[Price]) -> Change:
    """What is paid only before, and what is paid only after."""
    return Change([*(old - new)], [*(new - old)])


class Total:
    """The predicted seconds of a graph that changes: only nodes that changed are priced again."""

    def __init__(self, graph: Graph, costs: NodeCosts) -> None:
        self.costs = costs
        self.start(graph)

    def start(self, graph: Graph) -> None:
        """Price another graph."""
        self.graph = graph
        self._rewriter: Rewriter | None = None
        self._prices: dict[int, Price] = {}
        self._sum = 0  # of all prices, exact, in units of 2**-_UNIT seconds
        self._sources: Counter[str] = Counter()  # of all prices that are something
        self._constant = set(graph.constants)
        for node in graph.nodes:  # they are in order
            folded = computed_on_load(graph, node, self._constant)
            self._constant.update(node.outputs if folded else ())
            self._put(node, FREE if folded else self._cost(graph, node))

    @property
    def rewriter(self) -> Rewriter:
        """What applies patches to a copy of the graph, made when the first is to be applied."""
        if self._rewriter is None:
            self._rewriter = Rewriter(self.graph)
            self._prices = {id(node): self._prices[id(old)] for old, node in zip(
                self.graph.nodes, self._rewriter.graph.nodes, strict=True)}
        return self._rewriter

    def price_changes(self) -> Change:
        """Price what the last patch changed, and what became or ceased to be constant by it; those prices."""
        self._constant.update(self.rewriter.graph.constants)
        old, new = self._price(self.rewriter.changed)
        return Change([*old, *(self._drop(node) for node in self.rewriter.removed)], new)

    def prices(self) -> Counter[Price]:
        """How often each price is paid, wherever in the graph."""
        return Counter(self._prices.values())

    @property
    def counts(self) -> Counter[str]:
        """How many of the prices that are something come from where."""
        return +self._sources

    @property
    def sources(self) -> set[str]:
        """Where the prices come from that are paid now, of those that are nothing."""
        return set(self.counts)

    @property
    def estimated(self) -> int:
        """How many nodes are priced by the roofline alone."""
        return self._sources[ESTIMATED]

    @property
    def seconds(self) -> float:
        """Of the whole graph, the same in whatever order the nodes came."""
        return self._sum / (1 << _UNIT)

    def _put(self, node: Node, price: Price) -> None:
        self._drop(node)
        self._prices[id(node)] = price
        self._sum += _exact(price[0])
        self._sources[price[1]] += price[0] > 0

    def _drop(self, node: Node) -> Price:
        """Forget the price of a node; that price."""
        price = self._prices.pop(id(node), FREE)
        self._sum -= _exact(price[0])
        self._sources[price[1]] -= price[0] > 0
        return price

    def _price(self, nodes: Iterable[Node]) -> tuple[list[Price], list[Price]]:
        """Price some nodes; the prices that are paid no more, and those that came in their place."""
        before: list[Price] = []
        after: list[Price] = []
        graph, uses, constant = self.rewriter.graph, self.rewriter.uses, self._constant
        waiting = list(nodes)[::-1]
        while waiting:
            node = waiting.pop()
            outputs = [name for name in node.outputs if name]
            folded = computed_on_load(graph, node, constant)
            if folded != (bool(outputs) and outputs[0] in constant):
                constant.difference_update(outputs)
                constant.update(outputs if folded else ())
                waiting += [reader for name in outputs for reader in uses.readers(name) if id(reader) in self._prices]
            new, old = FREE if folded else self._cost(graph, node), self._prices.get(id(node), FREE)
            if old != new:
                before.append(old)
                after.append(new)
            self._put(node, new)
        return before, after

    def _cost(self, graph: Graph, node: Node) -> Price:
        cost = self.costs.node_in(graph, node, self._constant)
        return FREE if math.isinf(cost.seconds) else (cost.seconds, cost.source)


def sources_of(prices: Iterable[Price]) -> str:
    """Where prices come from, `measured/roofline`; '' of those that are nothing."""
    return "/".join(sorted({source for seconds, source in prices if seconds}))


def _kinds(sources: str) -> set[bool]:
    return {source == ESTIMATED for source in sources.split("/")}


def _exact(seconds: float) -> int:
    numerator, denominator = seconds.as_integer_ratio()
    return (numerator << _UNIT) // denominator
