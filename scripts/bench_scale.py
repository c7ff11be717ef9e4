"""Measure `egraft optimize` on large graphs: `python -m scripts.bench_scale [bert:12 bert:96 random-cells:10000 ...]`.

Each graph (`scripts.scale_graphs`) is optimized by the command line, in a process of its own, twice: with an empty
timing database (cold) and once more with that one and `--fresh` (warm). Prints a table in Markdown: processor seconds
of the command and its children with start-up, peak memory of the process, wall seconds of each stage.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphs import save
from scripts.bench_page import table
from scripts.scale_graphs import LARGE

USUAL = ("bert:12", "bert:96", "nasnet:10000", "random-cells:10000", "swin:10000", "unrolled-lstm:530")
HEAD = ("graph", "nodes", "after", "steps", "", "CPU s", "wall s", "peak MB", "measured gain", "stages, wall s")


@dataclass
class Run:
    """One run of the command."""

    cpu: float
    wall: float
    report: dict[str, Any]


def optimized(model: Path, timings: Path, arguments: Sequence[str]) -> Run:
    """Run the command; RuntimeError with its output where it fails."""
    report = model.with_suffix(".report.json")
    command = [sys.executable, "-m", "egraft", "optimize", str(model), "-o", str(model.with_suffix(".out.onnx")),
               "--timings", str(timings), "--report", str(report), *arguments]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(cpu, wall, json.loads(report.read_text()))


def line(name: str, kind: str, run: Run) -> list[object]:
    """Of the table."""
    report = run.report
    stages: dict[str, float] = {}
    for each in report["stages"]:
        stages[each["stage"]] = stages.get(each["stage"], 0.0) + each.get("seconds", 0.0)
    measured = report["measured"] or {}
    told = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items())
    gain, megabytes = measured.get("speed_up"), report["peak_memory_bytes"]["process"] / 1e6
    return [name, report["before"]["nodes"], report["after"]["nodes"], report["steps"], kind, f"{run.cpu:.1f}",
            f"{run.wall:.1f}", f"{megabytes:.0f}", f"{gain:.3f}" if gain else "-", told]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="*", default=USUAL, metavar="NAME:SIZE", help=f"of {', '.join(LARGE)}")
    parser.add_argument("--cold", action="store_true", help="only with an empty timing database")
    parser.add_argument("--keep", type=Path, help="a folder for models, reports and databases")
    options, rest = parser.parse_known_args(arguments)
    lines: list[list[object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for text in options.graphs:
            name, _, size = text.partition(":")
            model, timings = folder / f"{name}-{size}.onnx", folder / f"{name}-{size}.db"
            save(LARGE[name].make(int(size)), model)
            timings.unlink(missing_ok=True)
            for kind in ("cold",) if options.cold else ("cold", "warm"):
                more = [*rest, "--fresh"] if kind == "warm" else rest
                lines.append(line(text, kind, optimized(model, timings, more)))
                print(*lines[-1], sep=" | ", flush=True)
    print(f"\n{table(HEAD, lines)}\n\nload of the machine at the end: {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
