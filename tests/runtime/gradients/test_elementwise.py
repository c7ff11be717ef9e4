"""Gradient rows of the elementwise operators."""

import numpy as np
import pytest

from runtime.gradients.elementwise import ROWS
from tests.runtime.gradients.checking import Sample, check

X = np.array([[-1.7, -0.6, 0.3], [0.8, 1.9, -0.25]])  # away from the kinks at -1, 0, 0.5, 1 and so on
Y = np.array([[0.7, -1.3, 2.1], [-0.4, 0.55, 1.2]])
ROW = np.array([0.9, -1.45, 0.35])
COLUMN = np.array([[1.35], [-0.15]])
POSITIVE = np.abs(X) + 0.1
INSIDE = X / 2
MASK = np.array([[True, False, True], [False, True, True]])

ONE_INPUT = {
    "Neg": X, "Abs": X, "Sign": X, "Ceil": X, "Floor": X, "Round": X + 0.05, "Sqrt": POSITIVE, "Reciprocal": X,
    "Exp": X, "Log": POSITIVE, "Sigmoid": X, "Tanh": X, "Sin": X, "Cos": X, "Tan": INSIDE, "Asin": INSIDE,
    "Acos": INSIDE, "Atan": X, "Sinh": X, "Cosh": X, "Asinh": X, "Acosh": POSITIVE + 1, "Atanh": INSIDE, "Erf": X,
    "Relu": X, "LeakyRelu": X, "ThresholdedRelu": X, "Elu": X, "Selu": X, "Celu": X, "Gelu": X, "HardSigmoid": X * 2,
    "HardSwish": X * 2, "Mish": X, "Softplus": X, "Softsign": X, "Shrink": X, "Identity": X,
}  # fmt: skip
SAMPLES = [
    *(Sample(op, [x]) for op, x in ONE_INPUT.items()),
    *(Sample(op, [X], {"alpha": 0.7}) for op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")),
    Sample("Swish", [X], {"alpha": 1.5}, opset=24, in_onnxruntime=False),
    Sample("Selu", [X], {"alpha": 1.5, "gamma": 2.0}), Sample("Gelu", [X], {"approximate": "tanh"}),
    Sample("HardSigmoid", [X], {"alpha": 0.5, "beta": 0.25}), Sample("Shrink", [X], {"lambd": 0.7, "bias": 0.2}),
    *(Sample(op, inputs) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
      for inputs in ([X, Y], [X, ROW], [COLUMN, ROW], [np.array(0.33), X])),
    *(Sample(op, [X, ROW, COLUMN]) for op in ("Max", "Min", "Sum", "Mean")), Sample("Sum", [X]),
    *(Sample("Mod", [X, each], {"fmod": 1}) for each in (Y + 0.01, ROW)),
    Sample("Pow", [POSITIVE, Y]), Sample("Pow", [POSITIVE, ROW]), Sample("Pow", [X, np.array(2.0)], constants=[1]),
    Sample("Pow", [X, np.array(3.0)], constants=[1]), Sample("Pow", [X, np.array(1.0)], constants=[1]),
    Sample("Pow", [X, np.array(0.0)], constants=[1]), Sample("Pow", [X, np.array([2, 3, 0])], in_onnxruntime=False),
    Sample("Pow", [np.float64(X), np.array(2, np.int64)], constants=[1]),
    Sample("PRelu", [X, ROW]), Sample("PRelu", [X, COLUMN]),
    Sample("Clip", [X]), Sample("Clip", [X], {"min": -0.5}), Sample("Clip", [X], {"min": -0.5, "max": 1.0}),
    Sample("Clip", [X, np.array(-0.5), np.array(0.9)]), Sample("Clip", [X, np.array(0.9), np.array(-0.5)]),
    Sample("Clip", [X, None, np.array(0.9)]),
    Sample("Where", [MASK, X, Y]), Sample("Where", [MASK, X, ROW]), Sample("Where", [MASK[:1], COLUMN, ROW]),
    Sample("Cast", [X], {"to": 11}), Sample("CastLike", [X, np.array(1.0)], by=[0]),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
