"""Plans on a device: capture, constants, plans of several sizes; and the CuPy device with its calls recorded."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from runtime.codegen import emulation, nvrtc
from runtime.codegen.movement import copy_kernel
from runtime.cuda import cupy_calls
from runtime.cuda import executor as executor_module
from runtime.cuda.cublas import CublasCall, cublas_call
from runtime.cuda.cupy_device import CupyDevice
from runtime.cuda.device import Gemm, Place
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.session import check_feeds

needs_compiler = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def _dense() -> Graph:
    """A dense layer whose weight is transposed by a node: folded once for all sizes."""
    b = Builder("dense", opset=21)
    x = b.input("x", "float32", ["n", 4])
    weight = b.Transpose(b.constant(np.ascontiguousarray(WEIGHT.T)), perm=[1, 0])
    b.output(b.Add(b.MatMul(x, weight), np.ones(3, np.float32)), "y")
    return b.graph()


def _feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)}


def _run(executor: Executor, feeds: dict[str, Any]) -> list[Any]:
    return executor.run(feeds, check_feeds(executor.graph, feeds)[1])


@needs_compiler
def test_the_second_run_is_captured_and_later_ones_replay_it() -> None:
    device = EmulatedDevice(captures=True)
    executor = Executor(_dense(), device, Context.of(_dense()))
    for turn in range(4):
        feeds = {"x": np.full((2, 4), turn, np.float32)}
        np.testing.assert_allclose(_run(executor, feeds)[0], feeds["x"] @ WEIGHT + 1)
        assert executor.work.captured == (turn > 0) and not executor.work.not_captured
    assert device.launches == ["gemm", "eg_add"] * 4
    assert (executor.work.kernels, executor.work.products, executor.work.views) == (1, 1, 0)


@needs_compiler
def test_a_capture_that_fails_is_told_and_the_plan_runs_without() -> None:
    class Refuses(EmulatedDevice):
        def capture(self, queue: Any) -> Any:
            raise ExecutionFailed("egraft:cuda, capturing", "not today", "wait")

    executor = Executor(_dense(), Refuses(), Context.of(_dense()))
    for _ in range(3):
        feeds = _feeds(2)
        np.testing.assert_allclose(_run(executor, feeds)[0], feeds["x"] @ WEIGHT + 1, rtol=1e-6)
    assert not executor.work.captured and executor.work.not_captured == "egraft:cuda, capturing: not today"


@needs_compiler
def test_plans_are_kept_for_a_few_sizes_and_share_constants() -> None:
    device = EmulatedDevice()
    executor = Executor(_dense(), device, Context.of(_dense()))
    for rows in (1, 2, 3, 4, 5, 2, 6):
        feeds = _feeds(rows)
        np.testing.assert_allclose(_run(executor, feeds)[0], feeds["x"] @ WEIGHT + 1, rtol=1e-6)
    sizes = [dict(key)["x"][1][0] for key in executor.prepared]
    assert sizes == [4, 5, 2, 6] and len(sizes) == executor_module.PLANS
    assert executor.weights.bytes == WEIGHT.nbytes + 3 * 4 and len(executor.weights.memory) == 2
    executor.close()
    assert not executor.prepared and not executor.weights.memory
    _run(executor, feeds)


@needs_compiler
def test_a_plan_that_forgets_what_is_still_read_is_found() -> None:
    executor = Executor(_dense(), EmulatedDevice(), Context.of(_dense()))
    feeds = _feeds(2)
    prepared = executor.prepare(feeds, {"n": 2})
    prepared.layout.dying[0] = [(0, prepared.layout.size)]
    with pytest.raises(ExecutionFailed, match="nothing has written"):
        prepared.run(feeds)


@needs_compiler
def test_sizes_that_depend_on_data_are_run_node_by_node() -> None:
    b = Builder("late", opset=21)
    x = b.input("x", "float32", ["n"])
    found = b.NonZero(x)
    b.output(b.Add(b.Cast(b.Transpose(found, perm=[1, 0]), to=1), np.float32(1)), "y")
    graph = b.graph()
    executor = Executor(graph, EmulatedDevice(), Context.of(graph))
    for _ in range(2):
        feeds = {"x": np.array([0, 3, 0, 4], np.float32)}
        assert _run(executor, feeds)[0].tolist() == [[2], [4]]
        assert not executor.work.planned and "NonZero" in executor.work.not_captured


@needs_compiler
def test_outputs_that_are_inputs_constants_and_views() -> None:
    b = Builder("odd", opset=21)
    x = b.input("x", "float32", [2, 3])
    b.output(x, "same")
    b.output(b.Transpose(x, perm=[1, 0]), "view")
    b.output(b.constant(WEIGHT), "constant")
    graph = b.graph()
    executor = Executor(graph, EmulatedDevice(), Context.of(graph))
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    same, view, constant = _run(executor, feeds)
    assert same.tolist() == feeds["x"].tolist() and view.tolist() == feeds["x"].T.tolist()
    assert constant.tolist() == WEIGHT.tolist() and constant.flags.writeable
    assert executor.work.kernels == 0 and executor.work.views == 2  # Identity and Transpose


class Pointer:
    """Stands for memory of the device."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Calls:
    """What `CupyCalls` offers, written down instead of done. `fails` names a call that raises."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.fails: dict[str, Exception] = {}
        self.depth = 0
        self.workspace = 0
        self.allocated = 0

    def note(self, name: str, *values: Any) -> None:
        assert self.depth, f"{name} outside of the device and its stream"
        self.log.append((name, *values) if values else name)
        if name in self.fails:
            raise self.fails[name]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def properties(self) -> dict[str, Any]:
        return {"name": b"Fake GPU", "major": 9, "minor": 0, "multiProcessorCount": 4, "totalGlobalMem": 1 << 30,
                "l2CacheSize": 1 << 20}

    def versions(self) -> dict[str, str]:
        return {"driver": "13000"}

    def allocate(self, size: int) -> Pointer:
        self.note("allocate", size)
        self.allocated += 4096
        return Pointer(self.allocated)

    def release(self) -> None:
        self.note("release")

    def copy_in(self, memory: Pointer, start: int, array: np.ndarray) -> None:
        self.note("copy_in", memory.ptr + start, array.nbytes)

    def copy_out(self, array: np.ndarray, memory: Pointer, start: int) -> None:
        self.note("copy_out", memory.ptr + start, array.nbytes)
        array[...] = 0

    def fill(self, memory: Pointer, value: int, size: int) -> None:
        self.note("fill", size)

    def load(self, cubin: bytes, name: str) -> str:
        self.note("load", name)
        return name

    def launch(self, function: str, blocks: int, threads: tuple[int, int], addresses: list[int]) -> None:
        self.note("launch", function, blocks, threads, tuple(addresses))

    def has_workspace(self) -> bool:
        return bool(self.workspace)

    def set_workspace(self, memory: Pointer, size: int) -> None:
        self.note("set_workspace", size)
        self.workspace = size

    def gemm(self, call: CublasCall, a: int, b: int, c: int) -> None:
        self.note("gemm", a, b, c)

    def synchronize(self) -> None:
        self.note("synchronize")

    def begin_capture(self) -> None:
        self.note("begin_capture")

    def end_capture(self) -> str:
        self.note("end_capture")
        return "graph"

    def upload_graph(self, graph: str) -> None:
        self.note("upload_graph")

    def launch_graph(self, graph: str) -> None:
        self.note("launch_graph")

    def record(self) -> int:
        self.note("record")
        return len(self.log)

    def seconds(self, start: int, stop: int) -> float:
        return float(stop - start)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda kernel, architecture: architecture.encode())
    return Calls()


def _names(calls: Calls) -> list[str]:
    return [each if isinstance(each, str) else each[0] for each in calls.log]


def test_the_order_of_calls_in_eager_captured_and_replayed_runs(calls: Calls) -> None:
    executor = Executor(_dense(), CupyDevice(calls=calls), Context.of(_dense()))
    _run(executor, _feeds(2))
    # Kernels are loaded before anything runs; what is allocated: the arena, two constants, the workspace.
    assert _names(calls) == ["load", "allocate", "allocate", "copy_in", "synchronize", "allocate", "copy_in",
                             "synchronize", "copy_in", "synchronize", "allocate", "set_workspace", "gemm", "launch",
                             "copy_out", "synchronize"]
    assert calls.workspace == 32 << 20
    calls.log.clear()
    _run(executor, _feeds(2))
    assert _names(calls) == ["copy_in", "synchronize", "begin_capture", "gemm", "launch", "end_capture",
                             "upload_graph", "launch_graph", "copy_out", "synchronize"]
    calls.log.clear()
    _run(executor, _feeds(2))
    assert _names(calls) == ["copy_in", "synchronize", "launch_graph", "copy_out", "synchronize"]
    calls.log.clear()
    executor.close()
    assert _names(calls) == ["synchronize", "synchronize", "release"]


def test_a_capture_that_fails_is_ended(calls: Calls) -> None:
    executor = Executor(_dense(), CupyDevice(calls=calls), Context.of(_dense()))
    _run(executor, _feeds(2))
    calls.log.clear()
    calls.fails["end_capture"] = RuntimeError("cudaErrorStreamCaptureInvalidated")
    _run(executor, _feeds(2))
    assert _names(calls) == ["copy_in", "synchronize", "begin_capture", "gemm", "launch", "end_capture", "gemm",
                             "launch", "copy_out", "synchronize"]
    assert "cudaErrorStreamCaptureInvalidated" in executor.work.not_captured
    device = CupyDevice(calls=calls)
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: 1 // 0)  # type: ignore[arg-type]
    assert _names(calls)[-1] == "end_capture" and not calls.depth


def test_pointers_grids_and_offsets_of_a_launch(calls: Calls) -> None:
    device = CupyDevice(calls=calls)
    assert (device.name, device.architecture, device.most_blocks) == ("Fake GPU", "sm_90", 128)
    kernel = copy_kernel("float32", (1000,), (1,), (1,))
    memory = device.allocate(8192)
    device.launch(kernel, [Place(memory, 256, "float32", (1000,), (1,)), Place(memory, 4352, "float32", (1000,), (1,))])
    assert calls.log[-1] == ("launch", "eg_copy", 4, (256, 1), (memory.ptr + 256, memory.ptr + 4352))
    a, b, c = (Place(memory, at, "float32", (2, 2), (2, 1)) for at in (0, 16, 32))
    device.gemm(Gemm(2, 2, 2, "float32", 2, 2, 2), a, b, c)
    assert calls.log[-1] == ("gemm", memory.ptr, memory.ptr + 16, memory.ptr + 32)


def test_times_are_between_events_after_a_flush(calls: Calls) -> None:
    device = CupyDevice(calls=calls)
    seconds = device.time(lambda: calls.note("run"), 2)
    assert _names(calls) == ["allocate", "fill", "record", "run", "record", "fill", "record", "run", "record",
                             "synchronize"]
    assert seconds == [2.0, 2.0] and device.describe()["gpu"] == "Fake GPU"


@pytest.mark.parametrize("error, words", [(MemoryError("Out of memory allocating 1 GB"), "too small"),
                                          (RuntimeError("cudaErrorIllegalAddress"), "cudaErrorIllegalAddress")])
def test_errors_of_cuda_are_ours(calls: Calls, error: Exception, words: str) -> None:
    device = CupyDevice(calls=calls)
    calls.fails["allocate"] = error
    with pytest.raises(ExecutionFailed, match=words):
        device.allocate(1 << 30)


class Library:
    """Stands for libcublas: every function succeeds, or fails with `status`, and is written down."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.status = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cublasGemmStridedBatchedEx":  # the scalars live as long as the call
                alpha, beta = (ctypes.c_float.from_address(arguments[index]).value for index in (6, 15))
                arguments = (*arguments[:6], alpha, *arguments[7:15], beta, *arguments[16:])
            self.log.append((name, *arguments))
            return self.status

        return (lambda status: b"not today") if name == "cublasGetStatusString" else call


def test_cublas_is_told_the_stream_before_the_workspace_and_scalars_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(cupy_calls, "_loaded", lambda version: library)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", SimpleNamespace(cublas=None))
    opened = cupy_calls.Cublas(13, 77)
    opened.set_workspace(Pointer(4096), 1024)
    assert [each[0] for each in library.log] == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetPointerMode_v2",
                                                 "cublasSetMathMode", "cublasSetWorkspace_v2"]
    call = cublas_call(Gemm(2, 3, 4, "float16", 4, 3, 3, alpha=0.5, beta=2.0))
    opened.gemm(call, 100, 200, 300)
    arguments = library.log[-1][1:]
    assert arguments == call.arguments(0, 100, 200, 300, 0.5, 2.0)  # type: ignore[arg-type]
    assert arguments[7] == 200 and arguments[11] == 100 and arguments[16] == 300
    assert len(arguments) == len(cupy_calls._GEMM)
    library.status = 7
    with pytest.raises(cupy_calls.CublasError, match="status 7: not today"):
        opened.gemm(call, 100, 200, 300)
