"""Measure training steps (forward, backward, AdamW): as they are, superoptimized, within memory limits, and in PyTorch.

    python -m scripts.bench_training [--only bert-2,gpt-small] [--seconds 60] [--write]

Everything of one model is measured in turns in one process, one thread: steps in ONNX Runtime with all its
optimizations on, PyTorch (where it is installed) eager and compiled. Ratios are to the step as it is, which is measured
twice (A/A). Memory limits are shares of what the step takes in the order it was written in; live bytes are those of
values between nodes (`cost_model.memory`), in ONNX Runtime the growth of the process during a run is measured as well.
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
from optimizer import optimize
from optimizer.normalize import normalize
from optimizer.recompute import within
from scripts.training_steps import CASES, RATE, TrainingCase

ROOT = Path(__file__).resolve().parents[1]
SHARES = (0.75, 0.5, 0.35)
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
class Row:
    """All that is known of one model."""

    name: str
    nodes: dict[str, int]
    live: dict[str, float]
    limits: list[Limit] = field(default_factory=list)
    comparison: Comparison | None = None
    seconds: float = 0.0  # that optimizing took


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

        forward = torch.compile(loss) if compiled else loss

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


def measure(name: str, case: TrainingCase, seconds: float, effort: str, folder: Path) -> Row:
    """Build, optimize, limit, and measure in turns."""
    step = case.step()
    feeds, sizes = case.feeds(step), dict(case.sizes)
    target = resolve("onnxruntime:cpu")
    start = time.monotonic()
    result = optimize(step, target=target.name, dims={each: [size] for each, size in sizes.items()}, threads=1,
                      effort=effort, timings=str(folder / f"{name}.db"))
    graphs = {STEP: step, OPTIMIZED: result.graph}
    row = Row(name, {}, {}, seconds=time.monotonic() - start)
    plain = step.copy()
    normalize(plain)
    costs = NodeCosts(target, Timings(folder / f"{name}.db"), sizes, opset=plain.opset)
    whole, live = sum(costs.node_in(plain, node).seconds for node in plain.nodes), peak_activation_bytes(step, sizes)
    for share in SHARES:
        made, plan = within(plain, sizes, share * live, lambda node: costs.node_in(plain, node).seconds)
        graphs[f"limit {share:.0%}"] = made
        row.limits.append(Limit(share, plan.peak, plan.recomputed, plan.seconds / whole, resident(made, feeds, folder)))
    row.limits.insert(0, Limit(1.0, live, 0, 0.0, resident(step, feeds, folder)))
    for each, graph in graphs.items():
        row.nodes[each], row.live[each] = graph.node_count(), peak_activation_bytes(graph, sizes)
    runs: dict[str, Callable[[], None]] = {}
    for each, graph in graphs.items():
        runs[each] = target.prepare(graph, feeds, 1).run
    runs.update(torch_runs(case, feeds))
    row.comparison = protocol.compare(runs, STEP, 1, protocol.Settings(budget=seconds, max_rounds=200))
    return row


def speed(row: Row, name: str) -> str:
    """How many times as fast as the step as it is, with the interval."""
    assert row.comparison is not None
    found = row.comparison.results.get(name)
    return "-" if found is None else f"{1 / found.ratio:.2f} [{1 / found.high:.2f}, {1 / found.low:.2f}]"


def markdown(rows: list[Row], machine: str) -> str:
    """The page."""
    lines = [f"# Training steps, {time.strftime('%Y-%m-%d')}", "", f"`make bench-training` on {machine}.", "",
             "One step (forward, backward, AdamW) of BERT (2 layers of width 768, batch 8 of 128 tokens), of a small "
             "ResNet (4 blocks, batch", "16 of 64 by 64) and of a small GPT (4 layers of width 256, batch 8 of 128 "
             "tokens), one thread, all in turns. Numbers are how many times", "as fast as the step as it is in ONNX "
             "Runtime, with their interval; A/A is that step against itself.", "",
             "| model | step | A/A | optimized by egraft | PyTorch eager | torch.compile | nodes | s to optimize |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        assert row.comparison is not None
        noise, base = row.comparison.noise, row.comparison.results[STEP].seconds
        lines.append(f"| {row.name} | {base * 1e3:.0f} ms | {noise.median:.2f} [{noise.low:.2f}, {noise.high:.2f}] | "
                     f"{speed(row, OPTIMIZED)} | {speed(row, EAGER)} | {speed(row, COMPILED)} | "
                     f"{row.nodes[STEP]} -> {row.nodes[OPTIMIZED]} | {row.seconds:.0f} |")
    lines += ["", "## Within memory limits", "",
              "Live bytes of values between nodes, as planned, and the time that recomputing adds: predicted from node "
              "times, and measured", "against the step as it is. The last column is by how much a process grows while "
              "ONNX Runtime runs the graph (without its memory", "arena, outputs not counted): it runs nodes in an "
              "order of its own.", "",
              "| model | limit | live MB | nodes run again | time, predicted | time, measured | in ONNX Runtime, MB |",
              "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        assert row.comparison is not None
        for limit in row.limits:
            found = row.comparison.results.get(f"limit {limit.share:.0%}")
            measured = "-" if found is None else (
                f"{found.ratio - 1:+.0%} [{found.low - 1:+.0%}, {found.high - 1:+.0%}]")
            lines.append(f"| {row.name} | {limit.share:.0%} | {limit.bytes / 1e6:.1f} | {limit.recomputed} | "
                         f"{limit.predicted:+.0%} | {measured} | "
                         f"{'-' if limit.resident is None else f'{limit.resident / 1e6:.1f}'} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure training steps.")
    parser.add_argument("--only", default=",".join(CASES), help="models, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure each model in turns")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--write", action="store_true", help="put the page into docs/measurements/")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="egraft-") as folder:
        for name in arguments.only.split(","):
            rows.append(measure(name, CASES[name](), arguments.seconds, arguments.effort, Path(folder)))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    page = markdown(rows, f"{machine_name()}; load of the machine over 1, 5 and 15 minutes at the end: {load}")
    print(page)
    if arguments.write:
        (ROOT / "docs" / "measurements" / f"training-{time.strftime('%Y-%m-%d')}.md").write_text(page, encoding="utf-8")


def machine_name() -> str:
    """CPU, cores and libraries."""
    import json
    from importlib.metadata import version

    fields = json.loads(resolve("onnxruntime:cpu").fingerprint.text)
    versions = [f"{each} {version(each)}" for each in ("onnxruntime", "torch") if find_spec(each) is not None]
    return ", ".join([str(fields.get("cpu")), f"{fields.get('cores')} cores", *versions])


if __name__ == "__main__":
    main()
