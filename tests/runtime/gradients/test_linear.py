"""Gradient rows of the operators that contract axes."""

import numpy as np
import pytest

from runtime.gradients.linear import ROWS
from tests.runtime.gradients.checking import Sample, check


def t(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(-1.0, 1.0, shape)


EQUATIONS = {
    "ij,jk->ik": [t(2, 3), t(3, 4)], "bhid,bhjd->bhij": [t(2, 2, 3, 2), t(2, 2, 4, 2)], "ij->ji": [t(2, 3)],
    "ij->": [t(2, 3)], "ii->i": [t(3, 3)], "ii": [t(3, 3)], "...ij,...jk": [t(2, 2, 3), t(3, 2)],
    "i,j->ij": [t(2), t(3)], "ij,k->i": [t(2, 3), t(4)], "ijj,jk->k": [t(2, 3, 3), t(3, 2)],
    "ij,ij,j->i": [t(2, 3), t(2, 3), t(3)], "b...,b...->...": [t(2, 3, 2), t(2, 3, 2)], "ij,jk": [t(2, 1), t(3, 2)],
    "A i, i B -> B A": [t(2, 3), t(3, 2)],
}  # fmt: skip
BROADCASTING = {"ij,jk", "...ij,...jk"}  # sizes of 1 and axes that ONNX Runtime does not stretch there
MATRICES = [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3, 4)), ((2, 3), (2, 3, 4)),
            ((2, 1, 2, 3), (3, 3, 2)), ((3,), (2, 3, 4)), ((2, 2, 3), (3,)), ((1, 2, 3), (2, 3, 2))]  # fmt: skip
SAMPLES = [
    *(Sample("MatMul", [t(*a), t(*b)]) for a, b in MATRICES),
    *(Sample("Gemm", [t(3, 2) if a else t(2, 3), t(4, 3) if b else t(3, 4), t(*c)],
             {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0})
      for a, b, c in ((0, 0, (2, 4)), (0, 1, (4,)), (1, 0, (2, 1)), (1, 1, (1,)))),
    Sample("Gemm", [t(2, 3), t(3, 4)]), Sample("Gemm", [t(2, 3), t(3, 4), t(1, 4)]),
    *(Sample("Einsum", inputs, {"equation": equation}, in_onnxruntime=equation not in BROADCASTING)
      for equation, inputs in EQUATIONS.items()),
    *(Sample("Det", [t(*shape)], symbolic=False) for shape in ((1, 1), (2, 2), (2, 3, 3))),
    Sample("Det", [np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 1.0]])], symbolic=False),  # singular
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
