"""Specialised files, on request: sizes made constant, and several graphs of which a guard chooses at run time.

`fix_dims` makes symbolic dimensions of the inputs constant and optimizes what is left; the file then takes no other
sizes. What the report calls the speed-up is against the file that was given; rewrites that are no gain over that are
not handed back, only the constant sizes that were asked for. `buckets` optimizes the model for every size first, then
what came out once more for each size that is asked for. A bucket that is measured faster than the general graph at its
size becomes a branch of one file, whose last branch is the general graph; that file is handed back if it is validated
at every bucket and at a size outside, and measured faster at one of them and slower nowhere. Else the general graph
comes back, and the report says why. In the form of a manifest each bucket is a file of its own, without an If, which
costs time (`optimizer.manifest`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_model.comparison import Comparison
from cost_model.memory import peak_live_bytes
from graphs.errors import InvalidOption
from graphs.ir import Graph
from runtime.feeds import input_symbols
from runtime.validation import Validation, validate

from .context import Context
from .finalists import INPUT, Finalist, measure_whole
from .fixing import check_names, fixed_as_asked
from .headline import afresh
from .journaling import step
from .looks import second_look
from .on_device import on_device
from .options import Options
from .piecewise import check_opset, piecewise
from .pipeline import Pipeline
from .progress import Clock
from .report import constant_bytes, describe, sizes_text
from .reporting import measured_row
from .result import Result
from .roofline_report import roofline_section
from .stepnotes import add_fixing_cost

GENERAL, PIECEWISE, RESULT = "general", "piecewise", "result"
MOST_BUCKETS = 16  # nested one in the other
FIX = "fix-sizes"
FIX_MEANING = "Symbolic dimensions of the inputs become constants, as --fix-dim asks."
PIECEWISE_MEANING = "One graph for each bucket, and the general one for all other sizes; a guard on the sizes chooses."
Sizes = dict[str, int]


def optimize_specialized(graph: Graph, options: Options, clock: Clock) -> Result:
    """`optimize` with `fix_dims` or `buckets`. Raises InvalidOption for names and sizes that are not possible."""
    _check(graph, options)
    if options.buckets:
        check_opset(graph) if options.opset is None else None
    special = fixed_as_asked(graph, options.fix_dims, "--fix-dim") if options.fix_dims else graph
    own = options.model_copy(update={"dims": {name: sizes for name, sizes in options.dims.items()
                                              if name not in options.fix_dims}})
    run = Pipeline(special, own, clock)
    result = run.run()
    if options.buckets:
        _Buckets(run, result, clock).add()
    if options.fix_dims:
        _tell_fixed(graph, run, result)
    result.original = graph
    result.report["options"] = options.model_dump()
    clock.enter("done")
    result.report["stages"], result.report["seconds"] = clock.stages, round(clock.seconds, 3)
    return result


def _check(graph: Graph, options: Options) -> None:
    check_names(graph, list(options.fix_dims), "--fix-dim")
    check_names(graph, list(options.buckets), "--buckets")
    for name, size in options.fix_dims.items():
        if name in options.buckets:
            raise InvalidOption(f"--buckets {name}", f"--fix-dim {name}={size} makes it constant",
                                "leave one of them out")
        if options.dims.get(name, [size]) != [size]:
            raise InvalidOption(f"--dim {name}", f"--fix-dim {name}={size} makes it constant",
                                "leave it out: it is measured at that size")
    if options.buckets and options.memory_limit is not None:
        raise InvalidOption("--buckets", "a memory limit is for one graph, not for one of each size",
                            "leave --memory-limit or --buckets out")
    if options.buckets and options.objective != "time":
        raise InvalidOption("--buckets", f"it is for the objective time, not for {options.objective}",
                            "leave --objective or --buckets out")
    count = sum(1 for _ in _combinations(options.buckets))
    if count > MOST_BUCKETS:
        raise InvalidOption("--buckets", f"{count} combinations of sizes", f"ask for at most {MOST_BUCKETS}")


def _combinations(buckets: Mapping[str, list[int]]) -> Iterator[Sizes]:
    for sizes in itertools.product(*buckets.values()):
        yield dict(zip(buckets, sizes))


# ---------------------------------------------------------------- constant sizes


def _tell_fixed(graph: Graph, run: Pipeline, result: Result) -> None:
    """The trace begins with the model as it was given, and the report compares with that."""
    report, sizes = result.report, run.context.options.fix_dims
    bucketed = report.get("buckets", {}).get("chosen", False)
    entries = [Finalist(INPUT, graph, list), Finalist(RESULT, result.graph, list)]
    found, note = _against_the_file(entries, run.context)
    against_constant = report["measured"]
    if found.get("verdict") == "slower":
        left_out = not (report["unchanged"] or bucketed) and against_constant.get("verdict") != "faster"
        if left_out:
            _take_constant(run, result)
        run.context.warn("the result was measured slower than the file that was given: constant sizes do not pay here"
                         + (", and neither do rewrites, which were left out" if left_out else ""))
    first = step(FIX, FIX_MEANING, graph, run.original, sorted(sizes), "exact")
    first["patch"]["fix_dims"] = dict(sizes)
    first["after"] = [f"{name} = {size}" for name, size in sizes.items()]
    add_fixing_cost(first, graph, run.original, result.trace.steps, run.context)
    result.trace.steps = [{**each, "index": index} for index, each in enumerate([first, *result.trace.steps])]
    report["steps"] = len(result.trace.steps)
    report["rules_used"] = {FIX: 1, **report["rules_used"]}
    report["fixed"] = {"sizes": dict(sizes), "against_the_file": found, "against_constant_sizes": against_constant,
                       "note": note}
    if found and not bucketed:
        report["measured"] = {**found, "unsupported": {}, "note": "against the file that was given",
                              "against": f"the file that was given on {run.context.target.name}"}
        report["roofline"] = roofline_section(run.original, result.graph, run.context.costs, report["measured"])
    report["warnings"] = list(run.context.warnings)
    report["timings_hash"] = run.context.timings.content_hash()


def _against_the_file(entries: list[Finalist], context: Context) -> tuple[dict[str, Any], str]:
    """(the row of the result, empty where nothing was measured; a note). A "slower" is looked at twice; what a "faster"
    is worth pairs of fresh sessions say, where those are cheap."""
    sizes = context.sizes | context.options.fix_dims
    comparison, _, note = measure_whole(entries, context, sizes)
    if comparison is None or not comparison.samples or RESULT not in comparison.results:
        return {}, note
    if comparison.results[RESULT].verdict == "slower":
        again, _, _ = measure_whole(entries, context, sizes, look=2)
        comparison = comparison if again is None else second_look(comparison, again)
    faster = comparison.results[RESULT].verdict == "faster"
    alone = afresh(entries[0], entries[1], context, sizes, comparison) if faster else None
    return measured_row(RESULT, comparison if alone is None else alone), note


def _take_constant(run: Pipeline, result: Result) -> None:
    """The model with constant sizes, otherwise as it was given, is the result."""
    report, before = result.report, run.original
    result.graph, result.trace.steps = before, []
    report.update(after=describe(before), chosen=INPUT, unchanged=True, predicted=None,
                  predicted_note="the rewrites were left out", rules_used={})
    report["peak_live_bytes"]["after"] = report["peak_live_bytes"]["before"]
    report["roofline"] = roofline_section(before, before, run.context.costs, report["measured"])


# ---------------------------------------------------------------- buckets


@dataclass
class _Buckets:
    """Adds buckets to the result of a run for all sizes."""

    run: Pipeline
    result: Result
    clock: Clock
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def context(self) -> Context:
        """Of the run for all sizes."""
        return self.run.context

    def add(self) -> None:
        """Change the result to the piecewise one if that is right and pays, and its report in any case."""
        kept = [(sizes, graph) for sizes in _combinations(self.context.options.buckets)
                if (graph := self._specialized(sizes)) is not None]
        form = self.context.options.bucket_form
        found: dict[str, Any] = {"form": form, "rows": self.rows, "chosen": False, "reason": "", "outside": None,
                                 "validation": []}
        self.result.report["buckets"] = found
        if not kept:
            found["reason"] = "no bucket was measured faster than the general graph at its size"
        elif form == "manifest":
            self.result.variants = [(sizes, graph) for sizes, graph in kept if self._holds(graph, sizes, found)]
            found["chosen"] = bool(self.result.variants)
            found["reason"] = "" if found["chosen"] else "no bucket passed validation"
        else:
            self.clock.enter("buckets", "one file")
            combined = piecewise(self.result.graph, kept)
            found["reason"] = self._refused(combined, [sizes for sizes, _ in kept], found)
            if not found["reason"]:
                found["chosen"] = True
                self._take(combined)
        self.result.report["warnings"] = list(self.context.warnings)
        self.result.report["timings_hash"] = self.context.timings.content_hash()

    def _specialized(self, sizes: Sizes) -> Graph | None:
        """The graph for one bucket where it is measured faster than the general one."""
        text = sizes_text(sizes)
        self.clock.enter("buckets", text)
        fixed_as_asked(self.run.original, sizes, "--buckets")
        special = fixed_as_asked(self.result.graph, sizes, "--buckets")
        dims = {name: each for name, each in self.context.options.dims.items() if name not in sizes}
        options = self.context.options.model_copy(update={"buckets": {}, "fix_dims": {}, "dims": dims, "inputs": None})
        run = Pipeline(special, options, Clock())
        found = run.run()
        self.context.timings.used.update(run.context.timings.used)
        for warning in found.report["warnings"]:
            if warning not in self.context.warnings:  # what is said of the whole run already
                self.context.warn(f"bucket {text}: {warning}")
        row: dict[str, Any] = {"sizes": sizes, "nodes": found.graph.shown_count(), "steps": len(found.trace.steps)}
        self.rows.append(row)
        entries = [Finalist(INPUT, self.result.graph, list), Finalist("bucket", found.graph, list)]
        comparison, unsupported, note = measure_whole(entries, self.context, self.context.sizes | sizes)
        if INPUT in unsupported:
            raise InvalidOption(f"--buckets {text}", f"the model does not run at this size: {unsupported[INPUT]}",
                                "leave this size out")
        if comparison is None or "bucket" not in comparison.results:
            row["note"] = note or unsupported.get("bucket", "not measured")
            return None
        row.update(measured_row("bucket", comparison))
        return found.graph if row["verdict"] == "faster" else None

    def _refused(self, combined: Graph, kept: list[Sizes], found: dict[str, Any]) -> str:
        """Why the piecewise graph is not handed back, empty where it is; fills the report's rows."""
        outside = self._outside()
        found["outside"] = outside
        for sizes in [*kept, *([outside] if outside else [])]:
            if not self._holds(combined, sizes, found):
                return f"it did not pass validation at {sizes}"
        ahead = False
        for sizes in [*kept, *([outside] if outside else [])]:
            row = self._compared(combined, sizes)
            if row is None:
                return f"it could not be measured at {sizes}"
            found.setdefault("measured", []).append(row)
            if row["against_general"]["verdict"] == "slower":
                return f"it was measured slower than the general graph at {sizes}"
            ahead = ahead or row["against_general"]["verdict"] == "faster"
        return "" if ahead else "it was not measured faster than the general graph at any bucket"

    def _holds(self, graph: Graph, sizes: Sizes, found: dict[str, Any]) -> bool:
        """Does it pass validation at these sizes? A row of the report says so."""
        checked = self._validated(graph, self.context.sizes | sizes)
        on_device(self.run.original, graph, checked, self.context)
        found["validation"].append({"sizes": sizes, "status": checked.status, "summary": checked.summary(),
                                    "device": checked.device})
        if not checked.ok:
            self.context.warn(f"the graph for {sizes_text(sizes)} was dropped: {checked.summary()}")
        return checked.ok

    def _validated(self, combined: Graph, sizes: Sizes) -> Validation:
        options = self.context.options
        known = {name: size for name, size in sizes.items() if name in input_symbols(self.run.original)}
        return validate(self.run.original, combined, options.precision, seed=options.seed, sizes=known,
                        rtol=options.rtol, atol=options.atol)

    def _outside(self) -> Sizes | None:
        """A size that is no bucket and at which the model runs: what the run measured at, else one beside a bucket."""
        buckets = self.context.options.buckets
        base = {name: self.context.sizes[name] for name in buckets}
        beside = ({name: sizes[place] + change for name, sizes in buckets.items()}
                  for change in (-1, 1, -2, 2, 3) for place in (0, -1))
        for sizes in [base, *beside]:
            if all(size >= 1 and size not in buckets[name] for name, size in sizes.items()) and (
                    self._validated(self.result.graph, self.context.sizes | sizes).ok):
                return sizes
        self.context.warn("no size outside the buckets was found at which the model runs: the general branch of the "
                          "piecewise graph was not validated by itself")
        return None

    def _compared(self, combined: Graph, sizes: Sizes) -> dict[str, Any] | None:
        """The piecewise graph against the input and against the general graph, in turns."""
        entries = [Finalist(INPUT, self.run.original, list), Finalist(GENERAL, self.result.graph, list),
                   Finalist(PIECEWISE, combined, list)]
        comparison, _, _ = measure_whole(entries, self.context, self.context.sizes | sizes)
        if comparison is None or not {GENERAL, PIECEWISE} <= comparison.results.keys():
            return None
        return {"sizes": sizes, **measured_row(PIECEWISE, comparison), "against_general": _against(comparison)}

    def _take(self, combined: Graph) -> None:
        """The piecewise graph is the result."""
        report, before = self.result.report, self.result.graph
        last = step(PIECEWISE, PIECEWISE_MEANING, before, combined, [], "exact")
        self.result.trace.steps.append({**last, "index": len(self.result.trace.steps)})
        self.result.graph = combined
        measured = report["buckets"]["measured"][0]
        sizes = self.context.sizes | measured["sizes"]
        report.update(after=describe(combined), chosen=PIECEWISE, unchanged=False, steps=len(self.result.trace.steps),
                      measured={**measured, "unsupported": {}, "note": f"at {measured['sizes']}"}, predicted=None)
        report["target"]["sizes"] = sizes
        report["rules_used"][PIECEWISE] = 1
        report["peak_live_bytes"]["after"] = peak_live_bytes(combined, sizes)
        report["buckets"]["constant_bytes"] = {GENERAL: constant_bytes(before), PIECEWISE: constant_bytes(combined)}
        self.context.costs.sizes = sizes
        report["roofline"] = roofline_section(self.run.original, combined, self.context.costs, measured)


def _against(comparison: Comparison) -> dict[str, Any]:
    """The piecewise graph against the general one."""
    interval = comparison.ratio(PIECEWISE, GENERAL) if comparison.samples else None
    if interval is None:  # an estimate
        ratio = comparison.results[PIECEWISE].seconds / max(comparison.results[GENERAL].seconds, 1e-12)
        low = high = ratio
    else:
        ratio, low, high = interval.median, interval.low, interval.high
    return {"speed_up": 1 / ratio, "low": 1 / high, "high": 1 / low, "verdict": comparison.verdict(PIECEWISE, GENERAL)}
