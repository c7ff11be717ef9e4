"""egglog as a matcher: typed constructors, congruence, and queries whose only action is to record the match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egglog import bindings

from .terms import Tables, Term, constructor

_SPAN = bindings.PanicSpan()


def _int(value: int) -> bindings.Lit:
    return bindings.Lit(_SPAN, bindings.Int(value))


def _call(name: str, *args: bindings.Lit | bindings.Call) -> bindings.Call:
    return bindings.Call(_SPAN, name, list(args))


class EGraph:
    """One egglog e-graph over the terms of some tables.

    Every inserted term k is reachable as `(N k)`: a function, not a constructor, so that giving it its value costs
    no union. Commands are built as syntax trees; parsing text is slow, and only rules are text.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.engine = bindings.EGraph()
        self.declared: set[str] = set()
        self.inserted = 0
        self.relations: list[tuple[str, int]] = []  # name, number of class columns
        self.smallest: dict[object, int] = {}  # class value -> smallest label, as of the last `classes()`
        self._text("(sort T)")
        self._text("(function N (i64) T :no-merge)")
        self._text("(relation isconst (T))")
        self._text("(ruleset clear)")

    def _text(self, command: str) -> None:
        self.engine.run_program(*self.engine.parse_program(command))

    def insert(self) -> list[tuple[int, int]]:
        """Insert the terms that the tables gained; (head, arity) of constructors that are new."""
        new: list[tuple[int, int]] = []
        commands: list[bindings.ActionCommand] = []
        for label in range(self.inserted, len(self.tables.terms)):
            term = self.tables.terms[label]
            name = constructor(self.tables.heads[term.head], len(term.args))
            if name not in self.declared:
                self._declare(name, term)
                new.append((term.head, len(term.args)))
            value = _call(name, _int(term.attr), *(_call("N", _int(arg)) for arg in term.args))
            commands.append(bindings.ActionCommand(bindings.Set(_SPAN, "N", [_int(label)], value)))
        self.inserted = len(self.tables.terms)
        if commands:
            self.engine.run_program(*commands)
        return new

    def _declare(self, name: str, term: Term) -> None:
        self.declared.add(name)
        self._text(f"(constructor {name} (i64{' T' * len(term.args)}) T)")

    def constants(self, labels: Iterable[int]) -> None:
        """State that classes are known before the graph runs."""
        self._actions([bindings.Expr_(_SPAN, _call("isconst", _call("N", _int(label)))) for label in labels])

    def unite(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Merge the classes of pairs of labels (and whatever follows by congruence)."""
        self._actions([bindings.Union(_SPAN, _call("N", _int(a)), _call("N", _int(b))) for a, b in pairs])

    def _actions(self, actions: Sequence[bindings.Union | bindings.Expr_]) -> None:
        if actions:
            self.engine.run_program(*(bindings.ActionCommand(action) for action in actions))

    def query(self, number: int, group: int, facts: str, classes: Sequence[str], numbers: Sequence[str]) -> None:
        """Add a query that records its matches, as part of a group of queries that run together.

        `classes` are variables of the sort T, `numbers` of the sort i64. Queries with as many of each share a
        relation, whose first column is the query's number: declaring is what costs time on small graphs.
        """
        relation = f"M{len(classes)}_{len(numbers)}"
        if relation not in self.declared:
            self.declared.add(relation)
            columns = " ".join(f"c{index}" for index in range(1 + len(classes) + len(numbers)))
            self._text(f"(relation {relation} (i64{' T' * len(classes)}{' i64' * len(numbers)}))")
            self._text(f"(rule (({relation} {columns})) ((delete ({relation} {columns}))) :ruleset clear)")
            self.relations.append((relation, len(classes)))
        if f"R{group}" not in self.declared:
            self.declared.add(f"R{group}")
            self._text(f"(ruleset R{group})")
        row = " ".join([relation, str(number), *classes, *numbers])
        self._text(f"(rule ({facts}) (({row})) :ruleset R{group})")

    def match(self, groups: Sequence[int]) -> dict[int, list[tuple[int, ...]]]:
        """What queries find that is new since each ran last: rows by query, classes as their smallest labels."""
        self._run([f"R{group}" for group in groups if f"R{group}" in self.declared])
        found: dict[int, list[tuple[int, ...]]] = {}
        frozen, number = self.engine.freeze().functions, self.engine.value_to_i64
        for relation, width in self.relations:
            for row in frozen[relation].rows:
                query, *rest = row.inputs
                classes = [self.smallest[value] for value in rest[:width]]
                found.setdefault(number(query), []).append((*classes, *map(number, rest[width:])))
        self._run(["clear"])
        return found

    def _run(self, rulesets: Sequence[str]) -> None:
        if rulesets:
            self.engine.run_program(*(bindings.RunSchedule(bindings.Run(_SPAN, bindings.RunConfig(name, None)))
                                      for name in rulesets))

    def classes(self) -> list[int]:
        """The smallest label in the class of each label."""
        number = self.engine.value_to_i64
        rows = sorted((number(row.inputs[0]), row.output) for row in self.engine.freeze().functions["N"].rows)
        smallest: dict[object, int] = {}
        self.smallest = smallest
        return [smallest.setdefault(value, label) for label, value in rows]
