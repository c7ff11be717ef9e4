"""Saturation: egglog finds matches, the rules' guards and right sides are Python, egglog merges what they made.

One iteration: run the queries, read what they found and which classes there are, ask the guards of all new matches
in a fixed order, insert the new terms and merge. Everything is ordered by labels, which are numbered as terms are
made, so that two runs give the same tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rules.declare import Refusal, Rule
from rules.engine import Built, fire

from .blame import blamed_rules
from .budget import Budget
from .compile import Variant, heads_of, variants
from .matches import Found, Reader
from .snapshot import Snapshot
from .terms import Tables
from .values import Contents

Row = tuple[int, ...]


COMPUTED = -1  # stands for a rule: both sides are constants of equal content


class Firing(NamedTuple):
    """One use of a rule, in labels: roots with their replacements, matched and further used nodes, nodes made."""

    rule: int
    iteration: int
    roots: tuple[tuple[int, int], ...]
    matched: tuple[int, ...]
    used: tuple[int, ...]
    built: tuple[int, ...]
    bindings: tuple[tuple[str, object], ...]


@dataclass
class Refusals:
    """Why a rule did not fire: counts by reason, and the roots of the first place for each."""

    counts: dict[str, int] = field(default_factory=dict)
    samples: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, reason: str, roots: tuple[int, ...]) -> None:
        """Note one more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.samples.setdefault(reason, roots)


class Conflict(NamedTuple):
    """Two classes of different type became one: some rule is wrong. `rules` fired where it came from."""

    rules: tuple[str, ...]
    labels: tuple[int, int]
    types: tuple[str, str]


@dataclass
class Outcome:
    """What saturation gives back: plain data."""

    tables: Tables
    classes: list[int]
    firings: list[Firing]
    refusals: dict[int, Refusals]
    stop: str = ""
    iterations: int = 0
    seconds: float = 0.0
    banned: dict[str, list[int]] = field(default_factory=dict)  # rule -> iterations in which it was put on hold
    conflicts: list[Conflict] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    matches: dict[int, int] = field(default_factory=dict)
    computed: list[Firing] = field(default_factory=list)  # constants that are equal by content; their rule is COMPUTED
    left_out: int = 0  # constants that were not computed because of the budget


@dataclass
class _Standing:
    """Where one rule stands: matches that wait, and how long it is on hold."""

    pending: list[tuple[Variant, Row]] = field(default_factory=list)
    seen: set[tuple[int, Row]] = field(default_factory=set)
    retry: dict[tuple[int, Row], Variant] = field(default_factory=dict)  # refused, but a guard looked at forms
    untyped: set[int] = field(default_factory=set)  # classes without a known type, as told
    held_until: int = 0
    times_held: int = 0


UNTYPED = "its operators are there, but the element type or the rank of a value is not known"
SETTLED = "the value is a constant, which needs no other form"
OVERFLOW = "a new constant would overflow although what it is computed from is finite"


class Saturation:
    """The run over one graph's tables."""

    def __init__(self, tables: Tables, rules: Sequence[Rule], budget: Budget,
                 checkpoint: Callable[[Outcome], None] = lambda outcome: None,
                 contents: Contents | None = None) -> None:
        self.tables, self.rules, self.budget, self.checkpoint = tables, list(rules), budget, checkpoint
        from .egraph import EGraph  # only the search process needs egglog, which takes half a second to import

        self.egraph = EGraph(tables)
        self.outcome = Outcome(tables, [], [], {})
        self.standing = [_Standing() for _ in self.rules]
        self.heads = [heads_of(rule) for rule in self.rules]
        self.queries: list[Variant] = []
        self.known: list[set[str]] = [set() for _ in self.rules]  # texts of each rule's queries
        self.by_rule: list[list[Variant]] = [[] for _ in self.rules]
        self.arities: dict[tuple[str, str], list[int]] = {}
        # Where all rules are exact nothing may rest on bits that are this runtime's own.
        self.snapshot = Snapshot(tables, contents, all(rule.exactness == "exact" for rule in self.rules))
        self.reader = Reader(self.snapshot)

    def run(self) -> Outcome:
        """Iterate until nothing is new or a limit is reached."""
        start, used = time.perf_counter(), time.process_time()
        self._insert()
        for iteration in range(1, self.budget.iterations + 1):
            self.outcome.iterations = iteration
            news = self._iterate(iteration)
            self.outcome.seconds = time.perf_counter() - start
            if self.outcome.conflicts:
                self.outcome.stop = "two values of different type became equal"
            elif len(self.tables.terms) >= self.budget.nodes:
                self.outcome.stop = f"{self.budget.nodes} nodes"
            elif not news:
                self.outcome.stop = "saturated"
            elif time.process_time() - used > self.budget.seconds:
                self.outcome.stop = f"{self.budget.seconds:g} s of processor time"
            if self.outcome.stop:
                break
            self.checkpoint(self.outcome)
        else:
            self.outcome.stop = f"{self.budget.iterations} iterations"
        self.outcome.classes = self.snapshot.classes
        if self.snapshot.contents is not None:
            self.outcome.left_out = len(self.snapshot.contents.left_out)
        return self.outcome

    def _insert(self, unions: Sequence[tuple[int, int]] = ()) -> None:
        """Put new terms into the e-graph, merge, add the queries that can now match, and look at the classes."""
        new = self.egraph.insert()
        self.egraph.unite(unions)
        grown = set()
        for head_id, arity in new:
            head = self.tables.heads[head_id]
            if head.kind == "op":
                self.arities.setdefault((head.op, head.domain), []).append(arity)
                grown.add((head.op, head.domain))
        if grown:
            self._compile(grown)
        self._settle()

    def _compile(self, grown: set[tuple[str, str]]) -> None:
        def arities(op: str, domain: str) -> list[int]:
            return sorted(self.arities.get((op, domain), ()))

        for index, rule in enumerate(self.rules):
            if not (self.heads[index] & grown) or not self.heads[index] <= self.arities.keys():
                continue
            for variant in variants(rule, index, arities):
                facts = variant.facts()
                if "(Proj " in facts and "Proj" not in self.egraph.declared:
                    continue
                if facts in self.known[index]:
                    continue
                self.known[index].add(facts)
                variant.number = len(self.queries)
                self.queries.append(variant)
                self.by_rule[index].append(variant)
                self.egraph.query(variant.number, index, facts, list(variant.columns), variant.numbers())

    def _settle(self) -> None:
        """Bring constants and commutative orders to rest, then hold the classes fixed for one iteration."""
        while True:
            news = self.snapshot.update(self.egraph.classes())
            self.egraph.constants(news.constants)
            if not news.equal and not news.swapped:  # no class changes any more
                break
            for term, label in news.swapped:
                new = self.tables.add(term, self.tables.types[label])
                news.equal.append((label, new))
            self.egraph.insert()
            self.egraph.unite(news.equal)
        known = len(self.outcome.computed)
        self.outcome.computed += [Firing(COMPUTED, self.outcome.iterations, ((one, two),), (one,), (), (two,), ())
                                  for one, two in self.snapshot.computed[known:]]
        for labels, types in self.snapshot.conflicts:
            blamed = self._blame(labels)
            self.outcome.conflicts.append(Conflict(blamed, labels, types))

    def _blame(self, labels: tuple[int, int]) -> tuple[str, ...]:
        """Rules that made equal what is now in one class with a conflict; all recent ones where no path is found."""
        log = self.outcome.firings
        found = blamed_rules(self.snapshot, labels, ((firing.rule, firing.roots) for firing in log))
        recent = [firing.rule for firing in log if firing.iteration >= self.outcome.iterations - 1]
        return tuple(sorted({self.rules[index].name for index in found or recent}))

    def _iterate(self, iteration: int) -> bool:
        ready = [index for index, standing in enumerate(self.standing)
                 if standing.held_until <= iteration and self.by_rule[index]]
        rows = self.egraph.match(ready)
        unions: list[tuple[int, int]] = []
        before = len(self.tables.terms)
        waiting = any(standing.pending for standing in self.standing if standing.held_until > iteration)
        for index in ready:
            waiting |= self._rule(index, iteration, rows, unions)
            if len(self.tables.terms) >= self.budget.nodes:
                break
        grown = len(self.tables.terms) > before
        self._insert(unions)
        if not grown and not unions:  # nothing else to do: rules on hold need not wait
            for standing in self.standing:
                standing.held_until = 0
        return grown or bool(unions) or waiting

    def _rule(self, index: int, iteration: int, new: Mapping[int, list[Row]],
              unions: list[tuple[int, int]]) -> bool:
        """Fire one rule on its new matches; True if some have to wait."""
        standing, rule = self.standing[index], self.rules[index]
        rows = self._rows(index, new)
        if not rows and not rule.group:
            return False
        found = self.reader.groups(index, rule, rows) if rule.group else self.reader.singles(rule, rows)
        for label in sorted(self.reader.untyped - standing.untyped):
            self.outcome.refusals.setdefault(index, Refusals()).add(UNTYPED, (label,))
        standing.untyped |= self.reader.untyped
        self.reader.untyped.clear()
        limit = self.budget.matches << standing.times_held
        if len(found) > limit and not rule.group:
            standing.pending = [item for each in found[limit:] for item in each.rows]
            standing.held_until = iteration + 1 + self.budget.ban
            standing.times_held += 1
            self.outcome.banned.setdefault(rule.name, []).append(iteration)
            found = found[:limit]
        self.outcome.matches[index] = self.outcome.matches.get(index, 0) + len(found)
        for each in found:
            self._fire(index, each, iteration, unions)
            if len(self.tables.terms) >= self.budget.nodes:
                break
        return bool(standing.pending)

    def _rows(self, index: int, new: Mapping[int, list[Row]]) -> list[tuple[Variant, Row]]:
        """New rows of a rule's queries in present classes, those that waited first, each once."""
        standing = self.standing[index]
        fresh = [(variant, self.reader.canonical(variant, row)) for variant, row in standing.pending]
        fresh += [(variant, self.reader.canonical(variant, row)) for (_, row), variant in standing.retry.items()]
        again = {(variant.number, row) for variant, row in fresh}
        standing.pending, standing.retry = [], {}
        for variant in self.by_rule[index]:
            fresh += [(variant, row) for row in sorted(new.get(variant.number, ()))]
        chosen: dict[tuple[int, Row], tuple[Variant, Row]] = {}
        for variant, row in fresh:
            key = (variant.number, row)
            if key not in standing.seen or key in again:
                standing.seen.add(key)
                chosen[key] = (variant, row)
        return list(chosen.values())

    def _fire(self, index: int, found: Found, iteration: int, unions: list[tuple[int, int]]) -> None:
        rule, refusals = self.rules[index], self.outcome.refusals.setdefault(index, Refusals())
        looked = self.reader.forms_asked
        try:
            answer = fire(rule, found.match)
        except Exception as error:  # a defect of the rule: the search goes on without this match and says so
            answer = Refusal(f"the guard failed: {type(error).__name__}: {error}")
            if len(self.outcome.errors) < 100:
                self.outcome.errors.append(f"rule {rule.name}: {type(error).__name__}: {error}")
        if isinstance(answer, Refusal):
            refusals.add(answer.reason, found.roots)
            if self.reader.forms_asked != looked:
                for variant, row in found.rows:
                    self.standing[index].retry[variant.number, row] = variant
            return
        settled = all(self.snapshot.of(root) in self.snapshot.settled for root in found.roots)
        if settled and any(isinstance(replacement, Built) for replacement in answer):
            refusals.add(SETTLED, found.roots)
            return
        built: list[int] = []
        pairs = [(root, self.snapshot.insert(replacement, built))
                 for root, replacement in zip(found.roots, answer, strict=True) if replacement is not None]
        if self.snapshot.overflows(built):
            refusals.add(OVERFLOW, found.roots)
            return
        unions += [(root, label) for root, label in pairs if not self.snapshot.same(root, label)]
        views = [view for each in (found.match, *found.match.members) for view in each.used]
        used = tuple(int(view.key) for view in views)  # type: ignore[call-overload]
        self.reader.made(index, built)
        self.outcome.firings.append(Firing(index, iteration, tuple(pairs), found.matched, used, tuple(built),
                                           found.bindings))
