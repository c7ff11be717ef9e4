"""The order in which nodes run, chosen so that little memory is held at a time.

Nodes are taken one by one: of those whose operands are there, the one after which the least is held (what it writes,
less what nobody needs after it). That is tried beside an order that follows each result to its operands; where neither
saves a hundredth, the order of the graph stays. Nodes with side effects (random numbers) keep their order. Bytes are
those of the values at given sizes; what is read through a view lies where its operand lies.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphs import dims, dtypes
from graphs.dims import Expr
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.types import TensorType

VIEWS = frozenset({"Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Slice", "Split", "Expand"})
_WORTHWHILE = 0.01  # of the bytes


@dataclass(frozen=True)
class Order:
    """The places of the graph's nodes in the order to run, and the largest sum of bytes that node outputs hold in it
    and in the order of the graph."""

    places: tuple[int, ...]
    peak: int
    input_peak: int


def memory_order(graph: Graph, sizes: Mapping[str, int]) -> Order:
    """The order for a graph at sizes of its symbols."""
    held = _Held(graph, sizes)
    given = tuple(range(len(graph.nodes)))
    input_peak = held.peak(given)
    peak, order = min(((held.peak(each), each) for each in (held.greedy(), held.by_results())),
                      key=lambda each: each[0])
    if peak > (1 - _WORTHWHILE) * input_peak:
        return Order(given, input_peak, input_peak)
    return Order(order, peak, input_peak)


class _Held:
    """Which memory each node writes and reads, in numbers of storages."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.nodes = graph.nodes
        self.bytes: list[int] = []
        storage: dict[str, int] = {}
        foreign = {*graph.inputs, *graph.constants}  # memory that the nodes do not hold
        self.writes: list[list[int]] = []
        self.reads: list[list[int]] = []
        for node in graph.nodes:
            self.reads.append(sorted({storage[name] for name in node.uses if name in storage}))
            made = []
            source = node.inputs[0] if node.op in VIEWS and not node.domain and node.inputs else ""
            for name in node.outputs:
                if source in storage:
                    storage[name] = storage[source]
                elif source in foreign:
                    foreign.add(name)
                elif name:
                    storage[name] = len(self.bytes)
                    made.append(len(self.bytes))
                    self.bytes.append(_bytes(graph, name, sizes))
            self.writes.append(made)
        self.kept = {storage[name] for name in graph.outputs if name in storage}
        self.users: list[set[int]] = [set() for _ in self.bytes]
        for place, reads in enumerate(self.reads):
            for each in reads:
                self.users[each].add(place)
        self._dependencies()

    def _dependencies(self) -> None:
        makers = {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}
        self.before: list[list[int]] = []
        effect: int | None = None
        for place, node in enumerate(self.nodes):
            needs = {makers[name] for name in node.uses if name in makers}
            if not is_pure(node):
                if effect is not None:
                    needs.add(effect)
                effect = place
            self.before.append(sorted(needs))
        self.after: list[list[int]] = [[] for _ in self.nodes]
        for place, operands in enumerate(self.before):
            for each in operands:
                self.after[each].append(place)

    def peak(self, order: Sequence[int]) -> int:
        """The largest sum of bytes, counted when a node has written and what it read is still held."""
        left = [len(each) for each in self.users]
        live = most = 0
        for place in order:
            live += sum(self.bytes[each] for each in self.writes[place])
            most = max(most, live)
            for each in self.reads[place]:
                left[each] -= 1
                live -= self.bytes[each] if not left[each] and each not in self.kept else 0
            live -= sum(self.bytes[each] for each in self.writes[place] if not left[each] and each not in self.kept)
        return most

    def greedy(self) -> tuple[int, ...]:
        """Always the node after which the least is held."""
        left, missing = [len(each) for each in self.users], [len(each) for each in self.before]

        def change(place: int) -> int:
            freed = sum(self.bytes[each] for each in self.reads[place] if left[each] == 1 and each not in self.kept)
            return sum(self.bytes[each] for each in self.writes[place]) - freed

        waiting = [(change(place), place) for place, count in enumerate(missing) if not count]
        heapq.heapify(waiting)
        found: list[int] = []
        done = [False] * len(missing)
        while waiting:
            weight, place = heapq.heappop(waiting)
            if done[place] or weight != change(place):  # a better entry was made when that became so
                continue
            done[place] = True
            found.append(place)
            for each in self.reads[place]:
                left[each] -= 1
                if left[each] == 1:
                    for user in self.users[each]:
                        if not done[user] and not missing[user]:
                            heapq.heappush(waiting, (change(user), user))
            for each in self.after[place]:
                missing[each] -= 1
                if not missing[each]:
                    heapq.heappush(waiting, (change(each), each))
        return tuple(found)

    def by_results(self) -> tuple[int, ...]:
        """Each result after its operands, those first that hold most while they are computed."""
        found: dict[int, None] = {}
        largest: list[int] = []
        for place, needs in enumerate(self.before):
            own = sum(self.bytes[each] for each in self.writes[place])
            largest.append(max([own, *(largest[each] for each in needs)]))
        for last in range(len(self.nodes)):
            if self.after[last]:
                continue
            stack = [(last, False)]
            while stack:
                place, ready = stack.pop()
                if place in found:
                    continue
                if ready:
                    found[place] = None
                    continue
                stack.append((place, True))
                stack.extend((each, False) for each in sorted(self.before[place], key=lambda each: largest[each]))
        return tuple(found)


def _bytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> int:
    type_ = graph.types.get(name)
    if not isinstance(type_, TensorType) or type_.shape is None:
        return 0
    total = dtypes.item_bytes(type_.dtype)
    for dim in type_.shape:
        size = dims.evaluate(dim, sizes) if isinstance(dim, Expr) else dim
        total *= 1 if size is None else size
    return int(total)


def in_order(graph: Graph, order: Order) -> Graph:
    """The graph with its nodes in that order; itself where they are."""
    if order.places == tuple(range(len(graph.nodes))):
        return graph
    made = graph.copy()
    nodes: list[Node] = made.nodes
    made.nodes = [nodes[place] for place in order.places]
    return made
