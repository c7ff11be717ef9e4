"""The page of what `scripts/ablation.py` measured."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cost_model.comparison import Comparison
from cost_model.fingerprint import cpu, version_of
from graphs.wording import counted

from .bench_page import table

Row = Mapping[str, Any]
MEANS = {
    "normalize": "normalization only: constants folded, shapes resolved, dead nodes dropped",
    "greedy": "the same rules, one after the other while the sum of node times goes down, no e-graph",
    "nodes": "an e-graph, and the measured times of single nodes",
    "neighbourhoods": "and the times of what the runtime joins when it loads a graph",
    "all": "and finalists, measured whole against the input (the product)",
}
EXPLANATION = """\
`make ablation`. Each column is one more part of the search. Files are made without any size being named; speed-ups are
the original's time by that of the file, the median over rounds in which all files of a model ran in turns in one
process, five times with sessions of their own, ONNX Runtime at ORT_ENABLE_ALL on both sides. A/A is the original in
another session of its own. Stages whose graphs are equal are measured as one. A stage is ahead (behind) on a model
where the interval of its ratio to the stage before lies beyond 1 % and beyond the noise of that model; means count
each model, or each family of models, once."""


@dataclass(frozen=True)
class Page:
    """The page and what its file is called."""

    text: str
    file_name: str


class Measured:
    """One model's row, with its comparison."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.comparison = Comparison.from_dict(row["comparison"])
        self._names: Mapping[str, str] = row["measured_as"]

    def name(self, stage: str) -> str | None:
        """What the stage was measured as, None where it was not."""
        found = self._names.get(stage)
        return found if found in self.comparison.results else None

    def speed_up(self, stage: str) -> float | None:
        """Original by stage."""
        name = self.name(stage)
        return None if name is None else self.comparison.results[name].speed_up

    def verdict(self, stage: str, other: str) -> str:
        """Of a stage against another one; empty where one was not measured."""
        one, two = self.name(stage), self.name(other)
        return "" if one is None or two is None else self.comparison.verdict(one, two)


def geomean(values: Iterable[float]) -> float | None:
    """None where there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(fmean(logs)) if logs else None


def means(rows: Sequence[Measured], stage: str) -> tuple[float | None, float | None]:
    """Geometric means over models, and over families (of the mean of each)."""
    families: defaultdict[str, list[float]] = defaultdict(list)
    for each in rows:
        value = each.speed_up(stage)
        if value is not None:
            families[each.row["family"]].append(value)
    each_family = [found for values in families.values() if (found := geomean(values)) is not None]
    return geomean(value for values in families.values() for value in values), geomean(each_family)


def markdown(rows: Sequence[Row], stages: Sequence[str]) -> Page:
    """The page of these rows."""
    measured = [Measured(row) for row in rows]
    facts = cpu()
    day = datetime.date.today().isoformat()
    threads, size = ({row[key] for row in rows} for key in ("threads", "size"))
    loads = [row["load"] for row in rows]
    head = (f"{facts['cpu']}, {counted(facts['cores'], 'core')}; onnxruntime {version_of('onnxruntime')}; {day}; "
            f"threads {_listed(threads)}, sizes number {_listed(size)}; {'CPU' if threads == {1} else 'wall'} time; "
            f"load of the machine after each model {min(loads, default=0):.1f} to {max(loads, default=0):.1f}; commits "
            f"{_listed({row['commit'] for row in rows})} (+: with changes).")
    text = "\n\n".join([
        f"# Ablation, {day}", EXPLANATION, head, "\n".join(f"- **{stage}**: {MEANS[stage]}" for stage in stages),
        "## Means", table(("stage", "models", "families", "ahead of the stage before", "behind it", "below 0.98"),
                          [*(_mean_line(measured, stages, index) for index in range(len(stages))),
                           _mean_line(measured, ["A/A"], 0)]),
        "## Models", table(("model", "nodes", *stages, "A/A", "largest error"),
                           [_model_line(each, stages) for each in measured]),
        *_problems(measured, stages)])
    suffix = "" if (threads, size) == ({1}, {1}) else f"-size-{_listed(size)}-threads-{_listed(threads)}"
    return Page(text + "\n", f"ablation-{re.sub('[^0-9a-z-]', '', day + suffix)}.md")


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))) or "-"


def _mean_line(rows: Sequence[Measured], stages: Sequence[str], index: int) -> list[object]:
    stage = stages[index]
    models, families = means(rows, stage)
    low = sum(1 for each in rows if (value := each.speed_up(stage)) is not None and value < 0.98)
    steps: Counter[str] = Counter()
    if index:
        steps.update(each.verdict(stage, stages[index - 1]) for each in rows)
    against = (steps["faster"], steps["slower"]) if index else ("", "")
    return [stage, _number(models), _number(families), *against, low]


def _model_line(each: Measured, stages: Sequence[str]) -> list[object]:
    row, noise = each.row, each.comparison.results["A/A"]
    errors = [row["stages"][stage]["error"] for stage in stages if "error" in row["stages"][stage]]
    cells: list[object] = []
    for stage in stages:
        nodes = row["stages"][stage].get("nodes")
        cells.append(f"{_number(each.speed_up(stage))} ({nodes})" if nodes is not None else "-")
    return [row["model"], row["nodes"], *cells, f"{noise.speed_up:.3f} [{1 / noise.high:.3f}, {1 / noise.low:.3f}]",
            f"{max(errors):.0e}" if errors else "-"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _problems(rows: Sequence[Measured], stages: Sequence[str]) -> list[str]:
    lines = [f"- {each.row['model']}, {stage}: {text}" for each in rows for stage in stages
             for text in [each.row["stages"][stage].get("problem"), *each.row["stages"][stage].get("warnings", ())]
             if text]
    return ["## What was reported", "\n".join(lines)] if lines else []
