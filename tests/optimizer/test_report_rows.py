"""Single numbers of the report and the words beside them: shares of unfinished sums, predictions, gains of fusions."""

from __future__ import annotations

from pathlib import Path

from graphs.text import parse_graph
from optimizer import optimize
from optimizer.report import summary
from optimizer.report_html import render
from optimizer.roofline_report import AT_LEAST, PARTIAL_NOTE, achieved_text, table
from tests.server.test_report_html import REPORT, WORK

ROW = {**WORK, "seconds": 0.02, "achieved": 0.5}


def test_shares_of_work_that_is_not_all_counted_are_marked() -> None:
    assert achieved_text(ROW) == "50.0 %"
    assert achieved_text({**ROW, "unknown": 1}) == achieved_text({**ROW, "loops_once": 2}) == f"{AT_LEAST} 50.0 %"
    assert achieved_text({**ROW, "unknown": 1, "achieved": None}) == ""
    assert len(table([("before", ROW), ("after", ROW)])) == 3
    lines = table([("before", {**ROW, "unknown": 1}), ("after", ROW)])
    assert ">= 50.0 %" in lines[1] and ">=" not in lines[2] and lines[3] == f">=: {PARTIAL_NOTE}"
    assert len(table([("before", {**ROW, "unknown": 1, "achieved": None})])) == 2  # there is no share to explain


def test_the_page_marks_them_too() -> None:
    before = {**REPORT["roofline"]["before"], "unknown": 3}
    page = render({**REPORT, "roofline": {**REPORT["roofline"], "before": before}})
    assert "&gt;= 33.3 %" in page and "41.0 %" in page and "&gt;= 41.0 %" not in page


def test_the_normalized_graph_has_a_prediction(tmp_path: Path) -> None:
    text = """graph "g" opset 18 (x: float32[2, 4]) -> (y) {
      one = Identity(x) two = Identity(one) y = Exp(two) }"""
    report = optimize(parse_graph(text), target="egraft:cpu", threads=1, effort="low", timings=str(tmp_path / "t.db"),
                      objective="nodes").report
    rows = {row["name"]: row for row in report["finalists"]}
    assert "normalized" in rows and all(row["predicted"] > 0 for name, row in rows.items() if name != "input")


def test_what_gains_of_fusions_are_is_said() -> None:
    fusions = {"counts": {"unique": 3, "sets": 5, "generated": 2, "measured": 2}, "impossible": {}, "faults": [],
               "note": "", "gain_seconds": 1e-4, "gain_note": "told",
               "chosen": [{"label": "GELU", "operators": ["Mul", "Erf"], "types": ["float32[4]"], "count": 2,
                           "unfused_seconds": 2e-4, "fused_seconds": 1e-4, "signature": "s", "where": "y"}]}
    report = {**REPORT, "fusions": fusions, "measured": {**REPORT["measured"], "kind": "measured"}}
    lines = summary(report).splitlines()
    place = next(index for index, line in enumerate(lines) if "2 x GELU" in line)
    assert "timed in turns" in lines[place - 1] and "200.0 us -> 100.0 us" in lines[place]
    assert "Times: told." in render(report)
    assert "in turns" not in summary({**report, "fusions": {**fusions, "chosen": []}})


def test_the_page_tells_the_headline_from_the_race() -> None:
    words = "in 5 pairs of fresh sessions"
    assert words in render({**REPORT, "measured": {**REPORT["measured"], "pairs": 5}})
    assert "fresh sessions" not in render(REPORT)
