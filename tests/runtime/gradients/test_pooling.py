"""Gradient rows of pools."""

import numpy as np
import pytest

from graphs.builder import Builder
from runtime import gradients, run
from runtime.gradients._pooling import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import i, t

X = np.random.default_rng(3).permutation(2 * 2 * 5 * 6).reshape(2, 2, 5, 6) / 20.0 - 3.03  # no ties, no zero
PADDED = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]}
ROUNDED = {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [0, 1, 1, 1]}
SAME = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
SAMPLES = [
    *(Sample("MaxPool", [X], attrs, opset=22) for attrs in (PADDED, ROUNDED, SAME)),
    Sample("MaxPool", [X], {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    Sample("MaxPool", [X], {"kernel_shape": [2, 2], "storage_order": 1}, outputs=2, in_onnxruntime=False),
    *(Sample("AveragePool", [X], {**attrs, "count_include_pad": padding}, opset=22)
      for attrs in (PADDED, ROUNDED, SAME) for padding in (0, 1)),
    Sample("AveragePool", [t(1, 3, 8)], {"kernel_shape": [2], "strides": [2]}),
    Sample("AveragePool", [X], {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 0, 0, 1]}),
    *(Sample("LpPool", [X], {**PADDED, "p": p}) for p in (1, 2, 3)),
    Sample("GlobalAveragePool", [X]), Sample("GlobalMaxPool", [X]),
    *(Sample("GlobalLpPool", [X], {"p": p}) for p in (1, 2, 3)),
    Sample("MaxUnpool", [t(1, 1, 2, 2), i(0, 3, 13, 10).reshape(1, 1, 2, 2)],
           {"kernel_shape": [2, 2], "strides": [2, 2]}),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}


@pytest.mark.parametrize(("op", "attrs"), [("MaxPool", {"kernel_shape": [3]}), ("GlobalMaxPool", {})])
def test_of_equals_the_first_is_chosen(op: str, attrs: dict[str, object]) -> None:
    b = Builder()
    b.output(b.value(op, b.input("x", "float64", [1, 1, 3]), **attrs), "y")
    assert run(gradients(b.graph(), "y", "x"), {"x": np.array([[[1.0, 2, 2]]])})["grad_x"].tolist() == [[[0, 1, 0]]]
