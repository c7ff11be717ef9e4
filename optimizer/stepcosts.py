"""Predicted seconds of a graph that changes step by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from cost_model.bodies import computed_on_load
from cost_model.node_costs import NodeCosts
from graphs.ir import Graph, Node
from search.steps import Rewriter

SUM_OF_TIMES = "sum of node times: "  # what a predicted time is
ESTIMATED = "roofline"  # the source of a price that nobody measured
FREE = (0.0, "")  # what a node over constants costs
_UNIT = 1074  # 2**-1074 divides every float, so that a sum that is kept up to date stays exact


class Total:
    """The predicted seconds of a graph that changes: only nodes that changed are priced again."""

    def __init__(self, graph: Graph, costs: NodeCosts) -> None:
        self.costs = costs
        self.start(graph)

    def start(self, graph: Graph) -> None:
        """Price another graph."""
        self.graph = graph
        self._rewriter: Rewriter | None = None
        self._prices: dict[int, tuple[float, str]] = {}
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

    def price_changes(self) -> str:
        """Price what the last patch changed, and what became or ceased to be constant by it; where those prices come
        from."""
        self._constant.update(self.rewriter.graph.constants)
        touched = self._price(self.rewriter.changed)
        touched += [self._drop(node) for node in self.rewriter.removed]
        return sources_of(touched)

    def prices(self) -> Counter[tuple[float, str]]:
        """How often each price is paid, wherever in the graph."""
        return Counter(self._prices.values())

    @property
    def sources(self) -> set[str]:
        """Where the prices come from that are paid now, of those that are nothing."""
        return {source for source, count in self._sources.items() if count}

    @property
    def estimated(self) -> int:
        """How many nodes are priced by the roofline alone."""
        return self._sources[ESTIMATED]

    @property
    def seconds(self) -> float:
        """Of the whole graph, the same in whatever order the nodes came."""
        return self._sum / (1 << _UNIT)

    def _put(self, node: Node, price: tuple[float, str]) -> None:
        self._drop(node)
        self._prices[id(node)] = price
        self._sum += _exact(price[0])
        self._sources[price[1]] += price[0] > 0

    def _drop(self, node: Node) -> tuple[float, str]:
        """Forget the price of a node; that price."""
        price = self._prices.pop(id(node), FREE)
        self._sum -= _exact(price[0])
        self._sources[price[1]] -= price[0] > 0
        return price

    def _price(self, nodes: Iterable[Node]) -> list[tuple[float, str]]:
        """Price some nodes; the prices that are paid no more, and those that came in their place."""
        touched: list[tuple[float, str]] = []
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
            touched += [old, new] if old != new else []
            self._put(node, new)
        return touched

    def _cost(self, graph: Graph, node: Node) -> tuple[float, str]:
        cost = self.costs.node_in(graph, node, self._constant)
        return FREE if math.isinf(cost.seconds) else (cost.seconds, cost.source)


def sources_of(prices: Iterable[tuple[float, str]]) -> str:
    """Where prices come from, `measured/roofline`; '' of those that are nothing."""
    return "/".join(sorted({source for seconds, source in prices if seconds}))


def _exact(seconds: float) -> int:
    numerator, denominator = seconds.as_integer_ratio()
    return (numerator << _UNIT) // denominator
