"""Recompute or keep: the same values in less memory, at the least added time.

A training step keeps what its forward pass computes until the backward pass reads it. Here, first, nodes are moved:
what ends in outputs (the update of a parameter) runs as soon as it can. Then values are dropped after a use and
computed again before the next one, until the peak of live bytes is within a limit. Which ones is a search: in each
round every gap in the life of a value is a candidate, and the one that takes most of what lies above the limit, for the
time it costs, is taken (T. Chen and others, "Training deep nets with sublinear memory cost", 2016, and P. Jain and
others, "Checkmate", 2020, on which choices there are; the greedy rule is the one of XLA's pass, refined by trying
several weights of time against memory and by taking back what turned out not to be needed).

A second computation of the same value is what every optimizer removes, and what a runtime may do at any time. So its
operand is multiplied by a one that the graph computes from a value of the backward pass (1 to the power of any number
is 1, NaN included): it is another value for all who look, exactly equal, and not there before it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cost_model.memory import Lifetimes, Storage, peak_activation_bytes, value_bytes
from graphs.builder import Builder, Value
from graphs.dtypes import ONNX_NUMBER, is_float
from graphs.inference import infer
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find, is_pure

Seconds = Callable[[Node], float]

CHAIN = 48  # nodes that one value may be recomputed by
CONE = 64  # nodes that may be moved together
SMALL = 1 / 16  # of a value: an operand of so few bytes is rather kept longer
ROUNDS = 3  # of planning for a little less
WEIGHTS = (1.0, 0.5, 2.0, 0.0)  # exponents of time against memory that are tried
NUMBERS = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})  # a product with one is exact
COPY_BYTES_PER_SECOND, CALL_SECONDS = 5e9, 1e-6  # of the product that keeps a value apart


@dataclass
class Plan:
    """What was decided. `nodes` are those of the graph in their order with those that recompute among them;
    `groups` names the outputs of the latter, of each decision, in that order."""

    nodes: list[Node]
    peak: float
    seconds: float = 0.0  # added, as predicted
    groups: list[list[str]] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)  # peak and seconds, decision by decision

    @property
    def recomputed(self) -> int:
        """How many nodes run again."""
        return sum(len(group) for group in self.groups)


def within(graph: Graph, sizes: Mapping[str, int], limit: float, seconds: Seconds) -> tuple[Graph, Plan]:
    """The graph whose intermediate values take at most `limit` bytes at a time (`peak_activation_bytes`), and the plan
    that it follows. Where none was found it is the one that takes least."""
    wanted, best = limit, None
    graph = graph.copy()  # it gets the types of new values
    for _ in range(ROUNDS):
        found = plan(graph, sizes, wanted, seconds)
        made = applied(graph, found, sizes)
        found.peak = peak_activation_bytes(made, sizes)
        if best is None or _rank(found, limit) < _rank(best[1], limit):
            best = made, found
        if found.peak <= limit:
            break
        wanted -= found.peak - limit  # what keeps values apart takes memory, too
    assert best is not None
    return best


def flushed(graph: Graph) -> list[Node]:
    """The nodes in another order: when all that still depends on a value can run, it does. It ends in outputs then, and
    leaves nothing behind."""
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.uses:
            readers.setdefault(name, []).append(index)
    ready = {*graph.inputs, *graph.constants}
    done: set[int] = set()
    order: list[Node] = []

    def place(indices: Iterable[int]) -> None:
        for index in indices:
            done.add(index)
            order.append(graph.nodes[index])
            ready.update(graph.nodes[index].outputs)

    for index, node in enumerate(graph.nodes):
        if index in done:
            continue
        place([index])
        cone = _cone(graph, node, readers, done, ready)
        place(cone)
    return order


def _cone(graph: Graph, node: Node, readers: Mapping[str, list[int]], done: set[int], ready: set[str]) -> list[int]:
    """All nodes that depend on the outputs of a node, in order; none if one of them cannot run yet."""
    found: set[int] = set()
    waiting = [name for name in node.outputs if name]
    made: set[str] = set()
    while waiting:
        for index in readers.get(waiting.pop(), ()):
            if index in done or index in found:
                continue
            found.add(index)
            if len(found) > CONE:
                return []
            outputs = [name for name in graph.nodes[index].outputs if name]
            made.update(outputs)
            waiting += outputs
    missing = any(name not in ready and name not in made for index in found for name in graph.nodes[index].uses)
    return [] if missing else sorted(found)


def plan(graph: Graph, sizes: Mapping[str, int], limit: float, seconds: Seconds) -> Plan:
    """The order and the nodes that keep live intermediate values within `limit` bytes, at the least added seconds that
    the search finds; where none do, the least memory that it finds (see `Plan.peak`)."""
    known: dict[str, float] = {}
    best: Plan | None = None
    for order in _orders(graph):
        start = Lifetimes(graph, order, sizes, known).peak
        if start <= limit:
            return Plan(order, start)
    order = min(reversed(_orders(graph)), key=lambda nodes: Lifetimes(graph, nodes, sizes, known).peak)
    costs: dict[str, float] = {}
    for weight in WEIGHTS:
        found = _Search(graph, order, sizes, limit, seconds, weight, known, costs).run()
        if best is None or _rank(found, limit) < _rank(best, limit):
            best = found
    assert best is not None
    return best


def applied(graph: Graph, found: Plan, sizes: Mapping[str, int]) -> Graph:
    """The graph in the order of a plan, with the nodes that recompute: each group reads its operands through a product
    with a one that is there only when the values are that the group's readers wait for."""
    result = graph.copy()
    result.nodes = list(found.nodes)
    b = Builder.continuing(result)
    result.nodes = []
    read = Lifetimes(graph, found.nodes, sizes).last_read
    starts = {group[0]: set(group) for group in found.groups}
    group: set[str] = set()
    one: Value | None = None
    for index, node in enumerate(found.nodes):
        key = key_of(node)
        if key in starts:
            group = starts[key]
            one = _late_one(b, _awaited(graph, found.nodes, index, read))
        if key in group and group.isdisjoint(node.uses):
            assert one is not None
            node = _apart(b, node, one, operand_of(graph, node, lambda name: value_bytes(graph, name, sizes)))
        result.nodes.append(node)
    infer(result)
    return result


def _awaited(graph: Graph, nodes: Sequence[Node], at: int, read: Mapping[str, int]) -> str:
    """The youngest float before node `at` that is still to be read."""
    for node in reversed(nodes[:at]):
        for name in node.outputs:
            if name and read.get(name, -1) >= at and name not in graph.outputs and is_float(_dtype(graph, name)):
                return name
    raise AssertionError("a value is dropped before anything is computed")


def _dtype(graph: Graph, name: str) -> str:
    type_ = graph.type_of(name)
    return "" if type_ is None else type_.dtype


def _late_one(b: Builder, name: str) -> Value:
    """1 as a float32 scalar, computed from the first element (if there is any) of a value."""
    value = Value(b, name)
    rank = len(value.shape or ())
    first = value if not rank else b.Slice(value, np.zeros(rank, np.int64), np.ones(rank, np.int64),
                                           np.arange(rank, dtype=np.int64))
    number = first if value.dtype == "float32" else b.Cast(first, to=ONNX_NUMBER["float32"])
    return b.Pow(b.constant(1.0), b.ReduceSum(number, keepdims=0))


def _apart(b: Builder, node: Node, one: Value, operand: str | None) -> Node:
    """The node, reading an operand times one."""
    assert operand is not None
    dtype = _dtype(b.unfinished, operand)
    product = b.Mul(Value(b, operand), one if dtype == "float32" else b.Cast(one, to=ONNX_NUMBER[dtype]))
    node = node.copy()
    node.inputs = tuple(product.name if name == operand else name for name in node.inputs)
    return node


def _orders(graph: Graph) -> list[list[Node]]:
    return [list(graph.nodes), flushed(graph)]


def _rank(found: Plan, limit: float) -> tuple[float, float]:
    return (max(0.0, found.peak - limit), found.seconds)


@dataclass
class _Choice:
    """To compute values again before node `at`: original nodes in order, and where their operands are by now.
    `wanted` maps names that are read from there on to the original value that they are equal to."""

    at: int
    nodes: list[Node]
    operands: dict[str, str]
    wanted: dict[str, str]
    seconds: float
    score: float


class _Search:
    """One greedy search, with one weight of time against memory."""

    def __init__(self, graph: Graph, order: Sequence[Node], sizes: Mapping[str, int], limit: float, seconds: Seconds,
                 weight: float, known: dict[str, float], costs: dict[str, float]) -> None:
        self.graph, self.sizes, self.limit, self.weight = graph, sizes, limit, weight
        self.nodes = list(order)
        self.seconds, self.costs, self.known = seconds, costs, known
        self.names = NameSupply(graph.names())
        self.makers = {out: node for node in order for out in node.outputs if out}
        self.first: dict[str, str] = {}  # a recomputed value -> the original that it is equal to
        self.instead: dict[str, str] = {}  # a recomputed value -> the one that was read before
        self.groups: list[tuple[float, list[str]]] = []
        self.refused: set[tuple[str, str]] = set()

    def run(self) -> Plan:
        """Choose until the limit is kept or nothing helps; then take back what is not needed."""
        lives = self._lives()
        curve = [(lives.peak, 0.0)]
        while (over := self._over(lives)) > 0:
            choice = self._best(lives)
            if choice is None:
                break
            before = self.nodes
            self._apply(choice)
            after = self._lives()
            if self._over(after) < over:
                lives = after
                curve.append((lives.peak, self._spent()))
            else:
                self.refused.add(self._key(choice.nodes, before[choice.at]))
                self.nodes = before
                self.groups.pop()
        if not self._over(lives):
            lives = self._take_back(lives)
            curve.append((lives.peak, self._spent()))
        return Plan(self.nodes, lives.peak, self._spent(), [group for _, group in self.groups], curve)

    def _spent(self) -> float:
        return sum(spent for spent, _ in self.groups)

    def _lives(self) -> Lifetimes:
        return Lifetimes(self.graph, self.nodes, self.sizes, self.known)

    def _over(self, lives: Lifetimes) -> float:
        return float(np.maximum(lives.live - self.limit, 0).sum())

    def _key(self, nodes: Sequence[Node], reader: Node) -> tuple[str, str]:
        return key_of(nodes[-1]), key_of(reader)

    def _best(self, lives: Lifetimes) -> _Choice | None:
        excess = np.maximum(lives.live - self.limit, 0)
        behind = np.concatenate([[0.0], np.cumsum(excess)])
        instances: dict[str, list[str]] = {}
        for name in lives.of:
            instances.setdefault(self.first.get(name, name), []).append(name)
        best: _Choice | None = None
        for storage in lives.storages():
            points = [storage.born, *storage.uses]
            for left, right in pairwise(points):
                if right - left > 1 and behind[right] > behind[left + 1] and storage.bytes > 0:
                    gain = float(np.minimum(excess[left + 1 : right], storage.bytes).sum())
                    best = self._choice(_Chain(self, lives, instances, storage, right), gain, best) or best
        return best

    def _choice(self, chain: _Chain, gain: float, best: _Choice | None) -> _Choice | None:
        """How the names of a storage that are read from a place on are computed again; None if that is not better."""
        lives, storage, at = chain.lives, chain.storage, chain.at
        wanted = {name: self.first.get(name, name) for name in storage.names if lives.last_read.get(name, -1) >= at}
        if not all(chain.make(name) for name in wanted.values()):
            return None
        if self.refused and self._key(chain.nodes, self.nodes[at]) in self.refused:
            return None
        seconds = sum(self.cost(node) for node in chain.nodes) + chain.apart_seconds()
        price, least = (seconds + 1e-9) ** self.weight, 0.0 if best is None else best.score
        gain -= chain.extended
        if gain / price <= least:
            return None
        room = self.limit - (float(lives.before[at]) - storage.bytes)
        gain -= max(0.0, chain.peak() - room) * len(chain.nodes)
        if gain / price <= least:
            return None
        return _Choice(at, chain.nodes, chain.operands, wanted, seconds, gain / price)

    def cost(self, node: Node) -> float:
        """Seconds of an original node, asked for once."""
        key = key_of(node)
        if key not in self.costs:
            self.costs[key] = self.seconds(node)
        return self.costs[key]

    def bytes_of(self, name: str) -> float:
        """Bytes of any value."""
        if name not in self.known:
            self.known[name] = value_bytes(self.graph, name, self.sizes)
        return self.known[name]

    def _apply(self, choice: _Choice) -> None:
        """Insert copies of the nodes and let the readers that come after read them."""
        renaming, made = dict(choice.operands), list[Node]()
        for node in choice.nodes:
            copy = node.copy()
            copy.rename_uses(renaming)
            copy.name = ""
            copy.outputs = tuple(self._again(out) if out else "" for out in node.outputs)
            renaming.update({old: new for old, new in zip(node.outputs, copy.outputs) if old})
            made.append(copy)
        later = {old: renaming[first] for old, first in choice.wanted.items()}
        self.instead.update({new: old for old, new in later.items()})
        self.nodes = [*self.nodes[: choice.at], *made, *_renamed(self.nodes[choice.at :], later)]
        self.groups.append((choice.seconds, [key_of(node) for node in made]))

    def _again(self, name: str) -> str:
        fresh = self.names.fresh(f"{name}_again")
        self.first[fresh] = self.instead[fresh] = name
        if name in self.graph.types:
            self.graph.types[fresh] = self.graph.types[name]
        self.known[fresh] = self.bytes_of(name)
        return fresh

    def _take_back(self, lives: Lifetimes) -> Lifetimes:
        """Read the earlier value again where the limit is kept without the later one, the dearest first."""
        for row in sorted(self.groups, key=lambda row: -row[0]):
            before, gone = self.nodes, set(row[1])
            removed = [node for node in before if key_of(node) in gone]
            kept = [node for node in before if key_of(node) not in gone]
            back = {out: self._earlier(out, kept) for node in removed for out in node.outputs if out}
            self.nodes = _renamed(kept, back)
            after = self._lives()
            if self._over(after):
                self.nodes = before
            else:
                lives = after
                self.groups.remove(row)
        return lives

    def _earlier(self, name: str, nodes: Sequence[Node]) -> str:
        there = {out for node in nodes for out in node.outputs}
        while name not in there:
            name = self.instead[name]
        return name


class _Chain:
    """What has to be computed before node `at` so that names of a storage are there, which was dropped before."""

    def __init__(self, search: _Search, lives: Lifetimes, instances: Mapping[str, list[str]], storage: Storage,
                 at: int) -> None:
        self.search, self.lives, self.instances, self.storage, self.at = search, lives, instances, storage, at
        self.nodes: list[Node] = []
        self.operands: dict[str, str] = {}  # original values that are there under another name
        self.made: set[str] = set()
        self.extended = 0.0  # bytes above the limit, by keeping operands longer

    def make(self, name: str) -> bool:
        """Add what computes an original value; False where that cannot be repeated, or takes too much."""
        if name in self.made:
            return True
        node = self.search.makers[name]
        if not is_pure(node) or len(node.uses) != len({*node.inputs} - {""}) or self._operand(node) is None:
            return False
        for operand in node.uses:
            if operand not in self.made and operand in self.instances and not self._there(operand):
                if len(self.nodes) >= CHAIN or not self.make(operand):
                    return False
        self.nodes.append(node)
        self.made.update(out for out in node.outputs if out)
        return len(self.nodes) <= CHAIN

    def _there(self, operand: str) -> bool:
        """Whether one of the equal values lives at that place, or may as well live until then."""
        rows = [(self._extension(name), name) for name in self.instances[operand]
                if self.lives.of[name] is not self.storage and self.lives.of[name].born < self.at]
        if not rows:
            return False
        extension, name = min(rows, key=lambda row: row[0])
        if extension > 0 and self.lives.of[name].bytes > SMALL * self.storage.bytes:
            return False
        self.extended += extension
        if name != operand:
            self.operands[operand] = name
        return True

    def _extension(self, name: str) -> float:
        """Bytes above the limit, summed over nodes, that keeping a value until then would add."""
        storage = self.lives.of[name]
        live = self.lives.live[storage.last + 1 : self.at + 1]
        room = np.maximum(self.search.limit - live, 0.0)
        return float(np.maximum(storage.bytes - room, 0.0).sum()) if len(live) else 0.0

    def peak(self) -> float:
        """The most bytes that the nodes hold on the way, with the copies that keep them apart."""
        rows: list[Node] = []
        for node in self.nodes:
            operand = self._operand(node) if self._apart(node) else None
            if operand is not None:
                copied = f"{operand} of {key_of(node)}"
                self.search.known[copied] = self.search.bytes_of(operand)
                rows.append(Node("Mul", (operand,), (copied,)))
                node = _renamed([node], {operand: copied})[0]
            rows.append(node)
        return Lifetimes(_outline(rows), rows, {}, self.search.known).peak

    def apart_seconds(self) -> float:
        """Seconds of the products that keep the nodes apart from the first ones."""
        copies = [self.search.bytes_of(self._operand(node) or "") for node in self.nodes if self._apart(node)]
        return sum(CALL_SECONDS + 2 * copied / COPY_BYTES_PER_SECOND for copied in copies)

    def _apart(self, node: Node) -> bool:
        """Whether it reads nothing that is computed again, and would be the same node twice."""
        return self.made.isdisjoint(node.uses)

    def _operand(self, node: Node) -> str | None:
        return operand_of(self.search.graph, node, self.search.bytes_of)


def _outline(nodes: Sequence[Node]) -> Graph:
    """A graph that has only names: what comes from elsewhere is an input."""
    made = {out for node in nodes for out in node.outputs}
    return Graph(inputs=[name for node in nodes for name in node.uses if name not in made])


def key_of(node: Node) -> str:
    """The first output that has a name."""
    return next(out for out in node.outputs if out)


def _renamed(nodes: Sequence[Node], names: Mapping[str, str]) -> list[Node]:
    """Nodes that read new names; those that change are copies."""
    found = []
    for node in nodes:
        if not names.keys().isdisjoint(node.uses):
            node = node.copy()
            node.rename_uses(names)
        found.append(node)
    return found


def operand_of(graph: Graph, node: Node, bytes_of: Callable[[str], float]) -> str | None:
    """The operand of numbers that a product with one is cheapest for; none that says what shape the result has."""
    record = find(node.op, node.domain)
    static = set() if record is None else set(record.static.values())
    rows = [name for index, name in enumerate(node.inputs)
            if name and index not in static and _dtype(graph, name) in NUMBERS]
    return min(rows, key=bytes_of, default=None)
