"""Gradient rows of the normalizations."""

import numpy as np
import pytest

from graphs.builder import Builder
from runtime import gradients, jvp, run
from runtime.gradients.normalization import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t

X, C = t(3, 4, 2, 3) * 2, (t(4) + 1.5, t(1, 4)[0])
STATISTICS = (t(2, 4)[0], t(2, 4)[1] + 1.5)
SAMPLES = [
    Sample("BatchNormalization", [X, *C, *STATISTICS]),
    Sample("BatchNormalization", [t(5, 4), *C, *STATISTICS], {"epsilon": 0.1}),
    Sample("BatchNormalization", [X, *C, *STATISTICS], {"training_mode": 1, "momentum": 0.7}, outputs=3),
    Sample("BatchNormalization", [t(5, 4), *C, *STATISTICS], {"training_mode": 1}, by=[0, 1, 2], in_onnxruntime=False),
    Sample("LayerNormalization", [X, t(3) + 1.0, t(2)[[0, 1, 1]]]),
    Sample("LayerNormalization", [X, t(2, 3)], {"axis": 2, "epsilon": 0.1}, outputs=3),
    Sample("LayerNormalization", [X, np.array(1.5)], {"axis": -3}, in_onnxruntime=False),  # scale broadcast
    Sample("RMSNormalization", [X, t(2, 3)], {"axis": 2}, opset=23),
    Sample("InstanceNormalization", [X, *C]),
    Sample("GroupNormalization", [X, *C], {"num_groups": 2}),
    *(Sample("LpNormalization", [X], {"axis": 1, "p": p}) for p in (1, 2)),
    Sample("MeanVarianceNormalization", [X]),
    Sample("MeanVarianceNormalization", [X], {"axes": [1, -1]}),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) - {"Softmax", "LogSoftmax", "Hardmax"} == {sample.op for sample in SAMPLES}


def test_mean_and_deviation_of_a_layer_have_gradients_too() -> None:
    b = Builder()
    outputs = b.LayerNormalization(b.input("x", "float32", [2, 5]), np.ones(5, np.float32), outputs=3)
    for value, name in zip(outputs, ("y", "mean", "inverse")):
        b.output(value, name)
    x, step = t(2, 5).astype(np.float32), np.float32(1e-2)
    found = run(gradients(b.graph(), ["mean", "inverse"], "x"), {"x": x})["grad_x"]
    for row in range(2):
        for column in range(5):
            sides = []
            for sign in (1, -1):
                moved = x.astype(np.float64)
                moved[row, column] += sign * step
                sides.append(np.sum(moved.mean(-1) + 1 / np.sqrt(moved.var(-1) + 1e-5)))
            assert found[row, column] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=2e-3)


def test_half_precision_is_normalized_in_float32() -> None:
    b = Builder()
    x = b.input("x", "float16", [2, 300])
    b.output(b.ReduceSum(b.LayerNormalization(x, np.ones(300, np.float16)) * x, keepdims=0), "y")
    data = np.linspace(0, 300, 600).reshape(2, 300).astype(np.float16)  # their squares add up to more than 65504
    graph = gradients(b.graph(), "y", "x")
    assert np.isfinite(run(graph, {"x": data})["grad_x"]).all()
    assert np.isfinite(run(jvp(b.graph(), {"x": np.ones((2, 300))}), {"x": data})["tangent_y"])
