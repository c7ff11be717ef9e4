"""The classes of an e-graph as they stand between two iterations, and how new nodes join the tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphs.constants import Constant, Facts
from graphs.types import TensorType
from graphs.unpacking import unpacks
from rules.declare import Operand
from rules.engine import Built, Replacement

from .terms import ABSENT, Head, Tables, Term
from .values import Bounds, Contents, Values

Key = tuple[int, int, tuple[int, ...]]


@dataclass
class News:
    """What egglog has to be told: constant classes, classes that commutation makes equal, constants to put last."""

    constants: list[int] = field(default_factory=list)
    equal: list[tuple[int, int]] = field(default_factory=list)
    swapped: list[tuple[Term, int]] = field(default_factory=list)


def weaker(a: TensorType | None, b: TensorType | None) -> bool:
    """True where type a says less than b, or another name for a size that data decide."""
    return a is None or a.shape is None or (b is not None and b.is_known and not a.is_known)


def conflicting(a: TensorType | None, b: TensorType | None) -> bool:
    """True where one value cannot have both types."""
    if a is None or b is None:
        return False
    if a.dtype != b.dtype:
        return True
    if a.shape is None or b.shape is None:
        return False
    if len(a.shape) != len(b.shape):
        return True
    return a.is_known and b.is_known and a.shape != b.shape


class Snapshot:
    """Classes, by the smallest label in each; `classes[label]` of labels made since is the label itself."""

    def __init__(self, tables: Tables, contents: Contents | None = None, exact: bool = False) -> None:
        self.tables, self.contents = tables, contents
        self.classes: list[int] = []
        self.members: dict[int, list[int]] = {}
        self.known: dict[Key, int] = {}  # hash-consing: what a node is -> its first label
        self.types: dict[int, TensorType | None] = {}
        self.constant: set[int] = set()
        self.settled: set[int] = set()  # constants that need no other form
        self.told: set[int] = set()
        self._swaps: set[Term] = set()
        self.conflicts: list[tuple[tuple[int, int], tuple[str, str]]] = []
        self.values = Values(tables, exact)
        self.bounds = Bounds(tables, self.values)
        self.computed: list[tuple[int, int]] = []  # labels of constants that were found to be equal to the bit

    def update(self, classes: list[int]) -> News:
        """Take over the classes of the e-graph."""
        self.classes = classes
        self.conflicts = []
        self.members, self.known, self.types = {}, {}, {}
        tables, news = self.tables, News()
        for label, term in enumerate(tables.terms):
            mine = classes[label]
            self.members.setdefault(mine, []).append(label)
            other = self.known.setdefault(self.key(term), label)
            if classes[other] != mine:
                news.equal.append((other, label))
            self._type(mine, label)
        self._constants(news)
        if self.contents is not None:
            pairs = self.contents.equal(classes, self.constant)
            self.computed += pairs
            news.equal += pairs
        self.settled = {class_ for class_ in self.constant if self._settled(class_)}
        return news

    def _settled(self, class_: int) -> bool:
        """A constant class of which no new form is of use: the model stores it, or only rules made it and folding will
        compute it whatever its form is (what the graph came with unfolded is not to be folded). Without this
        0 = 0 + 0 = 0 * c = 0 * (c + c) goes on for ever. Proofs look at all forms of what is not stored."""
        members, bounds = self.members[class_], self.tables.bounds
        leaves = (self.tables.leaf_of(label) for label in members)
        if any(leaf is not None and leaf.kind == "constant" for leaf in leaves):
            return True
        return self.contents is None and bool(bounds) and min(members) >= bounds[-1]

    def _type(self, mine: int, label: int) -> None:
        type_ = self.tables.types[label]
        if mine not in self.types:
            self.types[mine] = type_
            return
        present = self.types[mine]
        if conflicting(present, type_):
            self.conflicts.append(((mine, label), (str(present), str(type_))))
        elif weaker(present, type_):
            self.types[mine] = type_

    def _constants(self, news: News) -> None:
        """Classes known before the graph runs, from leaves upward until nothing changes."""
        tables, classes = self.tables, self.classes
        constant: set[int] = {classes[label] for label, is_constant in enumerate(tables.constant) if is_constant}
        pure = {index for index, head in enumerate(tables.heads) if head.kind in ("op", "proj")}
        changed = bool(constant - self.constant) and bool(self.constant)
        while changed:
            changed = False
            for label, term in enumerate(tables.terms):
                if term.head in pure and classes[label] not in constant and not self._unpacks(label) and \
                        all(arg == ABSENT or classes[arg] in constant for arg in term.args):
                    constant.add(classes[label])
                    changed = True
        told = {classes[label] for label in self.told}
        news.constants = sorted(constant - told)
        self.told.update(news.constants)
        self.constant = constant
        for label, term in enumerate(tables.terms) if news.constants else ():
            if term.head in tables.commutative and len(term.args) == 2:
                first, second = (classes[arg] for arg in term.args)
                if first in constant and second not in constant:
                    swapped = Term(term.head, term.attr, (term.args[1], term.args[0]))
                    if swapped not in self._swaps:
                        self._swaps.add(swapped)
                        news.swapped.append((swapped, label))

    def _unpacks(self, label: int) -> bool:
        """A node that folding leaves in the graph, so that it is no constant; a proof computes it all the same."""
        term, types = self.tables.terms[label], self.tables.types
        head = self.tables.heads[term.head]
        return (self.contents is None and bool(term.args) and term.args[0] != ABSENT
                and unpacks(head.op, head.domain, types[term.args[0]], types[label]))

    def key(self, term: Term) -> Key:
        """What makes two terms the same node: arguments by class, in no order where the operator commutes."""
        args = tuple(self.of(arg) for arg in term.args)
        if term.head in self.tables.commutative and len(args) == 2 and args[1] < args[0]:
            args = (args[1], args[0])
        return term.head, term.attr, args

    def find(self, domain: str, op: str, attr: int, args: list[int]) -> int | None:
        """The first label of an operator's node over these classes."""
        head = self.tables.head_ids.get(Head("op", domain, op))
        return None if head is None else self.known.get(self.key(Term(head, attr, tuple(args))))

    def find_output(self, label: int, output: int) -> int | None:
        """The first label of one output of a node with several."""
        head = self.tables.head_ids.get(Head("proj"))
        return None if head is None else self.known.get(self.key(Term(head, output, (label,))))

    def of(self, label: int) -> int:
        """The class of a label."""
        return self.classes[label] if label < len(self.classes) else label

    def same(self, a: int, b: int) -> bool:
        """True where two labels are in one class already."""
        return self.of(a) == self.of(b)

    def facts(self, class_: int) -> tuple[Facts | None, Constant | None]:
        """Facts and elements of a constant class, from its leaves; facts only where all leaves agree."""
        facts: Facts | None = None
        for label in self.members.get(class_, ()):
            leaf = self.tables.leaf_of(label)
            if leaf is None or leaf.kind != "constant":
                continue
            if facts is not None and leaf.facts != facts:
                return None, None
            facts, value = leaf.facts, leaf.value
        return self._computed(class_) if facts is None else (facts, value)

    def _computed(self, class_: int) -> tuple[Facts | None, Constant | None]:
        """Facts of a constant class that only nodes compute. Where its members differ by rounding, only what holds
        for each of them is a fact of the class, and no elements are known."""
        found = [value for label in self.members.get(class_, ()) if (value := self.values.of(label)) is not None]
        if not found:
            return None, None
        first = found[0]
        if all(value == first for value in found[1:]):
            return first.facts, first
        each = [value.facts for value in found]
        lows = [facts.low for facts in each if facts.low is not None]
        highs = [facts.high for facts in each if facts.high is not None]
        known = len(lows) == len(highs) == len(each)
        return Facts(None, min(lows) if known else None, max(highs) if known else None,
                     all(facts.finite for facts in each), all(facts.integral for facts in each)), None

    def insert(self, new: Replacement, built: list[int]) -> int:
        """The label of what a rule made; labels of new and of refound nodes are appended to `built`."""
        if isinstance(new, Operand):
            return int(new.key)  # type: ignore[call-overload]
        if isinstance(new, Constant):
            index = self.tables.constant_leaf(new)
            return self._add(Term(self.tables.head(Head("leaf")), index, ()), new.type, None)
        return self._insert_node(new, built)

    def _insert_node(self, new: Built, built: list[int]) -> int:
        tables = self.tables
        args = [ABSENT if arg is None else self.insert(arg, built) for arg in new.args]
        head = tables.head(Head("op", new.domain, new.op))
        several = len(new.types) > 1
        if head in tables.commutative and len(args) == 2 and self._puts_last(args[0], args[1]):
            args.reverse()
        term = Term(head, tables.attribute(new.attrs, len(new.types)), tuple(args))
        label = self._add(term, None if several else new.type, new.types if several else None)
        if label not in built:
            built.append(label)
        if several:
            label = self._add(Term(tables.head(Head("proj")), new.output, (label,)), new.type, None)
            if label not in built:
                built.append(label)
        return label

    def overflows(self, labels: list[int]) -> bool:
        """Among what a rule made is a constant that may not be finite, though all it is computed from is."""
        return any(self.bounds.may_overflow(label) for label in labels
                   if self.is_constant(label) and self.tables.leaf_of(label) is None)

    def _puts_last(self, first: int, second: int) -> bool:
        """Constants stand last, else the order of labels decides."""
        rank = [(self.is_constant(label), self.of(label)) for label in (first, second)]
        return rank[0] > rank[1]

    def is_constant(self, label: int) -> bool:
        """True where a label's value is known before the graph runs."""
        return self.of(label) in self.constant or self.tables.constant[label]

    def _add(self, term: Term, type_: TensorType | None, outputs: tuple[TensorType, ...] | None) -> int:
        key = self.key(term)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.tables.add(term, type_, outputs)
        return found
