"""`egraft bench`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphs import save
from graphs.inference import infer
from graphs.text import parse_graph
from optimizer.command_line import main
from runtime.fusion import Group, as_functions, fuse

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


def test_functions_that_are_fused_nodes_count_as_kernels_where_they_run_as_such(tmp_path: Path) -> None:
    """Mul and Exp of 4000 bytes as one kernel: one launch, what lies between is not moved. And no constant is left in
    the file that only the function reads."""
    graph = parse_graph('graph "f" opset 18 (x: float32[1000]) -> (y) { '
                        "v = constant float32[] 2 t = Mul(x, v) y = Exp(t) }")
    infer(graph)
    save(as_functions(fuse(graph, [Group((0, 1), "y")])), tmp_path / "f.onnx")
    assert not onnx.load(tmp_path / "f.onnx").graph.initializer
    for target, launches, moved in (("egraft:cpu", 1, 8000), ("onnxruntime:cpu", 2, 16004)):
        out = tmp_path / "b.json"
        assert main(["bench", str(tmp_path / "f.onnx"), "--target", target, "--threads", "1", "--seconds", "0.05",
                     "--json", str(out), "--timings", str(tmp_path / "t.db")]) == 0
        work = json.loads(out.read_text())["models"][0]["roofline"]
        assert work["launches"] == launches and abs(work["traffic_bytes"] - moved) <= 8


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


def test_each_size_is_measured(models: list[str], tmp_path: Path) -> None:
    """A model without the dimension is measured once."""
    out = tmp_path / "b.json"
    save(parse_graph('graph "f" opset 18 (x: float32[2, 4]) -> (y) { y = Neg(x) }'), tmp_path / "f.onnx")
    assert main(["bench", models[0], str(tmp_path / "f.onnx"), *FAST, "--dim", "n=2,3", "--json", str(out),
                 "--timings", str(tmp_path / "t.db")]) == 0
    found = json.loads(out.read_text())["models"]
    assert [row["sizes"] for row in found] == [{"n": 2}, {"n": 3}, {}]
    assert [row["roofline"]["flops"] for row in found[:2]] == [2 * 2 * 4 * 4, 2 * 3 * 4 * 4]


def test_a_comparison_at_each_size(models: list[str], tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    assert main(["bench", *models, *FAST, "--dim", "n=2,3", "--compare", "--json", str(out), "--timings",
                 str(tmp_path / "t.db")]) == 0
    assert [row["sizes"]["n"] for row in json.loads(out.read_text())["compared"]] == [2, 2, 3, 3]


def test_values_that_nobody_gave_are_told(tmp_path: Path, capsys: Output) -> None:
    save(parse_graph("""graph "m" opset 18 (x: float32[4], k: int64[]) -> (y) {
      five = constant int64[] 5 c = Equal(k, five)
      y = If(c, then_branch=graph "t" () -> (t) { t = Neg(x) }, else_branch=graph "e" () -> (e) { e = Abs(x) }) }"""),
         tmp_path / "m.onnx")
    words = ["bench", str(tmp_path / "m.onnx"), *FAST, "--timings", str(tmp_path / "t.db"), "--json",
             str(tmp_path / "b.json")]
    assert main(words) == 0
    row, = json.loads((tmp_path / "b.json").read_text())["models"]
    assert f"m.onnx: k={row['values']['k']} (guessed" in capsys.readouterr().out
    np.savez(tmp_path / "x.npz", x=np.zeros(4, np.float32), k=np.array(5))
    assert main([*words, "--inputs", str(tmp_path / "x.npz")]) == 0
    assert "values of" not in capsys.readouterr().out


def test_more_threads_than_cores_are_warned_of(models: list[str], tmp_path: Path, capsys: Output,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    for threads, several in ((1, False), (2, True)):
        out = tmp_path / f"{threads}.json"
        assert main(["bench", *models, *FAST[:2], *FAST[4:], "--threads", str(threads), "--dim", "n=2,3", "--json",
                     str(out), "--timings", str(tmp_path / "t.db")]) == 0
        assert capsys.readouterr().out.count("2 threads share the 1 core that") == several
        assert len(json.loads(out.read_text())["warnings"]) == several


@pytest.mark.parametrize("more", [[], ["--buckets", "n=2", "--dim", "n=4"]])
def test_optimize_warns_of_more_threads_than_cores(more: list[str], models: list[str], tmp_path: Path, capsys: Output,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    report = tmp_path / "r.json"
    for again in range(2):  # the second result is remembered
        for target, threads, expected in (("egraft:cpu", 2, 1), ("egraft:cpu", 1, 0), ("roofline", 2, 0)):
            assert main(["optimize", models[1], "-o", str(tmp_path / "o.onnx"), "--target", target, "--threads",
                         str(threads), "--effort", "low", "--report", str(report), "--timings", str(tmp_path / "t.db"),
                         *more]) == 0
            assert capsys.readouterr().out.count("2 threads share the 1 core that") == expected, (again, target)
            told = [text for text in json.loads(report.read_text())["warnings"] if "threads share" in text]
            assert len(told) == expected
