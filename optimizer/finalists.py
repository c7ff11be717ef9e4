"""Finalists: whole graphs, measured in turns against the input; the fastest wins, among equals the simplest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_model.comparison import Comparison, Result
from cost_model.joining import joined
from cost_model.memory import peak_live_bytes
from cost_model.signature import graph_digest
from cost_model.targets import Unsupported
from graphs.dtypes import INTEGERS
from graphs.errors import EgraftError, ExecutionFailed
from graphs.ir import Graph
from graphs.onnx_io import with_bodies
from graphs.onnx_io.stated import forget, is_stated
from graphs.spill import trim
from graphs.types import TensorType
from runtime.feeds import draw

from .candidates import Improved
from .context import Context
from .journaling import step
from .looks import computes_the_same, dominates, second_look
from .report import constant_bytes, sizes_text

INPUT, NORMALIZED, UNSTATED = "input", "normalized", "inner types not stated"
FORGET = "forget-stated-types"
FORGET_MEANING = ("The file states no types of values inside of it any more: a runtime joins other nodes where it does "
                  "not know sizes before it runs.")
LARGE_BYTES = 64 << 20
LARGE_SECONDS = 0.05
LARGE_NODES = 2000  # to load one takes ONNX Runtime 0.2 ms
MANY_NODES_SHARE = 0.5  # of the time for comparing: loading its sessions takes about the other half
HELD_BYTES = 1 << 30  # of weights: runtimes hold them in memory of their own, once for each finalist
TOGETHER_BYTES = 1 << 30  # of weights in the sessions that live at one time, as far as there are more than two
SMALL_SECONDS = 1e-4  # a whole run in less is mostly overhead of the runtime, and of the clock
PREDICTION_SLACK = 1.02  # sums of node times are not exact
EQUAL_MEDIAN, EQUAL_HIGH = 0.03, 0.05  # how far above the input's time an "equal" may lie: median, upper limit
SAME = 0.005  # relative difference of predictions that no measurement of a large model would tell apart
UNLIKELY = 1.08  # predicted to be this many times slower than the best: left out of the race for a large model


@dataclass
class Finalist:
    """A whole graph that may be handed back. `steps` gives the trace from the input to it when it is needed. `failure`:
    why its validation failed, if it did. `base`: a graph that this one is made of and must equal bit for bit."""

    name: str
    graph: Graph
    steps: Callable[[], list[dict[str, Any]]]
    predicted: float | None = None
    failure: str = ""
    base: Graph | None = None
    made_of: str = ""  # the finalist that this one is, with values recomputed

    @cached_property
    def opened(self) -> Graph:
        """The graph as it runs: a call of a function counts as the nodes of its body."""
        return with_bodies(self.graph)


@dataclass
class Outcome:
    """All finalists in the order of preference (the first is to be handed back if it is valid)."""

    ranked: list[Finalist]
    comparison: Comparison | None
    note: str = ""
    unsupported: dict[str, str] = field(default_factory=dict)
    other_sizes: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_taken: dict[str, str] = field(default_factory=dict)  # measured, and why they may not be handed back
    memory: dict[str, Any] | None = None  # what a memory limit took
    measured: list[Finalist] = field(default_factory=list)  # all that took part, also those that are not ranked
    headline: Comparison | None = None  # the first against the input in pairs of fresh sessions

    @property
    def best_seconds(self) -> float | None:
        """Measured seconds of the first."""
        if self.comparison is None or self.ranked[0].name not in self.comparison.results:
            return None
        return self.comparison.results[self.ranked[0].name].seconds


def enter(original: Graph, normalized: Graph, improved: Improved, reads_types: bool = False) -> list[Finalist]:
    """The input, the normalized graph, and the graphs that extraction built; equal graphs once."""
    entries = [Finalist(INPUT, original, list)]
    entries.append(Finalist(NORMALIZED, normalized, lambda: numbered(improved.prefix)))
    if reads_types:
        entries.append(_unstated(normalized, improved))
    for candidate in improved.candidates:
        entries.append(Finalist(candidate.name, candidate.graph, candidate.steps, candidate.predicted))
    seen: dict[str, Finalist] = {}
    for entry in entries:
        seen.setdefault(graph_digest(entry.graph), entry)
    return list(seen.values())


def _unstated(normalized: Graph, improved: Improved) -> Finalist:
    """The normalized graph without the types that the file states inside of it."""
    bare = _bare(normalized)

    def steps() -> list[dict[str, Any]]:
        last = step(FORGET, FORGET_MEANING, normalized, bare, [], "exact")
        last["patch"]["forget_types"] = True
        return numbered([*improved.prefix, last])

    return Finalist(UNSTATED, bare, steps)


def _bare(graph: Graph) -> Graph:
    bare = graph.copy()
    forget(bare)
    return bare


def numbered(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps with their final indices."""
    return [{**step, "index": index} for index, step in enumerate(steps)]


def by_simplicity(entries: list[Finalist], predicted_input: float | None = None) -> list[Finalist]:
    """Fewest operators first, then fewest bytes. Among equals the normalized graph comes before what is not predicted
    to be faster: nothing is rewritten for nothing, and optimizing a result again changes nothing.

    The input is the normalized graph where normalization changed nothing; else it comes last, since it may hold what no
    output needs.
    """
    normal = NORMALIZED if any(entry.name == NORMALIZED for entry in entries) else INPUT

    def rank(entry: Finalist) -> int:
        if entry.name in (normal, INPUT):
            return 1 if entry.name == normal else 3
        faster = predicted_input is not None and entry.predicted is not None and (
            entry.predicted * PREDICTION_SLACK < predicted_input)
        return 0 if faster else 2

    return sorted(entries, key=lambda entry: (entry.opened.node_count(), constant_bytes(entry.graph), rank(entry)))


def race(entries: list[Finalist], context: Context, predicted_input: float | None = None) -> Outcome:
    """Rank the finalists by objective and measurement. `predicted_input`: seconds predicted for the input."""
    objective = context.options.objective
    if len(entries) == 1:
        return Outcome(entries, None, "nothing to compare: no rewrite changed the graph")
    entries, left_out = _worth_measuring(entries, predicted_input)
    simplest = by_simplicity(entries, predicted_input if objective == "time" else None)
    if objective == "memory":
        simplest.sort(key=lambda entry: peak_live_bytes(entry.graph, context.sizes))
    comparison, unsupported, note = measure_whole(entries, context, context.sizes)
    if INPUT in unsupported and context.target.reads_types and is_stated(entries[0].graph):
        found = measure_whole([replace(entry, graph=_bare(entry.graph)) for entry in entries], context, context.sizes)
        if INPUT not in found[1]:
            comparison, unsupported, note = found
            for entry in entries:
                forget(entry.graph)
            context.warn("the file states wrong types of values inside of it, which the target refuses: they are "
                         "left out")
    # Where not even the input runs on the target, that says nothing about the others.
    fit = [entry for entry in simplest if INPUT in unsupported or entry.name not in unsupported]
    if objective in ("nodes", "memory"):
        return Outcome(fit, comparison, note or f"ranked by {objective}", unsupported, left_out=left_out)
    if comparison is None:  # nothing was measured: nothing that is predicted to be slower may win
        likely = [entry for entry in fit if _predicted_not_slower(entry, predicted_input)]
        return Outcome(likely, None, note, unsupported, left_out=left_out)
    comparison, kept = _confirmed(fit, comparison, context, predicted_input)
    ranked = _ranked(kept, comparison, context.sizes)
    others, ranked = _at_other_sizes(ranked, entries[0], context)
    slower = {row["name"]: f"not taken: slower at {sizes_text(row['sizes'])}" for row in others
              if row.get("verdict") == "slower"}
    may = {entry.name for entry in kept}
    doubted = {name: "not taken: what was measured does not make sure that it is as good as the input"
               for name, found in comparison.results.items()
               if name not in may and name != INPUT and found.verdict != "slower"}
    return Outcome(ranked, comparison, note, unsupported, others, left_out, {**doubted, **slower},
                   measured=simplest)


def not_measured(entries: list[Finalist]) -> Outcome:
    """The last stage's graph first, whatever it takes: for ablations."""
    return Outcome(entries[::-1], None, "not measured: a part of the stages was asked for")


def _predicted_not_slower(entry: Finalist, predicted_input: float | None) -> bool:
    if entry.predicted is None or predicted_input is None:
        return True  # the input, and the normalized graph, which only lacks what the input has
    return entry.predicted <= predicted_input * PREDICTION_SLACK


def _credible(entry: Finalist, comparison: Comparison, predicted_input: float | None) -> bool:
    """A noisy "equal" is not enough: the median must say so too, the more clearly if the prediction does not."""
    found = comparison.results.get(entry.name)
    if entry.name == INPUT or found is None or found.verdict != "equal":
        return found is not None
    return as_good(entry, found, comparison, predicted_input)


def as_good(entry: Finalist, found: Result, comparison: Comparison, predicted_input: float | None) -> bool:
    """Whether an "equal" counts: by its median, and by its upper limit too where it was predicted to be slower."""
    noise = min(comparison.threshold, 0.1) if comparison.results[comparison.baseline].seconds < SMALL_SECONDS else 0.0
    if _predicted_not_slower(entry, predicted_input):
        return found.ratio <= 1 + max(EQUAL_MEDIAN, noise)
    return found.ratio <= 1 + max(EQUAL_MEDIAN / 3, min(noise, EQUAL_MEDIAN)) and found.high <= 1 + EQUAL_HIGH


def _confirmed(fit: list[Finalist], comparison: Comparison, context: Context,
               predicted_input: float | None) -> tuple[Comparison, list[Finalist]]:
    """The finalists that may be handed back, and the comparison with what a second look added.

    A finalist that only lacks what the input has (nodes, or bytes of constants), or that was predicted to be faster, is
    not thrown out by one measurement: the session's memory may have lain badly. Nor is one of fewer nodes that was
    about equal. What is slower in the second look too is out. For one that computes less the second look decides; for
    others both looks together must be as good as equal.
    """
    credible = {entry.name for entry in fit if _credible(entry, comparison, predicted_input)}
    original = next(entry for entry in fit if entry.name == INPUT)
    leaner: set[str] = set()
    doubtful: list[Finalist] = []
    for entry in fit:
        if entry.name in credible and comparison.results[entry.name].verdict != "slower":
            continue
        fewer = entry.opened.node_count() < original.opened.node_count()
        less = dominates(entry.opened, original.opened, context.sizes) or (
            computes_the_same(entry.opened, original.opened, context.sizes)
            and constant_bytes(entry.graph) < constant_bytes(original.graph))
        faster = entry.predicted is not None and predicted_input is not None and (
            entry.predicted * PREDICTION_SLACK < predicted_input)
        likely = fewer and (_predicted_not_slower(entry, predicted_input) or _found(entry, comparison, "equal"))
        if less:
            leaner.add(entry.name)
        elif not (faster or likely):
            continue
        doubtful.append(entry)
    if is_large(original, predicted_input):  # loading takes seconds: only who might still win gets a second look
        doubtful = [entry for entry in doubtful if not _beaten(entry, credible, comparison)]
    again = None
    if doubtful and comparison.samples:  # an estimate says the same whenever it is asked
        again, _, _ = measure_whole([original, *doubtful], context, context.sizes, look=2)
    if again is None or not again.samples:
        return comparison, [entry for entry in fit if entry.name in credible]
    both = second_look(comparison, again)
    for entry in doubtful:
        found = again.results.get(entry.name)
        expected = None if entry.name in leaner else predicted_input
        if found is not None and entry.name not in leaner and found.verdict != "slower":
            found = replace(both.results[entry.name], high=found.high)  # the width of this look
        if found is not None and (found.verdict == "faster" or (
                found.verdict == "equal" and as_good(entry, found, again, expected))):
            credible.add(entry.name)
        else:
            credible.discard(entry.name)
    return both, [entry for entry in fit if entry.name in credible]


def _ranked(fit: list[Finalist], comparison: Comparison, sizes: Mapping[str, int]) -> list[Finalist]:
    """Best first, down to the input."""
    preference = [entry.name for entry in fit]
    by_name = {entry.name: entry for entry in fit}
    ranked: list[Finalist] = []
    while preference:
        chosen = _leaner(_choose(comparison, preference), preference, by_name, comparison, sizes)
        ranked.append(by_name[chosen])
        preference.remove(chosen)
        if chosen == INPUT:
            break
    return ranked


def _leaner(chosen: str, preference: list[str], by_name: Mapping[str, Finalist], comparison: Comparison,
            sizes: Mapping[str, int]) -> str:
    """What only lacks nodes that the fastest has computes less: a few percent between the two are the clock's."""
    results = comparison.results
    for name in preference[: preference.index(chosen)]:
        close = results[name].verdict != "slower" and results[name].ratio <= results[chosen].ratio * (1 + EQUAL_HIGH)
        if close and dominates(by_name[name].opened, by_name[chosen].opened, sizes):
            return name
    return chosen


def _worth_measuring(entries: list[Finalist], predicted_input: float | None) -> tuple[list[Finalist], dict[str, str]]:
    """Measuring a large model takes seconds and its weights' bytes for each finalist: only likely winners take part.

    Predictions of small models are mostly overhead, so all of their finalists are measured.
    """
    known = [entry.predicted for entry in entries if entry.predicted is not None]
    original = entries[0]
    if not is_large(original, predicted_input) or not known or len(entries) <= 2:
        return entries, {}
    best = min(known)
    left_out: dict[str, str] = {}
    for entry in entries[1:]:
        seconds = predicted_input if entry.predicted is None else entry.predicted
        if seconds is not None and seconds > best and (entry.predicted is None or seconds > UNLIKELY * best):
            left_out[entry.name] = f"not measured: predicted {seconds / best:.2f} times the time of the best"
    for entry in entries[1:]:
        twin = None if entry.name in left_out else _twin(entry, [each for each in entries if each.name not in left_out])
        if twin is not None:
            left_out[entry.name] = f"not measured: predicted as fast as {twin.name!r}, and not simpler"
    return [entry for entry in entries if entry.name not in left_out], left_out


def is_large(original: Finalist, predicted_input: float | None) -> bool:
    """Measuring it takes seconds."""
    return (constant_bytes(original.graph) > LARGE_BYTES or (predicted_input or 0.0) > LARGE_SECONDS
            or original.opened.node_count() > LARGE_NODES)


def _beaten(entry: Finalist, credible: set[str], comparison: Comparison) -> bool:
    """Some finalist is faster than this one for certain. The input does not count: to be slower than that in one
    measurement is what a second look is for."""
    found = comparison.results.get(entry.name)
    return found is not None and any(comparison.results[name].high < found.low for name in credible
                                     if name not in (entry.name, INPUT))


def _twin(entry: Finalist, others: list[Finalist]) -> Finalist | None:
    """Another of the same predicted time to half a percent that is no less simple."""
    def size(each: Finalist) -> tuple[int, int]:
        return each.opened.node_count(), constant_bytes(each.graph)

    return next((other for other in others if other is not entry and entry.predicted and other.predicted
                 and abs(other.predicted / entry.predicted - 1) < SAME and size(other) <= size(entry)), None)


def _at_other_sizes(ranked: list[Finalist], original: Finalist,
                    context: Context) -> tuple[list[dict[str, Any]], list[Finalist]]:
    """Measure at the further sizes that `--dim` asks for; who is slower than the input at one of them is out."""
    rows: list[dict[str, Any]] = []
    kept: list[Finalist] = []
    for entry in ranked:
        slower = False
        for sizes in context.more_sizes if entry.name != INPUT else ():
            comparison, _, note = measure_whole([original, entry], context, sizes)
            if comparison is not None and comparison.samples and _found(entry, comparison, "slower") and dominates(
                    entry.opened, original.opened, sizes):
                again, _, _ = measure_whole([original, entry], context, sizes, look=2)
                comparison = comparison if again is None else second_look(comparison, again)
            found = None if comparison is None else comparison.results.get(entry.name)
            rows.append({"name": entry.name, "sizes": sizes, "note": note,
                         **({} if found is None else {"speed_up": 1 / found.ratio, "low": 1 / found.high,
                                                      "high": 1 / found.low, "verdict": found.verdict})})
            slower = slower or (found is not None and found.verdict == "slower")
        if not slower:
            kept.append(entry)
    return rows, kept


def _found(entry: Finalist, comparison: Comparison, verdict: str) -> bool:
    found = comparison.results.get(entry.name)
    return found is not None and found.verdict == verdict


def _choose(comparison: Comparison, preference: list[str]) -> str:
    """Like `Comparison.choose`, among the names that are left."""
    fit = [name for name in preference if comparison.results[name].verdict != "slower"]
    ahead = [name for name in fit if comparison.results[name].verdict == "faster"]
    if not ahead:
        return fit[0] if fit else INPUT
    fastest = min(ahead, key=lambda name: comparison.results[name].ratio)
    return next(name for name in preference if name in ahead and comparison.verdict(name, fastest) != "slower")


def measure_whole(entries: list[Finalist], context: Context,
                  sizes: Mapping[str, int], look: int = 1) -> tuple[Comparison | None, dict[str, str], str]:
    """The comparison, which finalists the target cannot run and why, and a note where nothing was measured.

    The first of the entries is the baseline and is called `INPUT`. A model of more than `HELD_BYTES` of weights is not
    measured as a whole: its sessions would need a multiple of its size. Where those of all entries would hold more than
    `TOGETHER_BYTES`, some at a time are measured beside the baseline, and the budget is divided.
    """
    if context.late("to measure all finalists", 0.7):
        return None, {}, "not measured as a whole: the timeout had passed"
    held = max(constant_bytes(entry.graph) for entry in entries)
    if context.target.measures and held > HELD_BYTES:
        return None, {}, (f"not measured as a whole: its sessions would hold {held / 1e9:.1f} GB of weights each "
                          f"(limit {HELD_BYTES / 1e9:.1f} GB); ranked by the measured times of its nodes")
    try:
        feeds = measuring_feeds(entries[0].graph, context, sizes)
    except EgraftError as error:
        return None, {}, f"no inputs to measure with: {error.found}"
    parts = _at_a_time(entries, held)
    budget = context.effort.compare.budget
    if entries[0].opened.node_count() > LARGE_NODES:
        budget *= MANY_NODES_SHARE
    settings = replace(context.effort.compare, budget=budget / len(parts))
    # Sums of estimates go over nodes: a call would count as one launch, whatever its body does.
    graphs = {entry.name: entry.graph if context.target.measures else entry.opened for entry in entries}
    try:
        comparison = joined([context.target.compare(
            {entry.name: graphs[entry.name] for entry in part}, INPUT, feeds, threads=context.threads,
            settings=settings, timings=context.timings, look=look) for part in parts])
    except Unsupported as error:
        reason = " ".join(str(error).split())[:300]
        return None, {INPUT: reason}, f"the target cannot run the input: {reason}"
    except ExecutionFailed as error:  # a device that fails between two runs: what was found so far is kept
        reason = " ".join(f"{error.where}: {error.found}".split())
        context.warn(f"measuring whole graphs failed: {reason}")
        return None, {}, f"not measured as a whole: {reason}"
    if held > LARGE_BYTES:
        trim()  # of its sessions
    unsupported = dict(comparison.unsupported)
    if len(entries) - len(unsupported) < 2:
        return None, unsupported, "no other finalist runs on the target"
    return comparison, unsupported, ""


def _at_a_time(entries: list[Finalist], held: int) -> list[list[Finalist]]:
    """The entries, cut into parts whose sessions fit into memory together; the first, the baseline, is in each."""
    rivals = entries[1:]
    most = max(2, TOGETHER_BYTES // max(held, 1)) - 1
    count = max(1, -(-len(rivals) // most))
    return [[entries[0], *rivals[start::count]] for start in range(count)]


def measuring_feeds(graph: Graph, context: Context, sizes: Mapping[str, int]) -> Mapping[str, np.ndarray]:
    """Inputs at the sizes that are measured: the user's own, else random ones."""
    if context.feeds is not None and sizes == context.sizes:
        return context.feeds
    return draw(graph, context.options.seed, dict(sizes))


def single_values(graph: Graph, context: Context) -> dict[str, int]:
    """What inputs of one integer or truth value held when it was measured, if nobody gave them: a branch may depend on
    them."""
    if context.feeds is not None or not _single_inputs(graph):
        return {}
    return values_of(graph, measuring_feeds(graph, context, context.sizes))


def values_of(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """What these feeds have for inputs of one integer or truth value."""
    return {name: int(feeds[name].reshape(-1)[0]) for name in _single_inputs(graph)}


def _single_inputs(graph: Graph) -> list[str]:
    types = {name: graph.type_of(name) for name in graph.inputs}
    return [name for name, type_ in types.items()
            if isinstance(type_, TensorType) and type_.dtype in (*INTEGERS, "bool") and type_.elements == 1]
