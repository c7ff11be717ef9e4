"""The report as one self-contained HTML page: no script, drawings as inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from graphs.wording import counted

from .number_text import bytes_text, count_text, device_text, ratio_text, seconds_text, share_text, short_text
from .report import (
    COMMAND_LINE,
    medians_text,
    memory_text,
    nodes_note,
    prediction_note,
    sizes_note,
    sizes_text,
    unused_because,
)
from .report import ratio_text as which_ratio
from .roofline_report import achieved_text, roofline_plot

WIDTH = 640.0


def render(report: Mapping[str, Any], names: Mapping[str, str] = COMMAND_LINE) -> str:
    """The page of one report; `names`: how its reader writes options."""
    return _environment().get_template("report.html").render(report=report, names=names)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    found = Environment(loader=PackageLoader("optimizer"), autoescape=select_autoescape(default=True),
                        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters.update(FILTERS)
    return found


# ---------------------------------------------------------------- drawings, as plain numbers for the template


def finalist_bars(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One bar for each finalist that was measured: its speed-up with the interval, against the input."""
    rows = [row for row in report.get("finalists") or () if isinstance(row.get("speed_up"), int | float)]
    most = max((max(row["speed_up"], row["high"]) for row in rows), default=1.0) * 1.05
    scale = (WIDTH - 300.0) / max(most, 1e-9)
    return [{"name": row["name"], "chosen": row["name"] == report.get("chosen"), "text": ratio_text(row["speed_up"]),
             "verdict": row.get("verdict", ""), "y": 24 * index, "width": round(scale * row["speed_up"], 1),
             "low": round(scale * row["low"], 1), "high": round(scale * row["high"], 1), "one": round(scale, 1)}
            for index, row in enumerate(rows)]


def stage_bars(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the time of the run went."""
    rows = [row for row in report.get("stages") or () if isinstance(row.get("seconds"), int | float)]
    end = max((row["at"] + row["seconds"] for row in rows), default=0.0) or 1.0
    return [{"name": row["stage"], "seconds": row["seconds"], "y": 18 * index,
             "x": round(110 + 420 * row["at"] / end, 1), "width": max(round(420 * row["seconds"] / end, 1), 1.0)}
            for index, row in enumerate(rows)]


def memory_plot(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Live memory against added time, decision by decision, with the limit; None where nothing is recomputed."""
    section = report.get("memory")
    if not section or len(section["curve"]) < 2:
        return None
    least, rows = float("inf"), []
    for peak, spent in section["curve"]:
        least = min(least, peak)
        rows.append((least, spent))
    high, most = max(section["before"], rows[0][0]), max(spent for _, spent in rows) or 1.0
    points = [(round(70 + 540 * spent / most, 1), round(190 - 170 * peak / high, 1)) for peak, spent in rows]
    return {"points": " ".join(f"{x},{y}" for x, y in points), "end": points[-1],
            "limit": round(190 - 170 * section["limit"] / high, 1), "most": most, "high": high}


FILTERS: dict[str, Callable[..., Any]] = {
    "seconds": seconds_text, "count": count_text, "bytes": bytes_text, "ratio": ratio_text, "short": short_text,
    "share": share_text, "device": device_text, "finalist_bars": finalist_bars, "roofline_plot": roofline_plot,
    "achieved": achieved_text, "memory_plot": memory_plot, "memory_text": memory_text,
    "stage_bars": stage_bars, "sizes": sizes_text,
    "unused_because": unused_because, "sizes_note": sizes_note, "nodes_note": nodes_note,
    "prediction_note": prediction_note, "counted": counted, "which_ratio": which_ratio, "medians": medians_text,
}  # fmt: skip
