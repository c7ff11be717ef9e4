"""The report as one self-contained HTML page: no script, drawings as inline SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from graphs.wording import counted

from .report import medians_text, unused_because
from .report import ratio_text as which_ratio

WIDTH = 640.0


def render(report: Mapping[str, Any]) -> str:
    """The page of one report."""
    return _environment().get_template("report.html").render(report=report)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    found = Environment(loader=PackageLoader("optimizer"), autoescape=select_autoescape(default=True),
                        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters.update(FILTERS)
    return found


# ---------------------------------------------------------------- numbers for people


def seconds_text(value: object) -> str:
    """A duration."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value / 1e-9:.1f} ns"


def count_text(value: object, unit: str = "") -> str:
    """A large number with a decimal prefix: 12.3 G."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.2f} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def bytes_text(value: object) -> str:
    """A size in binary units."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    size = float(value)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def ratio_text(value: object) -> str:
    """A speed-up."""
    return f"{value:.3f}x" if isinstance(value, int | float) else "" if value is None else str(value)


def short_text(value: object) -> str:
    """A number of three digits, or the text itself."""
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def device_text(value: object) -> str:
    """A fingerprint of a device in words."""
    try:
        found = json.loads(str(value))
    except json.JSONDecodeError:
        return str(value)
    if not isinstance(found, dict):
        return str(value)
    return ", ".join(f"{name} {text}" for name, text in found.items() if text and name != "instructions")


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


def roofline_plot(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Points of a roofline plot in logarithmic axes; None where the work or the peaks are unknown."""
    roofline = report.get("roofline") or {}
    before, after = roofline.get("before"), roofline.get("after")
    if not before or not after or not all(_positive(row) for row in (before, after)):
        return None
    measured = report.get("measured") or {}
    points = []
    for name, row in (("before", before), ("after", after)):
        took = measured.get(name) or row["kernels_bound"]
        if isinstance(took, int | float) and took > 0:
            points.append((name, row["intensity"], row["flops"] / took, row["flops"] / row["lower_bound"]))
    return _place(points, bool(measured.get("before"))) if points else None


def _positive(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), int | float) and row[key] > 0 for key in ("flops", "intensity", "lower_bound"))


def _place(points: Sequence[tuple[str, float, float, float]], measured: bool) -> dict[str, Any]:
    """Rates over intensities: the roof of each graph, and where the graph stands below it."""
    rates = [rate for _, _, rate, roof in points for rate in (rate, roof)]
    low_y, high_y = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)) + 0.05)
    levels = [math.log10(intensity) for _, intensity, _, _ in points]
    low_x, high_x = math.floor(min(levels) - 0.5), math.ceil(max(levels) + 0.5)

    def x(value: float) -> float:
        return round(60 + (WIDTH - 90) * (math.log10(value) - low_x) / (high_x - low_x), 1)

    def y(value: float) -> float:
        return round(190 - 170 * (math.log10(value) - low_y) / max(high_y - low_y, 1), 1)

    return {
        "measured": measured,
        "points": [{"name": name, "x": x(level), "y": y(rate), "roof": y(roof), "rate": count_text(rate, "FLOP/s"),
                    "of_roof": f"{100 * rate / roof:.0f} %"} for name, level, rate, roof in points],
        "x_ticks": [{"x": x(10.0 ** power), "text": f"{10.0 ** power:g}"} for power in range(low_x, high_x + 1)],
        "y_ticks": [{"y": y(10.0 ** power), "text": count_text(10.0 ** power)} for power in range(low_y, high_y + 1)],
    }  # fmt: skip


def stage_bars(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the time of the run went."""
    rows = [row for row in report.get("stages") or () if isinstance(row.get("seconds"), int | float)]
    end = max((row["at"] + row["seconds"] for row in rows), default=0.0) or 1.0
    return [{"name": row["stage"], "seconds": row["seconds"], "y": 18 * index,
             "x": round(110 + 420 * row["at"] / end, 1), "width": max(round(420 * row["seconds"] / end, 1), 1.0)}
            for index, row in enumerate(rows)]


FILTERS: dict[str, Callable[..., Any]] = {
    "seconds": seconds_text, "count": count_text, "bytes": bytes_text, "ratio": ratio_text, "short": short_text,
    "device": device_text, "finalist_bars": finalist_bars, "roofline_plot": roofline_plot, "stage_bars": stage_bars,
    "unused_because": unused_because, "counted": counted, "which_ratio": which_ratio, "medians": medians_text,
}  # fmt: skip
