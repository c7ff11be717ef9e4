"""Cutting a large graph into regions at narrow places, so that equal blocks become equal regions.

The nodes are put into an order that depends on the graph alone (depth first from the outputs), in which a cut is a
place between two nodes. Its width is how many values computed before are read after it; weights and inputs of the
graph do not count. Each cut is the narrowest place within reach of the one before, and which of several narrow places
is taken depends only on what stands around them: so a stack of equal layers is cut at the same place of each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.unpacking import stays

from .encode import facts_of
from .terms import attribute_key

LEAST, MOST = 64, 192  # nodes of a region; the last one may be smaller
REACH = 24  # nodes on each side of a cut that are searched again together
DOMAIN = "egraft.region"  # of the opaque nodes that stand for whoever reads a value outside


@dataclass(eq=False)
class Region:
    """A part of a graph as a graph of its own: its inputs are values computed elsewhere, its outputs opaque nodes, each
    of which reads a value that is needed elsewhere. So the names of those values mean as little here as in the graph.

    Regions with equal `key` are equal but for elements of float constants; then `values` and `nodes` (names) stand for
    each other, one by one.
    """

    graph: Graph
    key: object
    values: list[str]
    nodes: list[str]
    leaving: list[str]

    def same_constants(self, other: Region) -> bool:
        """Constants of equal content in the same places (of a region with equal key)."""
        return all(one is two or one == two for one, two in
                   zip(self.graph.constants.values(), other.graph.constants.values(), strict=True))


def partition(graph: Graph, keep: Collection[str] = (), least: int = LEAST, most: int = MOST) -> list[Region]:
    """The regions of a graph, whose types must be inferred, in an order in which each reads earlier ones only.

    Nodes named in `keep` are told apart.
    """
    order = _depth_first(graph)
    bounds = [0, *_cuts(graph, order, _constant_values(graph, order), least, most), len(order)]
    return _regions(graph, order, list(pairwise(bounds)), keep)


def seams(graph: Graph, crossing: Collection[str], keep: Collection[str] = (), reach: int = REACH) -> list[Region]:
    """Regions around what makes values that were read across a cut: so many nodes before and after it."""
    order = _depth_first(graph)
    spans: list[tuple[int, int]] = []
    for position, node in enumerate(order):
        if any(name in crossing for name in node.outputs):
            low, high = max(0, position + 1 - reach), min(len(order), position + 1 + reach)
            if spans and low < spans[-1][1]:
                spans[-1] = (spans[-1][0], high) if high - spans[-1][0] <= MOST else spans[-1]
                low = max(low, spans[-1][1])
            if low < high:
                spans.append((low, high))
    return _regions(graph, order, spans, keep)


def _regions(graph: Graph, order: Sequence[Node], spans: Sequence[tuple[int, int]],
             keep: Collection[str]) -> list[Region]:
    taken, outside, kept = graph.names(), _read_outside(graph, order, spans), set(keep)
    return [_region(graph, order[low:high], outside, kept, taken) for low, high in spans]


def _depth_first(graph: Graph) -> list[Node]:
    """Nodes after what they read, each as late as who needs it first allows."""
    makers = graph.producers()
    order: list[Node] = []
    seen: set[int] = set()
    roots = [makers[name] for name in graph.outputs if name in makers]
    stack = [(node, False) for node in reversed([*roots, *graph.nodes])]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(makers[name], False) for name in reversed(node.uses) if name in makers]
    return order


def _constant_values(graph: Graph, order: Sequence[Node]) -> set[str]:
    """Constants, and what is computed from constants alone."""
    found = set(graph.constants)
    for node in order:
        if node.uses and is_pure(node) and all(name in found for name in node.uses) and not stays(graph, node):
            found.update(node.outputs)
    return found


def _cuts(graph: Graph, order: Sequence[Node], constant: set[str], least: int, most: int) -> list[int]:
    """Positions at which a region begins, but for the first."""
    last: dict[str, int] = {}
    readers: dict[str, int] = {}
    for position, node in enumerate(order):
        for name in node.uses:
            last[name] = position
            readers[name] = readers.get(name, 0) + 1
    change = [0] * (len(order) + 2)
    for position, node in enumerate(order):
        for name in node.outputs:
            if name in last and name not in constant:
                change[position + 1] += 1
                change[last[name] + 1] -= 1
    kinds: dict[object, int] = {}
    places: list[tuple[int, int, int]] = []
    width = 0
    for position in range(len(order) + 1):
        width += change[position]
        before = order[position - 1] if position else None
        outputs = () if before is None else before.outputs
        around = tuple((node.domain, node.op, str(graph.types.get(node.outputs[0])))
                       for node in order[max(0, position - 2):position + 2])
        fan = sum(readers.get(name, 0) for name in outputs if name and name not in constant)
        places.append((width, -fan, kinds.setdefault(around, len(kinds))))
    cuts: list[int] = []
    start = 0
    while len(order) - start > most:
        start = min(range(start + least, start + most + 1), key=lambda position: (places[position], position))
        cuts.append(start)
    return cuts


def _read_outside(graph: Graph, order: Sequence[Node], spans: Sequence[tuple[int, int]]) -> set[str]:
    """Values that are read outside the region that makes them. What is in no region counts as one of its own."""
    region_at = [-1 - position for position in range(len(order))]
    for region, (low, high) in enumerate(spans):
        region_at[low:high] = [region] * (high - low)
    made_in: dict[str, int] = {}
    outside = set(graph.outputs)
    for region, node in zip(region_at, order, strict=True):
        outside.update(name for name in node.uses if made_in.get(name, region) != region)
        made_in.update(dict.fromkeys(node.outputs, region))
    return outside


def _region(graph: Graph, nodes: Sequence[Node], outside: set[str], keep: set[str], taken: set[str]) -> Region:
    made = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in made)
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = [name for name in read if name not in constants]
    leaving = [name for node in nodes for name in node.outputs if name in outside]
    sinks = [Node("Leave", (name,), (_free(f"{name}/leave", taken),), domain=DOMAIN) for name in leaving]
    outputs = [sink.outputs[0] for sink in sinks]
    own = Graph(graph.name, inputs, outputs, [*nodes, *sinks], constants, opsets=dict(graph.opsets),
                functions=dict(graph.functions), ir_version=graph.ir_version)
    own.types = {name: graph.types[name] for name in [*inputs, *made] if name in graph.types}
    own.types.update({sink.outputs[0]: graph.types[sink.inputs[0]] for sink in sinks
                      if sink.inputs[0] in graph.types})
    own.declared = {name: own.types[name] for name in outputs if name in own.types}
    values = [*inputs, *constants, *(name for node in nodes for name in node.outputs if name), *outputs]
    return Region(own, _key(own, nodes, leaving, keep), values, [node.name for node in nodes], leaving)


def _free(stem: str, taken: set[str]) -> str:
    while stem in taken:
        stem += "'"
    return stem


def _key(graph: Graph, nodes: Sequence[Node], leaving: Sequence[str], keep: set[str]) -> object:
    places: dict[str, int] = {"": -1}
    for name in [*graph.inputs, *graph.constants]:
        places[name] = len(places)
    rows: list[object] = [tuple(graph.types.get(name) for name in graph.inputs),
                          tuple(_constant_key(constant) for constant in graph.constants.values())]
    for node in nodes:
        attrs: object = node if node.holds_graphs else tuple(
            (name, attribute_key(value)) for name, value in sorted(node.attrs.items()))
        rows.append((node.op, node.domain, node.version, node.overload, bool(node.name) and node.name in keep, attrs,
                     tuple(places[name] for name in node.inputs),
                     tuple((bool(name), graph.types.get(name)) for name in node.outputs)))
        for name in node.outputs:
            if name:
                places[name] = len(places)
    return (*rows, tuple(places[name] for name in leaving))


def _constant_key(constant: Constant) -> object:
    """What is noticed about a constant before rules are asked: floats that differ in nothing that rules usually look at
    are alike, anything else only if it is equal."""
    if constant.dtype not in ("float16", "bfloat16", "float32", "float64"):
        return constant.type, constant.digest
    facts = facts_of(constant)
    signs = None if facts.low is None or facts.high is None else (
        facts.low > 0, facts.low >= 0, facts.high < 0, facts.high <= 0)
    return constant.type, attribute_key(facts.splat), signs, facts.finite, facts.integral
