"""Memory of the values between nodes, in the order of the graph, each freed after its last use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphs.ir import Graph, Node, is_fused
from runtime.program import IN_PLACE

from .sizes import static_type

# Their result lies where the operand lies, in every runtime.
RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


def value_bytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> float:
    """Bytes of a value at sizes of the symbols, 0 where its rank is unknown."""
    type_ = static_type(graph.type_of(name), sizes)
    return 0.0 if type_ is None else type_.static_bytes or 0.0


def peak_live_bytes(graph: Graph, sizes: Mapping[str, int]) -> float:
    """The largest sum of bytes of live values (inputs and constants not counted). What lives inside a branch or a turn
    of a loop comes on top of what lives around it, of several graphs that of the one with most.
    """
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(node.uses, index))
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    live = peak = 0.0
    held: dict[str, float] = {}
    for index, node in enumerate(graph.nodes):
        if node.holds_graphs and not is_fused(node):
            peak = max(peak, live + max(peak_live_bytes(body, sizes) for body in node.graphs))
        for out in node.outputs:
            if out:
                held[out] = value_bytes(graph, out, sizes)
                live += held[out]
        peak = max(peak, live)
        for name in [*node.uses, *node.outputs]:
            if name in held and last.get(name, -1) <= index:
                live -= held.pop(name)
    return peak


def peak_activation_bytes(graph: Graph, sizes: Mapping[str, int]) -> float:
    """The largest sum of bytes of live intermediate values, in the order of the graph.

    Inputs, constants and outputs of the graph are not counted (the caller holds them, as parameters and state of a
    training step), what only reshapes lies where its operand lies, and elementwise arithmetic overwrites an operand
    of its size that nobody needs any more.
    """
    return Lifetimes(graph, graph.nodes, sizes).peak


@dataclass
class Storage:
    """Memory of one intermediate value and what reshapes it: bytes, the node that writes it, the nodes that read it
    (positions, ascending), and the names that it has."""

    bytes: float
    born: int
    uses: list[int]
    names: list[str]

    @property
    def last(self) -> int:
        """The position from which on it is not needed."""
        return self.uses[-1] if self.uses else self.born


class Lifetimes:
    """Which memory lives when, for nodes in an order. `live[i]` are the bytes during node i, `before[i]` those that
    live right before it and are still needed."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], sizes: Mapping[str, int],
                 known: dict[str, float] | None = None) -> None:
        self.of: dict[str, Storage] = {}  # intermediate values only
        self.last_read: dict[str, int] = {}  # of any value, by its name
        root: dict[str, str] = {}
        given = set(graph.outputs)
        for node in nodes:
            if node.op in RESHAPING and not node.domain and node.inputs:
                source = root.get(node.inputs[0], node.inputs[0])
                root[node.outputs[0]] = source
                if node.outputs[0] in given:
                    given.add(source)
        known = {} if known is None else known
        outer = {*graph.inputs, *graph.constants}
        for index, node in enumerate(nodes):
            for name in node.uses:
                self.last_read[name] = index
                storage = self.of.get(name)
                if storage is not None and (not storage.uses or storage.uses[-1] != index):
                    storage.uses.append(index)
            for out in node.outputs:
                source = root.get(out, out)
                if not out or source in given or source in outer:
                    continue
                if source != out:
                    if source in self.of:
                        self.of[out] = self.of[source]
                        self.of[source].names.append(out)
                    continue
                if out not in known:
                    known[out] = value_bytes(graph, out, sizes)
                self.of[out] = Storage(known[out], index, [], [out])
        change, born = np.zeros(len(nodes) + 1), np.zeros(len(nodes))
        for name, storage in self.of.items():
            if storage.names[0] == name:
                change[storage.born] += storage.bytes
                born[storage.born] += storage.bytes
                change[storage.last + 1] -= storage.bytes
        self.before = np.cumsum(change)[: len(nodes)] - born
        for index, node in enumerate(nodes):
            if node.op in IN_PLACE and not node.domain:
                saved = self._overwritten(node, index)
                change[index] -= saved
                change[index + 1] += saved
        self.live = np.cumsum(change)[: len(nodes)]

    def _overwritten(self, node: Node, index: int) -> float:
        """Bytes of an operand whose place the result takes."""
        made = self.of.get(node.outputs[0])
        rows = [self.of[name] for name in node.inputs if name in self.of]
        if made is None or not any(each.last == index and each.bytes == made.bytes for each in rows):
            return 0.0
        return made.bytes

    @property
    def peak(self) -> float:
        """The most bytes at one time."""
        return float(self.live.max(initial=0.0))

    def storages(self) -> list[Storage]:
        """Each memory once, in the order of birth."""
        return [storage for name, storage in self.of.items() if storage.names[0] == name]
