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
from graphs import load, save
from graphs.builder import Builder
from graphs.ir import is_fused
from graphs.text import parse_graph
from optimizer import Result, optimize
from optimizer.command_line import main
from runtime import Session, run
from runtime.codegen import emulation
from runtime.codegen.c import unavailable
from runtime.cuda.emulated import EmulatedDevice
from runtime.feeds import draw
from tests.norms import spelled_norm
from tests.runtime.cuda.wound import Wound

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
        assert result.report["validation"]["device"]["status"] == "passed"
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
    assert said["validation"]["ok"]
    found = said["validation"]["device"]
    assert found["status"] == "not validated" and "records of another machine" in found["reason"]
    printed = capsys.readouterr().out
    assert "another machine" in printed
    assert "device     not validated on the device: it is not here" in printed


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


NORM = """graph "g" opset 18 (x: float32[n, 40], r: float32[n, 40], w: float32[40, 8]) -> (y) {
  tiny = constant float32[] 1e-5
  two = constant float32[] 2.0
  u = Add(x, r)
  NORM
  m = MatMul(z, w)
  y = Relu(m)
}""".replace("NORM", spelled_norm("u", "z", "tiny", centred=False))


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, Result]:
    """The same of a model that has something to fuse, by a clock for which a launch takes long."""
    folder = tmp_path_factory.mktemp("fused")
    source, made, database = folder / "m.onnx", folder / "there.onnx", folder / "gpu.db"
    save(parse_graph(NORM), source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "reference_work", lambda: base.chain(2))
        patch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(Wound()))
        result = optimize(source, target="egraft:cuda", timings=str(database), effort="low", dims={"n": [6]})
        result.save(made)
    return source, made, database, result


def test_kernels_are_steps_with_their_text_and_gain(fused: tuple[Path, Path, Path, Result]) -> None:
    source, _, _, result = fused
    nodes = [node for node in result.graph.nodes if is_fused(node)]
    assert nodes and result.report["chosen"].endswith(", fused") and result.report["validation"]["ok"]
    steps = [step for step in result.trace.steps if step.get("kind") == "fusion"]
    assert len(steps) == len(result.report["fusions"]["chosen"]) > 0
    for step in steps:
        found = step["fusion"]
        assert "EG_KERNEL(eg_fused)" in found["kernel"] and found["gain_seconds"] > 0
        assert found["intensity"]["after"] > found["intensity"]["before"]
    assert {step["fusion"].get("variant", "") for step in steps} == {str(node.attrs.get("variant", ""))
                                                                    for node in nodes}
    replayed = result.trace.replay(load(source))
    assert [node.attrs.get("variant") for node in replayed.nodes if is_fused(node)] == [
        node.attrs.get("variant") for node in nodes]


def test_the_file_of_functions_is_the_same_elsewhere_and_runs_as_fused(
        fused: tuple[Path, Path, Path, Result], tmp_path: Path) -> None:
    source, made, database, result = fused
    out, report = tmp_path / "here.onnx", tmp_path / "report.json"
    assert main(["optimize", str(source), "-o", str(out), "--target", "egraft:cuda", "--timings", str(database),
                 "--frozen", "--effort", "low", "--dim", "n=6", "--report", str(report)]) in (0, None)
    assert out.read_bytes() == made.read_bytes()
    assert json.loads(report.read_text())["fusions"]["chosen"] == result.report["fusions"]["chosen"]
    session = Session(load(out), target="egraft:cuda", device=EmulatedDevice())
    feeds = draw(load(source), 0, {"n": 6})
    np.testing.assert_allclose(session.run(feeds)["y"], run(load(source), feeds)["y"], rtol=1e-5, atol=1e-6)
    assert [node for node in session.graph.nodes if is_fused(node)]
    assert session.report.kernels + session.report.products < 8  # type: ignore[attr-defined]
    again = optimize(out, target="egraft:cuda@" + str(database), effort="low", dims={"n": [6]})
    assert sum(map(is_fused, again.graph.nodes)) == sum(map(is_fused, result.graph.nodes))


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


NESTED = """graph "g" opset 18 (x: float32[256, 512], a: bool[]) -> (y) {
  y = If(a, then_branch=graph () -> (t) {
      b = Exp(x)
      c = Add(b, x)
      t = Tanh(c)
    }, else_branch=graph () -> (u) {
      d = Softmax(x, axis=1)
      e = Mul(d, x)
      u = Sigmoid(e)
    })
}"""


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_nested_graphs_run_on_the_processor_and_their_kernels_are_filed_with_the_gpus(tmp_path: Path) -> None:
    source, made, out, database = (tmp_path / name for name in ("m.onnx", "there.onnx", "here.onnx", "gpu.db"))
    save(parse_graph(NESTED), source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "reference_work", lambda: base.chain(2))
        patch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(EmulatedDevice()))
        result = optimize(source, target="egraft:cuda", timings=str(database), effort="low")
        result.save(made)
    nested = [node for each in result.graph.walk() if each is not result.graph for node in each.nodes if is_fused(node)]
    steps = [step for step in result.trace.steps if step.get("kind") == "fusion"]
    assert len(nested) >= 2 and all("EG_KERNEL" in step["fusion"]["kernel"] for step in steps)
    assert result.report["fusions"]["on_host"]["counts"]["measured"] and not result.report["warnings"]
    assert main(["optimize", str(source), "-o", str(out), "--target", "egraft:cuda", "--timings", str(database),
                 "--frozen", "--effort", "low"]) in (0, None)
    assert out.read_bytes() == made.read_bytes()
    session = Session(load(made), target="egraft:cuda", device=EmulatedDevice())
    for seed, chosen in enumerate((True, False, True)):
        feeds = {**draw(load(source), seed), "a": np.array(chosen)}
        np.testing.assert_allclose(session.run(feeds)["y"], run(load(source), feeds)["y"], rtol=1e-5, atol=1e-6)
