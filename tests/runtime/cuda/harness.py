"""Graphs on the emulated device against ONNX Runtime, and every kernel that they launch through NVRTC.

With `EGRAFT_TEST_DEVICE=cuda` (`make test-gpu`) the same graphs run on this machine's GPU, one by one, recorded as one
unit, and replayed; the three must be equal to the bit.

One graph with many nodes costs one call of the C++ compiler: prefer it to many small graphs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs import save
from graphs.ir import Graph
from runtime.codegen import emulation, nvrtc
from runtime.cuda.device import Device
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.session import check_feeds

ON_GPU = os.environ.get("EGRAFT_TEST_DEVICE") == "cuda"
SEEDS = (0,) if ON_GPU else (0, 1)  # orders of threads
_missing = None if ON_GPU else emulation.unavailable()
needs_compiler = pytest.mark.skipif(_missing is not None, reason=str(_missing))


def make_device(seed: int = 0) -> Any:
    """The device that tests run on; it records what is launched."""
    if not ON_GPU:
        return EmulatedDevice(seed)
    from runtime.codegen import Kernel
    from runtime.cuda.cupy_device import CupyDevice
    from runtime.cuda.device import Gemm, Place

    class Recording(CupyDevice):
        def __init__(self) -> None:
            super().__init__()
            self.launches: list[str] = []
            self.kernels: dict[str, Kernel] = {}

        def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
            self.launches.append(kernel.name)
            self.kernels[kernel.key] = kernel
            super().launch(kernel, places)

        def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
            self.launches.append("gemm")
            super().gemm(gemm, a, b, c)

    return Recording()


def expected(graph: Graph, feeds: Mapping[str, np.ndarray], folder: Path) -> list[np.ndarray]:
    """What ONNX Runtime computes, its own rewriting turned off."""
    import onnxruntime as ort

    path = folder / "expected.onnx"
    save(graph, path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def emulate(graph: Graph, feeds: Mapping[str, np.ndarray], seed: int = 0) -> tuple[list[np.ndarray], Executor]:
    """The outputs on the emulated device, and the executor with what it did."""
    _, sizes = check_feeds(graph, feeds)
    executor = Executor(graph, make_device(seed), Context.of(graph))
    found = executor.run(feeds, sizes)
    launched = list(executor.device.launches)  # type: ignore[attr-defined]
    for _ in range(2 if ON_GPU else 0):
        for first, again in zip(found, executor.run(feeds, sizes), strict=True):
            np.testing.assert_array_equal(first, again)
    executor.device.launches[:] = launched  # type: ignore[attr-defined]
    return found, executor


def check(graph: Graph, feeds: Mapping[str, np.ndarray], wanted: Sequence[np.ndarray], *, rtol: float = 1e-5,
          atol: float = 1e-6, on_host: Sequence[str] = ()) -> Executor:
    """Emulate with several orders of threads, compare with `wanted`, and compile all kernels for CUDA.

    `on_host`: operators that NumPy may run; any other that it does run is a failure.
    """
    executor = None
    for seed in SEEDS:
        found, executor = emulate(graph, feeds, seed)
        left = [entry for entry in executor.on_host if entry.split()[0] not in on_host]
        assert not left, left
        for name, mine, right in zip(graph.outputs, found, wanted, strict=True):
            assert mine.dtype == right.dtype and mine.shape == right.shape, (name, mine.dtype, mine.shape, right.shape)
            np.testing.assert_allclose(mine.astype(np.float64) if mine.dtype.kind not in "biu" else mine,
                                       right.astype(np.float64) if right.dtype.kind not in "biu" else right,
                                       rtol=rtol, atol=atol, err_msg=name)
    assert executor is not None
    compile_all(executor)
    return executor


def compile_all(executor: Executor) -> None:
    """Every kernel that was launched compiles for both architectures."""
    device: Any = executor.device
    assert isinstance(device, Device)
    for architecture in () if ON_GPU else nvrtc.ARCHITECTURES:  # there they were compiled to be run
        nvrtc.check(list(device.kernels.values()), architecture)


__all__ = ["ON_GPU", "check", "compile_all", "emulate", "expected", "make_device", "needs_compiler"]
