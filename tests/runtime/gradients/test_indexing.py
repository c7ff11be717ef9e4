"""Gradient rows of the operators that pick or place elements by index."""

import numpy as np
import pytest

from graphs.builder import Builder
from runtime import gradients, run
from runtime.gradients.indexing import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import i, t

X = t(3, 4, 2)
REPEATED = np.array([[0, 2, -1], [2, 2, 1]])
ELEMENTS = np.array([[0, 2, 1], [1, -1, 0]])
SAMPLES = [
    *(Sample("Gather", [X, REPEATED], {"axis": axis}, by=[0]) for axis in (0, 1)),
    Sample("Gather", [X, REPEATED.astype(np.int32)], {"axis": 1}, by=[0]),
    Sample("Gather", [t(3, 3, 3), REPEATED], {"axis": -1}, by=[0]), Sample("Gather", [X, np.array(1)], by=[0]),
    Sample("GatherElements", [t(3, 3), ELEMENTS], {"axis": 1}, by=[0]),
    Sample("GatherElements", [t(3, 3), ELEMENTS], by=[0]),
    Sample("GatherND", [X, np.array([[0, 1], [2, -1], [0, 1]])], by=[0]),
    Sample("GatherND", [X, np.array([[1], [3], [-1]])], {"batch_dims": 1}, by=[0]),
    *(Sample("ScatterElements", [t(3, 3), np.array([[0, 2, 1], [1, 0, 2]]), t(2, 3)], {"axis": axis, "reduction": r})
      for axis in (0, 1) for r in ("none", "add")),
    Sample("ScatterElements", [t(3, 3), np.array([[0, 0, 1]]), t(1, 3)], {"axis": 1, "reduction": "add"}),
    *(Sample("ScatterElements", [t(3, 3), np.array([[0, 0, 1], [2, 2, 2]]), t(2, 3)], {"axis": 1, "reduction": r})
      for r in ("max", "min")),
    *(Sample("ScatterND", [X, np.array([[0, 1], [2, -1]]), t(2, 2)], {"reduction": r})
      for r in ("none", "add", "max", "min")),
    Sample("ScatterND", [X, np.array([[0], [0]]), t(2, 4, 2)], {"reduction": "add"}),
    *(Sample("ScatterElements", [t(3, 3), np.array([[0, 0, 1], [2, 2, 0]]), t(2, 3)],
             {"axis": axis, "reduction": "mul"})
      for axis in (0, 1)),
    Sample("ScatterND", [X, np.array([[0], [0]]), t(2, 4, 2)], {"reduction": "mul"}),
    Sample("Scatter", [t(3, 3), np.array([[0, 2, 1]]), t(1, 3)], {"axis": 1}, opset=10),
    Sample("OneHot", [i(0, 2, -1, 7), np.array(3), np.array([0.25, 1.5])], by=[2]),
    Sample("OneHot", [REPEATED, np.array(4), np.array([0.25, 1.5])], {"axis": 0}, by=[2]),
]  # fmt: skip


def test_products_with_zeros() -> None:
    """One zero among the updates of a place leaves that one a derivative, two leave none."""
    b = Builder()
    x, u = b.input("x", "float64", [2]), b.input("u", "float64", [5])
    b.output(b.ScatterElements(x, b.constant([0, 0, 0, 1, 1]), u, reduction="mul"), "y")
    found = run(gradients(b.graph(), "y", ["x", "u"]), {"x": np.array([3.0, 5.0]), "u": np.array([0.0, 2, 4, 0, 0])})
    assert found["grad_x"].tolist() == [0, 0] and found["grad_u"].tolist() == [24, 0, 0, 0, 0]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES} - {"Scatter"}
