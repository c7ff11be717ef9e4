"""egglog as a matcher: typed constructors, congruence, and queries whose only action is to record the match."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from egglog import bindings

from .terms import Head, Tables, Term

_SPAN = bindings.PanicSpan()


def _int(value: int) -> bindings.Lit:
    return bindings.Lit(_SPAN, bindings.Int(value))


def _call(name: str, *args: object) -> bindings.Call:
    return bindings.Call(_SPAN, name, list(args))


def constructor(head: Head, arity: int) -> str:
    """Name of the constructor of a head with so many arguments."""
    if head.kind == "op":
        domain = re.sub(r"\W", "_", head.domain)
        return f"op_{domain}_{head.op}_{arity}" if domain else f"op_{head.op}_{arity}"
    return {"leaf": "Leaf", "proj": "Proj", "none": "None_"}.get(head.kind, f"opaque_{arity}")


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
        self._text("(sort T)")
        self._text("(function N (i64) T :no-merge)")
        self._text("(relation isconst (T))")
        self._text("(ruleset clear)")

    def _text(self, command: str) -> None:
        self.engine.run_program(*self.engine.parse_program(command))

    def insert(self) -> list[tuple[int, int]]:
        """Insert the terms that the tables gained; (head, arity) of constructors that are new."""
        new: list[tuple[int, int]] = []
        commands: list[object] = []
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

    def _actions(self, actions: Sequence[object]) -> None:
        if actions:
            self.engine.run_program(*map(bindings.ActionCommand, actions))

    def query(self, name: str, facts: str, columns: Sequence[str]) -> None:
        """Add a query that records its matches in the relation `name`, a ruleset of the same name.

        `columns` are variables: of the sort i64 where they start with `a`, else of the sort T.
        """
        sorts = " ".join("i64" if column.startswith("a") else "T" for column in columns)
        row = f"({name} {' '.join(columns)})"
        self._text(f"(ruleset {name}_r)")
        self._text(f"(relation {name} ({sorts}))")
        self._text(f"(rule ({facts}) ({row}) :ruleset {name}_r)")
        self._text(f"(rule ({row}) ((delete {row})) :ruleset clear)")

    def match(self, names: Sequence[str]) -> None:
        """Let queries find what is new since each ran last."""
        self._run([f"{name}_r" for name in names])

    def _run(self, names: Sequence[str]) -> None:
        if names:
            self.engine.run_program(*(bindings.RunSchedule(bindings.Run(_SPAN, bindings.RunConfig(name, None)))
                                      for name in names))

    def clear(self) -> None:
        """Forget the recorded matches."""
        self._run(["clear"])

    def classes(self, frozen: dict[str, bindings.FrozenFunction]) -> tuple[list[int], dict[object, int]]:
        """The smallest label in the class of each label, and of each class value."""
        number = self.engine.value_to_i64
        rows = sorted((number(row.inputs[0]), row.output) for row in frozen["N"].rows)
        smallest: dict[object, int] = {}
        return [smallest.setdefault(value, label) for label, value in rows], smallest

    def freeze(self) -> dict[str, bindings.FrozenFunction]:
        """The present rows of all functions, by name."""
        return self.engine.freeze().functions
