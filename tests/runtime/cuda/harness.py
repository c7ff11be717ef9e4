"""Graphs on the emulated device against ONNX Runtime, and every kernel that they launch through NVRTC.

One graph with many nodes costs one call of the C++ compiler: prefer it to many small graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from graphs import save
from graphs.ir import Graph
from runtime.codegen import emulation, nvrtc
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.session import check_feeds

SEEDS = (0, 1)
needs_compiler = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))


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
    executor = Executor(graph, EmulatedDevice(seed), Context.of(graph))
    return executor.run(feeds, sizes), executor


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
    assert isinstance(executor.device, EmulatedDevice)
    for architecture in nvrtc.ARCHITECTURES:
        nvrtc.check(list(executor.device.kernels.values()), architecture)


__all__ = ["check", "compile_all", "emulate", "expected", "needs_compiler"]
