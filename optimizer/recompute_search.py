"""The search for what to recompute: from the whole peak down to the least that can be reached, one plan a level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cost_model.memory import Lifetimes, Storage, value_bytes
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find, is_pure

Seconds = Callable[[Node], float]

CHAIN = 48  # nodes that one value may be recomputed by
SMALL = 1 / 16  # of a value: an operand of so few bytes is rather kept longer
LEVELS = 40  # of memory that plans are made for, from all of it down
NUMBERS = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})  # a product with one is exact
COPY_BYTES_PER_SECOND, CALL_SECONDS = 5e9, 1e-6  # of the product that keeps a value apart
ONE = "<one>"  # the factor of that product, until a plan is carried out


@dataclass
class Plan:
    """What was decided. `nodes` are those of the graph in their order with those that recompute among them;
    `groups` names the outputs of the latter, of each decision, in that order. `apart` names products with `ONE`, with
    the numbers of the decisions that they belong to."""

    nodes: list[Node]
    peak: float
    seconds: float = 0.0  # added, as predicted
    groups: list[list[str]] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)  # peak and seconds, decision by decision
    apart: dict[str, int] = field(default_factory=dict)

    @property
    def recomputed(self) -> int:
        """How many nodes run again."""
        return sum(map(len, self.groups))


class Facts:
    """What is known of the nodes and values of a graph, asked for once."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], seconds: Seconds) -> None:
        self.graph, self.sizes, self._seconds = graph, sizes, seconds
        self.bytes: dict[str, float] = {}
        self.makers = {out: node for node in graph.nodes for out in node.outputs if out}
        self.uses = {key_of(node): node.uses for node in graph.nodes}
        self._cost: dict[str, float] = {}
        self._operand: dict[str, str | None] = {}

    def bytes_of(self, name: str) -> float:
        """Bytes of any value."""
        if name not in self.bytes:
            self.bytes[name] = value_bytes(self.graph, name, self.sizes)
        return self.bytes[name]

    def cost(self, node: Node) -> float:
        """Seconds of a node."""
        key = key_of(node)
        if key not in self._cost:
            self._cost[key] = self._seconds(node)
        return self._cost[key]

    def operand(self, node: Node) -> str | None:
        """The operand that keeps a second computation of the node apart; None where it cannot be repeated."""
        key = key_of(node)
        if key not in self._operand:
            repeatable = is_pure(node) and len(self.uses[key]) == len({*node.inputs} - {""})
            self._operand[key] = operand_of(self.graph, node, self.bytes_of) if repeatable else None
        return self._operand[key]


@dataclass
class _Choice:
    """To compute values again before node `at`: original nodes in order, and where their operands are by now.
    `wanted` maps names that are read from there on to the original value that they are equal to."""

    at: int
    storage: Storage
    nodes: list[Node]
    operands: dict[str, str]
    wanted: dict[str, str]
    seconds: float
    score: float


class Search:
    """One greedy descent, with one weight of time against memory."""

    def __init__(self, facts: Facts, order: Sequence[Node], weight: float, whole: float) -> None:
        self.facts, self.graph, self.weight, self.whole = facts, facts.graph, weight, whole
        self.nodes = list(order)
        self.limit = 0.0
        self.names = NameSupply(facts.graph.names())
        self.first: dict[str, str] = {}  # a recomputed value -> the original that it is equal to
        self.instead: dict[str, str] = {}  # a recomputed value -> the one that was read before
        self.apart: set[str] = set()
        self.groups: list[tuple[float, list[str]]] = []
        self.refused: set[tuple[str, str]] = set()
        self.curve: list[tuple[float, float]] = []

    def plans(self, enough: float) -> list[Plan]:
        """A plan for each level that can be reached, down to `enough` bytes; if the last cannot, the state at the end,
        of which nothing is taken away."""
        lives = self._lives()
        found = [self._plan(lives)]
        for level in range(1, LEVELS):
            self.limit = self.whole * (1 - level / LEVELS)
            if lives.peak <= self.limit:
                continue
            self.refused.clear()
            lives = self._descend(lives)
            if self._over(lives):
                return [*found, self._plan(lives)]
            lives = self._take_back(lives)
            found.append(self._plan(lives))
            if lives.peak <= enough:
                break
        return found

    def _plan(self, lives: Lifetimes) -> Plan:
        self.curve.append((lives.peak, self._spent()))
        groups = [[name for name in group if name not in self.apart] for _, group in self.groups]
        apart = {name: index for index, (_, group) in enumerate(self.groups) for name in group if name in self.apart}
        return Plan(self.nodes, lives.peak, self._spent(), groups, list(self.curve), apart)

    def _descend(self, lives: Lifetimes) -> Lifetimes:
        """Choose until the limit is kept or nothing helps."""
        while (over := self._over(lives)) > 0 and (choice := self._best(lives)) is not None:
            before, reader = self.nodes, self.nodes[choice.at]
            self._apply(choice)
            after = self._lives()
            if self._over(after) < over:
                lives = after
            else:
                self.refused.add((key_of(choice.nodes[-1]), key_of(reader)))
                self.nodes = before
                self.groups.pop()
        return lives

    def _spent(self) -> float:
        return sum(spent for spent, _ in self.groups)

    def _lives(self) -> Lifetimes:
        return Lifetimes(self.graph, self.nodes, self.facts.sizes, self.facts.bytes)

    def _over(self, lives: Lifetimes) -> float:
        return float(np.maximum(lives.live - self.limit, 0).sum())

    def _best(self, lives: Lifetimes) -> _Choice | None:
        excess = np.maximum(lives.live - self.limit, 0)
        behind = np.concatenate([[0.0], np.cumsum(excess)])
        instances: dict[str, list[str]] = {}
        for name in (name for name in lives.of if name not in self.apart):
            instances.setdefault(self.first.get(name, name), []).append(name)
        rows: list[tuple[float, int, float, Storage]] = []
        for storage in lives.storages():
            if storage.bytes <= 0 or storage.names[0] in self.apart:
                continue
            for left, right in pairwise([storage.born, *storage.uses]):
                if right - left > 1 and behind[right] > behind[left + 1]:
                    gain = float(np.minimum(excess[left + 1 : right], storage.bytes).sum())
                    rows.append((gain / self._price(self._least(storage)), right, gain, storage))
        best: _Choice | None = None
        for bound, at, gain, storage in sorted(rows, key=lambda row: (-row[0], row[1])):
            if best is not None and bound <= best.score:
                break
            best = self._choice(_Chain(self, lives, instances, storage, at), gain, best) or best
        return best

    def _price(self, seconds: float) -> float:
        return float((seconds + 1e-9) ** self.weight)

    def _least(self, storage: Storage) -> float:
        """Seconds of the node that wrote it, at the least."""
        name = storage.names[0]
        return self.facts.cost(self.facts.makers[self.first.get(name, name)])

    def _choice(self, chain: _Chain, gain: float, best: _Choice | None) -> _Choice | None:
        """How the names of a storage that are read from a place on are computed again; None if that is not better."""
        lives, storage, at = chain.lives, chain.storage, chain.at
        wanted = {name: self.first.get(name, name) for name in storage.names if lives.last_read.get(name, -1) >= at}
        if not all(chain.make(name) for name in wanted.values()):
            return None
        if self.refused and (key_of(chain.nodes[-1]), key_of(self.nodes[at])) in self.refused:
            return None
        seconds = sum(self.facts.cost(node) for node in chain.nodes) + chain.apart_seconds()
        price, least = self._price(seconds), 0.0 if best is None else best.score
        gain -= chain.extended
        if gain / price <= least:
            return None
        room = self.limit - (float(lives.before[at]) - storage.bytes)
        gain -= max(0.0, chain.peak() - room) * len(chain.nodes)
        if gain / price <= least:
            return None
        return _Choice(at, storage, chain.nodes, chain.operands, wanted, seconds, gain / price)

    def _apply(self, choice: _Choice) -> None:
        """Insert copies of the nodes and let the readers that come after read them."""
        renaming, made = dict(choice.operands), list[Node]()
        originals = {out for node in choice.nodes for out in node.outputs}
        for node in choice.nodes:
            copy = node.copy()
            if originals.isdisjoint(node.uses):
                operand = self.facts.operand(node)
                assert operand is not None
                product = self._again(operand, "apart")
                self.apart.add(product)
                made.append(Node("Mul", (renaming.get(operand, operand), ONE), (product,)))
                copy.rename_uses({**renaming, operand: product})
            else:
                copy.rename_uses(renaming)
            copy.name = ""
            copy.outputs = tuple(self._again(out) if out else "" for out in node.outputs)
            renaming.update({old: new for old, new in zip(node.outputs, copy.outputs) if old})
            made.append(copy)
        later = {old: renaming[first] for old, first in choice.wanted.items()}
        self.instead.update({new: old for old, new in later.items()})
        nodes = [*self.nodes[: choice.at], *made, *self.nodes[choice.at :]]
        for place in choice.storage.uses:
            if place >= choice.at:
                nodes[place + len(made)] = renamed(nodes[place + len(made)], later)
        self.nodes = nodes
        self.groups.append((choice.seconds, [key_of(node) for node in made]))

    def _again(self, name: str, why: str = "again") -> str:
        fresh = self.names.fresh(f"{name}_{why}")
        self.first[fresh] = self.instead[fresh] = name
        if name in self.graph.types:
            self.graph.types[fresh] = self.graph.types[name]
        self.facts.bytes[fresh] = self.facts.bytes_of(name)
        return fresh

    def _take_back(self, lives: Lifetimes) -> Lifetimes:
        """Read the earlier value again where the limit is kept without the later one, the dearest first."""
        for row in sorted(self.groups, key=lambda row: -row[0]):
            if not self._may_go(row[1], lives):
                continue
            before, gone = self.nodes, set(row[1])
            removed = [node for node in before if key_of(node) in gone]
            kept = [node for node in before if key_of(node) not in gone]
            back = {out: self._earlier(out, kept) for node in removed for out in node.outputs if out}
            self.nodes = [renamed(node, back) for node in kept]
            after = self._lives()
            if self._over(after):
                self.nodes = before
            else:
                lives = after
                self.groups.remove(row)
        return lives

    def _may_go(self, group: Sequence[str], lives: Lifetimes) -> bool:
        """Whether there seems to be room for the earlier value from its last use until it is computed again (operands
        that were kept longer for this are not seen)."""
        last = lives.of.get(group[-1])
        earlier = lives.of.get(self.instead[group[-1]])
        start = lives.of[group[0]].born
        if last is None or earlier is None or earlier.last + 1 >= start:
            return True
        return float(lives.live[earlier.last + 1 : start].max()) + last.bytes <= self.limit

    def _earlier(self, name: str, nodes: Sequence[Node]) -> str:
        there = {out for node in nodes for out in node.outputs}
        while name not in there and name in self.instead:
            name = self.instead[name]
        return name


class _Chain:
    """What has to be computed before node `at` so that names of a storage are there, which was dropped before."""

    def __init__(self, search: Search, lives: Lifetimes, instances: Mapping[str, list[str]], storage: Storage,
                 at: int) -> None:
        self.search, self.lives, self.instances, self.storage, self.at = search, lives, instances, storage, at
        self.facts = search.facts
        self.nodes: list[Node] = []
        self.operands: dict[str, str] = {}  # original values that are there under another name
        self.made: set[str] = set()
        self.extended = 0.0  # bytes above the limit, by keeping operands longer

    def make(self, name: str) -> bool:
        """Add what computes an original value; False where that cannot be repeated, or takes too much."""
        if name in self.made:
            return True
        node = self.facts.makers[name]
        if self.facts.operand(node) is None:
            return False
        for operand in self.facts.uses[key_of(node)]:
            if operand not in self.made and operand in self.instances and not self._there(operand):
                if len(self.nodes) >= CHAIN or not self.make(operand):
                    return False
        self.nodes.append(node)
        self.made.update(out for out in node.outputs if out)
        return len(self.nodes) <= CHAIN

    def _there(self, operand: str) -> bool:
        """Whether one of the equal values lives at that place, or may as well live until then."""
        of = self.lives.of
        rows = [(self._extension(of[name]), name) for name in self.instances[operand]
                if of[name] is not self.storage and of[name].born < self.at]
        if not rows:
            return False
        extension, name = min(rows, key=lambda row: row[0])
        if extension > 0 and of[name].bytes > SMALL * self.storage.bytes:
            return False
        self.extended += extension
        if name != operand:
            self.operands[operand] = name
        return True

    def _extension(self, storage: Storage) -> float:
        """Bytes above the limit, summed over nodes, that keeping a value until then would add."""
        if storage.last >= self.at or storage.bytes <= 0:
            return 0.0
        room = np.maximum(self.search.limit - self.lives.live[storage.last + 1 : self.at + 1], 0.0)
        return float(np.maximum(storage.bytes - room, 0.0).sum())

    def peak(self) -> float:
        """The most bytes that the nodes hold on the way, with the copies that keep them apart."""
        rows: list[Node] = []
        for node in self.nodes:
            operand = self.facts.operand(node) if self._apart(node) else None
            if operand is not None:
                copied = f"{operand} of {key_of(node)}"
                self.facts.bytes[copied] = self.facts.bytes_of(operand)
                rows.append(Node("Mul", (operand,), (copied,)))
                node = renamed(node, {operand: copied})
            rows.append(node)
        return Lifetimes(_outline(rows), rows, {}, self.facts.bytes).peak

    def apart_seconds(self) -> float:
        """Seconds of the products that keep the nodes apart from the first ones."""
        copies = [self.facts.bytes_of(self.facts.operand(node) or "") for node in self.nodes if self._apart(node)]
        return sum(CALL_SECONDS + 2 * copied / COPY_BYTES_PER_SECOND for copied in copies)

    def _apart(self, node: Node) -> bool:
        """Whether it reads nothing that is computed again, and would be the same node twice."""
        return self.made.isdisjoint(self.facts.uses[key_of(node)])


def _outline(nodes: Iterable[Node]) -> Graph:
    """A graph that has only names: what comes from elsewhere is an input."""
    nodes = list(nodes)
    made = {out for node in nodes for out in node.outputs}
    return Graph(inputs=[name for node in nodes for name in node.uses if name not in made])


def key_of(node: Node) -> str:
    """The first output that has a name."""
    return next(out for out in node.outputs if out)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node, reading new names; a copy if that changes it."""
    if names.keys().isdisjoint(node.uses):
        return node
    node = node.copy()
    node.rename_uses(names)
    return node


def operand_of(graph: Graph, node: Node, bytes_of: Callable[[str], float]) -> str | None:
    """The operand of numbers that a product with one is cheapest for; none that says what shape the result has."""
    record = find(node.op, node.domain)
    static = set() if record is None else set(record.static.values())
    rows = [name for index, name in enumerate(node.inputs)
            if name and index not in static and dtype_of(graph, name) in NUMBERS]
    return min(rows, key=bytes_of, default=None)


def dtype_of(graph: Graph, name: str) -> str:
    """Its element type, empty where that is not known."""
    type_ = graph.type_of(name)
    return "" if type_ is None else type_.dtype
