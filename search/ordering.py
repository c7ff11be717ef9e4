"""The order of steps: a step whose rule finds nothing yet waits for those that bring what it matches.

In the e-graph all forms of a value are there at once, and a rule may match a form that its step does not use: rules
that join several values find each of them, and the trace replaces only those that were wanted. Where such a form
enters the graph with a later step, nobody could ask the rule again (see `search.stamp`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphs.errors import ParseError
from graphs.ir import Graph
from rules.declare import Rule

from .known import Known
from .stamp import Proof, made_by
from .steps import Patch, Rewriter, Step, same_graph


def provable(graph: Graph, steps: Sequence[Step], rules: Mapping[str, Rule]) -> list[Step]:
    """The steps in an order that leads to the same graph, in which as many as possible can be shown to hold at their
    turn; as they are where that is so already, or where no other order was found."""
    rewriter, known = Rewriter(graph), Known(graph)
    waiting, done = list(steps), list[Step]()
    try:
        while waiting:
            step = waiting.pop(_next(waiting, rewriter, known, rules))
            rewriter.apply(step.patch)
            known.take(step.patch)
            done.append(step)
        if all(one is other for one, other in zip(done, steps, strict=True)):
            return done
        expected = Rewriter(graph)
        for step in steps:
            expected.apply(step.patch)
        return done if same_graph(expected.finish(), rewriter.finish()) else list(steps)
    except ParseError:  # a step did not fit before another one: what it reads was gone, or not there yet
        return list(steps)


def _next(waiting: Sequence[Step], rewriter: Rewriter, known: Known, rules: Mapping[str, Rule]) -> int:
    """The first that holds now and does not depend on those before it; the first of all where none does."""
    for position, step in enumerate(waiting):
        if any(_tied(earlier.patch, step.patch) for earlier in waiting[:position]):
            continue
        own = replace(step, patch=replace(step.patch, constants=dict(step.patch.constants)))
        there = own.patch.constants.keys() <= rewriter.graph.constants.keys()
        if (there and known.shows(own.patch)) or Proof(own, rewriter).holds(rules):
            return position
    return 0


def _tied(earlier: Patch, later: Patch) -> bool:
    """Whether one of two patches reads, makes or replaces what the other one touches."""
    made = {*made_by(earlier), *earlier.replace}
    return not (_read(later).isdisjoint(made) and (_read(earlier) | made).isdisjoint(later.replace))


def _read(patch: Patch) -> set[str]:
    own = set(made_by(patch))
    return {name for node in patch.add for name in node.uses if name not in own} | (set(patch.replace.values()) - own)
