"""The page of `bench_gpu`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_model.peaks import Peaks
from cost_model.targets.cuda import EgraftCuda

if TYPE_CHECKING:
    from scripts.bench_gpu import Row

CONTESTANTS = ("egraft:cuda", "egraft:cuda fused", "torch eager", "torch.compile", "onnxruntime:cuda")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def markdown(rows: Sequence[Row], left: Sequence[str], target: EgraftCuda, peaks: Peaks | None) -> str:
    """Everything that was measured, and what was not and why."""
    parts = [f"# GPU measurements, {datetime.date.today().isoformat()}", f"Device: {target.fingerprint}.",
             "Latency in microseconds by wall time, runs waited for, in turns in one process: median and the interval "
             "of its ratio to egraft (above 1: slower than egraft). Device time by events, L2 flushed before each run."]
    if peaks is not None:
        parts.append(table(["peak", "measured"], [
            ["float32 GEMM, TF32 off", f"{peaks.flops / 1e12:.1f} TFLOP/s"],
            ["copy in the L2 cache", f"{peaks.cache_bytes / 1e9:.0f} GB/s"],
            ["copy in memory", f"{peaks.memory_bytes / 1e9:.0f} GB/s"]]))
    parts.append(table(["model", "sizes", *CONTESTANTS], [_latency(row) for row in rows]))
    parts.append(table(["model", "device time", "kernels", "nodes on NumPy", "share of roofline", "error"],
                       [_inside(row) for row in rows]))
    parts.append(table(["model", "device time", "fused", "kernels", "fused", "error of fused"],
                       [_of_fused(row) for row in rows]))
    parts.append(table(["model", "clocks just after"],
                       [[row.name, ", ".join(f"{name} {value}" for name, value in row.clocks.items()) or "not told"]
                        for row in rows]))
    found = [f"{row.name}, {line.strip()}" for row in rows for line in (
        *row.fusions, *([f"validated on the device: {row.validated}"] if row.validated else []))]
    if found:
        parts.append("## Fusions\n\n" + "\n".join(f"- {line}" for line in found))
    problems = [f"- {row.name}, {name}: {text}" for row in rows for name, text in row.problems.items()]
    problems += [f"- {row.name}, on NumPy: {text}" for row in rows for text in row.on_host]
    problems += [f"- {name}: not measured for want of time" for name in left]
    if problems:
        parts.append("## Not measured, or not as meant\n\n" + "\n".join(problems))
    return "\n\n".join(parts) + "\n"


def _latency(row: Row) -> list[str]:
    cells = [row.name, ", ".join(f"{name} {size}" for name, size in row.sizes.items()) or "-"]
    for name in CONTESTANTS:
        found = row.comparison.results.get(name) if row.comparison is not None else None
        if found is None:
            cells.append("-")
        elif name == "egraft:cuda":
            cells.append(f"{found.seconds * 1e6:.0f} ± {found.spread * 1e6:.0f}")
        else:
            cells.append(f"{found.seconds * 1e6:.0f} ({found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}])")
    return cells


def _inside(row: Row) -> list[str]:
    device = row.device_seconds
    bound = row.roofline.lower_bound if row.roofline is not None else None
    error = row.errors.get("egraft:cuda")
    return [row.name, "-" if device is None else f"{device * 1e6:.0f} us", str(row.launches or "-"),
            str(len(row.on_host)), "-" if device is None or not bound else f"{100 * bound / device:.0f} %",
            "-" if error is None else f"{error:.1e}"]


def _of_fused(row: Row) -> list[str]:
    times = ["-" if each is None else f"{each * 1e6:.0f} us" for each in (row.device_seconds, row.fused_seconds)]
    error = row.errors.get("egraft:cuda fused")
    return [row.name, *times, str(row.launches or "-"), str(row.fused_launches or "-"),
            "-" if error is None else f"{error:.1e}"]
