"""`egraft bench MODEL...`: what models take on a target, with the roofline beside it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cost_model.node_costs import NodeCosts
from cost_model.protocol import Samples, Settings, measure_one
from cost_model.records import own_version
from cost_model.signature import graph_digest
from cost_model.sizes import MAX_SETS
from cost_model.targets import Target, Unsupported, resolve
from cost_model.targets.base import prepared
from cost_model.timings import Timings
from graphs import load
from graphs.errors import InvalidInput, InvalidOption, NotExecutable
from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io import with_bodies
from graphs.structure import check_outputs
from graphs.wording import counted
from runtime.feeds import draw, input_symbols, unknown_dim
from runtime.fused_functions import fused_again
from search.fusions.budget import takes_fusions

from .commands import check_database, load_feeds
from .context import default_threads, too_many_threads
from .finalists import values_of
from .number_text import ratio_text, seconds_text, share_text
from .options import Options, check_threads
from .places import check_place
from .report import VALUES_NOTE, sizes_text
from .result import write_text
from .roofline_report import aligned, roofline_row, table
from .sizing import first_sizes

BENCH_VERSION = 1
MOST_SAMPLES = 10_000


@dataclass
class _Entry:
    """A model with what it is measured with."""

    path: Path
    graph: Graph
    sizes: dict[str, int]
    feeds: Mapping[str, np.ndarray]
    threads: int
    values: dict[str, int]  # of inputs of one integer that nobody gave


def bench_command(models: Sequence[Path], options: Options, seconds: float, compare: bool, out: Path | None) -> int:
    """Measure each model for about `seconds`; with `compare` all in turns against the first."""
    check_database(options.timings)
    check_threads(options)
    if out is not None:
        check_place("--json", out)
    target = resolve(options.target, all(path.suffix == ".onnx" for path in models))
    if not target.measures:
        raise InvalidOption(f"--target {options.target}", "it runs nothing", "name a target of `egraft targets`")
    graphs = [_loaded(path) for path in models]
    known = {name: None for graph in graphs for name in input_symbols(graph)}
    for name in options.dims:
        if name not in known:
            raise unknown_dim(name, known)
    rounds = [[_entry(path, graph, target, options, dims) for path, graph in zip(models, graphs)]
              for dims in _size_sets(options)]
    told = (too_many_threads(entry.threads, target) for entries in rounds for entry in entries)
    warnings = list(dict.fromkeys(text for text in told if text is not None))
    settings = Settings(budget=seconds, max_rounds=MOST_SAMPLES)
    with Timings(options.timings) as timings:
        rows = [_measure(entry, target, settings, timings) for entry in _different(rounds)]
        found = [row for entries in rounds for row in _compare(entries, target, settings)] if compare else []
    print(f"target {target.name}: {target.fingerprint}")
    several = len(rounds) > 1
    labels = [f"{row['model']} {sizes_text(row['sizes'])}".rstrip() if several else row["model"] for row in rows]
    for line in [*_times(rows), *_values(rows), "", *table([*zip(labels, (row["roofline"] for row in rows))])]:
        print(line)
    if found:
        print("\n" + "\n".join(_ratios(found)))
    for text in warnings:
        print(f"warning    {text}")
    if out is not None:
        document = {"egraft_bench": BENCH_VERSION, "egraft": own_version(), "target": target.name,
                    "device": dict(target.fingerprint.fields), "models": rows, "compared": found, "warnings": warnings}
        write_text(out, json.dumps(document, indent=1) + "\n")
    return 0


def _loaded(path: Path) -> Graph:
    graph = load(path)
    check_outputs(graph)
    infer(graph)
    return graph


def _size_sets(options: Options) -> list[dict[str, list[int]]]:
    """One size of each dimension that was asked for: all combinations; of given inputs none but their own."""
    sets = list(itertools.product(*map(dict.fromkeys, options.dims.values())))
    sets = sets[:1] if options.inputs is not None else sets
    if len(sets) > MAX_SETS:
        raise InvalidOption("--dim", f"{len(sets)} combinations of sizes", f"ask for at most {MAX_SETS}")
    return [{name: [size] for name, size in zip(options.dims, sizes)} for sizes in sets]


def _different(rounds: Sequence[Sequence[_Entry]]) -> list[_Entry]:
    """Model by model; one without a dimension that has several sizes is measured once."""
    found: list[_Entry] = []
    for entries in zip(*rounds):
        found += [entry for place, entry in enumerate(entries)
                  if all(entry.sizes != other.sizes for other in entries[:place])]
    return found


def _entry(path: Path, graph: Graph, target: Target, options: Options, asked: Mapping[str, list[int]]) -> _Entry:
    symbols = input_symbols(graph)
    dims = {name: sizes for name, sizes in asked.items() if name in symbols}  # others are those of other models
    feeds = load_feeds(None if options.inputs is None else Path(options.inputs))
    threads = options.threads or default_threads(graph, dims, target)
    sizes = first_sizes(graph, dims, feeds, target, threads, options.seed)
    given = draw(graph, options.seed, sizes) if feeds is None else feeds
    return _Entry(path, graph, sizes, given, threads, {} if feeds is not None else values_of(graph, given))


def _measure(entry: _Entry, target: Target, settings: Settings, timings: Timings) -> dict[str, Any]:
    """One model alone: at least three samples, until the median is known to 1 % or the time is over."""
    costs = NodeCosts(target, timings, entry.sizes, threads=entry.threads, opset=entry.graph.opset)
    before = _load()
    try:
        runner = prepared(target, entry.graph, entry.feeds, entry.threads)
    except Unsupported as error:
        raise NotExecutable(str(entry.path), f"{target.name} does not run it: {error}",
                            "choose another target, or other sizes with --dim") from None
    try:
        samples: Samples = measure_one(runner.run, entry.threads, settings.budget, settings)
    finally:
        runner.close()
    return {
        "model": str(entry.path), "sizes": entry.sizes, "values": entry.values, "threads": entry.threads,
        "median": samples.median, "spread": samples.spread, "samples": list(samples.seconds), "inner": samples.inner,
        "clock": samples.clock, "load": [before, _load()],
        "roofline": roofline_row(_opened(entry.graph, target), costs, samples.median),
    }  # fmt: skip


def _opened(graph: Graph, target: Target) -> Graph:
    """With the nodes of functions in the place of calls, whose work would not be counted; functions that are fused
    nodes are those where the target runs them as one kernel."""
    fused = fused_again(graph) if takes_fusions(target.name) else graph
    opened = with_bodies(fused)
    if opened is not graph:
        infer(opened)
    return opened


def _load() -> float | None:
    """Processes that were ready to run in the last minute, None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _compare(entries: Sequence[_Entry], target: Target, settings: Settings) -> list[dict[str, Any]]:
    """All models in turns with the same inputs; ratios are to the first."""
    first = entries[0]
    for entry in entries[1:]:
        if list(entry.graph.inputs) != list(first.graph.inputs):
            raise InvalidInput(str(entry.path), f"its inputs are not those of {first.path}",
                               "compare models with the same inputs")
    names = [f"{index} {entry.path.name}" for index, entry in enumerate(entries)]
    graphs = {name: entry.graph for name, entry in zip(names, entries)}
    comparison = target.compare(graphs, names[0], first.feeds, threads=first.threads, settings=settings)
    lost, digest = comparison.unsupported, graph_digest(first.graph)
    same = {name: f"the same graph as {first.path}: not measured apart from it"
            for name, entry in zip(names[1:], entries[1:]) if graph_digest(entry.graph) == digest}
    lost = {**lost, **same}
    return [{"model": str(entry.path), "sizes": entry.sizes, "note": lost[name]} if name in lost else {
        "model": str(entry.path), "sizes": entry.sizes, "speed_up": comparison.results[name].speed_up,
        "low": 1 / comparison.results[name].high, "high": 1 / comparison.results[name].low,
        "confidence": comparison.results[name].confidence, "verdict": comparison.results[name].verdict,
        "rounds": comparison.rounds, "noise": comparison.threshold} for name, entry in zip(names, entries)]


def _times(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [("model", "median", "spread", "samples", "clock", "threads", "load", "sizes")]
    for row in rows:
        before, after = row["load"]
        cells.append((row["model"], seconds_text(row["median"]), share_text(row["spread"] / row["median"]),
                      f"{len(row['samples'])} of {counted(row['inner'], 'run')}", row["clock"], str(row["threads"]),
                      "?" if before is None else f"{before:.1f} to {after:.1f}",
                      sizes_text(row["sizes"]) or "fixed"))
    return aligned(cells)


def _values(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a branch may depend on; of a model at several sizes once where it is the same."""
    return list(dict.fromkeys(f"values of {row['model']}: {sizes_text(row['values'])} ({VALUES_NOTE})"
                              for row in rows if row["values"]))


def _ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [("in turns, against the first", "speed-up", "from", "to", "verdict", "rounds", "noise", "sizes")]
    for row in rows:
        sizes = sizes_text(row["sizes"]) or "fixed"
        if "note" in row:
            cells.append((row["model"], "-", "-", "-", "not run", "-", "-", sizes))
            continue
        cells.append((row["model"], *(ratio_text(row[name]) for name in ("speed_up", "low", "high")), row["verdict"],
                      str(row["rounds"]), share_text(row["noise"]), sizes))
    return aligned(cells)
