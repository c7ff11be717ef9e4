"""`--target egraft:cuda --frozen` on a machine without a GPU: what another machine recorded is replayed.

The other machine is the emulation here: its times mean nothing, but they are filed as a GPU's are.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cost_model import targets
from cost_model.fingerprint import Fingerprint
from cost_model.targets import base
from cost_model.targets.cuda import EgraftCuda
from cost_model.timings import Timings
from graphs import save
from graphs.builder import Builder
from optimizer import optimize
from optimizer.command_line import main
from runtime.codegen import emulation
from runtime.cuda.emulated import EmulatedDevice

pytestmark = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))


class EmulatedCuda(EgraftCuda):
    """Peaks of a size that the emulation can do."""

    gemm_size, copy_bytes, cached_bytes = 64, 1 << 14, 1 << 12


def model(path: Path) -> Path:
    """Transposes that cancel, around an elementwise operator."""
    b = Builder("there-and-back", opset=17)
    x = b.input("x", "float32", [6, 10])
    b.output(b.Transpose(b.Relu(b.Transpose(b.Add(x, np.ones((6, 10), np.float32)), perm=[1, 0])), perm=[1, 0]), "y")
    save(b.graph(), path)
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, what was made of it where the device is, and the timing database of that run."""
    folder = tmp_path_factory.mktemp("recorded")
    source, made, database = model(folder / "m.onnx"), folder / "there.onnx", folder / "gpu.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "reference_work", lambda: base.chain(2))  # the emulation is slow
        patch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(EmulatedDevice()))
        result = optimize(source, target="egraft:cuda", timings=str(database), effort="low")
        result.save(made)
        assert result.report["target"]["name"] == "egraft:cuda"
        assert "emulation" in result.report["target"]["device"]
        assert result.report["measured"]["clock"] == "device"
    return source, made, database


def test_the_records_of_another_machine_give_the_same_file(
        recorded: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, made, database = recorded
    assert targets.find_target("egraft:cuda").available() is not None
    out, report = tmp_path / "here.onnx", tmp_path / "report.json"
    before = list(Timings(database).records())
    status = main(["optimize", str(source), "-o", str(out), "--target", "egraft:cuda", "--timings", str(database),
                   "--frozen", "--effort", "low", "--report", str(report)])
    assert status in (0, None)
    assert out.read_bytes() == made.read_bytes()
    assert list(Timings(database).records()) == before
    said = json.loads(report.read_text())
    assert said["target"]["name"] == f"egraft:cuda@{database}"
    assert "another machine" in said["target"]["device"] and "emulation" in said["target"]["device"]
    assert said["measured"].get("kind") == "recorded"
    assert "another machine" in capsys.readouterr().out


def test_a_model_that_was_not_recorded_is_a_frozen_miss(
        recorded: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, database = recorded
    b = Builder("other", opset=17)
    x = b.input("x", "float32", [4, 4])
    b.output(b.Tanh(b.Add(b.Exp(x), np.ones((4, 4), np.float32))), "y")
    save(b.graph(), tmp_path / "other.onnx")
    out = tmp_path / "other.out.onnx"
    status = main(["optimize", str(tmp_path / "other.onnx"), "-o", str(out), "--target", "egraft:cuda",
                   "--timings", str(database), "--frozen", "--effort", "low"])
    assert status == 2 and not out.exists()
    assert "frozen" in capsys.readouterr().err


def test_without_a_device_or_records_the_target_says_what_is_missing(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["optimize", str(model(tmp_path / "m.onnx")), "-o", str(tmp_path / "o.onnx"), "--frozen", "--target"]
    database = tmp_path / "empty.db"
    assert main([*command, "egraft:cuda", "--timings", str(database)]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main([*command, f"egraft:cuda@{database}"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    Timings(database).add("key", "onnxruntime:cpu", Fingerprint.of({"cpu": "other"}), "node", [1.0], 1.0, {})
    assert main([*command, "egraft:cuda", "--timings", str(database)]) == 2
    assert "target-unavailable" in capsys.readouterr().err
