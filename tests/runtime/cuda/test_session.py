"""Sessions for `egraft:cuda` on the emulated device, their reports, and what is said where no GPU is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs import save
from graphs.builder import Builder
from graphs.errors import InvalidOption, NotExecutable, TargetUnavailable
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import commands
from runtime import Session
from runtime.codegen import emulation, nvrtc
from runtime.cuda import cupy_device
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.session import EMULATE, CudaReport

needs_compiler = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))


def _graph() -> Graph:
    b = Builder("small", opset=21)
    x = b.input("x", "float32", ["n", 4])
    h = b.Add(b.MatMul(x, np.ones((4, 3), np.float32)), np.ones(3, np.float32))
    b.output(b.Transpose(h, perm=[1, 0]), "y")
    return b.graph()


def _cuda(graph: Graph) -> Session:
    return Session(graph, target="egraft:cuda", device=EmulatedDevice(captures=True))


@needs_compiler
def test_the_report_says_what_ran_where() -> None:
    session = _cuda(_graph())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for _ in range(2):
        np.testing.assert_allclose(session.run({"x": x})["y"], (x @ np.ones((4, 3)) + 1).T)
    report = session.report
    assert isinstance(report, CudaReport)
    assert (report.kernels, report.products, report.on_numpy, report.captured) == (1, 1, [], True)
    assert report.views == 1 and report.constant_bytes == 60
    assert report.peak_bytes == 512 and report.without_reuse == 768
    assert "1 kernels, 1 products and 1 views, no node on NumPy" in report.summary()
    assert report.to_dict()["captured"] is True
    session.close()
    assert session.run({"x": x})["y"].shape == (3, 2)


@needs_compiler
def test_nodes_without_a_lowering_run_on_numpy_and_are_counted() -> None:
    b = Builder("left", opset=21)
    x = b.input("x", "float32", [3, 3])
    b.output(b.Add(b.Det(x), np.float32(1)), "y")
    session = _cuda(b.graph())
    x = np.eye(3, dtype=np.float32) * 2
    assert session.run({"x": x})["y"] == 9
    report = session.report
    assert isinstance(report, CudaReport) and report.on_numpy[0].startswith("Det ")
    assert report.copied_bytes == 40 and not report.captured
    session.run({"x": x})
    assert report.not_captured == "nodes run on NumPy"


@needs_compiler
def test_control_flow_is_one_node_on_numpy() -> None:
    graph = parse_graph("""
        graph "if" opset 17 (c: bool[], x: float32[n]) -> (y) {
          z = Add(x, x)
          y = If(c, then_branch=graph "t" () -> (a) { a = Neg(z) }, else_branch=graph "e" () -> (b) { b = Abs(z) })
        }""")
    session = _cuda(graph)
    for c in (True, False):
        found = session.run({"c": np.array(c), "x": np.array([1, -2], np.float32)})["y"]
        assert found.tolist() == ([-2, 4] if c else [2, 4])
    assert isinstance(session.report, CudaReport)
    assert [each.split()[0] for each in session.report.on_numpy] == ["If"]


@needs_compiler
def test_sequences_and_strings_stay_on_the_host() -> None:
    b = Builder("sequence", opset=21)
    x = b.input("x", "float32", [4])
    sequence = b.SplitToSequence(x, axis=0, keepdims=1)
    b.output(b.Add(b.SequenceAt(sequence, np.array(2)), np.float32(1)), "y")
    assert _cuda(b.graph()).run({"x": np.arange(4, dtype=np.float32)})["y"].tolist() == [3]
    graph = parse_graph('graph "s" opset 20 (s: string[n], x: float32[n]) -> (y, z) '
                        '{ y = StringConcat(s, s)  z = Add(x, x) }')
    found = _cuda(graph).run({"s": np.array(["a", "b"], object), "x": np.ones(2, np.float32)})
    assert found["y"].tolist() == ["aa", "bb"] and found["z"].tolist() == [2, 2]


@needs_compiler
def test_results_are_arrays_of_their_own() -> None:
    session = _cuda(_graph())
    x = np.ones((2, 4), np.float32)
    first = session.run({"x": x})["y"]
    first[...] = 0
    assert (session.run({"x": x})["y"] == 5).all() and (x == 1).all()


@needs_compiler
def test_a_replay_is_a_plan_with_its_inputs() -> None:
    session = _cuda(_graph())
    replay = session.replay({"x": np.ones((2, 4), np.float32)})
    replay.queue()
    assert replay.launches == 2 and (replay.outputs()["y"] == 5).all()
    replay.close()
    with pytest.raises(NotExecutable, match="no plans"):
        Session(_graph()).replay({"x": np.ones((2, 4), np.float32)})
    b = Builder("late", opset=21)
    b.output(b.NonZero(b.input("x", "float32", ["n"])), "y")
    with pytest.raises(NotExecutable, match="cannot be planned ahead"):
        _cuda(b.graph()).replay({"x": np.ones(2, np.float32)})


@needs_compiler
def test_egraft_run_with_the_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(EMULATE, "1")
    save(_graph(), tmp_path / "small.onnx")
    assert commands.run_command(tmp_path / "small.onnx", None, None, "egraft:cuda", {"n": [2]}, 0) == 0
    said = capsys.readouterr().out
    assert "y: float32[3, 2]" in said and "emulation: " in said and "1 kernels, 1 products" in said


class Failed(RuntimeError):
    """As CuPy raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


def _pretend(monkeypatch: pytest.MonkeyPatch, count: int | Failed) -> None:
    """CuPy whose runtime counts so many devices."""
    def devices() -> int:
        if isinstance(count, Failed):
            raise count
        return count

    runtime = SimpleNamespace(getDeviceCount=devices, getDevice=lambda: 0, runtimeGetVersion=lambda: 13000)
    archs = SimpleNamespace(getSupportedArchs=lambda: (80, 90), getVersion=lambda: (13, 0))
    cuda: Any = SimpleNamespace(runtime=runtime, nvrtc=archs,
                                Device=lambda number: SimpleNamespace(compute_capability=("90", "130")[number]))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(nvrtc, "unavailable", lambda: None)


@pytest.mark.parametrize("count, chosen, words", [
    (Failed(100), "", "no NVIDIA GPU"), (Failed(35), "", "too old for CUDA 13"), (Failed(999), "", "does not answer"),
    (2, "2", "no GPU 2, only 2"), (2, "1", "does not compile for this GPU"), (1, "0", "cuBLAS is not here"),
])  # fmt: skip
def test_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, count: int | Failed, chosen: str,
                                       words: str) -> None:
    _pretend(monkeypatch, count)
    monkeypatch.setenv(cupy_device.DEVICE, chosen)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)  # importing from it fails
    with pytest.raises(TargetUnavailable, match=words) as error:
        Session(_graph(), "egraft:cuda")
    assert "\n" not in str(error.value) and error.value.fix


def test_cupy_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    assert "CuPy is not installed" in str(cupy_device.unavailable())


def test_cupy_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise OSError('libcuda.so.1: not there\\nsecond line')")
    for name in [each for each in sys.modules if each.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (cupy_device.unavailable() or "").startswith("CuPy does not load (OSError: libcuda.so.1: not there second")
    with pytest.raises(TargetUnavailable, match="does not load"):
        cupy_device.require()


def test_which_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, 2)
    monkeypatch.delenv(cupy_device.DEVICE, raising=False)
    assert cupy_device.chosen() == 0 and cupy_device.chosen(1) == 1
    monkeypatch.setenv(cupy_device.DEVICE, "1")
    assert cupy_device.chosen() == 1
    monkeypatch.setenv(cupy_device.DEVICE, "first")
    with pytest.raises(InvalidOption, match="no number"):
        cupy_device.chosen()
