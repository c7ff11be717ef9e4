"""Measure training steps (forward, backward, AdamW): as they are, superoptimized, within memory limits, and in PyTorch.

    python -m scripts.bench_training [--only bert-2,gpt-small] [--seconds 60] [--write]

What one runtime runs of a model is measured in turns in one process, one thread: in ONNX Runtime (with all its
optimizations on) the step as it is, optimized and within memory limits, beside PyTorch (where it is installed) eager
and compiled; then in egraft's own runtime the step as it is and optimized. Ratios are to the step as it is in that
runtime, which is measured twice (A/A). Memory limits are shares of what the step takes in the order it was written in;
live bytes are those of values between nodes (`cost_model.memory`), in ONNX Runtime the growth of the process during a
run is measured as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cost_model import protocol
from cost_model.comparison import Comparison
from cost_model.memory import peak_activation_bytes
from cost_model.node_costs import NodeCosts
from cost_model.targets import resolve
from cost_model.timings import Timings
from graphs import save
from graphs.ir import Graph
from graphs.wording import counted
from optimizer import optimize
from optimizer.normalize import normalize
from optimizer.recompute import chosen, plans
from scripts.training_plot import Line, plot
from scripts.training_steps import CASES, RATE, TrainingCase

ROOT = Path(__file__).resolve().parents[1]
SHARES = (0.75, 0.5, 0.4)
PRECISION = "finite"  # a step whose gradients are not finite has failed anyway
TARGETS = ("onnxruntime:cpu", "egraft:cpu")
STEP, OPTIMIZED, EAGER, COMPILED = "step", "optimized", "PyTorch eager", "torch.compile"
PEAK = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
options.enable_cpu_mem_arena = options.enable_mem_pattern = False
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds, names = dict(np.load(sys.argv[2])), [each.name for each in session.get_outputs()]
def size(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
open("/proc/self/clear_refs", "w").write("5")
before = size("VmRSS")
found = session.run(names, feeds)
print(size("VmHWM") - before - sum(array.nbytes for array in found))
"""


@dataclass
class Limit:
    """A graph within a memory limit. `resident`: what a run in ONNX Runtime takes, outputs not counted."""

    share: float
    bytes: float
    recomputed: int = 0
    predicted: float = 0.0
    resident: float | None = None


@dataclass
class Part:
    """What was measured in one runtime. `seconds`: that optimizing took, wall time."""

    comparison: Comparison
    nodes: tuple[int, int]
    seconds: float


@dataclass
class Row:
    """All that is known of one model."""

    name: str
    parts: dict[str, Part] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)


def torch_runs(case: TrainingCase, feeds: Mapping[str, np.ndarray]) -> dict[str, Callable[[], None]]:
    """One step of AdamW in PyTorch, eager and compiled; nothing where PyTorch is not installed."""
    if find_spec("torch") is None:
        return {}
    import torch
    from torch.nn import functional as F

    from runtime.training.step import trainable
    from scripts.torch_graph import TorchGraph

    torch.set_num_threads(1)
    arguments = [torch.from_numpy(feeds[name]) for name in case.model.inputs]
    target = torch.from_numpy(feeds["target"])

    def made(compiled: bool) -> Callable[[], None]:
        module = TorchGraph(case.model, case.sizes)
        wanted = set(trainable(case.model, case.model.outputs[0]))
        weights = [getattr(module, held).requires_grad_(True) for name, held in module.buffer_names.items()
                   if name in wanted]
        optimizer = torch.optim.AdamW(weights, lr=RATE, foreach=True)

        def loss() -> Any:
            found = module(*arguments)[0]
            return F.cross_entropy(found.flatten(0, -2), target.flatten()) if case.labels else F.mse_loss(found, target)

        forward = torch.compile(loss, fullgraph=True, dynamic=False) if compiled else loss

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            forward().backward()
            optimizer.step()

        return run

    return {EAGER: made(False), COMPILED: made(True)}


def resident(graph: Graph, feeds: Mapping[str, np.ndarray], folder: Path) -> float | None:
    """Bytes by which a process grows at most while ONNX Runtime runs a graph, without the outputs; Linux only."""
    save(graph, folder / "peak.onnx")
    np.savez(folder / "peak.npz", **feeds)  # type: ignore[arg-type]
    # Each large array gets pages of its own, which go back at once when it is freed.
    done = subprocess.run([sys.executable, "-c", PEAK, str(folder / "peak.onnx"), str(folder / "peak.npz")], text=True,
                          capture_output=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
    return float(done.stdout) if done.returncode == 0 else None


def limited(step: Graph, feeds: Mapping[str, np.ndarray], sizes: dict[str, int], timings: Path,
            folder: Path) -> tuple[dict[str, Graph], list[Limit]]:
    """The step within each share of its live bytes, and what is known of it before it is timed."""
    plain = step.copy()
    normalize(plain)
    costs = NodeCosts(resolve(TARGETS[0]), Timings(timings), sizes, opset=plain.opset)
    whole, live = sum(costs.node_in(plain, node).seconds for node in plain.nodes), peak_activation_bytes(step, sizes)
    graphs, limits = {}, [Limit(1.0, live, 0, 0.0, resident(step, feeds, folder))]
    found = plans(plain, sizes, lambda node: costs.node_in(plain, node).seconds, live)
    for share in SHARES:
        made, plan = chosen(plain, found, sizes, share * live)
        graphs[f"limit {share:.0%}"] = made
        limits.append(Limit(share, plan.peak, plan.recomputed, plan.seconds / whole, resident(made, feeds, folder)))
    return graphs, limits


def measure(name: str, case: TrainingCase, seconds: float, effort: str, timings: Path, folder: Path) -> Row:
    """Build, optimize, limit, and measure in turns, in one runtime after the other."""
    step = case.step()
    feeds, sizes = case.feeds(step), dict(case.sizes)
    row = Row(name)
    for target in (resolve(each) for each in TARGETS):
        database, start = timings / f"{name}-{target.name.replace(':', '-')}.db", time.monotonic()
        result = optimize(step, target=target.name, dims={each: [size] for each, size in sizes.items()}, threads=1,
                          effort=effort, precision=PRECISION, timings=str(database))
        spent = time.monotonic() - start
        graphs = {STEP: step, OPTIMIZED: result.graph}
        first = target.name == TARGETS[0]
        if first:
            more, row.limits = limited(step, feeds, sizes, database, folder)
            graphs.update(more)
        runs: dict[str, Callable[[], None]] = {each: target.prepare(graph, feeds, 1).run
                                               for each, graph in graphs.items()}
        if first:
            runs.update(torch_runs(case, feeds))
        found = protocol.compare(runs, STEP, 1, protocol.Settings(budget=seconds, max_rounds=200))
        row.parts[target.name] = Part(found, (step.node_count(), result.graph.node_count()), spent)
        print(name, target.name, {each: round(one.seconds * 1e3, 1) for each, one in found.results.items()},
              file=sys.stderr, flush=True)
    return row


def speed(part: Part, name: str) -> str:
    """How many times as fast as the step as it is, with the interval."""
    found = part.comparison.results.get(name)
    return "-" if found is None else f"{1 / found.ratio:.2f} [{1 / found.high:.2f}, {1 / found.low:.2f}]"


def steps_table(rows: list[Row], target: str) -> list[str]:
    """The table of one runtime; PyTorch stands beside the first one."""
    first = target == TARGETS[0]
    beside = (EAGER, COMPILED) if first else ()
    titles = ["model", "step", "rounds", "A/A", "optimized by egraft", *beside, "nodes", "s to optimize"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for row in rows:
        part = row.parts[target]
        noise, base = part.comparison.noise, part.comparison.results[STEP]
        lines.append(f"| {row.name} | {base.seconds * 1e3:.0f} ms | {part.comparison.rounds} | {noise.median:.2f} "
                     f"[{noise.low:.2f}, {noise.high:.2f}] | "
                     + " | ".join(speed(part, each) for each in (OPTIMIZED, *beside))
                     + f" | {part.nodes[0]} -> {part.nodes[1]} | {part.seconds:.0f} |")
    return lines


def markdown(rows: list[Row], machine: str, picture: str) -> str:
    """The page."""
    lines = [f"# Training steps, {time.strftime('%Y-%m-%d')}", "", f"`make bench-training` on {machine}.", "",
             "One step (forward, backward, AdamW) of BERT (2 layers of width 256, batch 8 of 128 tokens), of a small "
             "ResNet (4 blocks, batch", "16 of 64 by 64) and of a small GPT (4 layers of width 256, batch 8 of 128 "
             "tokens), one thread, CPU time, all of a table's row in", "turns. Numbers are how many times as fast as "
             "the step as it is in the same runtime, with their interval (99 %); A/A is", "that step against itself. "
             f"Optimized with `--precision {PRECISION}`.", "",
             "## In ONNX Runtime, beside PyTorch", "", *steps_table(rows, TARGETS[0]), "",
             "## In egraft's own runtime", "", *steps_table(rows, TARGETS[1]), "",
             "## Within memory limits", "",
             "Live bytes of values between nodes, as planned, and the time that recomputing adds: predicted from node "
             "times, and measured", "in ONNX Runtime against the step as it is. The last column is by how much a "
             "process grows while ONNX Runtime runs the graph", "(without its memory arena, outputs not counted): it "
             "runs nodes in an order of its own.", "",
             "| model | limit | live MB | nodes run again | time, predicted | time, measured | in ONNX Runtime, MB |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        for limit in row.limits:
            found = row.parts[TARGETS[0]].comparison.results.get(f"limit {limit.share:.0%}")
            measured = "-" if found is None else (
                f"{found.ratio - 1:+.0%} [{found.low - 1:+.0%}, {found.high - 1:+.0%}]")
            lines.append(f"| {row.name} | {limit.share:.0%} | {limit.bytes / 1e6:.1f} | {limit.recomputed} | "
                         f"{limit.predicted:+.0%} | {measured} | "
                         f"{'-' if limit.resident is None else f'{limit.resident / 1e6:.1f}'} |")
    return "\n".join([*lines, "", f"![Time against memory]({picture})", ""])


def lines_of(row: Row) -> Line:
    """Of the plot: the share of the live bytes that is used, and the time, with its interval."""
    results, whole = row.parts[TARGETS[0]].comparison.results, row.limits[0].bytes
    points = [(1.0, 1.0, 1.0, 1.0)]
    for limit in row.limits[1:]:
        found = results.get(f"limit {limit.share:.0%}")
        if found is not None:
            points.append((limit.bytes / whole, found.ratio, found.low, found.high))
    return Line(row.name, points)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure training steps.")
    parser.add_argument("--only", default=",".join(CASES), help="models, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure each model in turns")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--timings", type=Path, help="a folder that keeps the timing databases")
    parser.add_argument("--torch", help="the site-packages of another environment of this Python, which has PyTorch")
    parser.add_argument("--write", action="store_true", help="put the page into docs/measurements/")
    arguments = parser.parse_args()
    if arguments.torch:
        sys.path.append(arguments.torch)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="egraft-") as folder:
        timings = arguments.timings or Path(folder)
        for name in arguments.only.split(","):
            rows.append(measure(name, CASES[name](), arguments.seconds, arguments.effort, timings, Path(folder)))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    stem = f"training-{time.strftime('%Y-%m-%d')}"
    page = markdown(rows, f"{machine_name()}; load of the machine over 1, 5 and 15 minutes at the end: {load}",
                    f"{stem}.svg")
    print(page)
    if arguments.write:
        place = ROOT / "docs" / "measurements"
        (place / f"{stem}.md").write_text(page, encoding="utf-8")
        (place / f"{stem}.svg").write_text(plot([lines_of(row) for row in rows]), encoding="utf-8")


def machine_name() -> str:
    """CPU, cores and libraries."""
    import json
    from importlib.metadata import version

    fields = json.loads(resolve("onnxruntime:cpu").fingerprint.text)
    versions = [f"{each} {version(each)}" for each in ("onnxruntime", "torch") if find_spec(each) is not None]
    return ", ".join([str(fields.get("cpu")), counted(fields.get("cores"), "core"), *versions])


if __name__ == "__main__":
    main()
