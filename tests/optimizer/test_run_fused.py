"""`egraft run`: fusions are listed, outputs stay, sizes are found."""

from pathlib import Path

import numpy as np
import pytest

from cost_model.targets import find_target
from graphs import save, zoo
from graphs.text import parse_graph
from optimizer.command_line import main
from runtime.codegen.c import unavailable
from runtime.fusion import Group, as_functions, fuse


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_fusions_are_listed_and_outputs_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plain, fused = tmp_path / "m.onnx", tmp_path / "plain.npz", tmp_path / "fused.npz"
    save(zoo.build("multiply-add"), model)
    assert main(["run", str(model), "--outputs", str(plain)]) == 0
    assert "fusions" not in capsys.readouterr().out
    timings = tmp_path / "t.db"
    assert main(["run", str(model), "--outputs", str(fused), "--fuse", "--timings", str(timings)]) == 0
    assert "fusions: " in capsys.readouterr().out and timings.exists()
    with np.load(plain) as a, np.load(fused) as b:
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5)


def test_kernels_that_a_file_holds_already_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4, 8]) -> (y) {
      a = Exp(x)
      y = Abs(a)
    }""")
    model, timings = tmp_path / "m.onnx", str(tmp_path / "t.db")
    save(as_functions(fuse(graph, [Group((0, 1), "y")])), model)
    assert main(["run", str(model), "--fuse", "--timings", timings]) == 0
    assert "the file already holds 1 fused kernel: " in capsys.readouterr().out
    words = ["--target", "egraft:cpu", "--effort", "low", "--timings", timings]
    assert main(["optimize", str(model), "-o", str(tmp_path / "o.onnx"), *words]) == 0
    assert "0 new kernels beside 1 that the file already held in the result" in capsys.readouterr().out


def test_fusions_are_for_targets_that_run_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(zoo.build("multiply-add"), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--fuse", "--target", "onnxruntime:cpu"]) == 2
    assert "--fuse" in capsys.readouterr().err
    if find_target("egraft:cuda").available() is not None:
        assert main(["run", str(tmp_path / "m.onnx"), "--fuse", "--target", "egraft:cuda"]) == 2
        assert "target-unavailable" in capsys.readouterr().err


def test_sizes_that_the_model_runs_at_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    save(parse_graph("""graph "g" opset 18 (x: float32[n, s]) -> (y) {
      last = constant int64[1] [63]
      y = Gather(x, last, axis=1)
    }"""), model)
    assert main(["run", str(model)]) == 0
    assert "'s': 64" in (shown := capsys.readouterr().out) and "y: float32[" in shown
    assert main(["run", str(model), "--dim", "s=63"]) != 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("egraft: error[")
