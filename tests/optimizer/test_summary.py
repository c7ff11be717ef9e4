"""What the summary and the page say of sizes, node counts, predictions, and results of earlier runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from graphs import load
from graphs.text import parse_graph
from optimizer import optimize
from optimizer.report import (
    handed_back_lines,
    nodes_note,
    of_the_file,
    prediction_note,
    ratio_text,
    sizes_note,
    summary,
)
from optimizer.report_html import render

MODEL = 'graph "m" opset 18 (x: float32[n, seq]) -> (y) { a = Neg(x) b = Neg(a) y = Relu(b) }'


def run(model: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    return optimize(model, target="roofline", effort="low", timings=str(folder / "t.db"), **settings).report


def line(report: dict[str, Any], name: str) -> str:
    return next((each for each in summary(report).splitlines() if each.startswith(name)), "")


@pytest.mark.parametrize(("dims", "words"), [
    ({}, "sizes      n=1, seq=128 (guessed; --dim NAME=N measures at the size that you use)"),
    ({"seq": [64]}, "sizes      n=1, seq=64 (guessed: n; --dim NAME=N measures at the size that you use)"),
    ({"seq": [64], "n": [2, 4]}, "sizes      n=2, seq=64"),
])  # fmt: skip
def test_sizes_and_which_of_them_are_guessed(dims: dict[str, list[int]], words: str, tmp_path: Path) -> None:
    report = run(parse_graph(MODEL), tmp_path, dims=dims)
    assert line(report, "sizes") == words
    assert words.removeprefix("sizes      ") in render(report)


def test_sizes_of_given_inputs_are_no_guesses(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 5), np.float32))
    report = run(parse_graph(MODEL), tmp_path, inputs=str(tmp_path / "in.npz"))
    assert line(report, "sizes") == "sizes      n=3, seq=5 (those of --inputs)"


def test_constant_sizes_need_no_line(tmp_path: Path) -> None:
    assert not line(run(parse_graph(MODEL), tmp_path, fix_dims={"n": 1, "seq": 8}), "sizes")
    assert line(run(parse_graph(MODEL), tmp_path, fix_dims={"n": 1}), "sizes").startswith("sizes      seq=128 (guess")


def with_constant_nodes(path: Path) -> Path:
    """An If whose branches have a Constant node each, and one outside: 7 nodes, 3 of them Constant."""
    def number(name: str) -> Any:
        array = numpy_helper.from_array(np.array([2.0], np.float32), name)
        return helper.make_node("Constant", [], [name], value=array)

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])

    branches = {f"{side}_branch": helper.make_graph(
        [number(f"{side}_c"), helper.make_node(op, ["s", f"{side}_c"], [f"{side}_y"])], side, [], [value(f"{side}_y")])
        for side, op in (("then", "Mul"), ("else", "Add"))}
    graph = helper.make_graph([number("c"), helper.make_node("Sub", ["x", "c"], ["s"]),
                               helper.make_node("If", ["flag"], ["y"], **branches)], "g",
                              [value("x"), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])], [value("y")])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_nodes_of_the_file_as_it_is_written(tmp_path: Path) -> None:
    path = with_constant_nodes(tmp_path / "m.onnx")
    assert of_the_file(load(path)) == {"file_nodes": 7, "file_constants": 3}
    reports = [run(path, tmp_path) for _ in range(2)]
    assert reports[1]["remembered"] and not reports[0]["remembered"]
    for report in reports:
        assert line(report, "nodes") == "nodes      4 -> 4 (the file has 7, 3 of them Constant)"
        assert "(the file has 7, 3 of them Constant)" in render(report)
        told = f"Remembered: searched and measured {report['remembered']}" in render(report)
        assert told == bool(report["remembered"])


def test_a_graph_that_is_written_as_it_is_has_one_count(tmp_path: Path) -> None:
    assert of_the_file(parse_graph(MODEL)) == {"file_nodes": 3, "file_constants": 0}
    assert line(run(parse_graph(MODEL), tmp_path), "nodes") == "nodes      3 -> 1"
    assert nodes_note({"before": {"nodes": 3}, "model": {"file_nodes": 5, "file_constants": 0}}) == " (the file has 5)"


@pytest.mark.parametrize(("predicted", "told"), [(1.5, True), (1.1, False), (0.9, True)])
def test_a_prediction_beside_what_was_measured(predicted: float, told: bool) -> None:
    report = {"predicted": {"before": predicted, "after": 1.0, "source": "measured"},
              "measured": {"speed_up": 1.1, "low": 1.0, "high": 1.2}}
    assert ("the whole differs" in prediction_note(report)) == told
    assert prediction_note({**report, "measured": {"speed_up": None}}) == "", "nothing to compare with"
    assert sizes_note({"target": {"sizes": {"n": 1}}}).startswith(" (guessed;")


@pytest.mark.parametrize(("source", "estimated", "told"), [
    ("measured/roofline", {"before": 3, "after": 1}, ", 3 and 1 node only estimated"),
    ("measured", {"before": 0, "after": 0}, ""),
    ("roofline", {"before": 3, "after": 1}, ""),  # all of them, as the source says
])  # fmt: skip
def test_how_many_times_are_only_estimated(source: str, estimated: dict[str, int], told: str) -> None:
    predicted = {"before": 1.0, "after": 1.0, "source": source, "estimated": estimated}
    assert prediction_note({"predicted": predicted}) == told


def test_estimates_are_counted_in_both_graphs(tmp_path: Path) -> None:
    found = run(parse_graph(MODEL), tmp_path)["predicted"]
    assert found["source"] == "roofline" and found["estimated"] == {"before": 3, "after": 1}


def test_an_interval_of_few_rounds_says_how_sure_it_is() -> None:
    assert ratio_text({"rounds": 3, "confidence": 0.75}) == "the median ratio of 3 rounds, the interval at 75 %"
    assert ratio_text({"rounds": 16, "confidence": 0.9958}) == "the median ratio of 16 rounds"


def test_an_input_that_is_handed_back_is_compared_with_the_others() -> None:
    row = {"speed_up": 1.0, "low": 1.0, "high": 1.0, "verdict": "equal", "before": 2e-3, "after": 2e-3, "rounds": 15,
           "noise": 0.02, "kind": "measured"}
    others = [{"name": name, "speed_up": ratio, "low": ratio - 0.02, "high": ratio + 0.02, "verdict": verdict}
              for name, ratio, verdict in (("fewest nodes", 0.9, "slower"), ("normalized", 1.01, "equal"))]
    text, times = handed_back_lines({**row, "others": others})
    assert "of 2 other graphs the fastest was 1.010x [0.990, 1.030], equal (normalized; 15 rounds" in text
    assert times == "times      2.000 ms, the median of all rounds" and "1.000x" not in text
    assert "nothing else was measured" in handed_back_lines({**row, "others": []})[0]
    assert handed_back_lines({"speed_up": None, "note": "why"}) == ["measured   nothing: why"]
