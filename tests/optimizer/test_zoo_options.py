"""Options of `egraft zoo` that mean what they mean in `egraft optimize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphs import save
from graphs.text import parse_graph
from optimizer.command_line import main
from tests.optimizer.test_command_line_options import one_line

Output = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    for name, dims in (("a", "n, 4"), ("b", "m, 4")):
        text = f'graph "{name}" opset 18 (x: float32[{dims}]) -> (y) {{ t = Neg(x) y = Neg(t) }}'
        save(parse_graph(text), models / f"{name}.onnx")
    return models


def zoo(folder: Path, *more: object) -> int:
    out = folder.parent / "results"
    words = ["zoo", folder, "-o", out, "--target", "roofline", "--effort", "low", "--timings", folder.parent / "t.db"]
    return main([str(word) for word in (*words, *more)])


def results(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the rows of the table, the report of the first model)."""
    out = folder.parent / "results"
    return json.loads((out / "summary.json").read_text()), json.loads((out / "a.report.json").read_text())


def test_sizes_and_threads_reach_each_model(folder: Path, capsys: Output) -> None:
    assert zoo(folder, "--dim", "n=3", "--threads", 1) == 1, "b has no n"
    rows, report = results(folder)
    assert [row["state"] for row in rows] == ["done", "failed"] and "known: m" in rows[1]["error"]
    assert report["target"]["sizes"] == {"n": 3} and report["options"]["threads"] == report["target"]["threads"] == 1
    capsys.readouterr()


def test_fresh_searches_what_is_remembered(folder: Path) -> None:
    assert zoo(folder) == 0 and results(folder)[1]["remembered"] is None
    (folder.parent / "results" / "a.onnx").unlink()
    assert zoo(folder) == 0 and results(folder)[1]["remembered"], "of the same options in the database"
    assert zoo(folder, "--fresh") == 0
    rows, report = results(folder)
    assert [row["state"] for row in rows] == ["done", "done"] and report["remembered"] is None
    assert zoo(folder, "--fresh") == 0, "started again, it goes on"
    assert [row["state"] for row in results(folder)[0]] == ["done before", "done before"]


@pytest.mark.parametrize(("words", "told"), [(["--threads", "4000"], "--threads 4000"), (["--dim", "n"], "--dim n"),
                                             (["--threads", "0"], "see egraft zoo --help")])
def test_what_is_impossible_is_refused_before_any_model(folder: Path, words: list[str], told: str,
                                                        capsys: Output) -> None:
    assert zoo(folder, *words) == 2
    one_line(capsys, "invalid-option", told)
    assert not (folder.parent / "results").exists()
