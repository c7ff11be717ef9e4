"""Gradient rows of the random and the quantization family."""

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.ir import Graph
from runtime import gradients, jvp, run
from runtime.gradients import quantization, random
from tests.runtime.gradients.checking import Sample, check

X = np.linspace(0.5, 2.0, 40).reshape(5, 8)
CODES = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
STOPPING = {"RandomNormalLike", "RandomUniformLike", "Bernoulli"}


def dropout(mode: object, **attrs: object) -> Graph:
    b = Builder()
    x = b.input("x", "float64", [5, 8])
    training = b.input("mode", "bool", []) if mode is None else mode
    b.output(b.Dropout(x, training_mode=training, **attrs), "y")
    return b.graph()


@pytest.mark.parametrize("mode", [True, None])
def test_dropout_in_training_scales_what_its_mask_lets_through(mode: object) -> None:
    feeds = {"x": X} if mode else {"x": X, "mode": np.array(True)}
    graph = gradients(dropout(mode, ratio=0.25), "y", "x")
    assert sum(node.op == "Dropout" for node in graph.nodes) == 1
    found = run(graph, feeds)
    assert 0 < np.count_nonzero(found["y"]) < X.size
    np.testing.assert_allclose(found["grad_x"] * X, found["y"])  # it is linear in x
    forward = run(jvp(dropout(mode, ratio=0.25), {"x": X}), feeds)
    np.testing.assert_allclose(forward["tangent_y"], forward["y"])


def test_dropout_that_does_nothing_hands_the_gradient_on() -> None:
    for graph, feeds in ((dropout(False), {"x": X}), (dropout(None), {"x": X, "mode": np.array(False)})):
        assert (run(gradients(graph, "y", "x"), feeds)["grad_x"] == 1).all()


@pytest.mark.parametrize("op", sorted(STOPPING))
def test_draws_have_no_gradient(op: str) -> None:
    b = Builder()
    x = b.input("x", "float64", [5, 8])
    b.output(b.value(op, b.Sigmoid(x)) * x, "y")
    found = run(gradients(b.graph(), "y", "x"), {"x": X})
    np.testing.assert_allclose(found["grad_x"] * X, found["y"])


@pytest.mark.parametrize("sample", [
    Sample("DequantizeLinear", [CODES, np.array(0.25)]),
    Sample("DequantizeLinear", [CODES, np.array(0.25), np.array(3, np.int8)]),
    Sample("DequantizeLinear", [CODES, np.array([0.25, 1.5, 0.5]), np.array([1, 0, -2], np.int8)], {"axis": -2}),
], ids=lambda sample: f"{len(sample.inputs)} inputs")
def test_dequantizing_by_its_scale(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_test() -> None:
    assert set(random.ROWS) == {"Dropout", *STOPPING}
    assert set(quantization.ROWS) == {"DequantizeLinear", "DynamicQuantizeLinear"}


def test_the_scale_of_a_dynamic_quantization() -> None:
    """Its kernel rounds the scale to float32, so that differences in float64 say nothing: the formula instead."""
    b = Builder()
    x = b.input("x", "float32", [4])
    _, scale, _ = b.DynamicQuantizeLinear(x, outputs=3)
    b.output(scale, "scale")
    for data, expected in (([-1, 3, 0.5, -0.5], [-1, 1, 0, 0]), ([2, 3, 1, 1], [0, 1, 0, 0]), ([0, 0, 0, 0], [0] * 4)):
        found = run(gradients(b.graph(), "scale", "x"), {"x": np.array(data, np.float32)})
        np.testing.assert_allclose(found["grad_x"], np.array(expected) / 255, rtol=1e-6)
