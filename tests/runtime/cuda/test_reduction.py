"""Reductions, places, scans and pools of rows on the emulated device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.dtypes import numpy_dtype
from graphs.ir import Graph
from runtime.codegen.reduction import parts_of
from runtime.codegen.rowwise import Layout
from runtime.cuda.emulated import EmulatedDevice

from .harness import check, emulate, expected, needs_compiler

pytestmark = needs_compiler
SUMS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
RANDOM = np.random.default_rng(3)


def launches(executor: object) -> list[str]:
    device = executor.device  # type: ignore[attr-defined]
    assert isinstance(device, EmulatedDevice)
    return device.launches


def drawn(dtype: str, *shape: int) -> np.ndarray:
    return (RANDOM.normal(size=shape) * 0.5 + 1).astype(numpy_dtype(dtype))


def test_reductions_over_any_axes_of_strided_tensors(tmp_path: Path) -> None:
    b = Builder("axes", opset=20)
    x = b.input("x", "float32", [3, 31, 33])
    turned = b.Transpose(x, perm=[2, 0, 1])
    for index, op in enumerate(SUMS):
        for axes in ([2], [0, 2], [-2], [0], None) if op in ("ReduceSum", "ReduceLogSumExp") else ([0, 2],):
            given = {} if axes is None else {"axes": axes}
            b.output(b.op(op, x, keepdims=index % 2, **given), f"{op}{axes}")
        b.output(b.op(op, turned, axes=[0, 2]), f"{op} turned")
    b.output(b.ReduceMean(turned, axes=[1], keepdims=0), "turned, in the middle")
    graph, feeds = b.graph(), {"x": np.abs(drawn("float32", 3, 31, 33)) + np.float32(0.2)}
    check(graph, feeds, expected(graph, feeds, tmp_path), rtol=5e-5, atol=1e-5)


def test_rows_of_every_length(tmp_path: Path) -> None:
    b, feeds = Builder("lengths", opset=20), {}
    for columns in (1, 3, 31, 33, 1000, 5000):
        name = f"x{columns}"
        x, feeds[name] = b.input(name, "float32", [5, columns]), drawn("float32", 5, columns)
        for op in ("ReduceSum", "ReduceMax"):
            b.output(b.op(op, x, axes=[1]), f"{op}{columns}")
        b.output(b.ArgMin(x, axis=1), f"ArgMin{columns}")
        b.output(b.Softmax(x, axis=1), f"Softmax{columns}")
    graph = b.graph()
    check(graph, feeds, expected(graph, feeds, tmp_path), rtol=1e-4)


def test_few_long_rows_are_reduced_in_parts(tmp_path: Path) -> None:
    b = Builder("parts", opset=20)
    x, y = b.input("x", "float32", [2, 20011]), b.input("y", "float32", [20011, 3])
    for op in ("ReduceSum", "ReduceMin", "ReduceLogSumExp", "ReduceMean"):
        b.output(b.op(op, x, axes=[1], keepdims=0), f"{op}x")
        b.output(b.op(op, y, axes=[0]), f"{op}y")
    b.output(b.ReduceL2(x), "all")
    graph, feeds = b.graph(), {"x": drawn("float32", 2, 20011), "y": drawn("float32", 20011, 3)}
    done = launches(check(graph, feeds, expected(graph, feeds, tmp_path), rtol=1e-4))
    assert done.count("eg_reducesum_parts") == 2 and done.count("eg_reducesum") == 2


def test_a_sum_of_millions_keeps_a_gpu_busy() -> None:
    assert parts_of(Layout((1 << 24,), (0,)), own=False) == 512
    assert parts_of(Layout((4096, 768), (1,)), own=False) == 1
    assert parts_of(Layout((1 << 20, 8), (0,)), own=True) > 1000


def test_integers_and_bool(tmp_path: Path) -> None:
    b, feeds = Builder("integers", opset=20), {}
    for dtype in ("int32", "int64"):
        x = b.input(dtype, dtype, [7, 35])
        feeds[dtype] = RANDOM.integers(-9, 10, (7, 35)).astype(dtype)
        for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare"):
            b.output(b.op(op, x, axes=[1]), f"{op} {dtype}")
            b.output(b.op(op, x, axes=[0]), f"{op} {dtype} down")
        b.output(b.ReduceMean(x, axes=[0]), f"mean {dtype}")
        b.output(b.ReduceProd(x, axes=[0]), f"product {dtype}")
        b.output(b.ArgMax(x, axis=1), f"place {dtype}")
        b.output(b.CumSum(x, np.array(1), reverse=1), f"running {dtype}")
    for dtype, low in (("int8", -128), ("uint8", 0)):
        x = b.input(dtype, dtype, [7, 35])
        feeds[dtype] = RANDOM.integers(low, low + 256, (7, 35)).astype(dtype)
        b.output(b.ReduceMax(x, axes=[1]), f"max {dtype}")
        b.output(b.ReduceMin(x, axes=[0]), f"min {dtype}")
    x, feeds["bool"] = b.input("bool", "bool", [7, 35]), RANDOM.random((7, 35)) < 0.04
    b.output(b.ReduceMax(x, axes=[1]), "any")
    b.output(b.ReduceMin(b.Not(x), axes=[1]), "all")
    graph = b.graph()
    check(graph, feeds, expected(graph, feeds, tmp_path))


def in_double(make: object, feeds: Mapping[str, np.ndarray], folder: Path, dtype: str) -> list[np.ndarray]:
    """What ONNX Runtime computes in float64, rounded."""
    graph: Graph = make("float64")  # type: ignore[operator]
    found = expected(graph, {name: value.astype(np.float64) for name, value in feeds.items()}, folder)
    return [each.astype(numpy_dtype(dtype)) if each.dtype == np.float64 else each for each in found]


@pytest.mark.parametrize("dtype, rtol", [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-12)])
def test_other_floats(dtype: str, rtol: float, tmp_path: Path) -> None:
    def make(dtype: str) -> Graph:
        b = Builder("floats", opset=20)
        x = b.input("x", dtype, [9, 65])
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
            b.output(b.op(op, x, axes=[1]), op)
            b.output(b.op(op, x, axes=[0]), f"{op} down")
        b.output(b.ArgMax(x, axis=1), "place")
        return b.graph()

    feeds = {"x": drawn(dtype, 9, 65)}
    check(make(dtype), feeds, in_double(make, feeds, tmp_path, dtype), rtol=rtol)


def test_nan_and_infinity() -> None:
    """As NumPy has it, which is what ONNX's reference computes with."""
    b = Builder("special", opset=20)
    x = b.input("x", "float32", [6, 40])
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp"):
        b.output(b.op(op, x, axes=[1], keepdims=0), op)
    b.output(b.ArgMax(x, axis=1, keepdims=0), "most")
    b.output(b.ArgMin(x, axis=1, keepdims=0), "least")
    value = drawn("float32", 6, 40)
    value[0, 17] = value[1, 3] = value[2, 39] = np.inf
    value[1, 20] = -np.inf
    value[3, 5] = value[3, 21] = np.nan
    value[4] = -np.inf
    value[5, 9] = -np.inf
    with np.errstate(all="ignore"):
        wanted = [value.sum(1), value.max(1), value.min(1), np.log(np.exp(value).sum(1)), value.argmax(1),
                  value.argmin(1)]  # fmt: skip
    check(b.graph(), {"x": value}, wanted, rtol=1e-4)


def test_scalars_nothing_and_no_axes(tmp_path: Path) -> None:
    b = Builder("edges", opset=20)
    x, s, e = b.input("x", "float32", [4, 5]), b.input("s", "float32", []), b.input("e", "float32", ["none", 3])
    for op in SUMS:
        b.output(b.op(op, s), f"{op} of a scalar")
        b.output(b.op(op, x, noop_with_empty_axes=1), f"{op} over no axis")
    for op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", "ReduceL2"):
        b.output(b.op(op, e, axes=[0]), f"{op} of nothing")
        b.output(b.op(op, e, axes=[1]), f"nothing by {op}")
    b.output(b.ReduceMax(e, axes=[0]), "greatest of nothing")
    b.output(b.ReduceMin(e, axes=[0]), "least of nothing")
    b.output(b.ReduceMean(e, axes=[0]), "mean of nothing")
    b.output(b.ArgMax(s), "place of a scalar")
    b.output(b.Softmax(e, axis=1), "softmax of nothing")
    b.output(b.CumSum(e, np.array(0)), "running total of nothing")
    graph = b.graph()
    value = np.abs(drawn("float32", 4, 5)) + np.float32(0.1)
    scalar = np.float32(1.5)
    folded = {"ReduceL1": np.abs, "ReduceL2": np.abs, "ReduceSumSquare": np.square, "ReduceLogSum": np.log}
    row, none = np.ones((1, 3), np.float32), np.zeros((0, 1), np.float32)
    wanted: list[np.ndarray] = []
    for op in SUMS:
        wanted += [np.asarray(folded.get(op, np.asarray)(scalar)), folded.get(op, np.asarray)(value)]
    for start in (0, 1, 0, 0, 0):
        wanted += [row * start, none]
    wanted += [-np.inf * row, np.inf * row, np.nan * row, np.array(0), np.zeros((0, 3), np.float32),
               np.zeros((0, 3), np.float32)]  # fmt: skip
    check(graph, {"x": value, "s": np.asarray(scalar), "e": np.zeros((0, 3), np.float32)}, wanted)


def test_places(tmp_path: Path) -> None:
    b = Builder("places", opset=20)
    x, r = b.input("x", "float32", [3, 70, 33]), b.input("r", "float32", [40, 300])
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            for axis in (0, 1, 2) if op == "ArgMax" else (2,):
                b.output(b.op(op, x, axis=axis, select_last_index=last, keepdims=last), f"{op}{axis}{last}")
            b.output(b.op(op, b.Transpose(r, perm=[1, 0]), axis=0, select_last_index=last), f"{op} turned {last}")
    for largest in (0, 1):
        for axis in (0, 1, 2) if largest else (1,):
            for index, value in enumerate(b.TopK(x, k=3, axis=axis, largest=largest, outputs=2)):
                b.output(value, f"top {axis} {largest} {index}")
        for index, value in enumerate(b.TopK(r, k=7, largest=largest, outputs=2)):
            b.output(value, f"top of rows {largest} {index}")
    graph = b.graph()
    feeds = {"x": np.round(drawn("float32", 3, 70, 33), 1), "r": np.round(drawn("float32", 40, 300), 1)}
    check(graph, feeds, expected(graph, feeds, tmp_path), rtol=0, atol=0)


def test_scans(tmp_path: Path) -> None:
    b = Builder("scans", opset=20)
    x, r = b.input("x", "float32", [3, 37, 33]), b.input("r", "float32", [2, 3000])
    for exclusive in (0, 1):
        for reverse in (0, 1):
            for axis in (0, 1, 2):
                value = b.CumSum(x, np.array(axis), exclusive=exclusive, reverse=reverse)
                b.output(value, f"{axis}{exclusive}{reverse}")
            value = b.CumSum(r, np.array(-1), exclusive=exclusive, reverse=reverse)
            b.output(value, f"rows {exclusive}{reverse}")
    graph = b.graph()
    feeds = {name: np.round(3 * drawn("float32", *shape)) for name, shape in (("x", (3, 37, 33)), ("r", (2, 3000)))}
    check(graph, feeds, expected(graph, feeds, tmp_path), rtol=0, atol=0)


def test_what_stays_with_numpy() -> None:
    b = Builder("left", opset=20)
    x = b.input("x", "float32", [100])
    b.output(b.TopK(x, k=50, outputs=2)[0], "y")
    _, executor = emulate(b.graph(), {"x": drawn("float32", 100)})
    assert len(executor.on_host) == 1 and "passes" in executor.on_host[0]
