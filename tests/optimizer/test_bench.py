"""`egraft bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphs import save
from graphs.text import parse_graph
from optimizer.command_line import main

Output = pytest.CaptureFixture[str]
FAST = ["--target", "egraft:cpu", "--threads", "1", "--seconds", "0.05"]


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    weights = ", ".join(["0.5"] * 16)
    for name, body in (("a", "y = MatMul(x, w)"), ("b", "t = MatMul(x, w) u = MatMul(t, w) y = MatMul(u, w)")):
        text = f'graph "{name}" opset 18 (x: float32[n, 4]) -> (y) {{ w = constant float32[4, 4] [{weights}] {body} }}'
        save(parse_graph(text), tmp_path / f"{name}.onnx")
    return [str(tmp_path / f"{name}.onnx") for name in "ab"]


def test_median_spread_samples_load_and_roofline(models: list[str], tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "b.json"
    assert main(["bench", *models, *FAST, "--dim", "n=8", "--compare", "--json", str(out), "--timings",
                 str(tmp_path / "t.db")]) == 0
    found = json.loads(out.read_text())
    for row, products in zip(found["models"], (1, 3)):
        samples = sorted(row["samples"])
        assert len(samples) >= 3 and samples[0] <= row["median"] <= samples[-1] and row["spread"] >= 0
        assert row["sizes"] == {"n": 8} and row["threads"] == 1 and len(row["load"]) == 2
        work = row["roofline"]
        assert work["flops"] == products * 2 * 8 * 4 * 4 and work["launches"] == products
        assert work["achieved"] == pytest.approx(work["lower_bound"] / row["median"])
    first, second = found["compared"]
    assert first["speed_up"] == 1.0 and 0 < second["low"] <= second["speed_up"] <= second["high"]
    shown = capsys.readouterr().out
    for text in ("egraft:cpu", "median", "load", "achieved", "n=8", "in turns, against the first", *models):
        assert text in shown


@pytest.mark.parametrize(("words", "code", "text"), [
    (["--target", "roofline"], "invalid-option", "it runs nothing"), (["--dim", "m=3"], "invalid-option", "known: n"),
    (["--threads", "4000"], "invalid-option", "--threads"), (["--target", "nowhere"], "invalid-option", "nowhere"),
])  # fmt: skip
def test_what_cannot_be_measured(words: list[str], code: str, text: str, models: list[str], capsys: Output) -> None:
    assert main(["bench", *models, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"egraft: error[{code}]") and text in lines[0]


def test_models_with_other_inputs_are_not_compared(models: list[str], tmp_path: Path, capsys: Output) -> None:
    save(parse_graph('graph "c" opset 18 (z: float32[n, 4]) -> (y) { y = Neg(z) }'), tmp_path / "c.onnx")
    assert main(["bench", models[0], str(tmp_path / "c.onnx"), *FAST, "--compare", "--timings",
                 str(tmp_path / "t.db")]) == 2
    assert "c.onnx: its inputs are not those of" in capsys.readouterr().err
