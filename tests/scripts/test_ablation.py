"""The ablation: five files of one model, rows that are kept, and the page."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from cost_model.comparison import SampleLists, judge
from graphs import save
from graphs.text import parse_graph
from scripts import ablation, ablation_page, trained_models
from scripts.trained_models import Trained

MODEL = """graph "m" opset 17 (x: float32[n, 16]) -> (y) { a = Transpose(x, perm=[1, 0]) b = Transpose(a, perm=[1, 0])
  y = Tanh(b) }"""


def row(name: str, family: str, times: dict[str, float]) -> dict[str, Any]:
    """Times by stage, each the same in 20 rounds; the original takes 1."""
    times = {ablation.ORIGINAL: 1.0, ablation.TWIN: 1.0, **times}
    samples = {stage: SampleLists((time,) * 20, (time,) * 20) for stage, time in times.items()}
    found = judge(ablation.ORIGINAL, samples, samples[ablation.ORIGINAL], clock="cpu", threads=1, inner={},
                  stopped="budget", confidence=0.99, floor=ablation.FLOOR)
    stages = {stage: {"nodes": 3, "error": 0.0, "warnings": []} for stage in times if stage in ablation.STAGES}
    return {"model": name, "family": family, "size": 1, "threads": 1, "nodes": 4, "stages": stages, "load": 0.5,
            "commit": "abc", "measured_as": {stage: stage for stage in times}, "comparison": found.to_dict()}


def test_means_count_each_family_once() -> None:
    rows = [row("a", "one", {"normalize": 1.0, "greedy": 0.5}), row("b", "one", {"normalize": 1.0, "greedy": 1.0}),
            row("c", "two", {"normalize": 1.25, "greedy": 1.25})]
    measured = [ablation_page.Measured(each) for each in rows]
    models, families = ablation_page.means(measured, "greedy")
    assert models == pytest.approx((2.0 * 1.0 * 0.8) ** (1 / 3))
    assert families == pytest.approx(math.sqrt(math.sqrt(2.0) * 0.8))
    text = ablation_page.markdown(rows, ["normalize", "greedy"]).text
    assert "| greedy | 1.170 | 1.064 | 1 | 0 | 1 |" in text and "| a | 4 | 1.000 (3) | 2.000 (3) |" in text


def test_one_model_from_its_file_to_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(parse_graph(MODEL), tmp_path / "m.onnx")
    monkeypatch.setitem(trained_models.MODELS, "m", Trained("mine", {"n": 4}, {"n": 5}))
    options = argparse.Namespace(size=2, threads=1, seconds=0.2, rows=tmp_path / "rows.jsonl")
    found = ablation.ablate("m", tmp_path / "m.onnx", ["normalize", "greedy", "nodes"], options)
    assert [each["nodes"] for each in found["stages"].values()] == [3, 1, 1] and found["sizes"] == {"n": 5}
    assert found["measured_as"] == {ablation.ORIGINAL: ablation.ORIGINAL, ablation.TWIN: ablation.TWIN,
                                    "normalize": "normalize", "greedy": "greedy", "nodes": "greedy"}
    assert all(each["error"] == 0 for each in found["stages"].values())
    options.rows.write_text(json.dumps(found) + '\n{"cut')
    [again] = ablation.read_rows(options.rows)
    assert "| m | 3 |" in ablation_page.markdown([again], ["normalize", "greedy", "nodes"]).text
