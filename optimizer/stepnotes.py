"""What the trace says of each step besides the change: predicted seconds before and after it, and how far it moves the
values that it replaces. One replay of the trace gives both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_model.node_costs import NodeCosts
from graphs.ir import Graph

from . import journal
from .context import Context
from .replay import Stored, rewrite_of
from .stepcosts import SUM_OF_TIMES, Total, changed
from .steperrors import run_of


def add_notes(graph: Graph, steps: Sequence[dict[str, Any]], context: Context) -> Graph:
    """Write costs and errors into each step, in place; the graph that the trace leads to, as `replay` gives it. `graph`
    is where the trace starts.

    `cost_before` and `cost_after` are predicted seconds of the whole graph, of which `cost_source` says where they come
    from; `change_source` says it of those nodes that the step took away or put in. `comparable` is False where one
    side of those is measured and the other estimated, wholly or in part: the sums then differ by more than the step.

    `error` is `{"value", "absolute", "relative", "changed"}` of the value that moved most, or None where nothing could
    be compared. `absolute` is the largest difference of an element, `relative` its share of the largest element; both
    are None where NaN or infinities stand elsewhere, and for values that are no numbers. `changed` counts the elements
    that are not equal (NaN is NaN, and -0 is 0). Raises ParseError where the trace does not replay.
    """
    if not steps:
        return graph
    stored, total, run = Stored(graph), Total(graph, context.costs), run_of(graph, context)
    before, patched = total.seconds, False
    for step in steps:
        sources = total.sources
        error: dict[str, Any] | None = None
        if step["patch"].get("kind") == "diff":
            earlier = total.rewriter.finish() if patched else graph  # else what is dead is part of the difference
            graph, patched = journal.apply(earlier, step["patch"]), False
            stored.see(graph)
            if run is not None:
                error = run.difference(earlier, graph, set(step["patch"]["remove"]))
            old = total.prices()
            total.start(graph)
            new = total.prices()
            step.update(changed(old, new).to_dict())
        else:
            patch, rewriter, made = rewrite_of(step, stored).patch, total.rewriter, dict[str, Any]()
            if run is not None:
                error, made = run.patched(rewriter.graph, patch)
            renamed, patched = rewriter.apply(patch), True
            if run is not None:
                run.forget(name for node in rewriter.removed for name in node.outputs)
                run.keep({renamed.get(name, name): value for name, value in made.items()})
            step.update(total.price_changes().to_dict())
        after = total.seconds
        step["cost_before"], step["cost_after"] = before, after
        step["cost_source"] = SUM_OF_TIMES + "/".join(sorted({*sources, *total.sources}))
        step["error"] = error
        before = after
    return total.rewriter.finish() if patched else graph


def add_fixing_cost(step: dict[str, Any], graph: Graph, fixed: Graph, later: Sequence[dict[str, Any]],
                    context: Context) -> None:
    """Write costs into the step that makes sizes constant: the given graph's nodes at these sizes, then those of the
    fixed graph, in which more types are known. Nothing where the steps that follow have no costs."""
    if later and "cost_before" not in later[0]:
        return
    given = NodeCosts(context.target, context.timings, {**context.sizes, **context.options.fix_dims},
                      threads=context.threads, opset=graph.opset, budget_seconds=0.0, frozen=context.options.frozen)
    before, after = Total(graph, given), Total(fixed, context.costs)
    old, new = before.prices(), after.prices()
    step["cost_before"] = before.seconds
    step["cost_after"] = later[0]["cost_before"] if later else after.seconds
    step["cost_source"] = SUM_OF_TIMES + "/".join(sorted(before.sources | after.sources))
    step.update(changed(old, new).to_dict(), error=None)
