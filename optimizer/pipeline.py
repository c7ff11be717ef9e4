"""The pipeline: load, normalize, saturate, measure, extract, choose between finalists, validate.

The input is always the incumbent: what comes back is never measured slower, and never fails its validation. Whatever
goes wrong on the way (a search that dies, a rewrite that fails validation, a target that cannot run the model) costs
speed-up, is reported, and never the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import search
from graphs import load
from graphs.errors import EgraftError, InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.structure import check_outputs
from runtime.training.preview import without_training_operators
from search.fusions import takes_fusions

from . import apart, finalists, fusing
from .candidates import Improved
from .collecting import rare_collections
from .context import Context, open_context
from .finalists import Finalist, Outcome
from .headline import confirmed
from .journaling import FUSION, Journal, after, step
from .limiting import handed_back, limited
from .options import Options
from .progress import Clock, Progress
from .remembered import as_traced, keep, recall
from .report import of_the_file
from .reporting import assemble, peak_memory
from .result import Result, Trace
from .rewriting import BODIES, improve_graph
from .stepnotes import add_notes
from .validating import checked, checked_apart, first_valid, guilty_step

UNPACK = "unpack-fused"
UNPACKED = "The bodies of fused nodes, which are for egraft's own runtime, take their places."
REMEMBERED = ("the result of an earlier run was found, replayed and validated again: no other stage ran "
              "(`remembered` says when it was made, --fresh makes it anew)")
MAX_DROPPED = 3  # rules that one run may find guilty and do without


def optimize(model: Graph | str | Path | bytes, options: Options | None = None, *, progress: Progress | None = None,
             **settings: Any) -> Result:
    """Optimize a graph or the model in a file.

    `settings` are fields of `Options` (`target="onnxruntime:cpu"`, `precision="exact"`, `dims={"batch": [1, 8]}`).
    Returns the graph, the report and the trace; raises an `EgraftError` for bad input or impossible options. The
    graph given is not changed.
    """
    from pydantic import ValidationError

    if options is not None and settings:
        raise InvalidOption("optimize", "both an Options object and single settings", "give one of them")
    if options is None:
        try:
            options = Options(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidOption(str(first["loc"][0]), f"{first.get('input')!r}: {first['msg']}",
                                "see optimizer.options.Options") from None
    clock = Clock(progress)
    clock.enter("load")
    search.prepare()
    graph = without_training_operators(model.copy() if isinstance(model, Graph) else load(model))
    with rare_collections(graph.node_count()):
        if options.fix_dims or options.buckets:
            from .specialize import optimize_specialized

            return optimize_specialized(graph, options, clock)
        return Pipeline(graph, options, clock).run()


def optimize_file(path: Path, options: Options, progress: Progress | None = None) -> Result:
    """`optimize` for the command line and workers."""
    return optimize(path, options, progress=progress)


@dataclass(frozen=True)
class _Noted:
    """Steps with what is told of them, and the graph that they lead to, as far as there was time and they replay."""

    steps: list[dict[str, Any]]
    graph: Graph | None = None
    defect: str = ""


class Pipeline:
    """One run over one graph."""

    def __init__(self, graph: Graph, options: Options, clock: Clock) -> None:
        check_outputs(graph)
        infer(graph)
        fused, unfused = _read_functions(graph)
        self.clock = clock
        self.context: Context = open_context(fused, options)
        self.context.started = clock.start
        takes_fused = takes_fusions(self.context.target.name)
        self.original = fused if takes_fused else unfused
        self.unpacked = [] if takes_fused or unfused is graph else [
            step(UNPACK, UNPACKED, graph, unfused, [], "exact")]
        self.dropped: list[dict[str, Any]] = []

    def run(self) -> Result:
        """All stages in order, unless what they gave is known; again without a rule that validation found guilty."""
        self.clock.enter("recall")
        known = None if self.unpacked else recall(self.original, self.context)
        if known is not None:
            self.clock.note(remembered=REMEMBERED)
            self.clock.enter("done")
            known.report["model"].update(of_the_file(self.original))
            known.report.update(stages=self.clock.stages, seconds=round(self.clock.seconds, 3),
                                options=self.context.options.model_dump(), peak_memory_bytes=peak_memory(),
                                warnings=list(self.context.warnings))
            return Result(known.graph, known.report, known.trace, self.original)
        with apart.started(self.original, self.context) as process:
            return self._made(process)

    def _made(self, process: apart.Apart | None) -> Result:
        """`run` without what is known."""
        noted: list[tuple[Finalist, _Noted]] = []

        def note(entry: Finalist) -> None:
            noted.append((entry, self._noted(entry)))

        check = checked if process is None else partial(checked_apart, apart=process, meanwhile=note)
        for _ in range(MAX_DROPPED + 1):
            improved, outcome = self._attempt()
            if finalists.INPUT in outcome.unsupported and self.context.other_sizes(self.original):
                continue
            if self.context.options.memory_limit is not None:
                self.clock.enter("recompute")
                outcome = limited(self.original, outcome, self.context)
            self.clock.enter("validate", best=outcome.best_seconds)
            winner, validation, failed = first_valid(self.original, outcome, self.context, check)
            if failed is None or not self._drop(failed):
                break
        self.clock.enter("report")
        found = next((told for entry, told in noted if entry is winner), None) or self._noted(winner)
        if found.defect:  # the result is right without it; the defect is reported, not hidden
            self.context.warn(found.defect)
        refusals = improved.refusals | fusing.refusals(self.context, found.steps)
        trace = Trace(after(self.unpacked, found.steps), refusals, self._model())
        if not self.unpacked:
            winner.graph = as_traced(self.original, winner.graph, trace, found.graph)
        handed_back(winner, outcome, self.context)
        report = assemble(self.original, winner, outcome, validation, self.dropped, improved, self.context,
                          self.clock, trace)
        self.clock.enter("done")
        report["stages"], report["seconds"] = self.clock.stages, round(self.clock.seconds, 3)
        if not self.unpacked:
            keep(self.original, winner.graph, report, trace, self.context)
        return Result(winner.graph, report, trace, self.original)

    def _noted(self, entry: Finalist) -> _Noted:
        """The trace of a finalist, with costs and errors of its steps."""
        steps = entry.steps()
        if self.context.late("for costs and errors of the steps"):
            return _Noted(steps)
        try:
            return _Noted(steps, add_notes(self.original, steps, self.context))
        except EgraftError as error:
            return _Noted(steps, None, f"the trace does not replay ({error.where}: {error.found}): a defect of egraft, "
                          "please report it")

    def _attempt(self) -> tuple[Improved, Outcome]:
        normalized, improved = improve_graph(self.original, self.context, self.clock, Journal())
        self.clock.enter("finalists")
        entries = finalists.enter(self.original, normalized, improved, self.context.target.reads_types)
        if self.context.options.stages != "all":
            return improved, finalists.not_measured(entries)
        outcome = finalists.race(entries, self.context, improved.predicted_input)
        return improved, confirmed(entries[0], outcome, self.context, improved.predicted_input)

    def _drop(self, failed: Finalist) -> bool:
        """Find the rule that made a finalist fail and do without it; False where that cannot help."""
        step = guilty_step(self.original, failed, self.context)
        rule = step["rule"] if step is not None else None
        self.dropped.append({"rule": rule, "finalist": failed.name, "reason": failed.failure,
                             "where": step["where"] if step else [], "before": step["before"] if step else [],
                             "after": step["after"] if step else []})
        self.context.warn(f"a result failed validation and was dropped; the guilty step is {rule or 'not known'}: "
                          "this is a defect of egraft, please report it")
        if step is not None and step.get("kind") == FUSION:
            for each in (self.context.explorer, self.context.body_explorer):
                if each is not None:
                    each.refused.add(step["fusion"]["signature"])
            return True
        if rule == BODIES and not self.context.exact_bodies:  # which rule did it is not known: all of them are one step
            self.context.exact_bodies = True
            return True
        kept = [each for each in self.context.rules if each.name != rule]
        found = len(kept) < len(self.context.rules)
        self.context.rules = kept
        return found

    def _model(self) -> dict[str, Any]:
        return {"name": self.original.name, "nodes": self.original.shown_count(), "opset": self.original.opset}


def _read_functions(graph: Graph) -> tuple[Graph, Graph]:
    """With Fused nodes in the place of the functions that an optimized file has for them, and with their bodies."""
    if not graph.functions:
        return graph, graph
    from runtime.fused_functions import fused_again, unfused

    return fused_again(graph), unfused(graph)
