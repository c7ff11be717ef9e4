"""A result for `egraft:cuda` on the GPU, as its user will run it: one session, planned and captured, run several times.

Validation runs graphs on the CPU, and a fused kernel was checked by itself. Neither sees what only a whole session
does: memory that several values share one after the other, runs recorded as one unit, what one run leaves for the next.
So the rounds of the validation are run again, on the same inputs, with the result on the device. Its outputs are judged
by the same yardstick: the original on the CPU, moved, and in float64. For the class `exact` they must also be, bit for
bit, those of the original on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from cost_model.blas import limited_to
from cost_model.targets.cuda import EgraftCuda
from cost_model.targets.estimated import Recorded
from graphs import dtypes
from graphs.errors import EgraftError, ExecutionFailed
from graphs.ir import Graph, is_fused
from graphs.operators import is_pure
from graphs.wording import counted
from runtime import Session
from runtime.execute import MOST_TURNS
from runtime.validation import Round, Validation, validate
from runtime.validation.pieces import is_large
from runtime.validation.report import FAILED, NOT_VALIDATED, PASSED
from search.fusions.budget import GPU_TARGET

from .context import Context
from .finalists import measuring_feeds

RUNS = 4  # of each round: launched one by one, captured, and replayed twice, on two sets of inputs in turns
REPORT_IT = "a defect of egraft, please report it"


@dataclass
class Sessions:
    """Runs some graphs on the device, each in one session, for `validate`. `error`: what the device said against a run;
    `unsteady`: how runs of one session differ. `one_at_a_time`: a session gives up its memory after each round."""

    target: EgraftCuda
    graphs: Collection[Graph]
    one_at_a_time: bool = False
    opened: list[Session] = field(default_factory=list)
    error: str = ""
    unsteady: str = ""

    def __call__(self, graph: Graph) -> Any:
        """The function of one of the graphs, None for others."""
        if not any(graph is each for each in self.graphs):
            return None
        session = Session(graph, target=GPU_TARGET, device=self.target.device, most_turns=MOST_TURNS)
        self.opened.append(session)
        return partial(self.run, session)

    def run(self, session: Session, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of the last of several runs, in turns on these inputs and on moved ones: runs on the same must
        agree to the bit, and what a run leaves behind is never what the next one should give."""
        try:
            moved, first = self._first(session, feeds)
            found = [first, *(session.run(feeds if number % 2 else moved) for number in range(1, RUNS))]
            for number in range(2, RUNS):
                before, again = found[number - 2], found[number]
                name = next((name for name in again if not same_bits(before[name], again[name])), None)
                if name is not None:
                    self.unsteady = (f"output {name!r} of run {number + 1} of a session is not that of run "
                                     f"{number - 1}, which had the same inputs")
                    raise ExecutionFailed(self.target.device.name, self.unsteady, REPORT_IT)
            if self.one_at_a_time:
                session.close()
        except EgraftError as error:
            if not self.unsteady:
                self.error = _said(error)
            raise
        return list(found[-1].values())

    def _first(self, session: Session, feeds: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Inputs whose floats have changed places, and what they give; the inputs as they are where those do not run.
        """
        moved = {name: np.roll(value, 1) if _is_float(value) else value for name, value in feeds.items()}
        try:
            return moved, session.run(moved)
        except EgraftError:  # the model need not take them; what the device itself says, it says again now
            return feeds, session.run(feeds)

    def close(self) -> None:
        """Give up the memory."""
        for session in self.opened:
            try:
                session.close()
            except EgraftError as error:  # what it met may be told of only now
                self.error = self.error or _said(error)

    @property
    def report(self) -> Any:
        """Of the session that was opened last."""
        return self.opened[-1].report


def same_bits(one: object, other: object) -> bool:
    """Two outputs are equal to the bit (NaNs as such)."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "O":
        return np.array_equal(one, other)
    if one.dtype.kind == "c":
        return same_bits(one.real, other.real) and same_bits(one.imag, other.imag)
    if one.dtype.kind == "f":
        return np.array_equal(one, other, equal_nan=True) and np.array_equal(np.signbit(one) & (one == one),
                                                                             np.signbit(other) & (other == other))
    return one.tobytes() == other.tobytes()


def on_device(original: Graph, graph: Graph, found: Validation, context: Context) -> None:
    """Validate on the device what `found` says is right on the CPU; `found.device` tells what came out.

    `found` fails where the outputs there are wrong; it is no longer validated where the device runs the original and
    not this graph; where nothing can be said about the device, it stays as it is.
    """
    if not found.ok or not context.target.name.startswith(GPU_TARGET):
        return
    target = _device_of(context)
    reason = _missing(context) if target is None else _refusal(target, original, found, context)
    if target is None or reason:
        found.device = _told(NOT_VALIDATED, reason, target)
        return
    with limited_to(1):  # of what the yardstick takes on the CPU
        _judge(target, original, graph, found, context)


def _device_of(context: Context) -> EgraftCuda | None:
    """The device that the result is for, where it is here."""
    target = context.target
    if isinstance(target, Recorded) and target.origin == "this machine":
        target = target.of
    return target if isinstance(target, EgraftCuda) and target.available() is None else None


def _missing(context: Context) -> str:
    database = context.target.database
    return (f"it is not here, the times are records of {context.target.origin}" if database is not None
            else str(context.target.available()))


def _refusal(target: EgraftCuda, original: Graph, found: Validation, context: Context) -> str:
    """Why the device cannot be asked; empty where it can."""
    nodes = [node for each in original.walk() for node in each.nodes]
    drawn = [node.label for node in nodes if not is_pure(node) and not is_fused(node)]
    if found.executed.get("not_executed"):
        return "nodes are not executed"
    if drawn:
        return f"each session draws random numbers of its own ({', '.join(drawn[:3])})"
    if context.late("to validate the result on the device"):
        return "the timeout left no time"
    if context.gpu.refusal is None:
        context.gpu.refusal = _does_not_run(target, original, context)
    if context.gpu.refusal:
        context.warn(f"the result was not validated on the device: {context.gpu.refusal}")
    return context.gpu.refusal


def _does_not_run(target: EgraftCuda, original: Graph, context: Context) -> str:
    """What the device says against the original: then it says nothing of a result."""
    try:
        session = Session(original, target=GPU_TARGET, device=target.device, most_turns=MOST_TURNS)
        try:
            session.run(measuring_feeds(original, context, context.sizes))
        finally:
            session.close()
    except EgraftError as error:
        return f"the input itself does not run there: {_said(error)}"
    return ""


def _judge(target: EgraftCuda, original: Graph, graph: Graph, found: Validation, context: Context) -> None:
    exact = context.options.precision == "exact"
    verdict, sessions = _compared(target, original, graph, found.rounds, context, exact)
    against, notes = "the original on the CPU", list[str]()
    if verdict.status == FAILED and not sessions.error:
        engine = _engine(target, original, found.rounds, context)
        if not engine.ok:  # not what was done to the graph: then it is to be no worse than the original is there
            notes.append(f"the input itself is not validated there: {engine.reason}")
            context.warn(f"{target.name} gives other outputs than the CPU on the input itself ({engine.reason}): "
                         f"{REPORT_IT}")
            against = "the original on the device"
            verdict, sessions = _compared(target, original, graph, found.rounds, context, exact, beside=True)
    if verdict.ok and exact and against != "the original on the device":
        against = "the original on the CPU, bit for bit the original on the device"
        verdict, sessions = _compared(target, original, graph, found.rounds, context, exact, beside=True)
    reason = sessions.unsteady or sessions.error or verdict.reason
    status = NOT_VALIDATED if sessions.error and verdict.status == FAILED else verdict.status
    found.device = _told(status, reason if status != PASSED else "", target, verdict, sessions, against, notes)
    if status == FAILED or sessions.error:
        found.status, found.reason = status, f"on the device ({target.device.name}): {reason}"
    elif status != PASSED:
        context.warn(f"the result was not validated on the device: {reason}")


def _engine(target: EgraftCuda, original: Graph, plan: list[Round], context: Context) -> Validation:
    """How the original itself fares there, asked once."""
    if context.gpu.engine is None:
        exact = context.options.precision == "exact"
        verdict, sessions = _compared(target, original, original.copy(), plan, context, exact)
        verdict.reason = sessions.unsteady or sessions.error or verdict.reason
        context.gpu.engine = verdict
    return context.gpu.engine


def _compared(target: EgraftCuda, original: Graph, graph: Graph, plan: list[Round], context: Context, exact: bool,
              beside: bool = False) -> tuple[Validation, Sessions]:
    """The verdict on a graph on the device against the original on the CPU, or `beside` it on the device too."""
    options = context.options
    exactness = "rounding" if exact and not beside else options.precision
    if is_large(original, graph):  # nor does the validation on the CPU hold such a graph in float64 as a whole
        plan = [replace(each, wide=False) for each in plan if not each.huge or exactness == "exact"]
    sessions = Sessions(target, [original, graph] if beside else [graph], beside)
    try:
        verdict = validate(original, graph, exactness, feeds=context.feeds, seed=options.seed, rtol=options.rtol,
                           atol=options.atol, executor=sessions, plan=plan)
    finally:
        sessions.close()
    return verdict, sessions


def _told(status: str, reason: str, target: EgraftCuda | None, verdict: Validation | None = None,
          sessions: Sessions | None = None, against: str = "", notes: Collection[str] = ()) -> dict[str, object]:
    """`validation.device` of the report."""
    found: dict[str, object] = {"status": status, "device": target.device.name if target is not None else None,
                                "reason": reason}
    if verdict is None or sessions is None or not sessions.opened:
        return {**found, "summary": f"{NOT_VALIDATED} on the device: {reason}"}
    report = sessions.report
    worst = verdict.worst
    found.update(against=against, rounds=len(verdict.rounds), runs=RUNS, captured=report.captured,
                 not_captured=report.not_captured, on_numpy=list(report.on_numpy),
                 worst=None if worst is None else {"output": worst.name, "error": worst.error, "allowed": worst.allowed,
                                                   "against": worst.against},
                 notes=[*notes, *verdict.notes])
    how = "captured" if report.captured else f"not captured: {report.not_captured}"
    text = f"{status} on {target.device.name if target is not None else ''}, against {against}"
    if reason:
        text += f": {reason}"
    return {**found, "summary": f"{text}; {counted(len(verdict.rounds), 'round')} of {RUNS} runs in one session, {how}"}


def _said(error: EgraftError) -> str:
    return " ".join(f"{error.where}: {error.found}".split())


def _is_float(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.size > 1 and dtypes.name_of(value.dtype) in dtypes.FLOATS


__all__ = ["RUNS", "Sessions", "on_device", "same_bits"]
