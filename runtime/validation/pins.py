"""Nodes that are not executed in both graphs alike, and so are pinned: what such a node gives in the original is
given to its partner in every other run, and what goes into the partner is compared instead.

* opaque nodes: the original gets random outputs for them;
* random and training-mode nodes: the original draws, everybody else gets the same draw;
* discrete nodes (casts to integers, comparisons, ArgMax, quantization): rounding noise that flips a tie would grow
  beyond any bound downstream. Pinned, it does not travel on, and the input of the node is compared with care.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphs import dims, dtypes, ml_types
from graphs.ir import Graph, Node
from graphs.operators import find, is_pure
from graphs.text import print_attribute
from graphs.types import TensorType, Type

from .. import kernels
from ..execute import CONTROL_FLOW, NodeFunction, Values
from ..feeds import draw_array
from .twins import Twin, vary

OPAQUE, RANDOM, DISCRETE = "opaque", "random", "discrete"
_ALWAYS = frozenset({
    "Floor", "Ceil", "Round", "Sign", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "ArgMax", "ArgMin",
    "TopK", "QuantizeLinear", "DynamicQuantizeLinear", "Mod", "NonZero", "Hardmax", "NonMaxSuppression", "Unique",
    "OneHot", "Shrink", "ThresholdedRelu", "MaxRoiPool",
})  # fmt: skip
# What these give depends on the order of numbers only: a graph may scale what goes in, if nothing else changes.
ORDER_ONLY = frozenset({"ArgMax", "ArgMin", "Hardmax", "TopK", "Sign", "NonZero", "Equal", "Less", "Greater",
                        "LessOrEqual", "GreaterOrEqual"})
_SHAPE_ONLY = ("RandomNormalLike", "RandomUniformLike")


def is_discrete(node: Node, types: dict[str, Type]) -> bool:
    """A small change of a float input can make a jump in an output."""
    if not any(_is_float(types.get(name), known=False) for name in node.inputs if name):
        return False
    if node.domain:
        return node.domain == ml_types.DOMAIN and node.op in ml_types.DISCRETE
    if node.op in _ALWAYS:
        return True
    if node.op in ("Cast", "CastLike"):
        return not _is_float(types.get(node.outputs[0]), known=True)
    if node.op == "MaxPool":
        return len(node.outputs) > 1 and bool(node.outputs[1])
    return node.op in ("GridSample", "Resize") and "nearest" in str(node.attrs.get("mode")) and (
        node.op == "GridSample")


def _is_float(type_: Type | None, known: bool) -> bool:
    if not isinstance(type_, TensorType):
        return not known
    return type_.dtype in dtypes.FLOATS


def is_executable(node: Node, model: Graph, types: dict[str, Type]) -> bool:
    """A kernel or a reference exists (nested graphs are looked at on their own)."""
    from graphs.errors import NotExecutable

    from ..reference import ReferenceNode

    if not node.is_opaque and ((node.op in CONTROL_FLOW and not node.domain) or
                               kernels.find(node.op, node.domain) is not None):
        return True
    try:
        ReferenceNode(node, model, types)
    except NotExecutable:
        return False
    return True


def all_types(graph: Graph) -> dict[str, Type]:
    """Types of all values, nested graphs and constants included."""
    found: dict[str, Type] = {}
    for each in graph.walk():
        found.update(each.types)
        found.update((name, constant.type) for name, constant in each.constants.items())
    return found


@dataclass(slots=True)
class Pin:
    """A pair of nodes, one in each graph. `named` says that they carry the same name, not just the same place; names of
    graph outputs do not count, since they stay whatever computes them."""

    key: str
    kind: str
    original: Node
    optimized: Node
    named: bool


@dataclass(slots=True)
class Pins:
    """All pairs, the nodes that found no partner, and those of the original that do what a paired node (by key) does:
    equal nodes become one.
    """

    pairs: list[Pin] = field(default_factory=list)
    alone_original: list[tuple[str, Node]] = field(default_factory=list)
    alone_optimized: list[tuple[str, Node]] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    repeated: list[tuple[str, Node]] = field(default_factory=list)

    def without(self, keys: Collection[str]) -> Pins:
        """These discrete pairs executed in both graphs."""
        kept = [pin for pin in self.pairs if pin.kind != DISCRETE or pin.key not in keys]
        freed = [pin for pin in self.pairs if pin.kind == DISCRETE and pin.key in keys]
        gone = {pin.key for pin in freed}
        alone = [pin.original for pin in freed] + [node for key, node in self.repeated if key in gone]
        return Pins(kept, self.alone_original + [(DISCRETE, node) for node in alone],
                    self.alone_optimized + [(DISCRETE, pin.optimized) for pin in freed], self.types,
                    [(key, node) for key, node in self.repeated if key not in gone])


def _special_nodes(graph: Graph) -> Iterator[tuple[str, Node]]:
    types = all_types(graph)
    for each in graph.walk():
        for node in _live(each):  # the name of a dead node may be that of a new one elsewhere
            if next(node.graphs, None) is not None and not node.is_opaque:
                continue
            if not is_executable(node, graph, types):
                yield OPAQUE, node
            elif not node.is_opaque and find(node.op, node.domain) is not None and not is_pure(node):
                yield RANDOM, node
            elif is_discrete(node, types):
                yield DISCRETE, node


def _live(graph: Graph) -> list[Node]:
    """The nodes that an output needs, in order."""
    needed, found = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs):
            needed.update(node.uses)
            found.append(node)
    return found[::-1]


def _signature(kind: str, node: Node) -> str:
    attrs = ", ".join(f"{name}={print_attribute(value)}" for name, value in sorted(node.attrs.items()))
    return f"{kind} {node.domain}::{node.op}({attrs}) {len(node.inputs)} -> {len(node.outputs)}"


def find_pins(original: Graph, optimized: Graph) -> Pins:
    """Pair the special nodes of both graphs: by output or node name, the rest by order where their number agrees."""
    pins = Pins(types=all_types(original))
    left, right = _by_signature(original), _by_signature(optimized)
    for signature in dict.fromkeys([*left, *right]):
        kind = signature.split(" ", 1)[0]
        ours, theirs = list(left.get(signature, [])), list(right.get(signature, []))
        for one in list(ours):
            partner = next((other for other in theirs if _same_name(one, other)), None)
            if partner is not None:
                named = bool(one.name and one.name == partner.name) or not set(one.outputs) & set(original.outputs)
                pins.pairs.append(Pin(f"{signature} {one.outputs[0]}", kind, one, partner, named))
                ours.remove(one)
                theirs.remove(partner)
        if len(ours) == len(theirs):
            for one, other in zip(ours, theirs):
                pins.pairs.append(Pin(f"{signature} {one.outputs[0]}", kind, one, other, False))
        else:
            pins.alone_original += [(kind, node) for node in ours]
            pins.alone_optimized += [(kind, node) for node in theirs]
    if any(kind == DISCRETE for kind, _ in pins.alone_original):
        _find_repeated(original, pins)
    return pins


def _find_repeated(graph: Graph, pins: Pins) -> None:
    """Discrete nodes of the outer graph without a partner that compute what one with a partner computes."""
    keys: dict[str, object] = {"": "", **graph.constants}
    table: dict[object, int] = {}
    of_node: dict[int, int] = {}
    for node in graph.nodes:
        known = next(node.graphs, None) is None and (is_pure(node) if find(node.op, node.domain) is not None else False)
        head = (node.domain, node.op, node.version, tuple((name, print_attribute(value)) for name, value in sorted(
            node.attrs.items())), tuple(keys.get(name, name) for name in node.inputs)) if known else id(node)
        of_node[id(node)] = whole = table.setdefault(head, len(table))
        keys.update((name, (whole, position)) for position, name in enumerate(node.outputs) if name)
    paired = {of_node[id(pin.original)]: pin.key for pin in pins.pairs
              if pin.kind == DISCRETE and id(pin.original) in of_node}
    same = {id(node): paired[of_node[id(node)]] for kind, node in pins.alone_original
            if kind == DISCRETE and of_node.get(id(node)) in paired}
    pins.repeated = [(same[id(node)], node) for _, node in pins.alone_original if id(node) in same]
    pins.alone_original = [(kind, node) for kind, node in pins.alone_original if id(node) not in same]


def _by_signature(graph: Graph) -> dict[str, list[Node]]:
    table: dict[str, list[Node]] = {}
    for kind, node in _special_nodes(graph):
        table.setdefault(_signature(kind, node), []).append(node)
    return table


def _same_name(a: Node, b: Node) -> bool:
    return a.outputs == b.outputs or bool(a.name and a.name == b.name)


class Unpinnable(Exception):
    """A pinned node ran another number of times than its partner."""


@dataclass(slots=True)
class Journal:
    """What pinned nodes gave in the run of the original (`recording`), and what they were given in this run."""

    recording: bool = True
    twin: Twin = field(default_factory=Twin)
    seed: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    given: dict[str, list[list[Any]]] = field(default_factory=dict)
    results: dict[str, list[list[Any]]] = field(default_factory=dict)

    def start(self, recording: bool, twin: Twin) -> None:
        """Begin a run."""
        self.recording, self.twin = recording, twin
        self.given = {}
        if recording:
            self.results = {}

    def pinned(self, pin: Pin, types: dict[str, Type], plain: NodeFunction | None) -> NodeFunction:
        """The function of a pinned node in either graph."""
        keeps = [index for index, name in enumerate(pin.original.inputs) if name]

        def call(values: Values) -> Values:
            calls = self.given.setdefault(pin.key, [])
            calls.append([_seen(pin.original, values[index]) for index in keeps])
            if self.recording:
                found = list(plain(values) if plain is not None else self.draw(pin.original, types, values))
                self.results.setdefault(pin.key, []).append(found)
                return found
            earlier = self.results.get(pin.key, [])
            if len(calls) > len(earlier):
                raise Unpinnable(pin.original.label)
            return [self._varied(value, f"{pin.key} {index}") for index, value in enumerate(earlier[len(calls) - 1])]

        return call

    def _varied(self, value: Any, key: str) -> Any:
        return vary(Twin(self.twin.wide) if self.twin.changed else self.twin, value, key)

    def draw(self, node: Node, types: dict[str, Type], values: Values) -> list[np.ndarray]:
        """Random outputs of an opaque node: of their known type, else like its first input."""
        first = next((value for value in values if isinstance(value, np.ndarray)), np.zeros((2, 3), np.float32))
        found = []
        for position, name in enumerate(node.outputs):
            type_ = types.get(name)
            dtype = type_.dtype if isinstance(type_, TensorType) else dtypes.name_of(first.dtype)
            shape: tuple[int, ...] = first.shape
            if isinstance(type_, TensorType) and type_.shape is not None:
                sizes = [dims.evaluate(dim, self.sizes) for dim in type_.shape]
                if all(size is not None for size in sizes):
                    shape = tuple(sizes)  # type: ignore[arg-type]
            rng = np.random.default_rng((self.seed, zlib.crc32(name.encode()), position))
            found.append(draw_array(rng, dtype, shape))
        return found


def _seen(node: Node, value: Any) -> Any:
    return np.asarray(np.shape(value)) if node.op in _SHAPE_ONLY else value


def node_function(pins: Pins, journal: Journal, of_original: bool) -> Callable[
        [Node, Callable[[], NodeFunction]], NodeFunction | None]:
    """The hook that puts pinned functions into one of the graphs."""
    table = {id(pin.original if of_original else pin.optimized): pin for pin in pins.pairs}
    # No partner, but its runs must still agree with each other.
    unpaired = [(kind, node) for kind, node in pins.alone_original if kind != DISCRETE] + [
        (DISCRETE, node) for _, node in pins.repeated]
    for kind, node in unpaired if of_original else ():
        table[id(node)] = Pin(f"{kind} alone {node.outputs[0]}", kind, node, node, True)

    def hook(node: Node, plain: Callable[[], NodeFunction]) -> NodeFunction | None:
        pin = table.get(id(node))
        if pin is not None:
            # The partner and an opaque node need no function of their own.
            return journal.pinned(pin, pins.types, plain() if of_original and pin.kind != OPAQUE else None)
        return None

    return hook


def tainted(graph: Graph, free: Iterable[Node]) -> set[str]:
    """Values downstream of discrete nodes that are not pinned."""
    jumping = {id(node) for node in free}
    found: set[str] = set()
    for each in reversed(list(graph.walk())):  # inner graphs first, so that their holders know
        for node in each.nodes:
            inner = any(name in found for nested in node.graphs for name in nested.outputs)
            if id(node) in jumping or inner or any(name in found for name in node.uses):
                found.update(name for name in node.outputs if name)
    return found
