"""`--memory-limit`: the best finalist, with values recomputed until its live values fit."""

from __future__ import annotations

import dataclasses
from typing import Any

from cost_model.memory import peak_activation_bytes
from graphs.ir import Graph, Node
from search.steps import same_graph

from . import journal
from .context import Context
from .finalists import INPUT, Finalist, Outcome, measure_whole, numbered
from .journaling import step
from .recompute import within
from .recompute_search import Plan
from .replay import replay

RULE = "recompute"
MEANING = "Values are dropped after a use and computed again before the next one: fewer live at a time."
WITHIN = "within the memory limit"


def limit_bytes(text: str, whole: float) -> float:
    """Bytes of a limit: a number of bytes, or a share (`50%`) of `whole`."""
    return float(text[:-1]) / 100 * whole if text.endswith("%") else float(text)


def limited(original: Graph, outcome: Outcome, context: Context) -> Outcome:
    """The outcome with its first finalist made to fit; `memory` tells what that took. A finalist that fits stays."""
    asked = context.options.memory_limit
    assert asked is not None
    best = outcome.ranked[0]
    before, kept = (peak_activation_bytes(graph, context.sizes) for graph in (original, best.graph))
    limit = limit_bytes(asked, before)
    section: dict[str, Any] = {"asked": asked, "limit": limit, "before": before, "kept": kept, "after": kept,
                               "met": kept <= limit, "recomputed": 0, "predicted": None, "measured": None, "curve": []}
    if kept <= limit:
        return dataclasses.replace(outcome, memory=section)
    steps = best.steps()
    base = replay(original, steps) if steps else original.copy()
    if not same_graph(base, best.graph):
        base = best.graph.copy()

    def seconds(node: Node) -> float:
        return context.costs.node_in(base, node).seconds

    graph, plan = within(base, context.sizes, limit, seconds, before)
    whole = sum(map(seconds, base.nodes))
    section.update(after=plan.peak, met=plan.peak <= limit, recomputed=plan.recomputed,
                   predicted=plan.seconds / whole if whole else None,
                   curve=[[peak, spent / whole] for peak, spent in plan.curve if whole])
    if not section["met"]:
        context.warn(f"the memory limit of {limit:.0f} bytes is not met: the least that was found is {plan.peak:.0f}")
    made = Finalist(f"{best.name}, {WITHIN}", graph, lambda: numbered([*steps, _step(base, graph, plan)]),
                    base=base, made_of=best.name)
    return _measured(original, best, made, outcome, context, section)


def handed_back(winner: Finalist, outcome: Outcome, context: Context) -> None:
    """What `memory` tells is of the graph that is handed back: another one than was made to fit, where that did not
    hold in validation, or was not validated."""
    section = outcome.memory
    if section is None or winner.name.endswith(WITHIN) or not section["recomputed"]:
        return
    after = peak_activation_bytes(winner.graph, context.sizes)
    section.update(after=after, met=after <= section["limit"], recomputed=0, predicted=None, measured=None)
    context.warn(f"nothing was recomputed: the graph that was made for the memory limit is not the one handed back, "
                 f"which takes {after:.0f} bytes of live values")


def _step(base: Graph, graph: Graph, plan: Plan) -> dict[str, Any]:
    found = step(RULE, MEANING, base, graph, [name for group in plan.groups for name in group], "exact")
    found["patch"]["order"] = [journal.node_key(node) for node in graph.nodes]
    return found


def _measured(original: Graph, best: Finalist, made: Finalist, outcome: Outcome, context: Context,
              section: dict[str, Any]) -> Outcome:
    """The outcome that hands back what was made, measured beside the input and the finalist that it was made of."""
    comparison = outcome.comparison
    if context.options.stages == "all":
        entries = [Finalist(INPUT, original, list), *([best] if best.name != INPUT else []), made]
        found, _, note = measure_whole(entries, context, context.sizes)
        if found is not None:
            comparison = found
            if found.samples and best.name in found.results and made.name in found.results:
                section["measured"] = found.results[made.name].ratio / found.results[best.name].ratio - 1
        elif note:
            context.warn(f"what recomputing costs was not measured: {note}")
    return dataclasses.replace(outcome, ranked=[made, *outcome.ranked[best.name != INPUT :]],
                               comparison=comparison, memory=section)
