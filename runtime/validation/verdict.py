"""`validate(original, optimized)`: the verdict, after several draws of inputs at several sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from graphs import dtypes
from graphs.errors import InvalidOption, NotExecutable
from graphs.ir import Graph
from graphs.types import TensorType

from ..constraints import FREE, Constraint
from ..feeds import (
    NOT_NEGATIVE,
    SPREADS,
    default_sizes,
    draw,
    input_symbols,
    size_candidates,
    smaller_sizes,
    spreads,
)
from ..session import check_feeds
from .compare import Terms
from .foreign import types_of_all
from .pieces import Cut, Pieces, find_cuts, is_large
from .pins import DISCRETE, OPAQUE, RANDOM, Pins, find_pins
from .regions import Region, split
from .report import FAILED, NOT_VALIDATED, PASSED, OutputCheck, Round, Validation
from .rounds import NAN_EVERYWHERE, CannotRun, Comparison, Executor, feeds_of

CLASSES = ("exact", "rounding", "finite", "approximate")
LEAST_SHARE = 0.05  # an output of which less could be compared in every round is not validated
MAX_SIZES = 3
PLAIN_SPREAD = next(iter(SPREADS))
MAX_UNPINNED = 4
SMALL, MAX_REPEATS = 256, 8  # inputs of fewer elements are drawn several times

Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Draws:
    """How inputs are drawn: how many ordinary rounds, with which sizes of symbols fixed, and sizes that are tried where
    the original does not run at the usual ones."""

    rounds: int = 2
    sizes: Mapping[str, int] = field(default_factory=dict)
    fallback: Mapping[str, int] = field(default_factory=dict)

    def candidates(self, graph: Graph) -> Iterator[dict[str, int]]:
        """Sizes to try in turn."""
        yield from size_candidates(graph, dict(self.sizes))
        if self.fallback:
            yield {**default_sizes(graph), **self.fallback, **self.sizes}

    def of(self, graph: Graph) -> Draws:
        """For a part of the graph."""
        symbols = input_symbols(graph)
        sizes, fallback = ({name: size for name, size in each.items() if name in symbols}
                           for each in (self.sizes, self.fallback))
        return replace(self, sizes=sizes, fallback=fallback)


def validate(original: Graph, optimized: Graph, exactness: str = "rounding",
             feeds: Feeds | Sequence[Feeds] | None = None, seed: int = 0, sizes: dict[str, int] | None = None,
             rtol: float | None = None, atol: float | None = None, rounds: int = 2,
             executor: Executor | None = None, plan: Sequence[Round] | None = None,
             fallback: Mapping[str, int] | None = None) -> Validation:
    """Run both graphs on random inputs (or on `feeds`, one mapping or several) and compare all outputs.

    `rounds` is the number of ordinary draws, each at other sizes of the symbolic dimensions where there are any; a
    draw with special values follows, except for the classes `finite` and `approximate`. `sizes` fixes sizes;
    `fallback` are some at which the original is known to run, tried where it does not at the usual ones. `rtol` and
    `atol` replace the measured yardstick. `executor` runs both graphs, or the one that it takes, in the place of
    egraft (no node is pinned then). `plan`: rounds of another validation of this original as a whole, to be run again
    on the same inputs. The same arguments give the same verdict.
    """
    draws = Draws(rounds, sizes or {}, fallback or {})
    if exactness not in CLASSES:
        raise InvalidOption("exactness", f"{exactness!r} is no class", f"use one of {', '.join(CLASSES)}")
    result = Validation(exactness)
    reason = _contract(original, optimized)
    if reason is not None:
        result.status, result.reason = FAILED, reason
        return result
    terms = Terms(exactness, rtol, atol)
    if executor is None:
        original, optimized = _opened(original), _opened(optimized)
    pins = find_pins(original, optimized)
    pins.types.update(types_of_all(original, [pin.original for pin in pins.pairs if pin.kind == OPAQUE]))
    whole = executor is not None or plan is not None
    parts = split(original, optimized, pins, pins.types) if feeds is None and not whole else None
    if parts is not None:
        found = _by_regions(parts, original, optimized, pins, Validation(exactness), (seed, draws, rtol, atol))
        if found.status != NOT_VALIDATED:
            return found  # else the whole may say more: what a region gets there is less random
    if not whole and is_large(original, optimized):
        cuts = find_cuts(original, optimized)
        if len(cuts) > 1:
            return _in_pieces(cuts, Comparison(original, optimized, pins, terms, seed), feeds, draws)
        result.notes.append("the graphs have no narrow places in common: they were validated in one piece")
    again = None if plan is None else [replace(each, ok=True, reason="") for each in plan]
    verdict = _whole(original, optimized, pins, terms, feeds, seed, draws, executor, again)
    verdict.notes += result.notes
    return verdict


def _opened(graph: Graph) -> Graph:
    """The graph with the bodies of functions in the place of calls: what is random or cannot be executed within them
    has its partner in the other graph, whether that calls them or not.
    """
    if not graph.functions:
        return graph
    from graphs.onnx_io import with_bodies

    from ..fusion import is_fused_call

    return with_bodies(graph, frozenset((node.domain, node.op, node.overload) for each in graph.walk()
                                        for node in each.nodes if is_fused_call(node)))


def _whole(original: Graph, optimized: Graph, pins: Pins, terms: Terms, feeds: Feeds | Sequence[Feeds] | None,
           seed: int, draws: Draws, executor: Executor | None = None,
           plan: list[Round] | None = None) -> Validation:
    """The verdict on graphs in one piece. `plan`: which round each of the `feeds` is for."""
    # Where every bit stays no tie is decided anew, and equal nodes may have merged.
    if terms.exactness == "exact" or executor:
        pins = pins.without([pin.key for pin in pins.pairs])

    def attempt() -> Validation:
        return _attempt(original, optimized, pins, terms, feeds, seed, draws, executor, plan)

    verdict = first = attempt()
    for _ in range(MAX_UNPINNED):
        failing = [check for check in verdict.outputs if not check.ok]
        discrete = [pin.key for pin in pins.pairs if pin.kind == DISCRETE]
        # A pair that may be wrong gives its partner wrong values: then what outputs differ by says nothing yet.
        doubtful = {check.pin for check in failing if check.pin and check.unpinnable}
        unpinnable = failing and discrete and (doubtful or all(check.unpinnable for check in failing))
        if verdict.status != FAILED or not unpinnable:
            break
        pins = pins.without(doubtful or discrete)
        verdict = attempt()
        verdict.notes.append("some discrete nodes get other inputs and were compared by what they give")
    return verdict if verdict.ok else first


def _in_pieces(cuts: list[Cut], comparison: Comparison, feeds: Feeds | Sequence[Feeds] | None,
               draws: Draws) -> Validation:
    """The verdict on large graphs, piece by piece; the whole original runs to find sizes, nothing else does."""
    original, terms, seed = comparison.original, comparison.terms, comparison.seed
    result = Validation(terms.exactness)
    try:
        plan = _given(feeds, seed) if feeds is not None else _drawn(comparison, seed, draws, result)
    except NotExecutable as reason:
        result.reason = f"{reason.where}: {reason.found}"
        return result
    if not plan:
        return result
    drawn = [feeds] if isinstance(feeds, Mapping) else feeds or [
        feeds_of(original, each, terms.exactness, comparison.constraints) for each in plan]

    def check(a: Graph, b: Graph, values: list[dict[str, Any]], own: list[Round]) -> Validation:
        return _whole(a, b, find_pins(a, b), terms, values, seed, Draws(), plan=own)

    named = [dict(zip(original.inputs, check_feeds(original, each)[0])) for each in drawn]
    return Pieces(original, comparison.optimized, cuts, check).validate(named, plan, result)


def _by_regions(parts: list[Region], original: Graph, optimized: Graph, pins: Pins, result: Validation,
                settings: tuple[int, Draws, float | None, float | None]) -> Validation:
    """The regions between nodes that cannot be executed, one after the other; the first that fails ends it."""
    seed, draws, rtol, atol = settings
    labels = [pin.original.label for pin in pins.pairs if pin.kind == OPAQUE]
    random: list[object] = []
    reference: dict[object, None] = {}
    pinned = 0
    result.status = PASSED
    for part in parts:
        own = draws.of(part.original)
        found = validate(part.original, part.optimized, result.exactness, None, seed, dict(own.sizes), rtol, atol,
                         own.rounds, fallback=own.fallback)
        for check in found.outputs:
            check.round += len(result.rounds)
        result.outputs += found.outputs
        result.rounds += found.rounds
        result.notes += [note for note in found.notes if note not in result.notes]
        random += found.executed.get("random", [])  # type: ignore[arg-type]
        reference.update(dict.fromkeys(found.executed.get("by_reference", [])))  # type: ignore[call-overload]
        pinned += found.executed.get("pinned", 0)  # type: ignore[operator]
        if not found.ok:
            result.status, result.reason = found.status, found.reason
            if found.status == FAILED:
                break
    stood = {name: str(part.original.declared.get(name)) for part in parts for name in part.original.inputs
             if name not in original.inputs}
    result.executed = {"nodes": original.shown_count(), "nodes_after": optimized.shown_count(), "not_executed": labels,
                       "regions": len(parts), "random": random, "pinned": pinned, "by_reference": list(reference),
                       "random_values_for": stood}
    result.notes.append(f"not executed: {', '.join(labels)}; what lies between was validated in {len(parts)} regions, "
                        "with random values for what these nodes give")
    return result


def compare_feeds(original: Graph, optimized: Graph, feeds: Feeds | Sequence[Feeds], exactness: str = "rounding",
                  seed: int = 0, rtol: float | None = None, atol: float | None = None) -> Validation:
    """Compare on the user's own data only."""
    return validate(original, optimized, exactness, feeds=feeds, seed=seed, rtol=rtol, atol=atol)


def _contract(original: Graph, optimized: Graph) -> str | None:
    """Names and dtypes of inputs and outputs stay."""
    for kind, before, after in (("inputs", original.inputs, optimized.inputs),
                                ("outputs", original.outputs, optimized.outputs)):
        if list(before) != list(after):
            return f"the {kind} are {', '.join(after)} instead of {', '.join(before)}"
    for name in original.inputs:
        a, b = (graph.types.get(name) or graph.declared.get(name) for graph in (original, optimized))
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
            return f"input {name!r} is {b.dtype} instead of {a.dtype}"
    return None


def _attempt(original: Graph, optimized: Graph, pins: Pins, terms: Terms, feeds: Feeds | Sequence[Feeds] | None,
             seed: int, draws: Draws, executor: Executor | None,
             plan: list[Round] | None = None) -> Validation:
    result = Validation(terms.exactness)
    strangers = [node for kind, node in pins.alone_optimized if kind in (OPAQUE, RANDOM)]
    if strangers:
        result.reason = f"{strangers[0].label} is not executed alike in both graphs: it has no partner in the original"
        result.status = FAILED
        return result
    comparison = Comparison(original, optimized, pins, terms, seed, executor)
    try:
        if plan is None:
            plan = _given(feeds, seed) if feeds is not None else _drawn(comparison, seed, draws, result)
        worst = _run_rounds(comparison, plan, feeds, result)
    except NotExecutable as reason:
        result.reason = f"{reason.where}: {reason.found}"
        return result
    result.outputs = list(worst.values())
    result.notes += comparison.notes
    result.executed = comparison.executed()
    skipped = comparison.not_executed()
    if skipped:
        result.notes.append(f"not executed: {', '.join(skipped)}")
    _conclude(result, original)
    return result


def _given(feeds: Feeds | Sequence[Feeds], seed: int) -> list[Round]:
    count = 1 if isinstance(feeds, Mapping) else len(feeds)
    return [Round(seed, {}, given=True) for _ in range(count)]


def _drawn(comparison: Comparison, seed: int, draws: Draws, result: Validation) -> list[Round]:
    """The rounds to run: sizes at which the original runs, an ordinary draw for each, then special values."""
    base, spread, why = _first_that_runs(comparison, seed, draws)
    if base is None:
        result.reason = f"the original does not run on drawn inputs: {why}"
        return []
    if spread != PLAIN_SPREAD:
        kind = "integers" if spread == NOT_NEGATIVE else "floats"
        result.notes.append(f"{kind} were drawn {spread}: with normal ones {why}")
    plan = _plan(comparison, seed, base, draws, spread)
    for each in plan:
        each.spread = spread
    return plan


def _first_that_runs(comparison: Comparison, seed: int,
                     draws: Draws) -> tuple[dict[str, int] | None, str, str]:
    """(sizes at which the original runs and gives numbers, how numbers were drawn for it, what went wrong first)."""
    graph, why, empty = comparison.original, "", 0
    others = spreads(graph, comparison.constraints)[1:]
    for candidate in draws.candidates(graph):
        reason = comparison.probe(seed, candidate)
        if reason is None:
            return candidate, PLAIN_SPREAD, why
        why = why or reason
        if reason.endswith(NAN_EVERYWHERE) and empty < MAX_SIZES and others:
            empty += 1
            for spread in others:
                if comparison.probe(seed, candidate, spread) is None:
                    return candidate, spread, why
        if not input_symbols(graph):
            break
    return None, PLAIN_SPREAD, why + (f", with numbers that are {', '.join([PLAIN_SPREAD, *others])}" if empty else "")


def _plan(comparison: Comparison, seed: int, base: dict[str, int], draws: Draws, spread: str) -> list[Round]:
    graph, several = comparison.original, [base]
    free = [name for name in input_symbols(graph) if name not in draws.sizes]
    for candidate in smaller_sizes(graph, base) if free else ():
        candidate = {**candidate, **draws.sizes}
        if len(several) < min(MAX_SIZES, max(2, draws.rounds)) and candidate not in several and (
                comparison.probe(seed + len(several), candidate, spread) is None):
            several.append(candidate)
    repeats = 1 if comparison.slow else _repeats(comparison, seed, base)
    plan = [Round(seed + k, several[k % len(several)], wide=k == 0 or not comparison.large)
            for k in range(max(draws.rounds, len(several), repeats))]
    if not graph.inputs:
        return plan[:1]
    if comparison.terms.exactness in ("exact", "rounding") and _has_floats(graph):
        exact = comparison.terms.exactness == "exact"
        for k in range(repeats):
            plan.append(Round(seed + 101 + 2 * k, several[k % len(several)], special=True, wide=not comparison.large))
            if exact or not (comparison.large or _has_floats(graph, ("float64",))):  # those have no wider twin
                plan.append(Round(seed + 102 + 2 * k, base, special=True, huge=True))
    elif _has_free_integers(graph, comparison.constraints):
        plan += [Round(seed + 101 + k, several[k % len(several)], special=True) for k in range(repeats)]
    return plan


def _repeats(comparison: Comparison, seed: int, sizes: dict[str, int]) -> int:
    """More draws where inputs are so small that one draw would miss signs and most special values."""
    drawn = draw(comparison.original, seed, sizes, known=comparison.constraints)
    arrays = [value for value in drawn.values() if not isinstance(value, list)]
    elements = max((value.size for value in arrays), default=SMALL)
    return min(MAX_REPEATS, max(1, -(-SMALL // max(1, elements))))


def _has_floats(graph: Graph, kinds: Collection[str] = dtypes.FLOATS) -> bool:
    types = [graph.types.get(name) or graph.declared.get(name) for name in graph.inputs]
    return any(isinstance(type_, TensorType) and type_.dtype in kinds for type_ in types)


def _has_free_integers(graph: Graph, found: Mapping[str, Constraint]) -> bool:
    types = {name: graph.types.get(name) or graph.declared.get(name) for name in graph.inputs}
    return any(isinstance(type_, TensorType) and type_.dtype in dtypes.INTEGERS
               and (name not in found or found[name].kind in FREE) for name, type_ in types.items())


def _run_rounds(comparison: Comparison, plan: list[Round], feeds: Feeds | Sequence[Feeds] | None,
                result: Validation) -> dict[str, OutputCheck]:
    worst: dict[str, OutputCheck] = {}
    shares: dict[str, float] = {}
    given = [feeds] if isinstance(feeds, Mapping) else list(feeds or [])
    for index, each in enumerate(plan):
        try:
            checks = _settled(comparison, each, given[index] if given else None)
        except CannotRun as reason:
            each.reason = str(reason)
            if each.given or not each.special:
                result.notes.append(f"the original does not run in round {index}: {reason}")
            continue
        for check in checks:
            check.round = len(result.rounds)
            present = worst.get(check.name)
            if not each.special:  # special values spread: what they leave to compare says little
                shares[check.name] = max(check.share, shares.get(check.name, 0.0))
            if present is None or check.worse_than(present):
                worst[check.name] = check
        each.ok = all(check.ok for check in checks)
        each.reason = next((f"{check.name}: {check.reason}" for check in checks if not check.ok), "")
        result.rounds.append(each)
        if not each.ok:
            break
    for name, share in shares.items():
        worst[name].share = share
    return worst


def _settled(comparison: Comparison, each: Round, given: Feeds | None) -> list[OutputCheck]:
    """The checks of a round. Behind discrete nodes that are not pinned a chance tie may fail a right graph: two more
    draws decide, and a graph that fails both of them is wrong."""
    checks = comparison.check(each, given)
    failing = [check for check in checks if not check.ok]
    exact = comparison.terms.exactness == "exact"
    if given is not None or exact or not failing or not all(check.name in comparison.jumping for check in failing):
        return checks
    for extra in (1001, 2002):
        again = comparison.check(Round(each.seed + extra, each.sizes, each.special, each.huge, wide=each.wide,
                                       spread=each.spread))
        if any(not check.ok for check in again):
            return checks
    return again


def _conclude(result: Validation, original: Graph) -> None:
    failed = next((check for check in result.outputs if not check.ok), None)
    if failed is not None:
        result.status = FAILED
        result.reason = f"{failed.name}: {failed.reason}"
        return
    if not result.rounds:
        result.reason = result.reason or "no round could be run"
        return
    compared = [check for check in result.outputs if check.name in original.outputs and check.elements]
    blind = next((check for check in compared if check.share < LEAST_SHARE), None)
    if blind is not None:
        result.reason = (f"output {blind.name!r}: only {blind.share:.1%} could be compared, elsewhere the original "
                         "itself changes when inputs or weights change by one ulp")
        return
    result.status = PASSED


def first_sizes(graph: Graph, count: int = 1) -> list[dict[str, int]]:
    """The first candidates for sizes, for callers that only want plausible ones."""
    return list(islice(size_candidates(graph), count)) or [default_sizes(graph)]
