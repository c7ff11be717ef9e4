"""Measure the zoo on this machine's GPU: egraft's executor beside PyTorch and ONNX Runtime.

    python -m scripts.bench_gpu [--only bert-12,resnet50] [--seconds 400] [--out docs/measurements] [--emulate]

Whole models are measured in turns in one process, by wall time of a run that is waited for, which is what a caller
sees; egraft's device time by events stands beside it. `egraft:cuda fused` is the model with the fusions that were
found to be faster on the card. Peers that are not installed are left out and named. Operators of the models, and
fusions, are measured into a timing database, which `recorded` targets replay on machines without this card. Both files
are written under the name of the card and the date. It needs no network. `--emulate` runs the program on the emulation
to see that it works, measures nothing that means anything, and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cost_model import protocol
from cost_model.comparison import Comparison
from cost_model.node_costs import NodeCosts
from cost_model.peaks import Peaks
from cost_model.roofline import GraphRoofline, graph_roofline
from cost_model.sizes import default_measure_sizes
from cost_model.targets import find_target
from cost_model.targets.base import Runner, Unsupported
from cost_model.targets.cuda import EgraftCuda, clocks
from cost_model.timings import Timings
from graphs import zoo
from graphs.errors import EgraftError
from graphs.ir import Graph
from optimizer.on_device import Sessions
from runtime.feeds import draw
from runtime.validation import Round, validate
from scripts.bench_gpu_page import markdown
from search.fusions import FusionBudget, discover

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("logistic-regression", "bilstm-tagger", "bert-2", "llama-block", "resnet18", "resnet50", "bert-12")
TINY = ("logistic-regression", "bert-tiny")
WRONG = 1e-2  # relative to the largest magnitude of an output; TF32 is off everywhere
Call = Callable[[], Any]


@dataclass
class Contestant:
    """One way to run a model: what runs it once and waits, and what it computes."""

    run: Call
    outputs: Callable[[], list[np.ndarray]]


@dataclass
class Row:
    """All that is known of one model."""

    name: str
    sizes: dict[str, int]
    comparison: Comparison | None = None
    device_seconds: float | None = None
    launches: int | None = None
    on_host: list[str] = field(default_factory=list)
    roofline: GraphRoofline | None = None
    clocks: dict[str, str] = field(default_factory=dict)  # just after measuring
    fused_seconds: float | None = None  # on the device, of the graph with what was found to fuse
    fused_launches: int | None = None
    fusions: list[str] = field(default_factory=list)
    validated: str = ""  # that graph in a session on the device, several runs
    errors: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def torch_contestants(graph: Graph, sizes: Mapping[str, int], feeds: Mapping[str, np.ndarray],
                      device: str = "cuda") -> dict[str, Callable[[], Contestant]]:
    """Eager and compiled PyTorch. Raises ImportError without PyTorch, RuntimeError without its CUDA."""
    import torch

    from scripts.torch_graph import TorchGraph

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    module = TorchGraph(graph, sizes).eval().to(device)
    arguments = [torch.from_numpy(np.array(feeds[name])).to(device) for name in graph.inputs]
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def contestant(call: Callable[..., Any]) -> Contestant:
        def run() -> Any:
            with torch.no_grad():
                found = call(*arguments)
            wait()
            return found

        return Contestant(run, lambda: [each.float().cpu().numpy() for each in run()])

    compiled = torch.compile(module, mode="reduce-overhead" if device == "cuda" else "default")
    return {"torch eager": lambda: contestant(module), "torch.compile": lambda: contestant(compiled)}


def measure_model(row: Row, graph: Graph, target: EgraftCuda, timings: Timings, settings: protocol.Settings,
                  peers: bool) -> None:
    """Fill a row: comparison, device time, errors against NumPy."""
    from runtime import run

    feeds = draw(graph, 0, row.sizes)
    wanted = list(run(graph, feeds).values())
    runner = target.prepare(graph, feeds)
    contestants = {"egraft:cuda": Contestant(lambda: runner.run(), lambda: list(runner.outputs().values()))}
    row.launches = runner.launches
    row.on_host = _on_numpy(graph, feeds, target)
    row.device_seconds = protocol.measure_one(runner.run, settings=settings, budget=0.5).median
    fused = _fused(row, graph, feeds, target, timings, FusionBudget(candidates=40 if peers else 2, seconds=25.0))
    if fused is not None:
        row.fused_launches = fused.launches
        row.fused_seconds = protocol.measure_one(fused.run, settings=settings, budget=0.5).median
        contestants["egraft:cuda fused"] = Contestant(fused.run, lambda: list(fused.outputs().values()))
    for name, make in _peers(graph, row, feeds).items() if peers else ():
        try:
            contestants[name] = make()
            contestants[name].run()
        except (Unsupported, EgraftError, ImportError, KeyError, RuntimeError) as error:
            contestants.pop(name, None)
            row.problems[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    for name, each in list(contestants.items()):
        row.errors[name] = _error(each.outputs(), wanted)
        if not row.errors[name] <= WRONG:
            row.problems[name] = f"wrong by {row.errors[name]:.1e}"
            if name != "egraft:cuda":
                del contestants[name]
    row.comparison = protocol.compare({name: each.run for name, each in contestants.items()}, "egraft:cuda",
                                      threads=2, settings=settings)
    row.clocks = clocks(0.0)
    costs = NodeCosts(target, timings, row.sizes, opset=graph.opset, budget_seconds=20.0)
    for node in graph.nodes:
        costs.node_in(graph, node)
    costs.measure()
    row.roofline = graph_roofline(graph, row.sizes, costs.peaks(), costs.overhead().launch)
    for each in (runner, fused):
        if each is not None:
            each.close()


def _fused(row: Row, graph: Graph, feeds: Mapping[str, np.ndarray], target: EgraftCuda, timings: Timings,
           budget: FusionBudget) -> Runner | None:
    """The graph with the fusions that are faster on this device; None where there are none."""
    found = discover(graph, row.sizes, timings, budget=budget, target=target)
    row.fusions = found.lines()
    if found.faults:
        row.problems["fusions"] = "; ".join(found.faults)
    if not found.groups:
        return None
    row.validated, holds = _validated(graph, found.graph, row.sizes, target)
    if not holds:
        row.problems["validation"] = row.validated
    return target.prepare(found.graph, feeds)


def _validated(graph: Graph, fused: Graph, sizes: dict[str, int], target: EgraftCuda) -> tuple[str, bool]:
    """The verdict on a graph in one session on the device, as `egraft optimize` has it of its result."""
    sessions = Sessions(target, [fused])
    try:
        found = validate(graph, fused, executor=sessions, plan=[Round(0, sizes)])
    finally:
        sessions.close()
    return sessions.unsteady or sessions.error or found.summary(), found.ok


def _on_numpy(graph: Graph, feeds: Mapping[str, np.ndarray], target: EgraftCuda) -> list[str]:
    from runtime import Session

    session = Session(graph, target.name, device=target.device)
    session.run(feeds)
    found = list(getattr(session.report, "on_numpy", []))
    session.close()
    return found


def _peers(graph: Graph, row: Row, feeds: Mapping[str, np.ndarray]) -> dict[str, Callable[[], Contestant]]:
    found: dict[str, Callable[[], Contestant]] = {}
    ort = find_target("onnxruntime:cuda")
    reason = ort.available()
    if reason is None:
        def onnxruntime() -> Contestant:
            runner = ort.prepare(graph, feeds)
            return Contestant(runner.run, lambda: list(runner.outputs().values()))

        found["onnxruntime:cuda"] = onnxruntime
    else:
        row.problems["onnxruntime:cuda"] = reason
    try:
        found.update(torch_contestants(graph, row.sizes, feeds))
    except (ImportError, KeyError, RuntimeError) as error:
        row.problems["torch"] = f"{type(error).__name__}: {error}"
    return found


def _error(found: list[np.ndarray], wanted: list[Any]) -> float:
    worst = 0.0
    for mine, right in zip(found, wanted, strict=True):
        scale = max(float(np.abs(right.astype(np.float64)).max(initial=0.0)), 1e-6)
        difference = np.abs(mine.astype(np.float64) - right.astype(np.float64))
        worst = max(worst, float(difference.max(initial=0.0)) / scale)
    return worst


def measured_peaks(target: EgraftCuda, timings: Timings) -> Peaks:
    """Copy and GEMM rates of the card."""
    return target.peaks(1, timings)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="names of zoo models, separated by commas")
    parser.add_argument("--seconds", type=float, default=400.0, help="begin no further model after so many seconds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements")
    parser.add_argument("--emulate", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, print where. Exit status 2 without a GPU, or for a model that is not in the zoo."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    names = options.only.split(",") if options.only else TINY if options.emulate else MODELS
    unknown = [name for name in names if name not in zoo.names()]
    if unknown:
        print(f"egraft: error[invalid-option]: --only {unknown[0]}: the zoo has no such model; choose of "
              f"{', '.join(zoo.names())}", file=sys.stderr)
        return 2
    target = _target(options.emulate)
    reason = target.available()
    if reason is not None:
        print(f"egraft: error[target-unavailable]: egraft:cuda: {reason}", file=sys.stderr)
        return 2
    started = time.monotonic()
    card = target.device.describe().get("gpu", target.device.name)
    stem = f"{'-'.join(str(card).lower().split())}-{datetime.date.today().isoformat()}"
    if not options.emulate:
        options.out.mkdir(parents=True, exist_ok=True)
    timings = Timings(":memory:" if options.emulate else str(options.out / f"{stem}.db"))
    peaks = None if options.emulate else measured_peaks(target, timings)
    rows, left = [], []
    for name in names:
        if time.monotonic() - started > options.seconds:
            left.append(name)
            continue
        graph = zoo.build(name)
        row = Row(name, {symbol: min(size, 16) if options.emulate else size
                         for symbol, size in default_measure_sizes(graph, {}).items()})
        settings = protocol.Settings(max_rounds=3, quick_rounds=3) if options.emulate else protocol.Settings(budget=8.0)
        try:
            measure_model(row, graph, target, timings, settings, peers=not options.emulate)
        except (EgraftError, Unsupported) as error:
            row.problems["egraft:cuda"] = str(error)
        rows.append(row)
        print(f"{name}: {row.comparison.results if row.comparison else row.problems}", flush=True)
    text = markdown(rows, left, target, peaks)
    if options.emulate:
        print("emulated: nothing here was measured on a GPU, nothing is written")
        return 0
    (options.out / f"{stem}.md").write_text(text, encoding="utf-8")
    print(f"written: {options.out / stem}.md and .db")
    return 0


def _target(emulate: bool) -> EgraftCuda:
    if not emulate:
        found = find_target("egraft:cuda")
        assert isinstance(found, EgraftCuda)
        return found
    from runtime.cuda.emulated import EmulatedDevice

    target = EgraftCuda(EmulatedDevice())
    target.gemm_size, target.copy_bytes, target.cached_bytes = 16, 1 << 12, 1 << 10  # a card's would take hours
    return target


if __name__ == "__main__":
    sys.exit(main())
