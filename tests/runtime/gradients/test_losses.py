"""Gradient rows of the loss operators."""

import numpy as np
import pytest

from runtime.gradients.losses import ROWS
from tests.runtime.gradients.checking import Sample, check

SCORES = np.random.default_rng(2).uniform(-2.0, 2.0, (4, 3))
PLANES = np.random.default_rng(3).uniform(-2.0, 2.0, (2, 3, 2))
LABELS, MAPS = np.array([0, 2, 1, 2]), np.array([[0, 2], [1, 0]])
WEIGHTS = np.array([0.5, 1.5, 2.0])
SAMPLES = [
    *(Sample(op, inputs, {"reduction": reduction, **more})
      for op in ROWS for reduction in ("mean", "sum", "none")
      for inputs, more in (([SCORES, LABELS], {}), ([PLANES, MAPS, WEIGHTS], {}),
                           ([SCORES, LABELS], {"ignore_index": 2}), ([SCORES, LABELS, WEIGHTS], {"ignore_index": 0}))),
    Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS], outputs=2),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
