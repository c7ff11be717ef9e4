"""Error messages of the command line that new users meet first."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from graphs import save
from graphs.text import parse_graph
from optimizer.command_line import main

Output = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(parse_graph('graph "m" opset 18 (x: float32[n, 4]) -> (y) { y = Neg(x) }'), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def refused(output: Output, *words: object) -> str:
    """What the command line says in its single line."""
    assert main([str(word) for word in words]) == 2
    lines = output.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(("words", "pointer"), [
    (["optimize"], "egraft optimize --help"), (["optimize", "m.onnx", "--ou", "x"], "egraft optimize --help"),
    (["timings", "foo"], "egraft timings --help"), (["timings", "import", "--odd"], "egraft timings import --help"),
    (["rules", "check", "--odd"], "egraft rules check --help"), (["optimise"], "egraft --help"),
    (["check", "a", "b", "--precision", "odd"], "egraft check --help"),
    (["bench", "a", "--threads", "0"], "egraft bench --help"), (["train-step", "a", "-o", "b", "--loss", "mse", "--lr",
                                                                  "-1"], "egraft train-step --help"),
])  # fmt: skip
def test_a_wrong_command_points_to_its_own_help(words: list[str], pointer: str, capsys: Output) -> None:
    assert refused(capsys, *words).endswith(f"; see {pointer}")


@pytest.mark.parametrize(("words", "line"), [([], "Usage: egraft [OPTIONS] COMMAND [ARGS]..."),
                                             (["timings"], "Usage: egraft timings [OPTIONS] COMMAND [ARGS]...")])
def test_nothing_but_a_command_group_shows_its_help(words: list[str], line: str, capsys: Output) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[0] == line


def test_files_that_are_not_there(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, gone = tmp_path / "out.onnx", tmp_path / "gone"
    for words in (["optimize", gone, "-o", out], ["optimize", tmp_path, "-o", out], ["check", model, gone],
                  ["trace", gone], ["run", model, "--inputs", gone], ["timings", "import", gone, "--timings",
                                                                     tmp_path / "t.db"]):
        line = refused(capsys, *words)
        assert line.startswith("egraft: error[unreadable-file]: ") and line.endswith("; check the path")
    assert not out.exists()


def test_arrays_of_python_objects_are_named(model: Path, tmp_path: Path, capsys: Output) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32), labels=np.array([1, "a", None], object))
    line = refused(capsys, "run", model, "--inputs", tmp_path / "in.npz")
    assert "error[invalid-input]" in line and "in.npz, array 'labels'" in line and "Python objects" in line
    assert "astype" in line and "allow_pickle" not in line
    (tmp_path / "in.npz").write_bytes(pickle.dumps({"x": [1, 2]}))
    assert "Python objects" in refused(capsys, "run", model, "--inputs", tmp_path / "in.npz")
    (tmp_path / "in.npz").write_bytes(b"PK\x03\x04 cut")
    assert "not a readable .npz file" in refused(capsys, "run", model, "--inputs", tmp_path / "in.npz")


def test_a_report_is_no_trace(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "r.json").write_text('{"egraft_report": 1}')
    said = refused(capsys, "trace", tmp_path / "r.json")
    assert "r.json: a report, not a trace; " in said and said.endswith("--trace")


@pytest.mark.parametrize(("more", "option"), [
    (["--report", "a.json", "--report=b.html"], "--report"), (["-o", "a.onnx", "--out", "b.onnx"], "--out"),
    (["--threads", "1", "--threads", "2"], "--threads"),
])
def test_an_option_of_one_value_is_not_given_twice(more: list[str], option: str, model: Path, capsys: Output,
                                                   monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "optimize", model, *(more if "-o" in more else ["-o", "out.onnx", *more]))
    assert f"{option}: it is given 2 times; give it once" in line and set(tmp_path.iterdir()) == {model}


def test_repeatable_options_may_be(model: Path, tmp_path: Path) -> None:
    assert main(["optimize", str(model), "-o", str(tmp_path / "o.onnx"), "--target", "egraft:cpu", "--effort", "low",
                 "--disable-rule", "resize-by-one", "--disable-rule", "upsample-by-one", "-q"]) == 0


def test_every_step_of_a_trace_can_be_asked_for(capsys: Output) -> None:
    for name in ("fold-constants", "fuse", "kernel", "fix-sizes", "piecewise", "recompute", "unpack-fused",
                 "optimize-bodies", "region", "forget-stated-types"):
        assert main(["rules", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name} (a step of traces, no rule of the search)\n  ")
    assert "no rule has this name" in refused(capsys, "rules", "fusion")
