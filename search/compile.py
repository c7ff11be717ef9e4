"""Patterns as egglog queries: one query for each arity, spread of rest variables and order of commutative arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from graphs.operators import find
from rules.declare import Rule
from rules.pattern import Pattern, Variable

from .terms import Head, constructor

MAX_VARIANTS = 48  # of one rule; more would mean a pattern with many optional and commutative places


@dataclass(frozen=True, slots=True)
class Ref:
    """A variable's place: egglog name, and the pattern variable it belongs to (None: the argument is absent)."""

    column: str
    variable: Variable


@dataclass(frozen=True, slots=True)
class Shape:
    """A pattern node with all choices made; `args` in the order of the pattern, `swapped`: stored the other way."""

    pattern: Pattern
    args: tuple[Shape | Ref | None, ...]
    swapped: bool

    @property
    def stored(self) -> tuple[Shape | Ref | None, ...]:
        """Arguments in the order of the e-graph."""
        return (self.args[1], self.args[0], *self.args[2:]) if self.swapped else self.args

    def nodes(self) -> Iterator[Shape]:
        """All shapes, arguments first."""
        for arg in self.args:
            if isinstance(arg, Shape):
                yield from arg.nodes()
        yield self


@dataclass
class Variant:
    """One query: a rule with the shapes of its patterns. Rows are `columns`, then the attribute id of each node."""

    rule: Rule
    index: int  # of the rule
    shapes: tuple[Shape, ...]
    number: int = -1  # of the query
    columns: dict[str, int] = field(default_factory=dict)  # egglog variable -> position
    attributes: dict[int, int] = field(default_factory=dict)  # id of a shape -> position in the row
    places: list[tuple[Variable, list[int]]] = field(default_factory=list)  # positions of each variable
    absent: dict[str, object] = field(default_factory=dict)  # variables without any place

    def __post_init__(self) -> None:
        nodes = [node for shape in self.shapes for node in shape.nodes()]
        places: dict[str, tuple[Variable, list[int]]] = {}
        for node in nodes:
            for arg in node.args:
                if isinstance(arg, Ref):
                    position = self.columns.setdefault(arg.column, len(self.columns))
                    _, taken = places.setdefault(arg.variable.name, (arg.variable, []))
                    if position not in taken:
                        taken.append(position)
        for node in nodes:
            self.attributes[id(node)] = len(self.columns) + len(self.attributes)
            for variable in node.pattern.args:
                if isinstance(variable, Variable) and variable.name not in places:
                    self.absent[variable.name] = () if variable.rest else None
        self.places = list(places.values())

    @property
    def width(self) -> int:
        """Number of class columns."""
        return len(self.columns)

    def facts(self) -> str:
        """The query in egglog text."""
        names = {key: f"a{position - self.width}" for key, position in self.attributes.items()}
        texts = [f"(= r{index} {_text(shape, names)})" for index, shape in enumerate(self.shapes)]
        constants = {arg.column for shape in self.shapes for node in shape.nodes() for arg in node.args
                     if isinstance(arg, Ref) and arg.variable.constant}
        texts += [f"(isconst {column})" for column in sorted(constants)]
        return " ".join(texts)

    def numbers(self) -> list[str]:
        """The variables of attribute ids, in the order of the row."""
        return [f"a{index}" for index in range(len(self.attributes))]


def _text(shape: Shape, attributes: dict[int, str]) -> str:
    parts = []
    for arg in shape.stored:
        if isinstance(arg, Shape):
            parts.append(_text(arg, attributes))
        else:
            parts.append("(None_ 0)" if arg is None else arg.column)
    head = Head("op", shape.pattern.domain, shape.pattern.op)
    text = f"({' '.join([constructor(head, len(parts)), attributes[id(shape)], *parts])})"
    return text if shape.pattern.output is None else f"(Proj {shape.pattern.output} {text})"


Arities = Callable[[str, str], Sequence[int]]


def shapes(pattern: Pattern, arities: Arities) -> Iterator[Shape]:
    """All ways to spell a pattern with the arities that occur."""
    record = find(pattern.op, pattern.domain)
    for arity in arities(pattern.op, pattern.domain):
        for args in _spread(pattern.args, arity):
            choices = [list(shapes(arg, arities)) if isinstance(arg, Pattern) else [arg] for arg in args]
            for chosen in product(*choices):
                commutes = record is not None and record.commutative and arity == 2
                for swapped in _orders(pattern) if commutes else (False,):
                    yield Shape(pattern, chosen, swapped)


def _orders(pattern: Pattern) -> tuple[bool, ...]:
    """Arguments are stored constants last, so a pattern with one constant needs one order only."""
    if len(pattern.args) != 2 or pattern.args[0] == pattern.args[1]:
        return (False,)
    first, second = (isinstance(arg, Variable) and arg.constant for arg in pattern.args)
    return (first,) if first != second else (False, True)


def _spread(args: Sequence[Pattern | Variable], arity: int) -> Iterator[tuple[Pattern | Ref | None, ...]]:
    """Ways to give so many arguments to a pattern's places; absent ones at the end are left out."""
    if not args:
        if arity == 0:
            yield ()
        return
    first, rest = args[0], args[1:]
    if isinstance(first, Variable) and first.rest:
        for count in range(arity + 1):
            for others in _spread(rest, arity - count):
                taken = tuple(Ref(f"v_{first.name}_{position}", first) for position in range(count))
                yield taken + others
        return
    if arity == 0:
        if all(isinstance(arg, Variable) and (arg.optional or arg.rest) for arg in args):
            yield ()
        return
    place = Ref(f"v_{first.name}", first) if isinstance(first, Variable) else first
    for others in _spread(rest, arity - 1):
        yield (place, *others)
        if isinstance(first, Variable) and first.optional:
            yield (None, *others)


def variants(rule: Rule, index: int, arities: Arities) -> Iterator[Variant]:
    """The queries of a rule over the arities that occur, at most MAX_VARIANTS."""
    spelled = [list(shapes(pattern, arities)) for pattern in rule.before]
    count = 0
    for chosen in product(*spelled):
        variant = Variant(rule, index, chosen)
        if _consistent(variant):
            yield variant
            count += 1
        if count >= MAX_VARIANTS:
            return


def _consistent(variant: Variant) -> bool:
    """A variable that stands in several places takes as many arguments in each."""
    sizes: dict[str, int] = {}
    for node in (node for shape in variant.shapes for node in shape.nodes()):
        for variable in {arg.name: arg for arg in node.pattern.args if isinstance(arg, Variable)}.values():
            size = sum(isinstance(arg, Ref) and arg.variable.name == variable.name for arg in node.args)
            size = size if variable.rest else min(size, 1)
            if sizes.setdefault(variable.name, size) != size:
                return False
    return True


_HEADS: dict[int, tuple[Rule, frozenset[tuple[str, str]]]] = {}  # by identity: hashing a rule costs more than this


def heads_of(rule: Rule) -> frozenset[tuple[str, str]]:
    """(operator, domain) of every node of a rule's left side."""
    known = _HEADS.get(id(rule))
    if known is None or known[0] is not rule:
        heads = frozenset((node.op, node.domain) for pattern in rule.before for node in pattern.nodes())
        known = _HEADS[id(rule)] = (rule, heads)
    return known[1]
