"""Normalization: named passes that clean a graph before the search, each one an event of the trace.

A pass takes a graph, changes it in place, and returns the names of the places it changed (values or nodes). All are
of class `exact`, but for folding what another runtime may compute to other bits, which is `rounding`. `normalize`
runs them until none changes anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io.functions import inline_functions
from runtime.reproducible import is_reproducible

from .branches import inline_constant_branches, narrow_branches, sink_constants
from .cleanup import (
    drop_dead_nodes,
    drop_unused_outputs,
    merge_equal_constants,
    merge_equal_nodes,
    remove_identities,
)
from .demands import drop_failing_branches
from .expands import drop_expands
from .folding import GROWN, fold_constants, fold_reproducible, why_not_folded
from .loops import inline_short_loops
from .shapes import resolve_shapes

_log = logging.getLogger(__name__)
Pass = Callable[[Graph], "list[str]"]


@dataclass(frozen=True)
class Named:
    """A pass with its name and meaning, as the trace shows it."""

    name: str
    meaning: str
    run: Pass
    infer_first: bool = False


PASSES = (
    Named("inline-functions", "Calls of model-local functions are replaced by the bodies of those functions.",
          inline_functions),
    Named("drop-dead-nodes", "Nodes that no output needs are removed.", drop_dead_nodes),
    Named("drop-unused-outputs", "Optional outputs that nobody reads are removed.", drop_unused_outputs),
    Named("remove-identities", "Identity, and Dropout at inference, hand their input through.", remove_identities),
    Named("merge-equal-constants", "Constants of equal content are stored once.", merge_equal_constants),
    Named("resolve-shapes", "Sizes computed by Shape, Gather, Concat, ... are stated where they follow from the "
          "input sizes.", resolve_shapes, infer_first=True),
    Named("fold-constants", "What depends on constants alone is computed now.", fold_constants, infer_first=True),
    Named("inline-constant-branches", "An If whose condition is constant becomes the branch that it takes.",
          inline_constant_branches),
    Named("inline-short-loops", "A Loop that runs once becomes its body, and one that never runs is passed by.",
          inline_short_loops),
    Named("drop-failing-branches", "An If one of whose branches gives a rank that fails afterwards becomes the other "
          "branch.", drop_failing_branches, infer_first=True),
    Named("narrow-branches", "Outputs of an If that nobody reads are removed from its branches.", narrow_branches),
    Named("sink-constants", "A constant that one branch or loop body alone reads is stored there, where runtimes "
          "prepare it when they load the model.", sink_constants),
    Named("drop-expands", "What broadcasts by itself needs no Expand before it.", drop_expands, infer_first=True),
    Named("merge-equal-nodes", "Equal operations on equal inputs are done once.", merge_equal_nodes),
)  # fmt: skip


def normalize(graph: Graph, event: Callable[[Named, Graph, Graph, list[str]], None] | None = None,
              rounds: int = 200, *, exact: bool = False) -> None:
    """Run all passes on `graph` in place until nothing changes; with `exact` those of that class alone.

    `event(pass, before, after, places)` is told of each pass that changed something. Types are up to date at the end.
    """
    typed = False  # types are up to date
    before: Graph | None = None  # the graph as it stands, for `event`
    idle = 0  # passes in a row that found nothing
    for _ in range(rounds):
        for named in PASSES:
            if idle == len(PASSES):
                break
            if named.infer_first and not typed:
                infer(graph)
                typed, before = True, None
            if event is not None and before is None:
                before = graph.copy()
            places = fold_reproducible(graph) if exact and named.run is fold_constants else named.run(graph)
            idle = 0 if places else idle + 1
            if places:
                typed = False
                if event is not None and before is not None:
                    event(named, before, graph, places)
                before = None
        if idle == len(PASSES):
            break
    if not typed:
        infer(graph)


def exactness(named: Named, before: Graph, places: list[str]) -> str:
    """The class of what a pass did to `before`."""
    if named.run is not fold_constants:
        return "exact"
    producers, waiting, seen = before.producers(), list(places), set[str]()
    while waiting:
        name = waiting.pop()
        node = producers.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if not is_reproducible(before, node):
            return "rounding"
        waiting.extend(each for each in node.inputs if each)
    return "exact"


__all__ = ["GROWN", "PASSES", "Named", "exactness", "normalize", "why_not_folded"]
