"""The page and the README table of what `scripts/bench.py` measured."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_model.fingerprint import cpu, version_of
from graphs.wording import counted

if TYPE_CHECKING:
    from scripts.bench import Row

PROGRAMS = ("egraft", "onnxruntime", "numpy", "onnxslim", "onnxsim")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Page:
    """The whole page, the part for README.md, and what the file is called."""

    text: str
    table: str
    file_name: str


EXPLANATION = """\
Speed-up is the median ratio of the original's time to that of the file, measured in turns in one process, with its
interval at 99 % confidence where enough rounds were run. What is not clearly outside the noise of the original against
itself (A/A) is called equal, whatever the median says. Errors are relative to the largest magnitude of an output,
against the original without optimizations. CPU seconds and peak memory are of the whole command, start-up of Python
included (a peak below about 250 MB cannot be told apart): `egraft optimize` with an empty timing database (cold) and
with the one that this filled (warm)."""
SHORT = ("model", "nodes", "nodes after", "speed-up", "noise (A/A)", "largest error", "CPU s to optimize, cold / warm")
LONG = ("model", "tool", "nodes", "speed-up", "largest error", "CPU s", "wall s", "peak MB")


def markdown(rows: Sequence[Row], tools: Sequence[str]) -> Page:
    """The page of these rows."""
    facts = cpu()
    day = datetime.date.today().isoformat()
    machine = f"{facts['cpu']}, {counted(facts['cores'], 'core')}"
    programs = [f"{name} {version_of(name)}" for name in PROGRAMS if version_of(name)]
    head = (f"{machine}; {', '.join(programs)};\n{day}; ONNX Runtime at ORT_ENABLE_ALL, one thread, on both sides; "
            f"load of the machine at the end: {os.getloadavg()[1]:.1f}.")
    summary = table(SHORT, [_short_line(row) for row in rows])
    text = "\n\n".join([
        f"# Measurements, {machine}, {day}", f"`make bench` on {head}", EXPLANATION, "## egraft", summary,
        "## All tools", table(LONG, [line for row in rows for line in _tool_lines(row, tools)]),
        *(f"- {row.name}: {row.note}" for row in rows if row.note)])
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower().replace("(r)", "")).strip("-")
    short = (f"{head}\nAbove 1 is faster, equal is not beyond the noise. `make bench` measures this, and\n"
             "[docs/measurements](docs/measurements/) holds other tools and dates.")
    return Page(text + "\n", f"{short}\n\n{summary}", f"{slug}-{day}.md")


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def speed_up(row: Row, tool: str) -> str:
    """The ratio and its interval, or that there is no difference beyond noise."""
    if tool in row.problems:
        return row.problems[tool]
    if row.comparison is None or tool not in row.comparison.results:
        return "-"
    found = row.comparison.results[tool]
    low, high = 1 / found.high, 1 / found.low
    text = f"{found.speed_up:.2f} [{low:.2f}, {high:.2f}]"
    return f"equal ({text})" if found.verdict == "equal" else f"**{text}** {found.verdict}"


def noise(row: Row) -> str:
    """How far the original is from itself."""
    if row.comparison is None:
        return "-"
    return f"{row.comparison.noise.median:.3f} [{row.comparison.noise.low:.3f}, {row.comparison.noise.high:.3f}]"


def _cpu(row: Row, tool: str) -> str:
    return next((f"{run.cpu:.1f}" for run in row.runs if run.tool == tool), "-")


def _error(row: Row, tool: str) -> str:
    return f"{row.errors[tool]:.0e}" if tool in row.errors else "-"


def _short_line(row: Row) -> list[object]:
    return [row.name, row.nodes.get("original", "-"), row.nodes.get("egraft", "-"), speed_up(row, "egraft"),
            noise(row), _error(row, "egraft"), f"{_cpu(row, 'egraft cold')} / {_cpu(row, 'egraft warm')}"]


def _tool_lines(row: Row, tools: Sequence[str]) -> list[list[object]]:
    sizes = ", ".join(f"{name}={size}" for name, size in row.dims.items())
    time = "-" if row.comparison is None else f"{row.comparison.results['original'].seconds * 1e3:.2f} ms"
    lines: list[list[object]] = [[f"{row.name} ({sizes})", "original", row.nodes.get("original", "-"),
                                  f"{time}; A/A {noise(row)}", _error(row, "original"), "", "", ""]]
    for run in row.runs:
        tool = run.tool.split()[0]
        if tool in tools:
            measured = speed_up(row, tool) if run.tool != "egraft cold" else run.problem or "(as warm)"
            lines.append([row.name, run.tool, row.nodes.get(tool, "-"), measured, _error(row, tool), f"{run.cpu:.1f}",
                          f"{run.wall:.1f}", f"{run.peak_mb:.0f}"])
    return lines


def update_readme(path: Path, page: Page) -> None:
    """Put the table between the marks of README.md."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path.name} has no marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{page.table}\n{END}{after}", encoding="utf-8")
