"""Gradient rows of Softmax and its kin."""

import numpy as np
import pytest

from runtime.gradients._softmax import ROWS
from tests.runtime.gradients.checking import Sample, check

X = np.random.default_rng(5).uniform(-2.0, 2.0, (2, 3, 4))
SAMPLES = [
    *(Sample(op, [X], attrs) for op in ROWS for attrs in ({}, {"axis": 1})),
    *(Sample(op, [X], {"axis": 1, "flatten": 1}, opset=11) for op in ROWS),  # normalizes over both last axes
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
