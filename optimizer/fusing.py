"""Fusions in a run for `egraft:cpu` or `egraft:cuda`: kernels are tried for sets of nodes of the graphs that extraction
chooses, compete in the extraction as tiles, and become Fused nodes of the graphs that are measured whole, each kind a
step of the trace.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cost_model.costs import Cost
from cost_model.roofline import graph_roofline
from cost_model.signature import graph_digest
from graphs.ir import Graph, is_fused
from graphs.wording import counted
from runtime.fusion import Group, fuse
from search import ENode
from search.fusions import Discovery, Explorer, Fusion
from search.fusions.enumerate import is_movement
from search.steps import same_graph, value_keys
from search.tiles import Tile, tile_of

from . import journaling
from .candidates import Candidate, Improved
from .context import Context
from .finalists import NORMALIZED, numbered
from .fusing_bodies import BodyFuser, InBodies, Key, Named, fuse_again, moved_bodies
from .progress import Clock

RULE = "fuse"
ALONE = "kernel"  # the same for one node, which is fused with nothing
FUSED = ", fused"  # how names of fused finalists end


def tiles_in(graph: Graph, enodes: Sequence[ENode | None], context: Context) -> list[Tile]:
    """A tile for each set of nodes of a graph, whose nodes are these e-nodes, that is faster as one kernel.

    Views that others read as well are left out: they cost nothing, and the kernel reads through them.
    """
    assert context.explorer is not None
    readers: dict[str, set[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.uses:
            readers.setdefault(name, set()).add(index)
    found: list[Tile] = []
    for group, measured in context.explorer.faster(graph, context.sizes):
        own = [index for index in group.nodes if not _is_shared(graph, index, group, readers)]
        members = [enode for index in own if (enode := enodes[index]) is not None]
        alone = math.fsum(context.costs.node_in(graph, graph.nodes[index]).seconds for index in own)
        if len(members) == len(own) and measured.fused < alone < math.inf:
            leaving = [enode.cls for index in own if (enode := enodes[index]) is not None
                       and not set(graph.nodes[index].outputs).isdisjoint(group.others)]
            found.append(tile_of(members, alone - measured.fused, fused=True, leaving=leaving))
    return found


def _is_shared(graph: Graph, index: int, group: Group, readers: Mapping[str, set[int]]) -> bool:
    node = graph.nodes[index]
    if index == group.nodes[-1] or not is_movement(node):
        return False
    return len(node.outputs) > 1 or any(name in graph.outputs or readers.get(name, set()) - set(group.nodes)
                                        for name in node.outputs)


@dataclass
class _Kind:
    """A kind of fusion, wherever it is in a graph: nodes of the graph itself, and of which nested graphs."""

    fusion: Fusion
    explorer: Explorer
    groups: list[Group] = field(default_factory=list)
    inside: dict[Key, list[Named]] = field(default_factory=dict)


def fuse_candidates(normalized: Graph, improved: Improved, context: Context, clock: Clock) -> None:
    """Put Fused nodes into every candidate, and into the normalized graph, where that is measured to be faster; first
    into their nested graphs, which are the same in most of them."""
    explorer = context.explorer
    assert explorer is not None
    clock.enter("fusions", counted(normalized.node_count(), "node"))
    bodies = None if context.body_explorer is None else BodyFuser(context.body_explorer, context)
    entries = [Candidate(NORMALIZED, normalized, list, improved.predicted_input, lambda: numbered(improved.prefix),
                         lambda: normalized), *improved.candidates]
    done: dict[str, Candidate] = {}
    for each in entries:
        digest = graph_digest(each.graph)
        if digest in done:  # the same graph under another name
            continue
        inside = InBodies(each.graph) if bodies is None else bodies.fused(each.graph)
        found = explorer.discover(inside.graph, context.sizes)
        fused = found.groups or inside.placed
        done[digest] = _fused(each, inside, found, normalized, improved, context) if fused else each
    improved.candidates = [each for each in done.values() if each.name != NORMALIZED]
    improved.fusions = {**explorer.report(), "refused": {} if bodies is None else bodies.refused}
    if bodies is not None and bodies.explorer is not explorer:
        improved.fusions["on_host"] = bodies.explorer.report()
        bodies.explorer.close()
    explorers = [explorer] if bodies is None else [explorer, bodies.explorer]
    for reason in dict.fromkeys(each.trials.untried for each in explorers):
        if reason:
            context.warn(f"kernels were not tried: {reason}")
    explorer.close()
    clock.note(**explorer.counts)


def _fused(each: Candidate, inside: InBodies, found: Discovery, normalized: Graph, improved: Improved,
           context: Context) -> Candidate:
    graph = found.graph
    seconds = {group.output: fusion.fused for fusion, group in found.placed}
    for node in graph.nodes:
        if is_fused(node) and node.outputs[0] in seconds:
            context.costs.know(graph, node, Cost(seconds[node.outputs[0]], "measured"))
    gain = _gain(inside.graph, found, context) + _gain_inside(each.graph, inside, context)
    predicted = None if each.predicted is None else max(each.predicted - gain, 0.0)
    kinds = _kinds(inside, found, context)
    made = Candidate(each.name + FUSED, graph, each.rewrites, predicted, fusions=[kind.fusion for kind in kinds])
    made.steps = _traced(each, kinds, graph, normalized, improved, context)
    return made


def _kinds(inside: InBodies, found: Discovery, context: Context) -> list[_Kind]:
    """All kinds of fusions of a graph, those that save most first. A kind may be in the graph and in nested ones."""
    kinds: dict[tuple[str, str, int], _Kind] = {}

    def of(fusion: Fusion, explorer: Explorer | None) -> _Kind:
        assert explorer is not None
        return kinds.setdefault((fusion.signature, fusion.variant, id(explorer)),
                                _Kind(replace(fusion, count=0, inside={}), explorer))

    for fusion, group in found.placed:
        kind = of(fusion, context.explorer)
        kind.groups.append(group)
        kind.fusion.count += 1
    for key, placed in inside.placed.items():
        for fusion, named in placed:
            kind = of(fusion, context.body_explorer)
            kind.inside.setdefault(key, []).append(named)
            kind.fusion.count += 1
            kind.fusion.inside[key[0]] = kind.fusion.inside.get(key[0], 0) + 1
    return sorted(kinds.values(), key=lambda kind: (-(kind.fusion.unfused - kind.fusion.fused) * kind.fusion.count,
                                                    kind.fusion.signature))


def _gain_inside(graph: Graph, inside: InBodies, context: Context) -> float:
    """Predicted seconds that Fused nodes in nested graphs save."""
    known: set[str] = set()
    return math.fsum(context.costs.node_in(graph, old, known).seconds
                     - context.costs.node_in(inside.graph, new, known).seconds
                     for old, new in zip(graph.nodes, inside.graph.nodes, strict=True)
                     if inside.placed and old.holds_graphs and not is_fused(old))


def _gain(graph: Graph, found: Discovery, context: Context) -> float:
    """Predicted seconds that Fused nodes save: those of the nodes that are gone, less those of the kernels."""
    left = {name for node in found.graph.nodes for name in node.outputs}
    gone = [node for node in graph.nodes if not is_fused(node) and left.isdisjoint(node.outputs)]
    roots = {name for _, group in found.placed for name in group.outputs}
    gone += [node for node in graph.nodes if not roots.isdisjoint(node.outputs)]
    alone = math.fsum(seconds for node in gone if math.isfinite(seconds := context.costs.node_in(graph, node).seconds))
    return alone - math.fsum(fusion.fused for fusion, _ in found.placed)


def _traced(each: Candidate, kinds: Sequence[_Kind], graph: Graph, normalized: Graph, improved: Improved,
            context: Context) -> Callable[[], list[dict[str, Any]]]:
    """The candidate's steps and one for each kind of fusion, worked out on the graph that those steps lead to."""

    @functools.cache
    def steps() -> list[dict[str, Any]]:
        rows, present = list(each.steps()), each.replayed()
        names, exact = _names(each.graph, present), context.options.precision == "exact"
        fused: list[dict[str, Any]] = []
        within: dict[Key, list[Named]] = {}  # what is fused in nested graphs by now
        for kind in kinds:
            after = present
            for key, groups in kind.inside.items():
                within[key] = [*within.get(key, ()), *groups]
            if kind.inside:
                after = moved_bodies(fuse_again(each.graph, within, exact), after, names)
            here = [_moved(each.graph, group, after, names) for group in kind.groups]
            after = fuse(after, [group for group in here if group is not None], exact)
            fused.append(_step(kind, present, after, context))
            present = after
        if not same_graph(present, graph):
            return numbered([*improved.prefix, journaling.region(normalized, graph, context.options.precision)])
        return numbered([*rows, *fused])

    return steps


def _names(graph: Graph, other: Graph) -> dict[str, str]:
    """The value of another graph that computes the same, for each value of a graph."""
    if graph is other:
        return {name: name for node in graph.nodes for name in node.outputs}
    table: dict[object, int] = {}
    keys, others = value_keys(graph, table)[0], value_keys(other, table)[0]
    there = {key: name for name, key in reversed(others.items())}
    return {name: there[key] for name, key in keys.items() if key in there}


def _moved(graph: Graph, group: Group, other: Graph, names: Mapping[str, str]) -> Group | None:
    """The same nodes of another graph, where values are called otherwise and nodes stand in another order."""
    places = {name: index for index, node in enumerate(other.nodes) for name in node.outputs if name}
    outputs = [next(name for name in graph.nodes[index].outputs if name) for index in group.nodes]
    found = [places.get(names.get(name, "")) for name in outputs]
    if None in found or any(name not in names for name in group.outputs):
        return None
    own = [names[name] for name in group.outputs]
    return Group(tuple(sorted(index for index in found if index is not None)), own[0], tuple(own[1:]), group.variant)


def refusals(context: Context, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Why sets of nodes are no kernels in the result of these steps, as rules tell it: rule -> reason -> how often, and
    a place. Nothing for targets without fusions."""
    explorer = context.explorer
    if explorer is None:
        return {}
    if explorer.trials.note:
        return {rule: {explorer.trials.note: {"count": 0, "where": ""}} for rule in (RULE, ALONE)}
    found: dict[str, Any] = {}
    for operators, reason, output, count in explorer.why_not({
            step["fusion"]["signature"] for step in steps if "fusion" in step}):
        rows = found.setdefault(ALONE if len(operators) == 1 else RULE, {})
        row = rows.setdefault(reason, {"count": 0, "where": f"{output} ({' '.join(operators)})"})
        row["count"] += count
    return found


def _step(kind: _Kind, before: Graph, after: Graph, context: Context) -> dict[str, Any]:
    """A step with the kernel's text, measured seconds of one place, and operations per byte that moves."""
    fusion, exact = kind.fusion, context.options.precision == "exact"
    alone = len(fusion.operators) == 1
    what = "1 node runs as a kernel" if alone else f"{len(fusion.operators)} nodes run as one kernel"
    meaning = f"{what} of egraft's own ({fusion.label}), in {counted(fusion.count, 'place')}"
    if fusion.inside:
        meaning += f", {'all' if not kind.groups else sum(fusion.inside.values())} of them in nested graphs"
    where = [*(group.output for group in kind.groups), *fusion.inside]
    row = journaling.step(ALONE if alone else RULE, f"{meaning}.", before, after, where,
                          "exact" if exact else "rounding")
    body = fusion.body
    whole = fuse(body, [Group(tuple(range(len(body.nodes))), body.outputs[0], tuple(body.outputs[1:]))])
    apart, work = (graph_roofline(each, {}, context.costs.peaks(), context.costs.overhead().launch)
                   for each in (body, whole))
    kernel = kind.explorer.trials.text(fusion.body, exact, fusion.variant)
    row["kind"] = journaling.FUSION
    row["fusion"] = {**fusion.to_dict(), "gain_seconds": fusion.unfused - fusion.fused, "kernel": kernel,
                     "intensity": {"before": apart.traffic_intensity, "after": work.traffic_intensity}}
    return row
