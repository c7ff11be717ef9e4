"""Sizes and values that a node does not take: the error is egraft:cpu's, and no kernel touches what it must not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.errors import ExecutionFailed
from runtime import Session
from runtime.codegen import emulation
from runtime.cuda.emulated import EmulatedDevice

pytestmark = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
Make = Callable[[Builder, Value, Value], Value]
SIZES: dict[str, Make] = {
    "Add": lambda b, x, y: b.Add(x, y),
    "Where": lambda b, x, y: b.Where(b.Less(x, b.Neg(x)), x, y),
    "Concat": lambda b, x, y: b.Concat(x, b.Transpose(y, perm=[1, 0]), axis=1),
    "MatMul": lambda b, x, y: b.MatMul(b.Transpose(x, perm=[1, 0]), y),
    "MatMul of batches": lambda b, x, y: b.MatMul(b.Unsqueeze(x, np.array([2])), b.Unsqueeze(y, np.array([1]))),
    "Gemm": lambda b, x, y: b.Gemm(x, y, transA=1),
    "Einsum": lambda b, x, y: b.Einsum(x, y, equation="ab,ac->bc"),
}
VALUES: dict[str, tuple[Make, list[int]]] = {
    "Tile": (lambda b, x, i: b.Tile(x, i), [-1, -1]),
    "Tile one": (lambda b, x, i: b.Tile(x, i), [2, -3]),
    "ConstantOfShape": (lambda b, x, i: b.ConstantOfShape(i), [-5, 1]),
    "Expand": (lambda b, x, i: b.Expand(x, i), [5, -3]),
    "Reshape": (lambda b, x, i: b.Reshape(x, i), [-1, -1]),
    "Reshape other size": (lambda b, x, i: b.Reshape(x, i), [5, 5]),
}  # fmt: skip


def _sessions(b: Builder) -> tuple[Session, Session]:
    graph = b.graph()
    return Session(graph), Session(graph, target="egraft:cuda", device=EmulatedDevice(1))


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_do_not_fit(name: str) -> None:
    b = Builder("sizes", opset=17)
    x, y = b.input("x", "float32", ["n", 3]), b.input("y", "float32", ["m", 3])
    b.output(SIZES[name](b, x, y), "z")
    cpu, cuda = _sessions(b)
    for n, m in ((4, 2), (2, 3)):
        feeds = {"x": np.ones((n, 3), np.float32), "y": np.ones((m, 3), np.float32)}
        with pytest.raises(ExecutionFailed) as wanted:
            cpu.run(feeds)
        with pytest.raises(ExecutionFailed) as found:
            cuda.run(feeds)
        assert found.value.where == wanted.value.where
    feeds = {each: np.ones((3, 3), np.float32) for each in "xy"}
    np.testing.assert_array_equal(cuda.run(feeds)["z"], cpu.run(feeds)["z"])
    assert cuda.report.peak_bytes is not None  # what failed before does not keep a plan from being made


@pytest.mark.parametrize("name", VALUES)
def test_values_that_give_no_shape(name: str) -> None:
    make, value = VALUES[name]
    b = Builder("values", opset=17)
    x, i = b.input("x", "float32", [4, 3]), b.input("i", "int64", [2])
    b.output(make(b, x, i), "z")
    for session in _sessions(b):
        with pytest.raises(ExecutionFailed, match=name.split()[0]):
            session.run({"x": np.ones((4, 3), np.float32), "i": np.array(value)})


def test_windows_that_are_larger_than_the_image() -> None:
    b = Builder("windows", opset=17)
    x = b.input("x", "float32", [1, 1, "h", 8])
    b.output(b.Conv(x, b.constant(np.ones((2, 1, 3, 3), np.float32))), "z")
    for session in _sessions(b):
        with pytest.raises(ExecutionFailed, match="Conv"):
            session.run({"x": np.ones((1, 1, 1, 8), np.float32)})
        assert session.run({"x": np.ones((1, 1, 4, 8), np.float32)})["z"].shape == (1, 2, 2, 6)
