"""Large values that were folded once: while one is in use, whoever folds the same again gets the same constant.

Normalizing a candidate, replaying its trace and pricing the steps fold the same weights; each time would cost
computing and hashing them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from graphs.constants import Constant
from graphs.ir import Graph, Node

LEAST_BYTES = 1 << 16  # a smaller value is computed in no time
DEPTH = 16  # of nodes above each other

Key = tuple[object, ...]
_known: dict[Key, tuple[tuple[weakref.ref[Constant], ...], weakref.ref[Constant]]] = {}


class Place:
    """A value over constants, by what computes it: nodes and attributes down to the very constants."""

    def __init__(self, graph: Graph, name: str, producers: Mapping[str, Node]) -> None:
        self.graph, self.producers = graph, producers
        self.leaves: dict[int, Constant] = {}
        self.key = self._key(name, 0)

    def _key(self, name: str, depth: int) -> Key | None:
        constant = self.graph.constants.get(name)
        if constant is not None:
            self.leaves[id(constant)] = constant
            return (id(constant),)
        node = self.producers.get(name)
        if node is None or depth > DEPTH or node.holds_graphs or any(
                isinstance(value, Constant) for value in node.attrs.values()):
            return None
        parts: list[object] = [node.outputs.index(name), len(node.outputs), node.domain, node.op, node.version,
                               *((key, type(value).__name__, repr(value)) for key, value in sorted(node.attrs.items()))]
        for used in node.inputs:
            part = self._key(used, depth + 1) if used else ()
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)

    def recall(self) -> Constant | None:
        """The constant that this value was folded to before, None if it was not, or is no longer in use."""
        found = _known.get(self.key) if self.key is not None else None
        if found is None or any(leaf() is None for leaf in found[0]):  # a number of a dead constant is given anew
            return None
        return found[1]()

    def keep(self, constant: Constant) -> None:
        """Remember what this value was folded to."""
        key = self.key
        if key is not None and constant.nbytes >= LEAST_BYTES:
            _known[key] = (tuple(weakref.ref(leaf) for leaf in self.leaves.values()),
                           weakref.ref(constant, lambda _: _known.pop(key, None)))
