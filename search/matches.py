"""Rows of egglog queries as matches that guards understand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise, product
from typing import Any

from rules.declare import Match, NodeView, Operand, Rule
from rules.matching import match_attributes

from .compile import Shape, Variant
from .snapshot import Snapshot
from .terms import ABSENT

Row = tuple[int, ...]
COMBINATIONS = 8  # of the members of one group


@dataclass(slots=True)
class Found:
    """A match ready to fire, with the labels that the log keeps (`roots` are labels of the matched nodes)."""

    match: Match
    roots: tuple[int, ...]
    matched: tuple[int, ...]
    bindings: tuple[tuple[str, object], ...]
    rows: list[tuple[Variant, Row]]


@dataclass(slots=True)
class _Place:
    """One row, looked at: bindings, root views and labels. None of its classes has an unknown type."""

    bindings: dict[str, Any]
    views: tuple[NodeView, ...]
    roots: tuple[int, ...]
    matched: tuple[int, ...]


class Reader:
    """Turns rows into matches against one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.forms_asked = 0
        self.untyped: set[int] = set()  # classes without a known type or rank in what was looked at, until it is read
        self._made: dict[int, set[int]] = {}
        self._groups: dict[int, dict[tuple[int, Row], tuple[Variant, Row]]] = {}
        self._fired: dict[int, dict[int, set[frozenset[tuple[int, ...]]]]] = {}
        self._operands: dict[int, Operand | None] = {}
        self._of: object = None

    def made(self, index: int, labels: Iterable[int]) -> None:
        """Remember which nodes a rule made (a group rule does not join its own results again)."""
        self._made.setdefault(index, set()).update(labels)

    def canonical(self, variant: Variant, row: Row) -> Row:
        """An older row in present classes."""
        return (*map(self.snapshot.of, row[:variant.width]), *row[variant.width:])

    def operand(self, class_: int) -> Operand | None:
        """A class as guards see it, None where its type or rank is unknown."""
        if self._of is not self.snapshot.classes:
            self._operands, self._of = {}, self.snapshot.classes
        if class_ not in self._operands:
            self._operands[class_] = self._operand(class_)
        return self._operands[class_]

    def _operand(self, class_: int) -> Operand | None:
        type_ = self.snapshot.types.get(class_)
        if type_ is None or type_.shape is None:
            return None
        if class_ not in self.snapshot.constant:
            return Operand(class_, type_, forms=lambda op: self.forms(class_, op))
        facts, value = self.snapshot.facts(class_)
        return Operand(class_, type_, True, facts, lambda: value, lambda op: self.forms(class_, op))

    def forms(self, class_: int, op: str) -> Sequence[NodeView]:
        """Nodes of an operator in a class."""
        self.forms_asked += 1
        tables, found, seen = self.snapshot.tables, [], set()
        for label in self.snapshot.members.get(class_, ()):
            at, output = label, 0
            if tables.kind(label) == "proj":
                at, output = tables.terms[label].args[0], tables.terms[label].attr
            head = tables.heads[tables.terms[at].head]
            if head.kind != "op" or head.op != op:
                continue
            key = self.snapshot.key(tables.terms[label])
            view = self._view(at, label, output) if key not in seen else None
            seen.add(key)
            if view is not None:
                found.append(view)
        return found

    def _view(self, at: int, label: int, output: int) -> NodeView | None:
        tables = self.snapshot.tables
        term, head = tables.terms[at], tables.heads[tables.terms[at].head]
        type_ = self.snapshot.types.get(self.snapshot.of(label))
        args = [None if arg == ABSENT else self.operand(self.snapshot.of(arg)) for arg in term.args]
        unknown = any(arg is None and given != ABSENT for arg, given in zip(args, term.args, strict=True))
        if unknown or type_ is None or type_.shape is None:
            return None
        return NodeView(head.op, tables.attrs[term.attr], tuple(args), type_, label, output, head.domain)

    def singles(self, rule: Rule, rows: list[tuple[Variant, Row]]) -> list[Found]:
        """Matches of a rule without a group."""
        found = []
        for variant, row in rows:
            place = self._place(variant, row)
            if place is not None and len(set(map(self.snapshot.of, place.roots))) == len(place.roots):
                match = Match(place.bindings, place.views, self.snapshot.tables.opset)
                found.append(Found(match, place.roots, place.matched, _log(place.bindings), [(variant, row)]))
        return found

    def groups(self, index: int, rule: Rule, rows: list[tuple[Variant, Row]]) -> list[Found]:
        """Matches of a group rule: all members that share the group's class, where there is a new one."""
        known = self._groups.setdefault(index, {})
        for variant, row in rows:
            known[variant.number, row] = (variant, row)
        fresh = {(variant.number, moved): (variant, moved) for variant, row in known.values()
                 for moved in [self.canonical(variant, row)]}
        if not rows and fresh.keys() == known.keys():
            return []
        self._groups[index] = fresh
        made, fired = self._made.get(index, set()), self._fired.setdefault(index, {})
        groups: dict[int, list[tuple[_Place, Variant, Row]]] = {}
        for variant, row in fresh.values():
            place = self._place(variant, row)
            if place is not None and place.matched[-1] not in made:
                groups.setdefault(int(place.bindings[rule.group].key), []).append((place, variant, row))
        found = []
        for shared, places in sorted(groups.items()):
            for part in self._parts(places):
                mark = frozenset(place.matched for place, _, _ in part)
                if len(part) > 1 and mark not in fired.setdefault(shared, set()):
                    fired[shared].add(mark)
                    found.append(self._group(part))
        return found

    def _parts(self, places: list[tuple[_Place, Variant, Row]]) -> list[list[tuple[_Place, Variant, Row]]]:
        """Members that stood in one of the graphs from the start; and all, one for each class and of each value and
        what only constants turn it into (Q and the scaled Q) one, in a few combinations: who reads one needs not the
        other."""
        chosen: list[list[tuple[_Place, Variant, Row]]] = []
        of, bounds = self.snapshot.of, [0, *self.snapshot.tables.bounds]
        for low, high in pairwise(bounds):
            chosen.append(list({of(each[0].roots[0]): each for each in reversed(places)
                                if low <= each[0].matched[-1] < high}.values()))
        first = {of(each[0].roots[0]): each for each in reversed(places)}
        chosen += [[first[class_] for class_ in combination] for combination in self._combinations(sorted(first))]
        return [sorted(part, key=lambda each: of(each[0].roots[0])) for part in chosen]

    def _combinations(self, classes: list[int]) -> list[tuple[int, ...]]:
        """One class of each family: those that were there first, the next of each and so on, then mixed ones."""
        families: list[list[int]] = []
        for class_ in classes:
            near = [family for family in families if any(self._derived(class_, other) for other in family)]
            joined = [class_, *(member for family in near for member in family)]
            families = [*(family for family in families if family not in near), joined]
        families = sorted(map(sorted, families))
        longest = max(map(len, families), default=0)
        alike = [tuple(family[min(at, len(family) - 1)] for family in families) for at in range(longest)]
        mixed = (each for each in product(*families) if each not in alike)
        return list(islice(chain(alike, mixed), COMBINATIONS))

    def _derived(self, one: int, two: int) -> bool:
        """One of two classes is computed from the other and constants alone."""
        snapshot = self.snapshot
        for class_, other in ((one, two), (two, one)):
            for label in snapshot.members.get(class_, ()):
                reads = {snapshot.of(arg) for arg in snapshot.tables.terms[label].args if arg != ABSENT}
                if reads - snapshot.constant == {other}:
                    return True
        return False

    def _group(self, members: list[tuple[_Place, Variant, Row]]) -> Found:
        opset, places = self.snapshot.tables.opset, [place for place, _, _ in members]
        each = tuple(Match(place.bindings, place.views, opset) for place in places)
        first = places[0]
        return Found(Match(first.bindings, first.views, opset, each), tuple(r for p in places for r in p.roots),
                     tuple(label for place in places for label in place.matched), _log(first.bindings),
                     [(variant, row) for _, variant, row in members])

    def _place(self, variant: Variant, row: Row) -> _Place | None:
        """Bindings of a row, None where an attribute differs, a value has no known rank or is absent."""
        bindings: dict[str, Any] = dict(variant.absent)
        if not self._bind(variant, row, bindings):
            return None
        matched: list[int] = []
        views: list[NodeView] = []
        roots: list[int] = []
        for shape in variant.shapes:
            visited = self._visit(shape, variant, row, bindings, matched)
            if visited is None:
                return None
            label, view = visited
            roots.append(label)
            views.append(view)
        return _Place(bindings, tuple(views), tuple(roots), tuple(matched))

    def _bind(self, variant: Variant, row: Row, bindings: dict[str, Any]) -> bool:
        for variable, places in variant.places:
            operands = tuple(None if row[place] == ABSENT else self.operand(row[place]) for place in places)
            self.untyped.update(row[place] for place, operand in zip(places, operands, strict=True)
                                if operand is None and row[place] != ABSENT)
            if None in operands and not (variable.optional and row[places[0]] == ABSENT):
                return False
            bindings[variable.name] = operands if variable.rest else operands[0]
        return True

    def _visit(self, shape: Shape, variant: Variant, row: Row, bindings: dict[str, Any],
               matched: list[int]) -> tuple[int, NodeView] | None:
        """The label and view of a matched node; bindings and matched labels grow."""
        snapshot, pattern = self.snapshot, shape.pattern
        args: list[int] = []
        for arg in shape.args:
            if isinstance(arg, Shape):
                inner = self._visit(arg, variant, row, bindings, matched)
                if inner is None:
                    return None
                args.append(snapshot.of(inner[0]))
            else:
                args.append(ABSENT if arg is None else row[variant.columns[arg.column]])
        attribute = row[variant.attributes[id(shape)]]
        label = snapshot.find(pattern.domain, pattern.op, attribute, args)
        output = pattern.output or 0
        if label is not None and pattern.output is not None:
            label = snapshot.find_output(label, output)
        elif label is not None and snapshot.tables.outputs[attribute] > 1:
            return None
        if label is None:
            return None
        operands = tuple(None if arg == ABSENT else self.operand(arg) for arg in args)
        type_ = snapshot.types.get(snapshot.of(label))
        if type_ is None or type_.shape is None:
            self.untyped.add(label)
            return None
        view = NodeView(pattern.op, snapshot.tables.attrs[attribute], operands, type_, label, output,
                        pattern.domain)
        found = match_attributes(view, pattern, bindings)
        if found is None:
            return None
        bindings.update(found)
        if pattern.label:
            bindings[pattern.label] = view
        matched.append(label)
        return label, view


def _log(bindings: dict[str, Any]) -> tuple[tuple[str, object], ...]:
    """Value variables with the labels of their classes."""
    logged: list[tuple[str, object]] = []
    for name, value in bindings.items():
        if isinstance(value, Operand):
            logged.append((name, value.key))
        elif isinstance(value, tuple) and value and all(isinstance(item, Operand) for item in value):
            logged.append((name, tuple(item.key for item in value)))
    return tuple(logged)
