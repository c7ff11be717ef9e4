"""One validation at work: both graphs prepared in all their variations, run round by round, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.errors import EgraftError, NotExecutable
from graphs.ir import Graph, Node
from graphs.machine import cores_visible

from ..constraints import FREE, Constraint, constraints
from ..execute import Context
from ..feeds import draw
from ..session import check_feeds
from .changes import Changes, changes, fold
from .compare import Samples, Terms, compare
from .levels import GROUP, Levels, sure_gap
from .pins import DISCRETE, OPAQUE, ORDER_ONLY, RANDOM, Journal, Pins, Unpinnable, node_function, tainted
from .report import OutputCheck, Round
from .twins import EXTENDS, NARROW, TINY, Twin, TwinProgram, coarsest_epsilon, has_any

LARGE_BYTES = 8 << 20  # weights and values beyond this: one moved run, float64 in the first round only
LARGE_NODES = 2000  # likewise
# How far an element moves is seen by few runs at first; near a steep place (a root near 0, say) these
# may be lucky. Before a graph fails there are this many: what is wrong stays wrong, whatever else is seen to move.
# So may be the runs in float64 where there are no eight elements (`GROUP`) of one size that would say how much their
# neighbours move: a rounded weight fl(k w) is off by u |k w| at most (u is half an ulp; Higham, Accuracy and Stability
# of Numerical Algorithms, 2nd edition, theorem 2.2), a sum over x fl(k w) by u sum(|x k w|), and a moved run gives
# 2 u |sum(+-x k w)| with signs by chance: of a sum of few terms, nearly nothing now and then.
MORE_MOVED = 8
SLOW_BYTES, SLOW_NODES = 4 << 20, 300
AHEAD_BYTES = 256 << 20  # of node outputs alive at one time: where runs need more, they take turns
AHEAD_NODE_BYTES = 128 << 10  # written and stored, by node: with less, threads mostly wait for Python's lock
AHEAD_THREADS = min(4, cores_visible())
PLAIN = Twin()
NAN_EVERYWHERE = "is NaN everywhere"
Key = tuple[bool, Twin]  # of the original or not; which variation
Run = Callable[[Mapping[str, Any]], list[Any]]  # named inputs to outputs
Executor = Callable[[Graph], Run | None]  # prepares a graph; None for one that egraft is to run itself


def feeds_of(graph: Graph, each: Round, exactness: str,
             known: Mapping[str, Constraint] | None = None) -> dict[str, Any]:
    """The inputs of a round. Floats stay finite where nothing else is promised for."""
    feeds = draw(graph, each.seed, each.sizes, each.special, each.huge, each.spread, known)
    if each.special and exactness not in ("exact", "rounding"):
        plain = draw(graph, each.seed, each.sizes, spread=each.spread, known=known)
        feeds.update({name: value for name, value in plain.items() if _is_float(value)})
    return feeds


class CannotRun(Exception):
    """The original does not run on this draw: nothing to compare with."""


class Elsewhere:
    """A graph that another runtime runs, where `TwinProgram` is egraft's own."""

    def __init__(self, graph: Graph, run: Run) -> None:
        self.graph, self.context = graph, Context.of(graph)
        self.peak_bytes = self.written_bytes = 0
        self._run = run

    def run(self, values: Mapping[str, Any], counting: bool = False) -> dict[str, Any]:
        """Output name -> value."""
        return dict(zip(self.graph.outputs, self._run(values)))


class Comparison:
    """Prepared once for a pair of graphs and their pins; `check(round)` gives the checks of all outputs. The graphs
    as they are run in `executor`, if one is given; what makes the yardstick always runs in egraft."""

    def __init__(self, original: Graph, optimized: Graph, pins: Pins, terms: Terms, seed: int,
                 executor: Executor | None = None) -> None:
        self.original, self.optimized, self.pins, self.terms, self.seed = original, optimized, pins, terms, seed
        self.executor = executor
        self.journal = Journal(seed=seed)
        self.notes: list[str] = []
        self.weights = sum(constant.nbytes for each in original.walk() for constant in each.constants.values())
        self.constraints = constraints(original)
        self.fixed = frozenset(name for name, found in self.constraints.items() if found.kind not in FREE)
        self.has_narrow = any(has_any(graph, NARROW) for graph in (original, optimized))
        self.extends = EXTENDS and not self.has_narrow and has_any(original, ("float64",))
        self._probed: dict[tuple[object, ...], tuple[dict[str, Any], dict[str, list[list[Any]]]]] = {}
        self.coarse = coarsest_epsilon(original)
        self._folded: tuple[Graph, Graph] | None = None
        self._changes: tuple[Changes, Changes] | None = None
        self._programs: dict[Key, TwinProgram | Elsewhere | None] = {}
        self._unprepared: dict[Key, EgraftError] = {}
        self._journals: dict[Key, Journal] = {(True, PLAIN): self.journal}
        self._ahead: dict[Key, Future[dict[str, Any]]] = {}
        self.jumping = self._jumping_outputs()
        self._level: dict[str, float] = {}  # of each output in the rounds without special values

    @property
    def size(self) -> int:
        """Bytes of weights and of the values that are alive at one time (known after a probe)."""
        plain = self._programs.get((True, PLAIN))
        return self.weights + (plain.peak_bytes if plain is not None else 0)

    @property
    def large(self) -> bool:
        """Only the most telling runs are made."""
        return self.size > LARGE_BYTES or self.original.node_count() > LARGE_NODES

    @property
    def slow(self) -> bool:
        """One run takes so long that further draws must be few. Judged by size, not by the clock, so that the same
        graphs get the same rounds."""
        return self.size > SLOW_BYTES or self.original.node_count() > SLOW_NODES

    def _jumping_outputs(self) -> set[str]:
        free = [node for kind, node in self.pins.alone_original if kind == DISCRETE]
        others = [node for kind, node in self.pins.alone_optimized if kind == DISCRETE]
        values = tainted(self.original, free)
        found = (values & set(self.original.outputs)) | (
            tainted(self.optimized, others) & set(self.optimized.outputs))
        # What flows into a pinned node is compared too, under the node's key.
        found |= {pin.key for pin in self.pins.pairs if any(name in values for name in pin.original.inputs)}
        return found

    def program(self, of_original: bool, twin: Twin) -> TwinProgram | Elsewhere | None:
        """The prepared graph, None (and a note) where this variation cannot be prepared."""
        key = of_original, twin
        program = self._prepared(key)
        if key in self._unprepared:
            if twin == PLAIN:
                raise self._unprepared[key]
            self._without(twin, self._unprepared[key])
        return program

    def _prepared(self, key: Key) -> TwinProgram | Elsewhere | None:
        if key not in self._programs and key not in self._unprepared:
            of_original, twin = key
            graph, changed = self._graph(of_original, twin)
            hook = node_function(self.pins, self._journals.setdefault(key, Journal()), of_original)
            try:
                run = self.executor(graph) if self.executor is not None and twin == PLAIN else None
                self._programs[key] = Elsewhere(graph, run) if run is not None else \
                    TwinProgram(graph, twin, hook, self.seed, self.fixed, changed, self._prepared_twins())
            except EgraftError as reason:
                self._unprepared[key] = reason
        return self._programs.get(key)

    def _prepared_twins(self) -> list[TwinProgram]:
        return [each for each in self._programs.values() if isinstance(each, TwinProgram)]

    def _graph(self, of_original: bool, twin: Twin) -> tuple[Graph, Changes | None]:
        """The graph to prepare. In float64 what depends on constants alone keeps its own dtypes: folding it is no
        change, and so only constants that are new or gone after folding carry rounding."""
        if not twin.wide:
            return (self.original if of_original else self.optimized), None
        if self._folded is None or self._changes is None:
            self._folded = fold(self.original), fold(self.optimized)
            self._changes = changes(*self._folded)
        side = 0 if of_original else 1
        return self._folded[side], self._changes[side]

    def _without(self, twin: Twin, reason: Exception) -> None:
        kind = "float64" if twin.wide else "longdouble" if twin.extended else "moved"
        note = f"no {kind} run: {getattr(reason, 'found', reason)}"
        if note not in self.notes:
            self.notes.append(note)

    def run(self, of_original: bool, twin: Twin, values: Mapping[str, Any],
            counting: bool = False) -> dict[str, Any] | None:
        """Outputs, and what flowed into pinned nodes, of one variation; None where it does not run."""
        program = self.program(of_original, twin)
        if program is None:
            return None
        key = of_original, twin
        ahead = self._ahead.pop(key, None)
        try:
            return ahead.result() if ahead is not None else self._execute(key, program, values, counting)
        except (EgraftError, Unpinnable) as reason:
            if twin == PLAIN:
                raise
            self._without(twin, reason)
            if twin.wide:
                self._programs[key] = None
            return None

    def _execute(self, key: Key, program: TwinProgram | Elsewhere, values: Mapping[str, Any],
                 counting: bool = False) -> dict[str, Any]:
        journal = self._journals[key]
        if journal is not self.journal:
            journal.seed, journal.sizes, journal.results = self.journal.seed, self.journal.sizes, self.journal.results
        journal.start(recording=journal is self.journal, twin=key[1])
        found = program.run(values, counting)
        # An array may be an input or be overwritten by a later run: compared values are read only, so no copies.
        for pinned, calls in journal.given.items():
            for turn, inputs in enumerate(calls):
                for position, value in enumerate(inputs):
                    found[_pinned_name(pinned, turn, position)] = value
        return found

    @contextmanager
    def _running_ahead(self, each: Round, named: Mapping[str, Any]) -> Iterator[None]:
        """Inside, the runs that a round will ask for are under way in threads: NumPy computes outside Python's lock.

        They do not depend on each other; who asks gets what it would have got by running, errors included.
        """
        plain = self._programs.get((True, PLAIN))
        peak, written = (plain.peak_bytes, plain.written_bytes) if plain is not None else (0, 0)
        small = written + self.weights < AHEAD_NODE_BYTES * self.original.node_count()
        if AHEAD_THREADS < 2 or not self.slow or small or not 0 < peak <= AHEAD_BYTES:
            yield
            return
        with ThreadPoolExecutor(AHEAD_THREADS, "validation") as pool:
            try:
                for key in self._wanted(each):
                    program = self._prepared(key)
                    if program is not None:
                        self._ahead[key] = pool.submit(self._execute, key, program, named)
                yield
            finally:
                self._ahead.clear()
                pool.shutdown(wait=False, cancel_futures=True)

    def _wanted(self, each: Round) -> Iterator[Key]:
        """The runs that `check` makes of a round after that of the original, if none of them fails."""
        yield False, PLAIN
        if self.terms.exactness == "exact" or self.terms.rtol is not None:
            return
        for seed in self._seeds:
            yield True, Twin(False, seed)
        if not (each.wide and self.has_narrow):
            return
        yield True, Twin(True)
        yield False, Twin(True)
        yield True, Twin(True, 0, step=TINY)
        lost, new = self._carry_rounding()
        for seed in self._seeds:
            if lost:
                yield True, Twin(True, seed, changed=True)
            if new:
                yield False, Twin(True, seed, changed=True)

    @property
    def _seeds(self) -> tuple[int, ...]:
        return (0,) if self.large else (0, 1)

    def _carry_rounding(self) -> tuple[bool, bool]:
        """Whether weights or attributes of the original are lost, and whether the optimized graph has new ones."""
        assert self._changes is not None
        lost, new = (bool(each.constants or each.attributes) for each in self._changes)
        return lost, new

    def check(self, each: Round, given: Mapping[str, Any] | None = None) -> list[OutputCheck]:
        """Run and compare one round. Raises CannotRun where the original does not run."""
        feeds = given if given is not None else feeds_of(self.original, each, self.terms.exactness, self.constraints)
        values, sizes = check_feeds(self.original, feeds)
        named = dict(zip(self.original.inputs, values))
        self.journal.sizes, self.journal.seed = {**each.sizes, **sizes}, each.seed
        original = self._run_original(named, None if given is not None else _key(each.seed, each.sizes, each.spread)
                                      if not each.special else None)
        if each.huge and not each.wide and self.terms.exactness != "exact":
            raise CannotRun("numbers near the limits of the dtype need a float64 run")
        with self._running_ahead(each, named):
            other, failure = self._run_optimized(named)
            if other is None:
                return [failure]
            variations = {} if self.terms.exactness == "exact" or self.terms.rtol is not None else (
                self._variations(each, named))
        terms = replace(self.terms, huge=each.huge, special=each.special, coarse=self.coarse)
        checks = self._compare_all(original, other, variations, terms)
        seeds = range(len(self._seeds), MORE_MOVED)
        if variations and not all(check.ok for check in checks):
            variations.update(self._moved(named, seeds))
            checks = self._compare_all(original, other, variations, terms)
        few = [not check.ok and 0 < check.neighbours < GROUP for check in checks]
        if variations.get("other") is not None and any(few):
            variations.update(self._moved_wide(named, seeds))
            again = self._compare_all(original, other, variations, terms)
            checks = [new if lucky else old for old, new, lucky in zip(checks, again, few, strict=True)]
        return checks

    def _run_original(self, named: Mapping[str, Any], key: tuple[object, ...] | None) -> dict[str, Any]:
        """The plain run of the original; what finding the sizes has run already is not run again."""
        if key is not None and key in self._probed:
            found, self.journal.results = self._probed.pop(key)
            return found
        try:
            original = self.run(True, PLAIN, named)
        except EgraftError as reason:
            raise CannotRun(f"{reason.where}: {reason.found}") from reason
        assert original is not None
        return original

    def probe(self, seed: int, sizes: dict[str, int], spread: str = "normal") -> str | None:
        """None where the original runs at these sizes and says something, else the reason why not."""
        try:
            values, bound = check_feeds(self.original, draw(self.original, seed, sizes, spread=spread,
                                                            known=self.constraints))
            self.journal.sizes, self.journal.seed = {**sizes, **bound}, seed
            found = self.run(True, PLAIN, dict(zip(self.original.inputs, values)), counting=True)
        except EgraftError as reason:
            return f"{reason.where}: {reason.found}"
        except (ValueError, MemoryError) as reason:
            return str(reason)
        assert found is not None
        for name in self.original.outputs:
            if _is_nan(found[name]):
                return f"output {name!r} {NAN_EVERYWHERE}"
        if 0 in sizes.values() and all(np.size(found[name]) == 0 for name in self.original.outputs):
            return "every output is empty"
        self._probed[_key(seed, sizes, spread)] = found, self.journal.results
        return None

    def _run_optimized(self, named: Mapping[str, Any]) -> tuple[dict[str, Any] | None, OutputCheck]:
        lost = OutputCheck("(run)", False, ratio=float("inf"))
        try:
            return self.run(False, PLAIN, named), lost
        except Unpinnable as reason:
            lost.reason, lost.unpinnable = f"{reason} runs another number of times", True
        except EgraftError as reason:
            if self.executor and isinstance(reason, NotExecutable):  # another runtime need not have every kernel
                raise
            lost.reason = f"the optimized graph does not run: {reason.where}: {reason.found}"
            lost.unpinnable = any(self._doubtful(pin.key) for pin in self.pins.pairs)  # of another shape, perhaps
        return None, lost

    def _variations(self, each: Round, named: Mapping[str, Any]) -> dict[Twin | str, dict[str, Any] | None]:
        """The runs that make the yardstick: moved, in float64, moved in float64, the optimized one in float64."""
        found = self._moved(named, self._seeds)
        if each.special and self.extends and not self.large:
            found["extended"] = self.run(True, Twin(extended=True), named)
        if each.wide and self.has_narrow:
            found["wide"] = self.run(True, Twin(True), named)
            found["other"] = self.run(False, Twin(True), named) if found["wide"] is not None else None
            if found["other"] is not None:
                tiny = Twin(True, 0, step=TINY)
                found[tiny] = self.run(True, tiny, named)
                found.update(self._moved_wide(named, self._seeds))
        return found

    def _moved(self, named: Mapping[str, Any], seeds: Iterable[int]) -> dict[Twin | str, dict[str, Any] | None]:
        """Runs of the original with inputs and weights moved."""
        return {twin: self.run(True, twin, named) for twin in (Twin(False, seed) for seed in seeds)}

    def _moved_wide(self, named: Mapping[str, Any], seeds: Iterable[int]) -> dict[Twin | str, dict[str, Any] | None]:
        """Runs of either graph in float64 where the weights that it alone has are moved."""
        found: dict[Twin | str, dict[str, Any] | None] = {}
        lost, new = self._carry_rounding()
        for seed in seeds:
            twin = Twin(True, seed, changed=True)
            found[twin] = self.run(True, twin, named) if lost else None
            found[f"other {seed}"] = self.run(False, twin, named) if new else None
        return found

    def _compare_all(self, original: dict[str, Any], other: dict[str, Any],
                     runs: dict[Twin | str, dict[str, Any] | None], terms: Terms) -> list[OutputCheck]:
        checks = []
        for name, value in original.items():
            if name not in other:
                if name.startswith("pin "):  # the optimized graph runs a pinned node less often, or not at all
                    continue
                raise KeyError(name)

            def of(run: dict[str, Any] | None, name: str = name) -> Any:
                return None if run is None else run.get(name)

            samples = Samples(
                value, other[name],
                [of(run) for key, run in runs.items() if isinstance(key, Twin) and not key.wide],
                of(runs.get("wide")), of(runs.get("other")),
                [of(run) for key, run in runs.items() if isinstance(key, Twin) and key.wide],
                [of(run) for key, run in runs.items() if isinstance(key, str) and key.startswith("other ")],
                of(runs.get("extended")))
            key = name[4:].rsplit(" #", 1)[0] if name.startswith("pin ") else name
            check = compare(name, samples, replace(terms, jumps=key in self.jumping, size=self._level.get(name, 0.0)))
            if not terms.special:
                self._level[name] = max(self._level.get(name, 0.0), _size(value))
            if name.startswith("pin "):
                check.name, check.unpinnable, check.pin = self._describe(key, name), self._doubtful(key), key
            checks.append(check)
        return checks

    def _pin_node(self, key: str) -> Node:
        return next(pin.original for pin in self.pins.pairs if pin.key == key)

    def _describe(self, key: str, name: str) -> str:
        return f"input {name.rsplit(' ', 1)[1]} of {self._pin_node(key).label}"

    def _doubtful(self, key: str) -> bool:
        """The pair may be wrong: it was found by order alone, or what goes in may be scaled."""
        return any(pin.key == key and pin.kind == DISCRETE and (not pin.named or pin.original.op in ORDER_ONLY)
                   for pin in self.pins.pairs)

    def not_executed(self) -> list[str]:
        """Labels of the opaque nodes of the original."""
        return [pin.original.label for pin in self.pins.pairs if pin.kind == OPAQUE] + [
            node.label for kind, node in self.pins.alone_original if kind == OPAQUE]

    def executed(self) -> dict[str, object]:
        """What was executed and what was not."""
        plain = self._programs.get((True, PLAIN))
        return {
            "nodes": self.original.shown_count(), "nodes_after": self.optimized.shown_count(),
            "not_executed": self.not_executed(),
            "random": [pin.original.label for pin in self.pins.pairs if pin.kind == RANDOM],
            "pinned": sum(pin.kind == DISCRETE for pin in self.pins.pairs),
            "by_reference": list(plain.context.by_reference) if plain is not None else [],
        }


def _pinned_name(key: str, turn: int, position: int) -> str:
    return f"pin {key} #{turn} {position}"


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and dtypes.name_of(value.dtype) in dtypes.FLOATS


def _is_nan(value: Any) -> bool:
    """No element is a number: nothing that went wrong upstream would show (a window larger than its image)."""
    return _is_float(value) and value.size > 0 and bool(np.isnan(value).all())


def _size(value: Any) -> float:
    """Root mean square of the finite elements, of the smallest ones if others are huge; 0 for what is no array of
    floats."""
    if not _is_float(value):
        return 0.0
    wide = np.abs(np.atleast_1d(np.asarray(value, np.float64)))
    finite = np.isfinite(wide)
    sizes = np.where(finite, wide, 0.0)
    if not bool(finite.any()):
        return 0.0
    size = float(Levels.of(sizes, finite, sure=sure_gap(value.dtype)).whole(sizes)[finite].min())
    return size if np.isfinite(size) else 0.0


def _key(seed: int, sizes: Mapping[str, int], spread: str) -> tuple[object, ...]:
    return (seed, spread, *sorted(sizes.items()))
