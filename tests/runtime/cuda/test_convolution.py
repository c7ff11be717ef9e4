"""Convolutions on the emulated device against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphs.builder import Builder, Value
from runtime.cuda.lowering import convolution

from .harness import check, expected, needs_compiler

pytestmark = needs_compiler

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

# Shapes of the input and the weights, and attributes.
CASES: list[Case] = [
    ((2, 3, 5), (4, 3, 3), {}),
    ((2, 3, 7), (4, 3, 3), {"pads": [2, 1], "strides": [2]}),
    ((1, 3, 6, 5), (4, 3, 3, 2), {}),
    ((2, 2, 6, 5), (3, 2, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ((2, 3, 4, 5), (6, 3, 1, 1), {}),
    ((2, 3, 4, 5), (2, 3, 1, 1), {"strides": [2, 2]}),
    ((2, 3, 4, 5), (2, 3, 1, 1), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 5, 5), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((3, 4, 5), (4, 2, 1), {"group": 2}),
    ((2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((2, 3, 5, 6), (6, 1, 2, 3), {"group": 3, "strides": [2, 1], "dilations": [2, 1]}),
    ((1, 2, 4, 3, 4), (3, 2, 2, 2, 3), {"pads": [0, 1, 0, 1, 1, 2]}),
    ((1, 2, 4, 3, 4), (2, 1, 2, 2, 2), {"group": 2, "strides": [2, 1, 2]}),
    ((2, 2, 7, 5), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 2, 7, 5), (3, 2, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((2, 2, 7, 5), (3, 2, 3, 2), {"auto_pad": "VALID"}),
    ((0, 2, 5), (3, 2, 3), {}),
    ((1, 1, 4, 4), (3, 1, 2, 2), {}),
    ((1, 2, 1, 1), (3, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
]

TRANSPOSED: list[Case] = [
    ((2, 3, 4), (3, 4, 3), {}),
    ((2, 3, 4), (3, 4, 3), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ((2, 3, 4, 3), (3, 2, 3, 2), {"strides": [2, 3], "pads": [1, 0, 0, 1], "dilations": [2, 1]}),
    ((1, 4, 3, 3), (4, 3, 2, 2), {"group": 2, "strides": [2, 2]}),
    ((2, 3, 3, 3), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((1, 2, 3, 3), (2, 2, 2, 2), {"group": 2, "strides": [3, 3]}),
    ((1, 2, 2, 3, 2), (2, 3, 2, 2, 2), {"strides": [1, 2, 1]}),
    ((2, 3, 4, 4), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 4, 4), (3, 2, 4, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 1]}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"output_shape": [8, 7], "strides": [2, 2]}),
    ((1, 2, 3, 3), (2, 2, 1, 1), {}),
]


class Cases:
    """Builds a graph of convolutions with random inputs."""

    def __init__(self, dtype: str = "float32") -> None:
        self.b = Builder("cases", opset=21, opsets={"com.microsoft": 1})
        self.random = np.random.default_rng(0)
        self.feeds: dict[str, np.ndarray] = {}
        self.dtype = dtype

    def input(self, *shape: int) -> Value:
        """A new input, of numbers that 16 bits hold."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.random.normal(size=shape).astype(ml_dtypes.bfloat16).astype(self.dtype)
        return self.b.input(name, self.dtype, shape)

    def add(self, op: str, case: Case, bias: bool) -> None:
        """A node as output, with a bias or without."""
        x, w, attrs = case
        maps = w[0] if op == "Conv" else w[1] * attrs.get("group", 1)
        inputs = [self.input(*x), self.input(*w), *([self.input(maps)] if bias else [])]
        self.b.output(self.b.op(op, *inputs, **attrs))  # type: ignore[arg-type]


def all_cases(dtype: str, step: int = 1) -> Cases:
    c = Cases(dtype)
    for op, cases in (("Conv", CASES), ("ConvTranspose", TRANSPOSED)):
        for index, case in enumerate(cases[::step]):
            c.add(op, case, bias=index % 2 == 0)
    return c


def test_convolutions(tmp_path: Path) -> None:
    c = all_cases("float32")
    graph = c.b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    assert {"eg_columns", "eg_depthwise", "eg_gather_windows", "gemm"} <= set(executor.device.launches)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float16", 4e-3), ("bfloat16", 4e-2)])
def test_other_element_types(dtype: str, tolerance: float, tmp_path: Path) -> None:
    wide = all_cases("float32", 4)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    wanted = [each.astype(kind) for each in expected(wide.b.graph(), wide.feeds, tmp_path)]
    c = all_cases(kind.name, 4)
    check(c.b.graph(), c.feeds, wanted, rtol=tolerance, atol=tolerance * 2)


def test_the_batch_is_walked_through_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "MOST_COLUMN_BYTES", 2 * 27 * 9 * 4)
    c = Cases()
    c.add("Conv", ((5, 3, 5, 5), (4, 3, 3, 3), {}), bias=True)
    c.add("Conv", ((3, 3, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1]}), bias=False)
    c.add("ConvTranspose", ((3, 4, 3, 3), (4, 3, 3, 3), {"strides": [2, 2]}), bias=True)
    graph = c.b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    launches = executor.device.launches  # type: ignore[attr-defined]
    assert launches.count("eg_columns") == 3 + 1 and launches.count("eg_gather_windows") == 2


def test_inputs_are_read_through_views(tmp_path: Path) -> None:
    c = Cases()
    b = c.b
    for w, attrs in (((4, 3, 3, 3), {}), ((3, 1, 2, 2), {"group": 3}), ((4, 3, 1, 1), {})):
        b.output(b.Conv(b.Transpose(c.input(2, 5, 6, 3), perm=[0, 3, 1, 2]), c.input(*w), **attrs))
    b.output(b.ConvTranspose(b.Transpose(c.input(2, 4, 4, 3), perm=[0, 3, 1, 2]), c.input(3, 2, 2, 2)))
    graph = b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    # The products of the pointwise convolution and of the transposed one read (position, channel) by columns.
    assert sorted(executor.device.launches) == [  # type: ignore[attr-defined]
        "eg_columns", "eg_depthwise", "eg_gather_windows", "gemm", "gemm", "gemm"]


def test_fused_convolutions(tmp_path: Path) -> None:
    c = Cases()
    for index, (name, parameters) in enumerate([("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.1]),
                                                ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.2, 0.4])]):
        inputs = [c.input(1, 2, 4, 4), c.input(3, 2, 3, 3), c.input(3), *([c.input(1, 3, 2, 2)] if index < 2 else [])]
        attrs = {"activation_params": parameters} if parameters else {}
        c.b.output(c.b.op("FusedConv", *inputs, domain="com.microsoft", activation=name, **attrs))  # type: ignore[arg-type]
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
