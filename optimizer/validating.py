"""Validation of finalists; a failing one is bisected over its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cost_model.blas import limited_to
from graphs.errors import EgraftError
from graphs.ir import Graph, is_fused
from graphs.operators import is_pure
from runtime import Session
from runtime.feeds import draw
from runtime.validation import Validation, validate
from runtime.validation.report import FAILED

from .apart import Apart
from .context import Context
from .finalists import INPUT, Finalist, Outcome, measuring_feeds
from .on_device import on_device, same_bits
from .replay import replay

RUNS = 5  # of one session: after the second and third what runs in one call has been found


def check(original: Graph, graph: Graph, context: Context) -> Validation:
    """Validate a graph against the original with the options of the run."""
    with limited_to(1):  # the same numbers on every machine; small products in several threads mostly wait
        return validate(original, graph, **_arguments(context))


def check_everywhere(original: Graph, graph: Graph, context: Context) -> Validation:
    """`check`, then on the device that the graph is for."""
    found = check(original, graph, context)
    on_device(original, graph, found, context)
    return found


def _arguments(context: Context) -> dict[str, Any]:
    options = context.options
    return {"exactness": options.precision, "feeds": context.feeds, "seed": options.seed, "rtol": options.rtol,
            "atol": options.atol, "fallback": dict(context.sizes)}


def checked(original: Graph, entry: Finalist, context: Context) -> Validation:
    """A graph that recomputes is one that holds, to the bit. To compare it with the original in float64 would not do:
    decisions (which of several is the maximum) are those of the original in the runs that are compared, and copies of
    nodes would make their own."""
    if entry.base is None:
        return check(original, entry.graph, context)
    found = check(original, entry.base, context)
    if not found.ok:
        return found
    with limited_to(1):
        same = validate(entry.base, entry.graph, "exact", feeds=context.feeds, seed=context.options.seed,
                        fallback=context.sizes)
    if not same.ok:
        return same
    found.notes.append("with values computed again: equal bit for bit, in runs of their own")
    return found


def holds_alone(body: Graph, better: Graph, place: str, context: Context) -> bool:
    """False where a rewritten nested graph fails on inputs of its own. Runs of the whole model may never take a branch:
    random inputs decide as they happen to (a model that asks for a rate of 16000 gets another one)."""
    reason = fault_alone(body, better, context)
    if reason:
        context.warn(f"{place}: rewritten by itself it failed validation ({reason}) and stays as it was: a defect of "
                     "egraft, please report it")
    return not reason


def fault_alone(body: Graph, better: Graph, context: Context) -> str:
    """Why what was made of a nested graph fails on inputs of its own; empty where it does not."""
    for sizes in (None, dict(context.sizes)):  # the usual ones first: a branch may be for some sizes only
        try:
            with limited_to(1):
                found = validate(body, better, context.options.precision, seed=context.options.seed, sizes=sizes,
                                 rtol=context.options.rtol, atol=context.options.atol)
        except EgraftError:  # no inputs can be drawn, of an unknown rank for instance: the whole model decides
            continue
        if found.ok or found.status == FAILED:
            return found.reason if found.status == FAILED else ""
    return ""


def checked_apart(original: Graph, entry: Finalist, context: Context, *, apart: Apart,
                  meanwhile: Callable[[Finalist], object]) -> Validation:
    """`checked`, with something else done at the same time."""
    if entry.base is None and apart.begin(original, entry.graph, _arguments(context)):
        meanwhile(entry)
        found = apart.result()
        if found is not None:
            return found
    return checked(original, entry, context)


def first_valid(original: Graph, outcome: Outcome, context: Context,
                check: Callable[[Graph, Finalist, Context], Validation] = checked,
                ) -> tuple[Finalist, Validation | None, Finalist | None]:
    """(the first finalist that holds, its validation, the better one that failed if there was one).

    The input itself needs no validation.
    """
    failed: Finalist | None = None
    for entry in outcome.ranked:
        if entry.name == INPUT:
            return entry, None, failed
        if context.late("to validate anything: the input is handed back"):
            break
        found = check(original, entry, context)
        if found.ok:
            found.reason = unsteady(entry.graph, context)
            found.status = FAILED if found.reason else found.status
            on_device(original, entry.graph, found, context)
        if found.ok:
            return entry, found, failed
        if found.status == FAILED:
            entry.failure = found.reason
            failed = failed or entry
        else:
            context.warn(f"{entry.name}: {found.summary()}; what cannot be validated is not handed back")
    return Finalist(INPUT, original, list), None, failed


def unsteady(graph: Graph, context: Context) -> str:
    """How results of one session differ from run to run: its first run takes fused nodes one by one, later ones run
    several in one call. Empty where they do not, to the bit."""
    nodes = [node for each in graph.walk() for node in each.nodes]
    if not any(is_fused(node) for node in nodes) or not all(is_pure(node) or is_fused(node) for node in nodes):
        return ""
    try:
        return _unsteady(graph, measuring_feeds(graph, context, context.sizes), context)
    except EgraftError as error:
        context.warn(f"the result was not run several times in a row: {error}")
    return ""


def unsteady_alone(body: Graph, context: Context) -> str:
    """`unsteady` of a nested graph, on inputs of its own."""
    if not all(is_pure(node) for each in body.walk() for node in each.nodes):
        return ""
    for sizes in (dict(context.sizes), None):
        try:
            return _unsteady(body, draw(body, context.options.seed, sizes), context)
        except EgraftError:  # as in `fault_alone`
            continue
    return ""


def _unsteady(graph: Graph, feeds: Mapping[str, Any], context: Context) -> str:
    session = Session(graph, threads=context.threads)
    first = session.run(feeds, count=True)
    for number in range(2, RUNS + 1):
        again = session.run(feeds)
        name = next((name for name in first if not same_bits(first[name], again[name])), None)
        if name is not None:
            return (f"output {name!r} of run {number} of a session is not that of its first run: a defect of egraft, "
                    "please report it")
    return ""


def guilty_step(original: Graph, entry: Finalist, context: Context) -> dict[str, Any] | None:
    """The first step of a failing finalist's trace after which validation fails, None where none does."""
    steps = entry.steps()
    low, high = 0, len(steps)
    if check_everywhere(original, replay(original, steps), context).ok:
        return None  # the trace does not show the difference: it lies in what the trace leaves out
    while high - low > 1:
        middle = (low + high) // 2
        if _holds(original, replay(original, steps[:middle]), context):
            low = middle
        else:
            high = middle
    return steps[high - 1]


def _holds(original: Graph, graph: Graph, context: Context) -> bool:
    try:
        return check_everywhere(original, graph, context).ok
    except EgraftError:
        return False
