"""Accuracy of our own functions, and what kernels do with NaN, infinities, overflow and negative integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graphs.canonical import complete
from graphs.operators import find
from runtime.execute import evaluate
from runtime.kernels._activations import sigmoid
from runtime.kernels._numeric import erf
from tests.runtime.kernels.models import node_of

nan, inf = np.nan, np.inf


def run(op: str, *inputs: object, dtype: str = "float32", **attrs: object) -> list[object]:
    record = find(op)
    assert record is not None
    arrays: list[np.ndarray | None] = [np.asarray(each, dtype) for each in inputs]
    return list(evaluate(node_of(op, complete(record, attrs), arrays, 1, 1), arrays)[0].tolist())


@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 2.0), ("float64", 4.0)])
def test_erf_is_accurate(dtype: str, ulps: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20011), np.geomspace(1e-30, 1, 500)]).astype(dtype)
    exact = np.array([math.erf(each) for each in x.astype(np.float64)])
    unit = np.spacing(np.maximum(np.abs(exact), 1e-37).astype(dtype)).astype(np.float64)
    assert (np.abs(erf(x).astype(np.float64) - exact) / unit).max() < ulps


def test_sigmoid_keeps_its_relative_accuracy_on_the_left() -> None:
    x = np.array([-80.0, -20.0, 0.0, 20.0], np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(sigmoid(x), exact, rtol=3e-7)


def test_nan_passes_through() -> None:
    assert np.isnan(run("Relu", [nan])).all()
    assert np.isnan(run("Max", [nan, 1.0], [1.0, nan])).all()
    assert np.isnan(run("Min", [nan, 1.0], [1.0, nan])).all()
    assert np.isnan(run("Clip", [nan], min=0.0, max=1.0)).all()
    assert np.isnan(run("ReduceMax", [nan, 1.0], axes=(0,))).all()


def test_infinities() -> None:
    assert run("IsInf", [inf, -inf, nan, 1.0], detect_negative=0) == [True, False, False, False]
    assert run("Sigmoid", [inf, -inf]) == [1.0, 0.0]
    assert run("Softplus", [inf, -inf]) == [inf, 0.0]
    assert run("ReduceLogSumExp", [-inf, -inf], axes=(0,)) == [-inf]
    assert run("ReduceLogSumExp", [inf, 1.0], axes=(0,)) == [inf]
    assert run("ReduceLogSumExp", [1000.0, 1000.0], axes=(0,))[0] == pytest.approx(1000.6931)


def test_integers() -> None:
    assert run("Div", [-7, 7, -8], [2, -2, 2], dtype="int32") == [-3, -3, -4]
    assert run("Mod", [-7, 7], [4, -4], dtype="int32") == [1, -1]
    assert run("Mod", [-7, 7], [4, -4], dtype="int32", fmod=1) == [-3, 3]
    assert run("Add", [250], [10], dtype="uint8") == [4]
    assert run("Pow", [2, -3], [10, 3], dtype="int64") == [1024, -27]
    assert run("ReduceMean", [-7, 2], dtype="int32", axes=(0,)) == [-2]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exponent", [0.5, [0.5], [[0.5], [0.5]], [0.5] * 5])
def test_a_power_by_a_half_is_that_of_c_and_no_root(dtype: str, exponent: object) -> None:
    """Annex F of C: pow(-inf, y) is inf for y > 0 that is no odd integer, pow(-0.0, y) is +0.0."""
    for row in np.broadcast_to(np.asarray(run("Pow", [-inf, -0.0, nan, 4.0, -1.0], exponent, dtype=dtype)), (2, 5)):
        assert row[0] == inf and row[1] == 0 and not np.signbit(row[1]) and row[3] == 2 and np.isnan(row[[2, 4]]).all()


def test_rounding() -> None:
    assert run("Round", [0.5, 1.5, 2.5, -0.5]) == [0.0, 2.0, 2.0, -0.0]
    assert run("Clip", [0.5], min=2.0, max=1.0) == [1.0]  # the upper bound wins


def test_empty_reductions() -> None:
    empty = np.zeros((2, 0))
    assert run("ReduceSum", empty, axes=(1,), keepdims=0) == [0.0, 0.0]
    assert run("ReduceProd", empty, axes=(1,), keepdims=0) == [1.0, 1.0]
    assert run("ReduceMax", empty, axes=(1,), keepdims=0) == [-inf, -inf]
    assert run("ReduceMin", empty, axes=(1,), keepdims=0) == [inf, inf]


def test_of_equal_elements_the_first_comes_first() -> None:
    record = find("TopK")
    assert record is not None
    x = np.array([1, 3, 3, 2, 3], np.float32)
    for largest, order in ((1, [1, 2, 4]), (0, [0, 3, 1])):
        attrs = complete(record, {"k": 3, "largest": largest})
        assert evaluate(node_of("TopK", attrs, [x], 2, 1), [x])[1].tolist() == order


def test_half_precision_rounds_once() -> None:
    parts = np.full(4096, 0.1, np.float16)
    assert run("ReduceSum", parts, dtype="float16", axes=(0,)) == [float(np.float16(parts.astype(float).sum()))]
