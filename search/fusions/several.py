"""Sets of nodes with several outputs, beside those that have one: one kernel writes what others need as well.

Outputs share the loops of a kernel: shapes are equal, or one is that of a row (1 in the last dimension). Two kinds:

* a set that takes in a node although others read it too, and so has one output more (the sum before a LayerNorm, the
  gates of SwiGLU that the backward pass reads, m and v of Adam's step beside the parameter). From the smallest and the
  largest set of each root, one node after the other is taken in, the nearest first;
* sets side by side, which read the same tensor and do not need each other (x -> f(x), g(x)).

None of them has a product: what follows one runs on its tiles only where one output leaves the kernel. Where products
are a library's, what follows one is a kernel by itself, and may have several outputs; and a product that adds something
joins such a set, since the kernel adds that in passing, the library in a pass of its own.

A set is convex: nothing outside of it lies between two of its nodes. Sets that are convex each may still need each
other; `choose` sees to that. How many there are grows linearly with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from graphs.ir import Graph, Node
from graphs.types import TensorType, Type
from runtime.fusion import Group

if TYPE_CHECKING:
    from .enumerate import Grower

MOST_OUTPUTS = 6
Nodes = frozenset[int]


def several_outputs(graph: Graph, types: Mapping[str, Type], grower: Grower, tops: Mapping[int, Nodes],
                    library: bool = False) -> list[Group]:
    """The groups with several outputs. `tops`: the largest set of one output for each root; where products are a
    library's, that without products."""
    joiner = _Joiner(graph, types, grower, library)
    found: dict[Nodes, None] = {}
    for root, top in tops.items():
        for start in dict.fromkeys((grower.with_views(frozenset((root,))), top)):
            if start & grower.products:
                continue
            found.update(dict.fromkeys(joiner.with_escapes(root, start)))
    found.update(dict.fromkeys(joiner.side_by_side(tops)))
    groups = []
    for each in found:
        outputs = joiner.outputs_of(each)
        if len(outputs) > 1 and grower.is_worthwhile(each):
            groups.append(Group(tuple(sorted(each)), outputs[0], tuple(outputs[1:])))
    return groups


class _Joiner:
    def __init__(self, graph: Graph, types: Mapping[str, Type], grower: Grower, library: bool) -> None:
        self.graph, self.grower, self.types = graph, grower, types
        adding = {index for index in grower.products if _adds(graph.nodes[index])} if library else set()
        self.left = grower.products - adding  # products that join no set
        self.shapes = [_shape(types.get(node.outputs[0])) for node in graph.nodes]

    def outputs_of(self, inside: Nodes) -> list[str]:
        """What others need, the last one first. Views that others read stay outside as well, but for the last node."""
        grower, last = self.grower, max(inside)
        return [next(name for name in self.graph.nodes[index].outputs if name)
                for index in sorted(inside, reverse=True)
                if index == last or (index not in grower.movement and self.escapes(index, inside))]

    def escapes(self, index: int, inside: Nodes) -> bool:
        """Whether something outside of a set needs a node of it."""
        return index in self.grower.escapes or not self.grower.users[index] <= inside

    def with_escapes(self, root: int, start: Nodes) -> Iterator[Nodes]:
        """Sets that grow from `start`, each with one output more than the one before it."""
        inside = start
        for _ in range(MOST_OUTPUTS - 1):
            taken = next(self._escaping(root, inside), None)
            if taken is None or len(inside) >= self.grower.most_nodes:
                return
            near = self.grower.with_views(inside | {taken})
            inside = self.grower.largest(near, self.grower.products)
            yield from dict.fromkeys((near, inside, self.grower.largest(near, self.left)))

    def _escaping(self, root: int, inside: Nodes) -> Iterator[int]:
        """Nodes that may join although others read them, the nearest to the end of the graph first."""
        grower = self.grower
        for index in sorted({each for member in inside for each in grower.producers[member]} - inside, reverse=True):
            if index not in grower.fusable or index in grower.movement or not self._fit(index, root):
                continue
            if index in grower.products:
                continue
            if self.escapes(index, inside) and self.is_convex(inside | {index}):
                yield index

    def _fit(self, one: int, other: int) -> bool:
        """Whether two nodes' values may be outputs of one kernel."""
        a, b = self.shapes[one], self.shapes[other]
        return bool(a) and len(a) == len(b) and a[:-1] == b[:-1] and (a[-1] == b[-1] or 1 in (a[-1], b[-1]))

    def is_convex(self, inside: Nodes) -> bool:
        """Whether no way between two nodes of a set leads outside. Nodes stand in a topological order."""
        last, users = max(inside), self.grower.users
        waiting = [each for index in inside for each in users[index] - inside if each < last]
        seen = set(waiting)
        while waiting:
            for each in users[waiting.pop()]:
                if each in inside:
                    return False
                if each < last and each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return True

    def side_by_side(self, tops: Mapping[int, Nodes]) -> Iterator[Nodes]:
        """Unions of sets that read a tensor of the size of their outputs, two, then three, ... of them."""
        largest = self._largest(tops)
        readers: dict[str, list[int]] = {}
        for root in largest:
            names = {name for index in tops[root] for name in self.graph.nodes[index].inputs if name}
            for name in sorted(names - {name for index in tops[root] for name in self.graph.nodes[index].outputs}):
                if name not in self.graph.constants and _shape(self.types.get(name)) == self.shapes[root]:
                    readers.setdefault(name, []).append(root)
        for roots in readers.values():
            inside: Nodes = frozenset()
            count = 0
            for root in roots:
                joined = inside | tops[root]
                if len(joined) > self.grower.most_nodes or count == MOST_OUTPUTS or not self.is_convex(joined):
                    continue
                inside, count = joined, count + 1
                if count > 1:
                    yield inside

    def _largest(self, tops: Mapping[int, Nodes]) -> list[int]:
        """The roots whose sets lie in no other one, but for movement alone."""
        covered: set[int] = set()
        found = []
        for root in sorted(tops, reverse=True):
            if root not in covered and root not in self.grower.movement and self.shapes[root] \
                    and not self.grower.products & tops[root]:
                found.append(root)
            covered |= tops[root]
        return found[::-1]


def _adds(node: Node) -> bool:
    """A product that adds something to what it multiplies."""
    return node.op in ("Gemm", "Conv") and len(node.inputs) > 2 and bool(node.inputs[2])


def _shape(type_: Type | None) -> tuple[int, ...]:
    """The shape, empty where it is not known or that of a scalar."""
    if not isinstance(type_, TensorType) or type_.shape is None or any(not isinstance(dim, int) for dim in type_.shape):
        return ()
    return type_.shape  # type: ignore[return-value]
