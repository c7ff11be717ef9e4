"""Gradient rows of ONNX Runtime's own operators."""

import pytest

from graphs.builder import Builder, Value
from graphs.ir import Node
from runtime.gradients.contrib import DOMAIN, ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t


def simplified(b: Builder, x: Value, scale: Value) -> list[Value]:
    """It stands in ONNX's own domain without being in it, so that the builder does not know it."""
    name, attrs = b.fresh("y"), {"axis": 1, "epsilon": 1e-5, "stash_type": 1}
    b.place(Node("SimplifiedLayerNormalization", (x.name, scale.name), (name,), attrs, version=1))
    return [Value(b, name)]


X, ROW = t(2, 3, 4), t(1, 4)[0]
SAMPLES = [
    Sample("Gelu", [X], domain=DOMAIN), Sample("BiasGelu", [X, ROW], domain=DOMAIN),
    Sample("FastGelu", [X], domain=DOMAIN), Sample("FastGelu", [X, ROW], domain=DOMAIN),
    Sample("QuickGelu", [X], {"alpha": 1.3}, domain=DOMAIN),
    Sample("SimplifiedLayerNormalization", [X, t(3, 4)], build=simplified),
    Sample("SkipLayerNormalization", [X, t(2, 3, 4) * 2 + 0.1, ROW, t(4), t(4) + 1.0], domain=DOMAIN),
    Sample("SkipSimplifiedLayerNormalization", [X, t(2, 3, 4) * 2 + 0.1, ROW, t(4)], domain=DOMAIN),
]  # fmt: skip
for sample in SAMPLES:  # the sum is the last of four outputs
    if sample.op.startswith("Skip"):
        sample.outputs = 4


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert {name.rpartition(".")[2] for name in ROWS} == {sample.op for sample in SAMPLES}
