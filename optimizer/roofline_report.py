"""The roofline in reports: rows as JSON, as a table for terminals, and as the numbers of a drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cost_model.node_costs import NodeCosts
from cost_model.roofline import graph_roofline
from graphs.ir import Graph

from .number_text import bytes_text, count_text, seconds_text, share_text, short_text

WIDTH, HEIGHT = 640.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 610.0, 20.0, 190.0  # the frame of the axes
COLUMNS = ("", "operations", "unique bytes", "moved by nodes", "per byte", "per byte moved", "at least", "bound by",
           "took", "achieved", "launches")
AT_LEAST = ">="
PARTIAL_NOTE = ("nodes of unknown shape, and turns of a loop beyond the first where only data tell how many, are not "
                "counted: the least time is longer, and the share larger")


def roofline_row(graph: Graph, costs: NodeCosts, seconds: float | None) -> dict[str, Any]:
    """The work of a graph at the sizes of `costs`; `seconds` is what a run was measured to take, if it was."""
    return graph_roofline(graph, costs.sizes, costs.peaks(), costs.overhead().launch).to_dict(seconds)


def roofline_section(before: Graph, after: Graph, costs: NodeCosts, measured: Mapping[str, Any]) -> dict[str, Any]:
    """`roofline` of a report: both graphs, and the rates that the bounds come from (operations and bytes a second)."""
    return {"before": roofline_row(before, costs, measured.get("before")),
            "after": roofline_row(after, costs, measured.get("after")), "peaks": asdict(costs.peaks())}


# ---------------------------------------------------------------- a table for terminals


def table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Lines of a table, one row for each graph: its name and its row of the report."""
    partial = any(is_partial(row) and row.get("achieved") is not None for _, row in rows)
    return [*aligned([COLUMNS, *(_cells(name, row) for name, row in rows)]), *(
        [f"{AT_LEAST}: {PARTIAL_NOTE}"] if partial else [])]


def is_partial(row: Mapping[str, Any]) -> bool:
    """Is there work that was not counted? Then the least time is too short, and so is its share of what a run took."""
    return bool(row.get("unknown") or row.get("loops_once"))


def achieved_text(row: Mapping[str, Any]) -> str:
    """The share of the least time, marked where that lacks work."""
    found = share_text(row.get("achieved"))
    return f"{AT_LEAST} {found}" if found and is_partial(row) else found


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    unknown = f" + {row['unknown']} unknown" if row.get("unknown") else ""
    return (name, count_text(row["flops"]), bytes_text(row["unique_bytes"]), bytes_text(row["traffic_bytes"]),
            f"{row['intensity']:.3g}", short_text(row.get("traffic_intensity")),
            seconds_text(row["lower_bound"]), str(row.get("bound", "")),
            seconds_text(row.get("seconds")) or "-", achieved_text(row) or "-",
            f"{row['launches']}{unknown}")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns under each other: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                      for place, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


# ---------------------------------------------------------------- a drawing


def roofline_plot(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Places in a roofline plot with logarithmic axes; None where the work or the peaks are unknown."""
    roofline = report.get("roofline") or {}
    rows = [(name, roofline.get(name) or {}) for name in ("before", "after")]
    if not all(_positive(row) for _, row in rows):
        return None
    points = []
    for name, row in rows:
        took = row.get("seconds") or row["kernels_bound"]
        if isinstance(took, int | float) and took > 0:
            points.append((name, row["intensity"], row["flops"] / took, row["flops"] / row["lower_bound"]))
    if not points:
        return None
    peaks = roofline.get("peaks") or {}
    return _place(points, peaks, all(row.get("seconds") for _, row in rows))


def _positive(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), int | float) and row[key] > 0 for key in ("flops", "intensity", "lower_bound"))


def _place(points: Sequence[tuple[str, float, float, float]], peaks: Mapping[str, float],
           measured: bool) -> dict[str, Any]:
    """Rates over intensities: the device's roofs, and where each graph stands below them."""
    rates = [rate for _, _, rate, roof in points for rate in (rate, roof)]
    levels = [math.log10(level) for _, level, _, _ in points]
    if peaks:
        rates.append(peaks["flops"])
        levels.append(math.log10(peaks["flops"] / peaks["memory_bytes"]))
    low_x, high_x = math.floor(min(levels) - 0.5), math.ceil(max(levels) + 0.5)
    high_y = math.ceil(math.log10(max(rates)) + 0.05)
    low_y = min(math.floor(math.log10(min(rates))), high_y - 3)

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log10(value) - low_x) / (high_x - low_x), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (math.log10(value) - low_y) / max(high_y - low_y, 1), 1)

    def roof(rate: float) -> str:
        """Bytes a second times operations a byte, from the frame's edge up to the peak of operations."""
        start, ridge, end = max(10.0**low_x, 10.0**low_y / rate), peaks["flops"] / rate, 10.0**high_x
        corners = [(start, rate * start), *([(ridge, peaks["flops"])] if ridge > start else [])]
        corners = [*corners, (end, peaks["flops"])] if ridge < end else [(start, rate * start), (end, rate * end)]
        return " ".join(f"{x(at)},{y(min(value, peaks['flops']))}" for at, value in corners)

    step = max(1, (high_x - low_x) // 8)
    return {
        "measured": measured,
        "roofs": [{"name": name, "points": roof(peaks[key])} for name, key in (
            ("memory", "memory_bytes"), ("cache", "cache_bytes")) if peaks],
        "points": [{"name": name, "x": x(level), "y": y(rate), "roof": y(best), "rate": count_text(rate, "FLOP/s"),
                    "of_roof": f"{100 * rate / best:.0f} %"} for name, level, rate, best in points],
        "x_ticks": [{"x": x(10.0 ** power), "text": f"{10.0 ** power:g}"}
                    for power in range(low_x, high_x + 1, step)],
        "y_ticks": [{"y": y(10.0 ** power), "text": count_text(10.0 ** power)} for power in range(low_y, high_y + 1)],
    }  # fmt: skip
