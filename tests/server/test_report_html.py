"""The report as a page, at the edges: nothing measured, no work, infinities as text, names that need escaping."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from graphs.text import parse_graph
from optimizer import optimize
from optimizer.number_text import bytes_text, count_text, seconds_text
from optimizer.report_html import finalist_bars, render
from optimizer.roofline_report import roofline_plot, table
from server.pages_render import NAMES, environment

WORK = {"flops": 2e9, "unique_bytes": 1e7, "traffic_bytes": 3e7, "intensity": 200.0, "traffic_intensity": 66.7,
        "lower_bound": 0.01, "bound": "compute", "kernels_bound": 0.02, "launches": 12, "unknown": 0, "loops_once": 0,
        "threads": 2}
PEAKS = {"flops": 2e11, "cache_bytes": 1e10, "memory_bytes": 1e9, "threads": 2}
OLD = ("flops", "unique_bytes", "traffic_bytes", "intensity", "lower_bound", "kernels_bound", "launches", "unknown",
       "threads")  # what reports of earlier releases hold
REPORT: dict[str, Any] = {
    "egraft_report": 1, "egraft": "0", "timings_hash": "h", "seconds": 1.5, "steps": 3, "chosen": "cheapest",
    "unchanged": False, "warnings": ["<b>careful</b>"], "model": {"name": "<net>", "opset": 17}, "options": {},
    "target": {"name": "onnxruntime:cpu", "device": '{"cpu": "a", "quota": ""}', "threads": 2, "sizes": {"batch": 1}},
    "before": {"nodes": 9, "constant_bytes": 4096, "operators": {"Add": 9}},
    "after": {"nodes": 5, "constant_bytes": 0, "operators": {"Add": 4, "Gemm": 1}},
    "predicted": {"before": 2.0, "after": 1.0, "source": "measured"},
    "measured": {"speed_up": 1.25, "low": 1.2, "high": 1.3, "verdict": "faster", "before": 0.03, "after": 0.024,
                 "noise": 0.02, "rounds": 9, "clock": "wall", "note": "", "unsupported": {"greedy": "no kernel"}},
    "finalists": [{"name": "cheapest", "speed_up": 1.25, "low": 1.2, "high": 1.3, "verdict": "faster"},
                  {"name": "input", "speed_up": 1.0, "low": 1.0, "high": 1.0, "verdict": "equal"},
                  {"name": "unmeasured", "predicted": None}],
    "validation": {"ok": True, "status": "passed", "exactness": "rounding", "rounds": [], "summary": "passed",
                   "outputs": [
        {"name": "y", "ok": True, "error": "inf", "allowed": 1e-6, "against": "the original", "share": 1.0,
         "elements": 3, "reason": ""}]},
    "rules_used": {"a-rule": 3}, "not_used": [{"rule": "b-rule", "places": 2}], "dropped": [{"rule": None}],
    "roofline": {"before": {**WORK, "seconds": 0.03, "achieved": 1 / 3},
                 "after": {**WORK, "flops": 1.5e9, "seconds": 0.024, "achieved": 0.41}, "peaks": PEAKS},
    "stages": [{"stage": "load", "at": 0.0, "seconds": 1.0}],
    "peak_memory_bytes": {"process": 1 << 28, "largest_child": 1 << 27},
}  # fmt: skip


def test_the_page_says_what_the_report_says_and_escapes_names() -> None:
    page = render(REPORT)
    for text in ("1.250x", "9 to 5", "a-rule", "b-rule", "does not pay on this target", "&lt;net&gt;", "batch=1"):
        assert text in page
    assert "<net>" not in page and "<b>careful" not in page and "<script" not in page
    assert not re.search(r"(src|href)=", page)


@pytest.mark.parametrize("change", [
    {"measured": {"speed_up": None, "note": "no inputs", "unsupported": {}}, "finalists": []},
    {"predicted": None, "validation": None, "stages": []},
    {"roofline": {"before": {**WORK, "loops_once": 2}, "after": WORK, "peaks": PEAKS}},
    {"roofline": {"before": {key: WORK[key] for key in OLD}, "after": {key: WORK[key] for key in OLD}}},
    {"roofline": {"before": {**WORK, "flops": 0.0, "intensity": 0.0, "lower_bound": 0.0}, "after": WORK}},
    {"target": {**REPORT["target"], "sizes": {}, "device": "plain"}, "dropped": [], "not_used": [], "rules_used": {}},
])  # fmt: skip
def test_reports_with_gaps(change: dict[str, Any]) -> None:
    assert "</html>" in render({**copy.deepcopy(REPORT), **change})


def test_constant_sizes_and_buckets() -> None:
    row = {"speed_up": 1.5, "low": 1.4, "high": 1.6, "verdict": "faster"}
    page = render({**REPORT, "fixed": {"sizes": {"batch": 1}, "against_the_file": row, "note": ""}, "buckets": {
        "rows": [{"sizes": {"seq": 32}, **row}, {"sizes": {"seq": 64}, "note": "not measured"}], "chosen": True,
        "reason": "", "outside": {"seq": 7}, "measured": [{"sizes": {"seq": 32}, "against_general": row}],
        "validation": [{"sizes": {"seq": 32}, "status": "passed", "summary": "passed, 3 rounds"}]}})
    for text in ("batch=1: the result takes no other sizes", "seq=32: its graph alone", "seq=32: the whole file",
                 "1.500x", "not measured", "passed, 3 rounds", "faster"):
        assert text in page
    unused = {"rows": [], "chosen": False, "reason": "none was &lt;faster", "outside": None, "validation": []}
    assert "Not used: none was" in render({**REPORT, "buckets": unused})


def test_drawings_stay_inside_their_frame() -> None:
    plot = roofline_plot(REPORT)
    assert plot is not None and plot["measured"]
    for point in plot["points"]:
        assert 70 <= point["x"] <= 610 and 15 <= point["roof"] <= point["y"] <= 195, point
    for roof in plot["roofs"]:
        for corner in roof["points"].split():
            across, down = map(float, corner.split(","))
            assert 70 <= across <= 610 and 20 <= down <= 190, roof
    memory, cache = ([float(corner.split(",")[1]) for corner in roof["points"].split()] for roof in plot["roofs"])
    assert memory[-1] == cache[-1] < cache[0] <= memory[0]  # both rise to the same peak, the cache's earlier
    bars = finalist_bars(REPORT)
    assert [bar["name"] for bar in bars] == ["cheapest", "input"] and all(bar["high"] <= 345 for bar in bars)


def test_numbers_for_people() -> None:
    assert [seconds_text(value) for value in (2, 2e-3, 2e-6, 2e-9)] == ["2.000 s", "2.000 ms", "2.000 us", "2.0 ns"]
    assert bytes_text(3 << 20) == "3.0 MiB" and bytes_text(5) == "5 bytes" and count_text(2e9, "FLOP") == "2.00 GFLOP"
    assert seconds_text(None) == "" and bytes_text("inf") == "inf"


def test_the_roofline_as_a_table() -> None:
    rows = REPORT["roofline"]
    unmeasured = {**rows["after"], "seconds": None, "achieved": None, "unknown": 3}
    head, before, after = table([("before", rows["before"]), ("after", unmeasured)])
    assert head.split("  ")[-1] == "launches" and len({len(head), len(before)}) <= 2
    for text in ("2.00 G", "9.5 MiB", "200", "66.7", "10.000 ms", "compute", "30.000 ms", "33.3 %", "12"):
        assert text in before, before
    assert after.split()[-6:] == ["-", "-", "12", "+", "3", "unknown"]


def test_a_memory_limit_is_drawn() -> None:
    memory = {"asked": "50%", "limit": 512.0, "before": 1024.0, "kept": 1024.0, "after": 500.0, "met": True,
              "recomputed": 2, "predicted": 0.12, "measured": None,
              "curve": [[1024.0, 0.0], [700.0, 0.05], [500.0, 0.12]]}
    page = render({**REPORT, "memory": memory})
    assert 'cx="610.0" cy="107.0"' in page  # 500 of 1024 bytes, at the end
    assert 'points="70.0,20.0 295.0,73.8 610.0,107.0"' in page  # 0.05 / 0.12 of the width; 700 and 500 of 1024 bytes
    assert "2 nodes run again, +12 % time predicted" in page
    assert "<h2>Memory</h2>" not in render({**REPORT, "memory": None})


def test_a_service_names_options_as_requests_do(tmp_path: Path) -> None:
    """Nobody gives `--dim` or `--fresh` to a service: they are parameters of a request (docs/rest-api.md)."""
    model = parse_graph('graph "m" opset 18 (x: float32[n, seq]) -> (y) { a = Neg(x) b = Neg(a) y = Relu(b) }')
    found = optimize(model, target="roofline", effort="low", timings=str(tmp_path / "t.db")).report
    report = {**found, "remembered": "yesterday"}
    page, command = render(report, NAMES), render(report)
    assert "guessed; dim=NAME=N measures" in page and "<code>fresh=true</code>" in page
    assert "guessed; --dim NAME=N measures" in command and "<code>--fresh</code>" in command
    job = environment().from_string('{% from "report_parts.html" import report_body with context %}'
                                    "{{ report_body(report) }}").render(report=report)
    assert "guessed; dim=NAME=N measures" in job and "<code>fresh=true</code>" in job
    assert report["measured"]["note"].count("nothing was measured") == 1
