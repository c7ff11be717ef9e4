"""Every set of nodes that one kernel could compute: connected, convex, with one output; and beside them sets with
several outputs (`several`).

Each set is grown upward from its root: a node joins if everything that needs it is inside already, so that
connectedness, convexity and the single output hold by construction, and contracting any number of disjoint sets makes
no cycle. Movement operators may join whoever else reads them: read through a view they cost nothing, so they are
computed twice. Those that always are views for a kernel join at once: without them it reads the same elements. A costly
function of a tensor that is repeated along leading axes stays outside: a kernel would compute it for each copy. A set
holds at most one matrix product, convolution, pool of windows that overlap or Resize, which reads what lies in memory:
only views join above it. A Concat is none: it would be copied for the product as it is without, while its operands,
which nobody else may need, stay in memory until the product is done. Chains hold two: a depthwise convolution with the
one of single pixels that makes its planes, which never lie in memory as a whole. A recurrent operator is a set by
itself, with as many outputs as it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from graphs.ir import Graph, Node
from graphs.operators import find
from graphs.types import TensorType, Type
from runtime.codegen.c.elementwise import CHEAP
from runtime.codegen.c.indexing import GATHERS
from runtime.codegen.c.lanes import RESIZED, overlaps
from runtime.codegen.c.product import PRODUCTS
from runtime.codegen.c.recurrent import may_be_kernel
from runtime.fusion import Group, is_fusable, is_movement
from runtime.program import IN_PLACE

from .several import several_outputs

LONG_LINE = 24  # three quarters of two vectors of 16
FEW = 256  # numbers for which NumPy takes less than is done around a kernel
ALWAYS_VIEWS = frozenset({"Transpose", "Squeeze", "Unsqueeze", "Slice", "Expand", "Identity", "Split"})


@dataclass
class Enumeration:
    """The groups of a graph. `cut` counts the roots whose sets were more than the budget allows, `several` the groups
    with more than one output."""

    groups: list[Group]
    roots: int
    cut: int
    several: int


def enumerate_groups(graph: Graph, types: Mapping[str, Type], most_per_root: int, most_nodes: int,
                     library: bool = False) -> Enumeration:
    """All groups; of a root with more than `most_per_root`, the smallest ones and the largest. `types` are those of
    the graph's values with sizes in the place of symbols. `library`: products are a library's, and kernels begin behind
    them (GPUs), so that several outputs may leave what follows a product."""
    grower = Grower(graph, types, most_nodes)
    groups: list[Group] = []
    tops: dict[int, frozenset[int]] = {}
    roots = cut = 0
    for index, node in enumerate(graph.nodes):
        if index not in grower.fusable or node.op == "Split":
            continue
        roots += 1
        found, complete = grower.sets_of(index, most_per_root)
        cut += not complete
        if not library:
            found += [chained for each in found if (chained := grower.chained(each))]
        tops[index] = max(found, key=len)
        if library and tops[index] & grower.products and index not in grower.products:
            tops[index] = grower.largest(found[0], grower.products)
        groups.extend(Group(tuple(sorted(each)), next(name for name in node.outputs if name)) for each in found
                      if grower.is_worthwhile(each))
    groups += alone(graph)
    joined = several_outputs(graph, types, grower, tops, library)
    return Enumeration([*groups, *joined], roots, cut, len(joined))


def alone(graph: Graph) -> list[Group]:
    """Nodes that are kernels by themselves, with all that they make."""
    found = []
    for index, node in enumerate(graph.nodes):
        if may_be_kernel(graph, node):
            first, *others = [name for name in node.outputs if name]
            found.append(Group((index,), first, tuple(others)))
    return found


class Grower:
    """Grows sets of nodes of a graph upward."""

    def __init__(self, graph: Graph, types: Mapping[str, Type], most_nodes: int) -> None:
        self.nodes, self.most_nodes = graph.nodes, most_nodes
        self.fusable = {index for index, node in enumerate(graph.nodes) if is_fusable(graph, node)}
        self.products = {index for index in self.fusable
                         if graph.nodes[index].op in PRODUCTS | RESIZED or overlaps(graph.nodes[index])}
        self.views = {index for index in self.fusable if graph.nodes[index].op in ALWAYS_VIEWS}
        self.movement = {index for index in self.fusable if is_movement(graph.nodes[index])}
        self.copied = {index for index in self.movement if graph.nodes[index].op == "Concat"}
        self.makers = makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.producers = [tuple(dict.fromkeys(makers[name] for name in node.inputs if name in makers))
                          for node in graph.nodes]
        self.users: list[set[int]] = [set() for _ in graph.nodes]
        for index, node in enumerate(graph.nodes):
            for name in node.uses:  # nested graphs read too
                if name in makers:
                    self.users[makers[name]].add(index)
        self.elements = [_elements(types.get(node.outputs[0])) for node in graph.nodes]
        self.costly = {index for index in self.fusable if _is_costly(graph.nodes[index], types)}
        convolutions = [index for index in self.products if graph.nodes[index].op == "Conv"]
        self.windows = {index: _window(graph.type_of(graph.nodes[index].inputs[1])) for index in convolutions}
        self.wide = {index: _innermost(types.get(graph.nodes[index].outputs[0])) for index in convolutions}
        self.escapes = {makers[name] for name in graph.outputs if name in makers}

    def joinable(self, inside: frozenset[int]) -> Iterator[int]:
        """The nodes that may join a set, in the order of the graph."""
        most = max(self.elements[index] for index in inside)
        for producer in sorted({each for index in inside for each in self.producers[index]} - inside):
            if producer not in self.fusable or (producer in self.costly and self.elements[producer] < most):
                continue
            if producer in self.products and self.products & inside:
                continue
            if (producer not in self.movement or producer in self.copied) and self.is_multiplied(producer, inside):
                continue
            if producer in self.movement or (producer not in self.escapes and self.is_read_inside(producer, inside)):
                yield producer

    def is_read_inside(self, index: int, inside: frozenset[int]) -> bool:
        """Whether nothing outside of a set needs a node: not through a view that others read too, either. Such a view
        is there twice, and outside it would read what the kernel has computed for itself."""
        last = max(inside)
        return all(user in inside and (user == last or user not in self.movement
                                       or (user not in self.escapes and self.is_read_inside(user, inside)))
                   for user in self.users[index])

    def is_multiplied(self, index: int, inside: frozenset[int]) -> bool:
        """Whether a product of the set reads it, itself or through what moves it."""
        return any(user in self.products or (user in self.movement and self.is_multiplied(user, inside))
                   for user in self.users[index] & inside)

    def chained(self, inside: frozenset[int]) -> frozenset[int]:
        """A set whose product is a depthwise convolution of long lines, with the one of single pixels that makes its
        planes, and what is pointwise between them; empty where something else reads any of that."""
        last = [index for index in inside & self.products if self._is_depthwise(index)]
        waiting = [self.makers[name] for index in last for name in self.nodes[index].inputs[:1] if name in self.makers]
        found = set[int]()
        while waiting:
            index = waiting.pop()
            record = find(self.nodes[index].op, self.nodes[index].domain)
            pointwise = record is not None and record.pointwise
            if index in self.escapes | inside or index not in self.fusable:
                return frozenset()
            if not pointwise and not self._is_pixelwise(index):
                return frozenset()
            if index not in found:
                found.add(index)
                waiting += self.producers[index] if pointwise else ()
        whole = inside | found
        alone = all(self.users[index] <= whole for index in found) and len(found & self.products) == 1
        return frozenset(whole) if alone and len(whole) <= self.most_nodes else frozenset()

    def _is_depthwise(self, index: int) -> bool:
        node = self.nodes[index]
        return node.op == "Conv" and node.attrs["group"] != 1 and self.wide.get(index, 0) >= LONG_LINE

    def _is_pixelwise(self, index: int) -> bool:
        """A convolution of single pixels, of all channels."""
        node = self.nodes[index]
        return node.op == "Conv" and index in self.products and node.attrs["group"] == 1 and self.windows[index] == 1

    def sets_of(self, root: int, most: int) -> tuple[list[frozenset[int]], bool]:
        """The sets of a root, smallest first and the largest at the end; whether these are all."""
        first = self.with_views(frozenset((root,)))
        found = {first: None}
        waiting = [first]
        complete = True
        while waiting and complete:
            following = []
            for each in waiting:
                if len(each) >= self.most_nodes:
                    continue
                for producer in self.joinable(each):
                    larger = self.with_views(each | {producer})
                    if larger in found:
                        continue
                    if len(found) >= most:
                        complete = False
                        break
                    found[larger] = None
                    following.append(larger)
            waiting = following
        if not complete:
            found[self.largest(first)] = None
        return list(found), complete

    def with_views(self, inside: frozenset[int]) -> frozenset[int]:
        """The set with all views that it reads."""
        waiting = list(inside)
        found = set(inside)
        while waiting:
            for producer in self.producers[waiting.pop()]:
                if producer in self.views and producer not in found:
                    found.add(producer)
                    waiting.append(producer)
        return frozenset(found)

    def largest(self, inside: frozenset[int], without: Collection[int] = ()) -> frozenset[int]:
        """The set with everything that may join, but for some nodes."""
        while len(inside) < self.most_nodes:
            producer = next((each for each in self.joinable(inside) if each not in without), None)
            if producer is None:
                break
            inside = self.with_views(inside | {producer})
        return inside

    def is_worthwhile(self, inside: frozenset[int]) -> bool:
        """Movement alone is free without a kernel, and so is what a kernel for one ufunc or Gather would gain; of few
        numbers, for any pointwise node, which is a kernel beside others as it is (`runtime.fusion.lone_function`)."""
        work = [index for index in inside if index not in self.movement]
        if len(work) != 1:
            return len(work) > 1
        node, record = self.nodes[work[0]], find(self.nodes[work[0]].op, self.nodes[work[0]].domain)
        few = self.elements[work[0]] <= FEW and record is not None and record.pointwise
        return not few and node.op not in IN_PLACE.keys() | GATHERS


def _window(weights: Type | None) -> int:
    """Places of a convolution's window; 0 where they are unknown."""
    shape = weights.shape if isinstance(weights, TensorType) and weights.shape is not None else ()
    sizes = [size for size in shape[2:] if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) - 2 > 0 else 0


def _innermost(type_: Type | None) -> int:
    shape = type_.shape if isinstance(type_, TensorType) else None
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _elements(type_: Type | None) -> int:
    found = type_.elements if isinstance(type_, TensorType) else None
    return found if isinstance(found, int) else 0


def _is_costly(node: Node, types: Mapping[str, Type]) -> bool:
    """A function that takes more than a few instructions, and not once for a row only."""
    record, type_ = find(node.op, node.domain), types.get(node.outputs[0])
    in_rows = isinstance(type_, TensorType) and bool(type_.shape) and type_.shape[-1] != 1  # type: ignore[index]
    return record is not None and record.pointwise and node.op not in CHEAP and in_rows
