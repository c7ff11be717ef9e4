"""Gradient rows of reductions and scans."""

import numpy as np
import pytest

from runtime.gradients.reduction import ROWS
from tests.runtime.gradients.checking import Sample, check

X = np.random.default_rng(3).permuted(np.linspace(-1.9, 2.1, 24)).reshape(2, 3, 4)
POSITIVE = X + 2.5
AXES = np.array([1, -1])
REDUCTIONS = sorted(op for op in ROWS if op.startswith("Reduce"))


def data(op: str) -> np.ndarray:
    return POSITIVE if op == "ReduceLogSum" else X


SAMPLES = [
    *(Sample(op, [data(op)], attrs) for op in REDUCTIONS for attrs in (
        {}, {"axes": [1]}, {"axes": [-1, 0], "keepdims": 0}, {"keepdims": 0},
        {"axes": [], "noop_with_empty_axes": 1})),
    *(Sample(op, [data(op), AXES], {"keepdims": keep}, by=[0], in_onnxruntime=False) for op in REDUCTIONS
      if op != "ReduceProd" for keep in (0, 1)),
    Sample("ReduceProd", [np.where(X > 1.5, 0, X)], {"axes": [1, 2]}),  # zeros are nothing special
    *(Sample("CumSum", [X], {"axis": axis, "exclusive": exclusive, "reverse": reverse})
      for axis, exclusive, reverse in ((0, 0, 0), (-1, 1, 0), (1, 0, 1), (2, 1, 1))),
    Sample("CumSum", [X, np.array(1)], by=[0]),
    *(Sample("CumProd", [np.where(X > 1.5, 0, X)], {"axis": axis, "exclusive": exclusive, "reverse": reverse},
             opset=26, in_onnxruntime=False)  # zeros are nothing special
      for axis, exclusive, reverse in ((0, 0, 0), (-1, 1, 0), (1, 0, 1), (2, 1, 1))),
    *(Sample("TopK", [X], {"k": 2, **attrs}, outputs=2) for attrs in ({}, {"axis": 1, "largest": 0})),
    Sample("TopK", [X, np.array([3])], by=[0], outputs=2),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
