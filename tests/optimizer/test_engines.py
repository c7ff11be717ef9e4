"""Folders of models in several processes, and on Ray where it is installed."""

from __future__ import annotations

import io
import json
import sys
from itertools import count
from pathlib import Path

import pytest

from graphs import load, save
from graphs.errors import InvalidOption
from graphs.text import parse_graph
from optimizer import engines
from optimizer.batch import optimize_folder
from optimizer.options import Options
from search.process import ChildProcess

TEXT = """graph "m" opset 17 (x: float32[%d, 8]) -> (y) {
  t = Transpose(x, perm=[1, 0]) u = Transpose(t, perm=[1, 0]) y = Relu(u) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three models."""
    found = tmp_path / "models"
    found.mkdir()
    for rows in (2, 3, 4):
        save(parse_graph(TEXT % rows), found / f"m{rows}.onnx")
    return found


def options_of(tmp_path: Path) -> Options:
    return Options(target="roofline", effort="low", timings=str(tmp_path / "t.db"))


def rows_of(out: Path) -> list[dict]:
    found: list[dict] = json.loads((out / "summary.json").read_text())
    return found


def test_a_process_that_dies_takes_one_model_with_it(folder: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers; the first process is killed, the second and the one after it do the rest."""
    started: list[ChildProcess] = []

    numbers = count()  # drawn at once: two threads that look at `started` may both find it empty

    class Killed(ChildProcess):
        def __init__(self, module: str, threads: int = 1) -> None:
            is_first = next(numbers) == 0
            super().__init__(module, threads)
            if is_first:
                self.process.kill()
            started.append(self)

    monkeypatch.setattr(engines, "ChildProcess", Killed)
    text = io.StringIO()
    assert optimize_folder(folder, tmp_path / "out", options_of(tmp_path), text, workers=2) == 1
    rows = rows_of(tmp_path / "out")
    assert [row["model"] for row in rows] == ["m2.onnx", "m3.onnx", "m4.onnx"]
    assert sorted(row["state"] for row in rows) == ["done", "done", "failed"]
    assert "process-died" in next(row["error"] for row in rows if row["state"] == "failed")
    assert len(started) in (2, 3) and all(child.process.poll() is not None for child in started)
    assert "[3/3]" in text.getvalue()
    monkeypatch.setattr(engines, "ChildProcess", ChildProcess)
    assert optimize_folder(folder, tmp_path / "out", options_of(tmp_path), text) == 0
    assert sorted(row["state"] for row in rows_of(tmp_path / "out")) == ["done", "done before", "done before"]
    assert load(tmp_path / "out" / "m2.onnx").node_count() == 1


def test_without_ray_there_is_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidOption, match=r"--engine ray: Ray is not installed; pip install 'egraft\[ray\]'"):
        optimize_folder(folder, tmp_path / "out", options_of(tmp_path), io.StringIO(), "ray")
    with pytest.raises(InvalidOption, match="give local or ray"):
        optimize_folder(folder, tmp_path / "out", options_of(tmp_path), io.StringIO(), "slurm")


@pytest.mark.slow
def test_ray(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (folder / "broken.onnx").write_text("no model")
    assert optimize_folder(folder, tmp_path / "out", options_of(tmp_path), io.StringIO(), "ray") == 1
    rows = rows_of(tmp_path / "out")
    assert [row["state"] for row in rows] == ["failed", "done", "done", "done"] and "invalid-model" in rows[0]["error"]
    assert load(tmp_path / "out" / "m2.onnx").node_count() == 1
