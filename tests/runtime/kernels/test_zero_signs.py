"""Relu and Clip keep -0.0, here and on the GPU, as ONNX Runtime does: a rule on top of them must not look exact."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from runtime import run
from tests.runtime.cuda.harness import emulate, needs_compiler

ort = pytest.importorskip("onnxruntime")


def model(dtype: str) -> tuple[Graph, dict[str, np.ndarray]]:
    b = Builder("zeros", opset=17)
    x, kind = b.input("x", dtype, [23]), np.dtype(dtype)
    b.output(b.Relu(x), "relu")
    b.output(b.Clip(x, kind.type(0), kind.type(6)), "clip")
    b.output(b.Clip(x, kind.type(-3), kind.type(0)), "below")
    return b.graph(), {"x": np.array([-0.0, 0.0, np.nan, -1, 7] * 5, dtype)[:23]}


def compare(found: list[np.ndarray], graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for mine, right in zip(found, ort.InferenceSession(proto_bytes(graph), options).run(None, feeds), strict=True):
        np.testing.assert_array_equal(mine, right)
        known = ~np.isnan(right)
        np.testing.assert_array_equal(np.signbit(mine[known]), np.signbit(right[known]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_in_numpy(dtype: str) -> None:
    graph, feeds = model(dtype)
    compare(list(run(graph, feeds).values()), graph, feeds)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_the_gpu(dtype: str) -> None:
    graph, feeds = model(dtype)
    compare(emulate(graph, feeds)[0], graph, feeds)
