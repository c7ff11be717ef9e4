"""Who makes and who reads each value of a graph, kept up to date while nodes come, go and are redirected."""

from __future__ import annotations

from .ir import Graph, Node


class Uses:
    """An index over a graph. Renaming a value takes time for its readers alone, not for all nodes of the graph.

    Whoever changes the graph's nodes otherwise has to make a new index.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers: dict[str, Node] = {}
        self._readers: dict[str, dict[int, Node]] = {}
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Take a node into the index."""
        for name in node.outputs:
            if name:
                self.makers[name] = node
        for name in node.uses:
            self._readers.setdefault(name, {})[id(node)] = node

    def drop(self, node: Node) -> None:
        """Take a node out of the index."""
        for name in node.outputs:
            if name and self.makers.get(name) is node:
                del self.makers[name]
        for name in node.uses:
            self._readers.get(name, {}).pop(id(node), None)

    def readers(self, name: str) -> list[Node]:
        """Nodes that read a value, in the order in which they came to."""
        return list(self._readers.get(name, {}).values())

    def rename(self, old: str, new: str) -> None:
        """Let every node that reads one value (in nested graphs too) read another. Outputs of the graph stay."""
        for node in self._readers.pop(old, {}).values():
            node.rename_uses({old: new})
            self._readers.setdefault(new, {})[id(node)] = node

    def rename_output(self, node: Node, old: str, new: str) -> None:
        """Call an output of a node otherwise ('' leaves it out); its readers are not told."""
        node.outputs = tuple(new if name == old else name for name in node.outputs)
        if self.makers.get(old) is node:
            del self.makers[old]
        if new:
            self.makers[new] = node
