"""Values known to be equal while steps are done on a graph: a step back to what was there needs no rule to show it.

A step that joins several values replaces all of them; where only some are wanted joined, the others are led back, one
by one. The rule that joined them says nothing about one alone, but what is put there is what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphs.ir import Graph, Node
from graphs.operators import find, is_pure

from .steps import Patch
from .terms import attribute_key


class Known:
    """Which values of a graph are equal, as far as its nodes and the steps done so far say. Equal nodes over equal
    values give equal values. What is said to be equal is; not all that is equal is found."""

    def __init__(self, graph: Graph) -> None:
        self._older: dict[str, str] = {}  # value -> one that it equals and that was there before it
        self._made: dict[object, str] = {}  # what computes a value -> the first such value
        for node in graph.nodes:
            self._take(node)

    def shows(self, patch: Patch) -> bool:
        """A patch, all of whose constants the graph has, replaces values by what equals them."""
        made: dict[str, str] = {}
        for node in patch.add:
            for position, name in enumerate(node.outputs):
                found = self._made.get(self._key(node, position, made)) if name else None
                if found is not None:
                    made[name] = self._first(found)
        return all(self._first(old) == made.get(new, self._first(new)) for old, new in patch.replace.items())

    def take(self, patch: Patch) -> None:
        """A patch was applied, and is right."""
        for node in patch.add:
            self._take(node)
        for old, new in patch.replace.items():
            self._join(old, new)

    def _take(self, node: Node) -> None:
        for position, name in enumerate(node.outputs):
            key = self._key(node, position, {}) if name else None
            if key is not None:
                self._join(self._made.setdefault(key, name), name)

    def _join(self, old: str, new: str) -> None:
        first, other = self._first(old), self._first(new)
        if first != other:
            self._older[other] = first

    def _first(self, name: str) -> str:
        while name in self._older:
            name = self._older[name]
        return name

    def _key(self, node: Node, position: int, made: Mapping[str, str]) -> object:
        """What an output is computed by; None where the same inputs may give other values."""
        if node.is_opaque or node.holds_graphs or not is_pure(node):
            return None
        record = find(node.op, node.domain)
        read = [made[name] if name in made else self._first(name) for name in node.inputs]
        if record is not None and record.commutative and len(read) == 2:
            read.sort()
        attrs = tuple(sorted((name, attribute_key(value)) for name, value in node.attrs.items()))
        return (node.op, node.domain, node.version, node.overload, attrs, len(node.outputs), position, *read)
