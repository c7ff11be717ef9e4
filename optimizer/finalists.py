"""Finalists: whole graphs, measured in turns against the input; the fastest wins, among equals the simplest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cost_model.comparison import Comparison
from cost_model.memory import peak_live_bytes
from cost_model.signature import graph_digest
from cost_model.targets import Unsupported
from graphs.errors import EgraftError
from graphs.ir import Graph
from runtime.feeds import draw

from .candidates import Improved
from .context import Context
from .report import constant_bytes

INPUT = "input"


@dataclass
class Finalist:
    """A whole graph that may be handed back. `steps` gives the trace from the input to it when it is needed."""

    name: str
    graph: Graph
    steps: Callable[[], list[dict[str, Any]]]
    predicted: float | None = None


@dataclass
class Outcome:
    """All finalists in the order of preference (the first is to be handed back if it is valid)."""

    ranked: list[Finalist]
    comparison: Comparison | None
    note: str = ""
    unsupported: dict[str, str] = field(default_factory=dict)

    @property
    def best_seconds(self) -> float | None:
        """Measured seconds of the first."""
        if self.comparison is None or self.ranked[0].name not in self.comparison.results:
            return None
        return self.comparison.results[self.ranked[0].name].seconds


def enter(original: Graph, normalized: Graph, improved: Improved) -> list[Finalist]:
    """The input, the normalized graph, and the graphs that extraction built; equal graphs once."""
    entries = [Finalist(INPUT, original, list)]
    entries.append(Finalist("normalized", normalized, lambda: numbered(improved.prefix)))
    for candidate in improved.candidates:
        entries.append(Finalist(candidate.name, candidate.graph, candidate.steps, candidate.predicted))
    seen: dict[str, Finalist] = {}
    for entry in entries:
        seen.setdefault(graph_digest(entry.graph), entry)
    return list(seen.values())


def numbered(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps with their final indices."""
    return [{**step, "index": index} for index, step in enumerate(steps)]


def simplicity(entry: Finalist) -> tuple[int, int, int]:
    """Fewest operators, then fewest bytes; the input last among equals, since it may hold what no output needs."""
    return entry.graph.node_count(), constant_bytes(entry.graph), int(entry.name == INPUT)


def race(entries: list[Finalist], context: Context) -> Outcome:
    """Rank the finalists by objective and measurement."""
    objective = context.options.objective
    simplest = sorted(entries, key=simplicity)
    if objective in ("nodes", "memory"):
        if objective == "memory":
            simplest.sort(key=lambda entry: peak_live_bytes(entry.graph, context.sizes))
        comparison, unsupported, note = _measure(entries, context) if len(entries) > 1 else (None, {}, "")
        fit = [entry for entry in simplest if entry.name not in unsupported]
        return Outcome(fit, comparison, note or f"ranked by {objective}", unsupported)
    if len(entries) == 1:
        return Outcome(entries, None, "nothing to compare: no rewrite changed the graph")
    comparison, unsupported, note = _measure(entries, context)
    fit = [entry for entry in simplest if entry.name not in unsupported]
    if comparison is None:
        return Outcome(simplest, None, note, unsupported)
    preference = [entry.name for entry in fit]
    by_name = {entry.name: entry for entry in fit}
    ranked: list[Finalist] = []
    while preference:
        chosen = _choose(comparison, preference)
        ranked.append(by_name[chosen])
        preference.remove(chosen)
        if chosen == INPUT:
            break
    return Outcome(ranked, comparison, note, unsupported)


def _choose(comparison: Comparison, preference: list[str]) -> str:
    """Like `Comparison.choose`, among the names that are left."""
    fit = [name for name in preference if comparison.results[name].verdict != "slower"]
    ahead = [name for name in fit if comparison.results[name].verdict == "faster"]
    if not ahead:
        return fit[0] if fit else INPUT
    fastest = min(ahead, key=lambda name: comparison.results[name].ratio)
    return next(name for name in preference if name in ahead and comparison.verdict(name, fastest) != "slower")


def _measure(entries: list[Finalist], context: Context) -> tuple[Comparison | None, dict[str, str], str]:
    """The comparison, which finalists the target cannot run and why, and a note where nothing was measured."""
    try:
        feeds = measuring_feeds(entries[0].graph, context)
    except EgraftError as error:
        return None, {}, f"no inputs to measure with: {error.found}"
    graphs = {entry.name: entry.graph for entry in entries}
    try:
        comparison = context.target.compare(graphs, INPUT, feeds, threads=context.threads,
                                            settings=context.effort.compare, timings=context.timings)
    except Unsupported as error:
        reason = " ".join(str(error).split())[:300]
        return None, {INPUT: reason}, f"the target cannot run the input: {reason}"
    unsupported = dict(comparison.unsupported)
    if len(graphs) - len(unsupported) < 2:
        return None, unsupported, "no other finalist runs on the target"
    return comparison, unsupported, ""


def measuring_feeds(graph: Graph, context: Context) -> Mapping[str, np.ndarray]:
    """Inputs at the sizes that are measured: the user's own, else random ones."""
    if context.feeds is not None:
        return context.feeds
    return draw(graph, context.options.seed, dict(context.sizes))
