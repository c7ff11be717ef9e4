"""The search of a large graph: region by region, and equal regions once.

The graph is cut at narrow places; of regions that are equal but for their weights one is searched, and what was found
is done again on the others, where each rule is asked anew. Then the nodes around each cut are searched as regions of
their own, for what lies across it. Each part is handed on only if it costs no more than what it replaces.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from graphs.errors import ParseError, SearchFailed
from graphs.ir import Graph, NameSupply
from graphs.text import print_node
from graphs.wording import counted
from rules.declare import Rule
from search import Saturated, build, saturate
from search import trace as search_trace
from search.budget import Budget
from search.ordering import provable
from search.partition import Region, partition, seams
from search.stamp import Script, made_by, renamed
from search.steps import Rewriter, Step, same_graph

from . import searching
from .ahead import Ahead
from .candidates import Candidate, Improved
from .context import Context
from .finalists import LARGE_NODES
from .progress import Clock

TERMS_A_NODE = 12  # of the budget of a whole graph: how many nodes it is meant for
LEAST_TERMS = 1_500  # a region may grow to this, however small it is
REGION_SECONDS = 5.0  # the emergency brake
TRIES = 3  # how many searched regions one that is equal but for its weights is compared with
MAIN = {"time": "fastest predicted", "nodes": "fewest nodes", "memory": "fewest bytes"}


def is_large(graph: Graph, context: Context) -> bool:
    """The budget is too small to search the graph as a whole."""
    return len(graph.nodes) * TERMS_A_NODE > context.effort.budget.nodes


@dataclass
class Part:
    """What was found for one region: by kind of candidate its steps, its predicted seconds, what else is told."""

    scripts: dict[str, Script]
    predicted: dict[str, float]
    told: Improved
    copy: bool = False


@dataclass
class Pass:
    """A graph that was improved region by region. `names`: every name that was ever taken, also by what is gone again;
    `crossing`: values that were read across a cut."""

    graph: Graph
    names: NameSupply
    steps: list[Step] = field(default_factory=list)
    crossing: set[str] = field(default_factory=set)


def search(graph: Graph, context: Context, clock: Clock, improved: Improved) -> None:
    """Fill `improved` with candidates. Raises SearchFailed where the child process gave nothing for any region."""
    clock.enter("saturate", counted(len(graph.nodes), "node"))
    regions = partition(graph, context.options.keep)
    parts = _parts(regions, context, quick=len(graph.nodes) > LARGE_NODES)
    clock.note(**_counts(parts))
    _tell(improved, parts, context)
    clock.enter("build")
    main = MAIN[context.options.objective]
    for kind in _kinds(parts):
        done = _join(Pass(graph, NameSupply(graph.names())), regions, [part.scripts.get(kind) for part in parts])
        predicted = sum(part.predicted[kind] for part in parts)
        if kind == main:
            try:
                done, gained = _across(done, context)
                predicted -= gained
            except SearchFailed as error:
                context.warn(f"nothing was looked for across the cuts between regions: {error.found}")
        improved.candidates.append(Candidate(kind, done.graph, _given(done.steps), predicted))


def _kinds(parts: list[Part]) -> list[str]:
    return list(dict.fromkeys(kind for part in parts for kind in part.predicted))


def _across(done: Pass, context: Context) -> tuple[Pass, float]:
    """Search once more around each cut; the graph with all steps, and predicted seconds gained."""
    main = MAIN[context.options.objective]
    regions = seams(done.graph, done.crossing, context.options.keep)
    parts = _parts(regions, context, main, len(done.graph.nodes) > LARGE_NODES)
    again = _join(done, regions, [part.scripts.get(main) for part in parts])
    gained = sum((part.told.predicted_input or 0.0) - part.predicted[main] for part in parts)
    return Pass(again.graph, again.names, [*done.steps, *_continued(again.steps, len(done.steps))]), gained


def _continued(steps: list[Step], first: int) -> list[Step]:
    return [step if step.copy_of is None else dataclasses.replace(step, copy_of=step.copy_of + first)
            for step in steps]


# Regions


def _parts(regions: list[Region], context: Context, only: str = "", quick: bool = False) -> list[Part]:
    """What was found for each region, in their order; of one kind of candidate, or of all. `quick`: see `select`."""
    found: list[Part | None] = [None] * len(regions)
    alike: dict[object, list[int]] = {}
    for index, region in enumerate(regions):
        alike.setdefault(region.key, []).append(index)
    failures: list[SearchFailed] = []
    searched = partial(_searched, context=context, only=only, quick=quick)
    with Ahead([partial(_saturated, regions[group[0]], context) for group in alike.values()]) as ahead:
        context.costs.quiet = ahead.quiet
        try:
            for group in alike.values():
                if context.late("for all regions of the graph", 0.5):
                    found = [part or _untouched() for part in found]
                    break
                failures += _fill(found, group, regions, ahead, context, searched)
        finally:
            context.costs.quiet = nullcontext
    if failures and len(failures) == len(regions):
        raise failures[0]
    if failures:
        context.warn(f"the search of {counted(len(failures), 'region')} of the graph ended early "
                     f"({failures[0].found}); they were left as they are")
    return [part for part in found if part is not None]


def _fill(found: list[Part | None], alike: list[int], regions: list[Region], ahead: Ahead[Saturated],
          context: Context, searched: Callable[..., Part]) -> list[SearchFailed]:
    """Put into `found` what there is for equal regions: one is searched, and another where the steps do not hold."""
    rules = {rule.name: rule for rule in context.rules}
    tries: Counter[int] = Counter()
    failures: list[SearchFailed] = []
    saturate_next: Callable[[], Saturated] = ahead.take
    while alike:
        first, *others = alike
        alike = []
        try:
            part = found[first] = searched(regions[first], saturate_next(), repeated=bool(others))
        except SearchFailed as error:
            failures.append(error)
            part = found[first] = _untouched()
        for index in others:
            copied = _copied(part, regions[index], rules) if tries[index] < TRIES else None
            if copied is None:  # something else holds for these weights: the first of such is searched next
                tries[index] += 1
                alike.append(index)
            found[index] = copied
        if alike:
            if context.late("for all regions of the graph", 0.5):
                found[:] = [_untouched() if index in alike else part for index, part in enumerate(found)]
                break
            saturate_next = partial(_saturated, regions[alike[0]], context)
    return failures


def _saturated(region: Region, context: Context) -> Saturated:
    return saturate(region.graph, context.rules, _budget(region.graph, context.effort.budget),
                    keep=context.options.keep)


def _copied(part: Part, region: Region, rules: Mapping[str, Rule]) -> Part | None:
    """The same for a region that is equal but for its weights, where it holds for them."""
    scripts: dict[str, Script] = {}
    for kind, script in part.scripts.items():
        copied = script.on(region, rules)
        if copied is None:
            return None
        scripts[kind] = copied
    return Part(scripts, part.predicted, part.told, copy=True)


def _untouched() -> Part:
    return Part({}, defaultdict(float), Improved([]))


def _searched(region: Region, saturated: Saturated, context: Context, only: str, quick: bool, repeated: bool) -> Part:
    """What a search finds for a region. `repeated`: its steps will be done again on others."""
    graph = region.graph
    prices = searching.Prices(saturated, context)
    selections = searching.select(saturated, prices, context, lambda stage: None, alone=False, only=only,
                                  quick=quick)
    told = Improved([])
    searching.tell(told, saturated, selections, prices, context)
    part = Part({}, {}, told)
    for kind, selection in selections.items():
        part.predicted[kind] = told.predicted_input or 0.0
        built = build.build_graph(graph, saturated, selection)
        try:
            steps = search_trace.rebuild(graph, saturated, selection, built)
            if repeated:
                steps = provable(graph, steps, {rule.name: rule for rule in context.rules})
            script = Script(region, steps)
            failure = "" if same_graph(script.result, built) else "it gives another graph"
        except Exception as error:  # the region is right as it is; the defect is reported, not hidden
            failure = f"{type(error).__name__}: {error}"
        if failure:
            context.warn(f"the order of the rewrites of a region could not be rebuilt ({failure}), it was left as it "
                         "is: a defect of egraft, please report it")
        else:
            part.scripts[kind], part.predicted[kind] = script, searching.total(selection, prices)
    return part


def _budget(graph: Graph, whole: Budget) -> Budget:
    nodes = max(LEAST_TERMS, 2 * TERMS_A_NODE * len(graph.nodes))
    return dataclasses.replace(whole, nodes=min(whole.nodes, nodes), seconds=min(whole.seconds, REGION_SECONDS))


# The whole graph


def _join(given: Pass, regions: list[Region], scripts: list[Script | None]) -> Pass:
    """Apply the steps of all regions to the graph of `given`. Its names stay taken: all steps are replayed in one go,
    where a constant of an earlier step is still there under its name."""
    graph = given.graph
    rewriter = Rewriter(graph, given.names)
    now: dict[str, str] = {}  # value -> what those read who read it, of values of the regions before
    done = Pass(graph, given.names)
    first: dict[int, int] = {}  # id of the steps that a script repeats -> the index of the first of them

    for script in scripts:
        if script is None:
            continue
        begin = first.setdefault(id(script.source), len(done.steps))
        made: dict[str, str] = {}
        leaving = {name: name for name in script.region.leaving}
        resolve, called = _resolver(made, now), _resolver(made, {})
        for position, (step, shown) in enumerate(zip(script.steps, script.shown, strict=True)):
            for name in made_by(step.patch):
                if name not in made and name not in script.region.graph.constants:
                    made[name] = rewriter.names.fresh(name)
            new = renamed(step, resolve, called)
            new.before = [line if name is None else print_node(rewriter.uses.makers[resolve(name)])
                          for line, name in zip(step.before, shown, strict=True)]
            new.copy_of = begin + position if begin + position < len(done.steps) else None
            try:
                _apply(rewriter, new, leaving, (now, made))
            except ParseError as error:
                raise SearchFailed(f"step {new.rule!r}", f"it does not fit the whole graph: {error.found}",
                                   "this is a defect of egraft; please report it with the model") from error
            done.steps.append(new)
        now.update(leaving)
    done.crossing = {now.get(name, name) for region in regions for name in region.leaving}
    done.graph = build.checked(graph, rewriter.finish())
    return done


def _resolver(made: dict[str, str], now: dict[str, str]) -> Callable[[str], str]:
    return lambda name: made[name] if name in made else now.get(name, name)


def _apply(rewriter: Rewriter, step: Step, leaving: dict[str, str], tables: tuple[dict[str, str], ...]) -> None:
    """Apply a step, and note what is read now in place of values that leave the region.

    Within its region a value that was replaced keeps its name: as one of several outputs it may still be there.
    """
    taken = rewriter.apply(step.patch)
    for old, new in step.patch.replace.items():
        if new not in taken:
            leaving.update({name: new for name, value in leaving.items() if value == old})
    for new, output in taken.items():  # what computes the new value makes the output of the graph now
        for table in (leaving, *tables):
            table.update({name: output for name, value in table.items() if value == new})
        tables[0].setdefault(new, output)


def _given(steps: list[Step]) -> Callable[[], list[Step]]:
    return lambda: steps


# What is told


def _tell(improved: Improved, parts: list[Part], context: Context) -> None:
    """Add up what was told of each region."""
    improved.predicted_input = sum(part.told.predicted_input or 0.0 for part in parts)
    improved.input_sources = sum((part.told.input_sources for part in parts), Counter())
    improved.statistics = _counts(parts)
    unused: dict[str, dict[str, Any]] = {}
    for part in parts:
        for rule, reasons in part.told.refusals.items():
            rows = improved.refusals.setdefault(rule, {})
            for reason, row in reasons.items():
                known = rows.setdefault(reason, {**row, "count": 0})
                known["count"] += row["count"]
        for row in part.told.not_used:
            known = unused.setdefault(row["rule"], {**row, "places": 0})
            known["places"] += row["places"]
    improved.not_used = sorted(unused.values(), key=lambda row: (-row["places"], row["rule"]))[:searching.SHOWN_UNUSED]


def _counts(parts: list[Part]) -> dict[str, Any]:
    """Regions, how many were searched, why those searches stopped, and the sums of what they found."""
    searched = [part.told.statistics for part in parts if not part.copy and part.told.statistics]
    stops = Counter(row["stop"] for row in searched)
    sums: dict[str, float] = {name: sum(row[name] for row in searched)
                              for name in ("seconds", "terms", "enodes", "classes", "firings")}
    return {"stop": ", ".join(f"{stop} ({count})" if len(stops) > 1 else stop for stop, count in stops.items()),
            "iterations": max((row["iterations"] for row in searched), default=0), **sums,
            "held": {}, "regions": len(parts), "searched": len(searched)}
