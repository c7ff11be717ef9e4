"""Matrix products, views and broadcasting on the emulated device."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphs.builder import Builder

from .harness import check, expected, needs_compiler

pytestmark = needs_compiler


def test_a_dense_layer_read_through_a_view(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    b = Builder("dense", opset=21)
    x = b.input("x", "float32", ["n", 8])
    h = b.Add(b.MatMul(x, random.normal(size=(8, 5)).astype(np.float32)), random.normal(size=5).astype(np.float32))
    t = b.Transpose(h, perm=[1, 0])
    b.output(b.Mul(t, t), "y")
    graph = b.graph()
    feeds = {"x": random.normal(size=(3, 8)).astype(np.float32)}
    executor = check(graph, feeds, expected(graph, feeds, tmp_path))
    assert executor.device.launches == ["gemm", "eg_add", "eg_mul"]  # type: ignore[attr-defined]
