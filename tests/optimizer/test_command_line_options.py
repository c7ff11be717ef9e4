"""Options of the command line that the model or the machine limits: sizes and threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_model.fingerprint import cores_visible
from graphs import save
from graphs.text import parse_graph
from optimizer.command_line import main
from optimizer.options import THREADS_PER_CORE

Output = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(parse_graph('graph "m" opset 18 (x: float32[n, 4]) -> (y) { a = Neg(x) y = Neg(a) }'), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def egraft(*words: object) -> int:
    return main([str(word) for word in words])


def optimize(model: Path, out: Path, *more: object) -> int:
    return egraft("optimize", model, "-o", out, "--target", "roofline", "--effort", "low", "--timings",
                  out.parent / "timings.db", *more)


def one_line(output: Output, *words: str) -> None:
    """There is a single line on standard error, and it has these words."""
    lines = output.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("egraft: error["), lines
    for word in words:
        assert word in lines[0]


def test_more_threads_than_the_machine_can_run(model: Path, tmp_path: Path, capsys: Output) -> None:
    most = THREADS_PER_CORE * cores_visible()
    assert optimize(model, tmp_path / "out.onnx", "--threads", 4000) == 2
    one_line(capsys, "--threads 4000", f"the limit here is {most}:", "core")
    assert optimize(model, tmp_path / "out.onnx", "--threads", most, "-q") == 0


def test_names_of_dimensions(model: Path, tmp_path: Path, capsys: Output) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 4), np.float32))
    out = tmp_path / "out.onnx"
    for words in (["run", model], ["check", model, model], ["optimize", model, "-o", out, "--target", "roofline"]):
        for more in ([], ["--inputs", tmp_path / "in.npz"]):
            assert egraft(*words, *more, "--dim", "m=3") == 2
            one_line(capsys, "--dim m", "known: n")
    for words in (["run", model], ["check", model, model]):
        assert egraft(*words, "--dim", "n=1,8") == 2
        one_line(capsys, "--dim n", "one size")
        assert egraft(*words, "--dim", "n=3") == 0
    assert not out.exists()
