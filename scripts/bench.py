"""Measure the zoo: egraft's file, and those of other optimizers, against the original in ONNX Runtime.

    scripts/bench.py [--only bert-12,magika] [--quick] [--write]

Every tool runs as a command of its own (CPU seconds and peak memory are the command's, start-up of Python included).
Then all files of one model are measured in turns in one process: ONNX Runtime with all its optimizations on both
sides, one thread, median ratio to the original with its interval; the original is measured twice (A/A), and what lies
inside that noise is no difference. `--write` puts the page into docs/measurements/ and the table into README.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from cost_model import protocol
from cost_model.comparison import Comparison
from cost_model.targets.onnxruntime_cpu import session_options
from graphs import load, save, zoo
from graphs.errors import EgraftError
from runtime.feeds import draw
from scripts.bench_page import markdown, update_readme

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("bert-12", "resnet50", "bert-2", "llama-block", "bilstm-tagger", "logistic-regression", "magika", "ppocr-rec",
          "ppocr-cls", "mtcnn-onet")
QUICK = ("bert-tiny", "resnet-tiny", "logistic-regression")
PEERS = ("onnxslim", "onnxsim")
TIMEOUT = 900.0
Result = TypeVar("Result")
WRONG = 1e-3  # error relative to the largest magnitude of an output from which a file counts as wrong


@dataclass
class Run:
    """One command: what it took. `problem` is empty where it wrote its file."""

    tool: str
    path: Path
    problem: str = ""
    wall: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0


@dataclass
class Row:
    """All that is known of one model."""

    name: str
    dims: dict[str, int]
    nodes: dict[str, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    comparison: Comparison | None = None
    note: str = ""


def run_command(tool: str, command: list[str], path: Path, folder: Path) -> Run:
    """Run it; CPU and memory are those of the command and its descendants."""
    found = Run(tool, path)
    log = folder / f"{tool}.log"
    start = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        status = usage = None
        while status is None:
            pid, code, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                status, usage = os.waitstatus_to_exitcode(code), used
            elif time.monotonic() - start > TIMEOUT:
                process.kill()
                found.problem = f"took longer than {TIMEOUT:.0f} s"
            time.sleep(0.01)
    process.returncode = status
    assert usage is not None
    found.wall, found.cpu = time.monotonic() - start, usage.ru_utime + usage.ru_stime
    found.peak_mb = usage.ru_maxrss / 1024
    if status and not found.problem:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        found.problem = f"exit status {status}: {lines[-1][:160] if lines else 'no output'}"
    elif not found.problem and not path.exists():
        found.problem = "wrote no file"
    return found


def egraft_command(model: Path, out: Path, timings: Path, dims: dict[str, int]) -> list[str]:
    """`egraft optimize` for ONNX Runtime with one thread."""
    program = Path(sys.executable).with_name("egraft")
    sizes = [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
    return [str(program), "optimize", str(model), "-o", str(out), "--target", "onnxruntime:cpu", "--threads", "1",
            "--timings", str(timings), *sizes]


def installed_peers() -> list[str]:
    """Other optimizers that are installed (`pip install -e .[bench]`)."""
    from importlib.util import find_spec

    return [name for name in PEERS if find_spec(name) is not None]


def optimize_all(name: str, model: Path, dims: dict[str, int], folder: Path) -> list[Run]:
    """Every tool on one model; egraft first with an empty timing database, then with the one it filled."""
    timings, peers = folder / "timings.db", Path(__file__).with_name("bench_peers.py")
    runs = []
    for state in ("cold", "warm"):
        out = folder / f"egraft-{state}.onnx"
        runs.append(run_command(f"egraft {state}", egraft_command(model, out, timings, dims), out, folder))
    for peer in installed_peers():
        out = folder / f"{peer}.onnx"
        runs.append(run_command(peer, [sys.executable, str(peers), peer, str(model), str(out)], out, folder))
    return runs


def session(path: Path, optimized: bool = True):  # type: ignore[no-untyped-def]
    """ONNX Runtime, one thread."""
    import onnxruntime

    options = session_options(1)
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def largest_error(expected: Iterable[np.ndarray], found: Iterable[np.ndarray]) -> float:
    """Over all outputs, relative to the largest magnitude of each."""
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        if one.size:
            scale = max(1e-6, float(np.abs(one).max()))
            worst = max(worst, float(np.abs(one.astype(np.float64) - other).max()) / scale)
    return worst


def does_not_run(error: Exception) -> str:
    """What a runtime says about a file that it does not run, without its codes and its advice, shortened."""
    text = " ".join(str(error).split())
    text = re.sub(r"^(\[\w+\] : \d+ : \w+ : )", "", text).partition(" Please ")[0]
    said = textwrap.shorten(text, 160, placeholder=" ...").replace("|", "/").rstrip(". ")
    return f"output does not run: {said or type(error).__name__}"


def measure(row: Row, files: dict[str, Path], settings: protocol.Settings) -> Row:
    """Check and time all files of one model in turns."""
    graph = load(files["original"])
    row.nodes = {tool: load(path).node_count() for tool, path in files.items()}
    feeds = draw(graph, 0, row.dims)
    reference = session(files["original"], optimized=False).run(graph.outputs, feeds)
    runners = {}
    for tool, path in files.items():
        try:
            opened = session(path)
            row.errors[tool] = largest_error(reference, opened.run(graph.outputs, feeds))
        except Exception as error:  # whatever ONNX Runtime says about an invalid file
            row.problems[tool] = does_not_run(error)
            continue
        if row.errors[tool] > WRONG:
            row.problems[tool] = f"wrong result: error {row.errors[tool]:.1e}"
            continue
        runners[tool] = lambda opened=opened: opened.run(None, feeds)
    row.comparison = protocol.compare(runners, "original", threads=1, settings=settings)
    return row


def prepare(name: str, folder: Path) -> Path:
    """The file of a model."""
    if zoo.describe(name).trained:
        return zoo.fetch(name)
    save(zoo.build(name), folder / "model.onnx")
    return folder / "model.onnx"


def apart(function: Callable[..., Result], *arguments: object) -> Result:
    """Call it in a process of its own: this one must stay small, since commands start with its memory as their peak."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def bench(name: str, folder: Path, settings: protocol.Settings) -> Row:
    """One model from building to measuring."""
    row = Row(name, dict(zoo.describe(name).dims))
    folder.mkdir()
    try:
        model = apart(prepare, name, folder)
    except EgraftError as error:
        row.note = str(error)
        return row
    row.runs = optimize_all(name, model, row.dims, folder)
    files = {"original": model}
    for run in row.runs:
        if run.problem:
            row.problems[run.tool.split()[0]] = run.problem
        elif run.tool != "egraft cold":
            files[run.tool.split()[0]] = run.path
    row = apart(measure, row, files, settings)
    for each in folder.glob("*.onnx"):
        each.unlink()
    return row


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the zoo, beside other optimizers.")
    parser.add_argument("--only", default="", help="comma-separated names of zoo models")
    parser.add_argument("--quick", action="store_true", help="three small models, short measurements")
    parser.add_argument("--seconds", type=float, default=30.0, help="measuring time of one model")
    parser.add_argument("--write", action="store_true", help="write docs/measurements/ and the table of README.md")
    options = parser.parse_args()
    names = [each for each in options.only.split(",") if each] or list(QUICK if options.quick else MODELS)
    settings = protocol.Settings(budget=3.0 if options.quick else options.seconds, max_rounds=300, min_rounds=7)
    rows = []
    with tempfile.TemporaryDirectory(prefix="egraft-bench-") as folder:
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(bench(name, Path(folder) / name, settings))
    page = markdown(rows, ["egraft", *installed_peers()])
    print(page.text)
    if options.write:
        path = ROOT / "docs" / "measurements" / page.file_name
        path.parent.mkdir(exist_ok=True)
        path.write_text(page.text, encoding="utf-8")
        update_readme(ROOT / "README.md", page)
    return int(any(row.problems.get("egraft") or row.note for row in rows))


if __name__ == "__main__":
    sys.exit(main())
