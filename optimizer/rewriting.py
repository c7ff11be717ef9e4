"""From a graph to rewritten candidates: normalize, bodies, saturate, measure, extract, build."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from graphs.errors import SearchFailed
from graphs.inference import infer
from graphs.ir import Graph
from rules.catalogue import all_rules
from rules.zero_signs import showing_places
from search.steps import Step, replay, same_graph

from . import greedy, regions, searching
from .bodies import improve_bodies, make_names_unique
from .candidates import Improved
from .context import Context
from .journaling import Journal, region
from .normalize import GROWN, normalize, why_not_folded
from .progress import Clock
from .report import constant_bytes
from .validating import holds_alone

BODIES = "optimize-bodies"  # the step that rewrites nested graphs
BODIES_MEANING = "Branches and loop bodies are optimized as graphs of their own."
TOLD = ("rule", "exactness", "meaning", "where", "before", "after")  # of a step inside a nested graph


def improve_graph(original: Graph, context: Context, clock: Clock, journal: Journal) -> tuple[Graph, Improved]:
    """(the normalized graph, what the search made of it). `original` is not changed."""
    clock.enter("normalize")
    graph = original.copy()
    graph.extras.pop(GROWN, None)
    exact = context.options.precision == "exact"
    normalize(graph, journal.event, exact=exact)
    refused = _without_signs(graph, context)
    not_folded = why_not_folded(graph, exact)
    if not_folded:
        refused["fold-constants"] = not_folded
    if not context.late("for nested graphs", 0.3):
        _bodies(graph, context, journal)
    improved = Improved(list(journal.steps))
    if context.late("for a search", 0.4):
        improved.refusals.update(refused)
        return graph, improved
    try:
        _search_of(graph, context)(graph, context, clock, improved)
    except SearchFailed as error:
        context.warn(f"the search ended early ({error.found}); only normalization was applied")
    improved.refusals.update(refused)
    _finish(graph, context, improved)
    if context.explorer is not None and not context.late("for fusions", 0.5):
        from .fusing import fuse_candidates

        fuse_candidates(graph, improved, context, clock)
    return graph, improved


def _search_of(graph: Graph, context: Context) -> Callable[[Graph, Context, Clock, Improved], None]:
    if context.options.stages == "normalize":
        return lambda graph, context, clock, improved: None
    if context.options.stages == "greedy":
        return greedy.search
    return regions.search if regions.is_large(graph, context) else searching.search


def _without_signs(graph: Graph, context: Context) -> dict[str, Any]:
    """Do without rules that may change the sign of a zero, where that could show; the reason for each, as a guard's."""
    if context.options.precision != "rounding":
        return {}
    places = showing_places(graph)
    if not places:
        return {}
    context.rules = [rule for rule in context.rules if not rule.zero_sign]
    reason = {"the sign of a zero could show (1 / -0.0 is not 1 / 0.0)": {"count": len(places), "where": places[0]}}
    return {rule.name: reason for rule in all_rules() if rule.zero_sign}


def _finish(normalized: Graph, context: Context, improved: Improved) -> None:
    """Fold what became constant in each candidate, and give it its whole trace."""
    for candidate in improved.candidates:
        finished = candidate.graph.copy()
        normalize(finished, exact=context.options.precision == "exact")
        make_names_unique(finished)
        traced = _traced(context, normalized, candidate.graph, finished, improved.prefix, candidate.rewrites)
        candidate.steps, candidate.replayed = (functools.partial(_part, traced, part) for part in (0, 1))
        candidate.graph = finished


def _part(traced: Callable[[], tuple[Any, Any]], part: int) -> Any:
    return traced()[part]


def _traced(context: Context, normalized: Graph, built: Graph, finished: Graph, prefix: list[dict[str, Any]],
            rewriting: Callable[[], list[Step]]) -> Callable[[], tuple[list[dict[str, Any]], Graph]]:
    """The whole trace and the graph that it leads to, worked out when they are asked for: normalization, rewrites, and
    folding what they made constant.

    The last part is worked out on the replayed graph, whose inner names may differ from those of the built one.
    """

    @functools.cache
    def steps() -> tuple[list[dict[str, Any]], Graph]:
        try:
            rewrites = rewriting()
            replayed = replay(normalized, rewrites)
        except Exception as error:  # the result is right without its trace; the defect is reported, not hidden
            context.warn(f"the order of the rewrites could not be rebuilt ({type(error).__name__}: {error}): "
                         "a defect of egraft, please report it")
            rewrites, replayed = [], normalized.copy()
        tail = Journal()
        if same_graph(replayed, built):
            normalize(replayed, tail.event, exact=context.options.precision == "exact")
        else:
            rewrites = []
        if not same_graph(replayed, finished):
            rewrites, tail = [], Journal([region(normalized, finished, "rounding")])
            replayed = finished
        middle = [{**row, "copy_of": row["copy_of"] + len(prefix)} if "copy_of" in row else row
                  for row in searching.rows(normalized, rewrites)]
        return [{**row, "index": index} for index, row in enumerate([*prefix, *middle, *tail.steps])], replayed

    return steps


def _bodies(graph: Graph, context: Context, journal: Journal) -> None:
    """Optimize nested graphs as graphs of their own; the change is one step of the trace, which tells under `inside`
    what was done in which of them."""
    if not any(True for node in graph.nodes for _ in node.graphs):
        return
    before = graph.copy()
    # Rewrites are chosen by what may be fused, and fused when all candidates are (`fusing_bodies`).
    explorer = context.explorer if context.explorer is context.body_explorer else None
    inner = replace(context, explorer=explorer)
    inside: list[dict[str, Any]] = []

    def improve(body: Graph, place: str) -> Graph:
        given = body.copy()
        better, steps = _improve_body(body, inner)
        if steps and not holds_alone(given, better, place, context):
            return given
        inside.extend({"body": place, **{key: step[key] for key in TOLD}} for step in steps)
        return better

    with nullcontext() if explorer is None else explorer.sharing():
        places = improve_bodies(graph, improve)
    if not places:
        return
    make_names_unique(graph)
    normalize(graph, exact=context.options.precision == "exact")
    journal.add(BODIES, BODIES_MEANING, before, graph,
                places, context.options.precision)
    journal.steps[-1]["inside"] = inside


def _improve_body(body: Graph, context: Context) -> tuple[Graph, list[dict[str, Any]]]:
    """(the better body, the steps that lead to it)."""
    exact = context.options.precision == "exact"
    infer(body)
    told, tail = Journal(), Journal()
    normalize(body, told.event, exact=exact)
    if context.options.stages == "normalize":
        return body, told.steps
    rewriting: Callable[[], list[Step]] = list
    if context.options.stages == "greedy":
        better, pays = greedy.fewest_nodes(body, context), False
    else:
        better, pays, rewriting = searching.improved_body(body, context)
    built = better.copy()
    normalize(better, tail.event, exact=exact)
    size, other = ((graph.node_count(), constant_bytes(graph)) for graph in (body, better))
    if not pays and other >= size:  # nothing is rewritten for nothing
        return body, told.steps
    return better, [*told.steps, *_body_rewrites(body, built, rewriting, context), *tail.steps]


def _body_rewrites(body: Graph, built: Graph, rewriting: Callable[[], list[Step]],
                   context: Context) -> list[dict[str, Any]]:
    """What the search did in a body, for reading: one step where its order is not known."""
    try:
        steps = rewriting()
    except Exception as error:  # the result is right without it; the trace says so
        steps, reason = [], f" ({type(error).__name__})"
    else:
        reason = ""
    if steps or same_graph(body, built):
        return searching.rows(body, steps)
    return [region(body, built, context.options.precision, reason)]
