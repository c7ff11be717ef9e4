"""What a run needs besides the graph: target, timings, costs, rules, budgets, sizes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_model.node_costs import NodeCosts, node_work
from cost_model.protocol import Settings
from cost_model.signature import each_kind, spec_of
from cost_model.sizes import default_measure_sizes, measure_size_sets
from cost_model.targets import Target, resolve
from cost_model.targets.base import Feeds, prepared
from cost_model.timings import Timings
from graphs.canonical import newest_opset
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.machine import cores_visible
from graphs.onnx_io import writable
from graphs.wording import counted
from rules.catalogue import all_rules
from rules.declare import Rule, allowed
from runtime.codegen.c import passed_over
from search import budget as budgets
from search.fusions import TARGET, FusionBudget, takes_fusions
from search.fusions.budget import GPU_SECONDS

from .options import Options, check_threads
from .sizing import check_asked, first_sizes, sizes_that_run

if TYPE_CHECKING:
    from runtime.validation import Validation
    from search.fusions import Explorer


OLDEST_OPSET = 7  # older ones are read, and nothing is promised for them (docs/opsets.md)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much one effort level may do. Seconds are emergency brakes; the rest is reproducible."""

    budget: budgets.Budget
    measure_seconds: float
    extract_seconds: float
    compare: Settings
    rounds: int  # of measuring what an extraction chose and extracting again
    fusions: FusionBudget


# No node of a model reaches these: runtimes then keep to one thread, and its processor time can be measured.
SMALL_FLOPS = 2e6
SMALL_BYTES = 1 << 19

EFFORTS = {
    "low": Effort(budgets.LOW, 3.0, 2.0, Settings(budget=2.0, max_rounds=30), 1,
                  FusionBudget(candidates=24, seconds=20.0)),
    "normal": Effort(budgets.NORMAL, 12.0, 6.0, Settings(budget=10.0), 3, FusionBudget()),
    "high": Effort(budgets.HIGH, 60.0, 60.0, Settings(budget=30.0, max_rounds=300), 5,
                   FusionBudget(candidates=400, seconds=300.0)),
}


def within(effort: Effort, timeout: float | None) -> Effort:
    """The effort with limits that fit into so many seconds. What begins after them is asked of `Context.late`."""
    if timeout is None:
        return effort
    budget, compare, fusions = effort.budget, effort.compare, effort.fusions
    return replace(effort, budget=replace(budget, seconds=min(budget.seconds, timeout / 4),
                                          hard_seconds=min(budget.hard_seconds, 0.4 * timeout),
                                          wall_seconds=min(budget.wall_seconds, 0.4 * timeout)),
                   measure_seconds=min(effort.measure_seconds, timeout / 5),
                   extract_seconds=min(effort.extract_seconds, timeout / 20),
                   compare=replace(compare, budget=min(compare.budget, timeout / 5)),
                   fusions=replace(fusions, seconds=min(fusions.seconds, timeout / 5)))


@dataclass
class OnGpu:
    """What a run has found out about its GPU: `refusal` says why nothing can be validated there (None: not asked yet),
    `engine` how the input itself fares there."""

    refusal: str | None = None
    engine: Validation | None = None


@dataclass
class Context:
    """One run's surroundings."""

    options: Options
    target: Target
    timings: Timings
    costs: NodeCosts
    rules: list[Rule]
    effort: Effort
    sizes: dict[str, int]
    threads: int
    feeds: dict[str, np.ndarray] | None = None
    explorer: Explorer | None = None  # of fusions, where the target takes them
    body_explorer: Explorer | None = None  # of fusions in nested graphs, which run on the processor
    more_sizes: list[dict[str, int]] = field(default_factory=list)  # at which the winner must not be slower either
    warnings: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)  # of the run, loading included
    exact_bodies: bool = False  # nested graphs are rewritten by exact rules alone, since others failed validation
    gpu: OnGpu = field(default_factory=OnGpu)

    def late(self, what: str, share: float = 1.0) -> bool:
        """This share of the run's time is over, and `what` is left out, so that there is time for what comes after it
        (what was found must be validated); a warning says so."""
        timeout = self.options.timeout
        if timeout is None or time.monotonic() - self.started <= share * timeout:
            return False
        self.warn(f"the timeout of {timeout:g} s left no time {what}")
        return True

    def warn(self, text: str) -> None:
        """Add a warning to the report, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def other_sizes(self, graph: Graph) -> bool:
        """Go on with sizes at which the target runs the graph; False if none are known, or these are."""
        sizes = sizes_that_run(graph, self.sizes, self.options.dims, self.options.seed, self._as_measured(graph))
        if self.feeds is not None or sizes is None or sizes == self.sizes:
            return False
        self.sizes = sizes
        self.costs = NodeCosts(self.target, self.timings, sizes, threads=self.threads, opset=graph.opset,
                               budget_seconds=self.effort.measure_seconds, frozen=self.options.frozen)
        return True

    def _as_measured(self, graph: Graph) -> Callable[[Feeds], None]:
        """The graph is tried as it is measured: optimized by the runtime, with outputs bound."""
        return lambda feeds: prepared(self.target, graph, feeds, self.threads).close()

    def describe_target(self) -> dict[str, Any]:
        """What the report says first."""
        found = self.target.fingerprint
        fields = json.loads(found.text)
        libraries = [f"{name} {fields[name]}" for name in ("onnxruntime", "cupy", "numpy") if fields.get(name)]
        if fields.get("gpu"):
            device = ", ".join([fields["gpu"], *([f"driver {fields['driver']}"] if fields.get("driver") else []),
                                *libraries])
        else:
            device = ", ".join([str(fields.get("cpu", "unknown device")), counted(fields.get("cores", "?"), "core"),
                                *libraries])
        if self.target.database is not None:
            device += f" ({self.target.origin}; records of {Path(self.target.database.path).name})"
        return {"name": self.target.name, "device": device, "threads": self.threads, "fingerprint": found.digest,
                "fingerprint_fields": fields, "sizes": self.sizes}


def open_context(graph: Graph, options: Options) -> Context:
    """Resolve options against the graph; raises InvalidOption or TargetUnavailable before any work is done."""
    from .commands import load_feeds

    if options.stages != "all" and options.objective != "time":
        raise InvalidOption(f"--stages {options.stages}", f"it is for the objective time, not for {options.objective}",
                            "leave one of them out")
    from_onnx = bool(graph.extras.get("from_onnx", True))
    check_threads(options)
    target = resolve(options.target, from_onnx, options.timings if options.frozen else None)
    if options.opset is not None:
        _set_opset(graph, options.opset)
    known = {rule.name for rule in all_rules()}
    for name in options.disabled_rules:
        if name not in known:
            raise InvalidOption(f"--disable-rule {name}", "no rule has this name", "egraft rules lists them")
    _check_keep(graph, options)
    rules = [rule for rule in all_rules()
             if allowed(rule.exactness, options.precision) and rule.name not in options.disabled_rules]
    threads = options.threads or default_threads(graph, options.dims, target)
    feeds = load_feeds(Path(options.inputs)) if options.inputs is not None else None
    timings = Timings(options.timings, frozen=options.frozen)
    more = measure_size_sets(graph, options.dims)[1:] if options.dims and feeds is None else []
    check_asked(graph, options.dims if feeds is None else {})
    sizes = first_sizes(graph, options.dims, feeds, target, threads, options.seed, timings)
    effort = within(EFFORTS[options.effort], options.timeout)
    costs = NodeCosts(target, timings, sizes, threads=threads, opset=graph.opset,
                      budget_seconds=effort.measure_seconds, frozen=options.frozen)
    explorer = _explorer(options, target, timings, threads)
    inside = explorer if explorer is None or target.name.startswith(TARGET) else _body_explorer(
        options, target, timings, threads)
    context = Context(options, target, timings, costs, rules, effort, sizes, threads, feeds, explorer, inside, more)
    crowded = too_many_threads(threads, target)
    if crowded is not None:
        context.warn(crowded)
    other_compiler = passed_over() if explorer is not None and target.name == TARGET else None
    if other_compiler is not None:
        context.warn(other_compiler)
    return context


def _explorer(options: Options, target: Target, timings: Timings, threads: int) -> Explorer | None:
    if not takes_fusions(target.name) or options.objective != "time" or options.stages != "all":
        return None
    if target.database is not None and target.name.startswith(TARGET):
        return None  # kernels of the CPU are filed with their compiler, which the other machine's records do not name
    from search.fusions import Explorer

    effort = EFFORTS[options.effort]
    if not target.name.startswith(TARGET):
        effort = replace(effort, fusions=replace(effort.fusions, seconds=GPU_SECONDS * effort.fusions.seconds))
    budget = within(effort, options.timeout).fusions
    return Explorer(timings, threads=threads, exact=options.precision == "exact", budget=budget,
                    target=target)


def _body_explorer(options: Options, target: Target, timings: Timings, threads: int) -> Explorer:
    """For what `egraft:cuda` runs on the processor."""
    from search.fusions import Explorer

    budget = within(EFFORTS[options.effort], options.timeout).fusions
    return Explorer(timings, threads=threads, exact=options.precision == "exact", budget=budget,
                    target=target, on_host=True)


def default_threads(graph: Graph, dims: dict[str, list[int]], target: Target) -> int:
    """What the runtime would use; one thread for a model so small that waking another costs more than it gains."""
    sizes = default_measure_sizes(graph, dims)
    works = (node_work(spec_of(graph, node, sizes)) for node in each_kind(graph))  # until one that is not small
    small = all(work is not None and work.flops < SMALL_FLOPS and work.bytes < SMALL_BYTES for work in works)
    return 1 if small else target.default_threads()


def too_many_threads(threads: int, target: Target) -> str | None:
    """What to tell where times of a processor are measured with more threads than cores that the process may use. A
    GPU's times are its own."""
    cores = cores_visible()
    if threads <= cores or not target.measures or target.name.endswith(":cuda"):
        return None
    return (f"{threads} threads share the {counted(cores, 'core')} that this process may use: times, speed-ups and "
            "ratios are those of threads that wait for each other, and may be wrong by far; "
            f"measure with --threads {cores}, or let the process use more cores")


def _set_opset(graph: Graph, opset: int) -> None:
    """Write at another opset: only if every node can be written there."""
    if opset != graph.opset and not OLDEST_OPSET <= opset <= newest_opset():
        raise InvalidOption(f"--opset {opset}", "egraft does not write this opset",
                            f"give {OLDEST_OPSET} to {newest_opset()}, the newest that the onnx package here knows")
    for each in graph.walk():
        for node in each.nodes:
            reason = writable(node, opset, each)
            if reason is not None:
                raise InvalidOption(f"--opset {opset}", f"{node.label} cannot be written: {reason}",
                                    "choose another opset")
    graph.opsets[""] = opset


def _check_keep(graph: Graph, options: Options) -> None:
    names = {node.name for each in graph.walk() for node in each.nodes}
    for name in options.keep:
        if name not in names:
            raise InvalidOption(f"--keep {name}", "no node has this name", "give the name of a node of the model")
