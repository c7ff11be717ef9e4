"""The worked examples of the documentation, and what the two modes promise about names and values."""

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.ir import Graph
from runtime import gradients, jvp, run

AT = {"x1": np.array(2.0), "x2": np.array(5.0)}


def textbook() -> Graph:
    """y = ln(x1) + x1 x2 - sin(x2), each value with the name of the usual trace."""
    b = Builder()
    x1, x2 = b.input("x1", "float64", []), b.input("x2", "float64", [])
    v1, v2, v3 = b.Log(x1, outputs=["v1"]), b.Mul(x1, x2, outputs=["v2"]), b.Sin(x2, outputs=["v3"])
    v4 = b.Add(v1, v2, outputs=["v4"])
    b.output(b.Sub(v4, v3, outputs=["y"]))
    return b.graph()


def test_reverse_mode_gives_the_adjoint_of_every_node_of_the_textbook_trace() -> None:
    names = ["x1", "x2", "v1", "v2", "v3", "v4", "y"]
    found = run(gradients(textbook(), "y", names), AT)
    assert found["y"] == pytest.approx(np.log(2) + 10 - np.sin(5))
    assert found["y"] == pytest.approx(11.652, abs=5e-4)
    expected = {"y": 1, "v4": 1, "v3": -1, "v2": 1, "v1": 1, "x1": 5.5, "x2": 2 - np.cos(5)}
    assert {name: float(found[f"grad_{name}"]) for name in names} == pytest.approx(expected)
    assert found["grad_x2"] == pytest.approx(1.716, abs=5e-4)


def test_forward_mode_gives_the_tangent_of_every_node_of_the_textbook_trace() -> None:
    names = ["v1", "v2", "v3", "v4", "y"]
    graph = jvp(textbook(), {"x1": np.array(1.0)}, outputs=names)
    found = run(graph, AT)
    assert {name: float(found[f"tangent_{name}"]) for name in names} == pytest.approx(
        {"v1": 0.5, "v2": 5, "v3": 0, "v4": 5.5, "y": 5.5})
    other = run(jvp(textbook(), ["x2"]), {**AT, "tangent_x2": np.array(1.0)})
    assert other["tangent_y"] == pytest.approx(2 - np.cos(5))


def test_a_value_that_is_used_twice_has_the_sum_of_both_ways() -> None:
    b = Builder()
    e = b.Exp(b.input("v", "float64", []), outputs=["e"])
    b.output((e + 1.0) * e, "y")
    found = run(gradients(b.graph(), "y", ["v", "e"]), {"v": np.array(0.3)})
    power = np.exp(0.3)
    assert found["grad_e"] == pytest.approx((power + 1) + power)  # from the right factor, from the left factor
    assert found["grad_v"] == pytest.approx((2 * power + 1) * power)
    forward = run(jvp(b.graph(), {"v": np.array(1.0)}), {"v": np.array(0.3)})
    assert forward["tangent_y"] == pytest.approx((2 * power + 1) * power)


def test_the_mean_squared_error_of_two_layers() -> None:
    rng = np.random.default_rng(0)
    w1, w2, x, y = rng.normal(size=(4, 3)), rng.normal(size=(2, 4)), rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
    b = Builder()
    inputs = [b.input(name, "float64", list(value.shape)) for name, value in
              (("w1", w1), ("w2", w2), ("x", x), ("y", y))]
    h = b.Relu(inputs[0] @ inputs[2])
    difference = inputs[1] @ h - inputs[3]
    b.output(b.ReduceMean(difference * difference, keepdims=0), "loss")
    found = run(gradients(b.graph(), "loss", ["w1", "w2"]), {"w1": w1, "w2": w2, "x": x, "y": y})
    hidden = np.maximum(w1 @ x, 0)
    error = 2 / y.size * (w2 @ hidden - y)
    np.testing.assert_allclose(found["grad_w2"], error @ hidden.T)
    np.testing.assert_allclose(found["grad_w1"], ((w2.T @ error) * (hidden > 0)) @ x.T)
    step = {"w1": w1, "w2": np.ones_like(w2)}
    forward = run(jvp(b.graph(), {"w2": step["w2"]}), {"w1": w1, "w2": w2, "x": x, "y": y})
    assert forward["tangent_loss"] == pytest.approx(np.sum(found["grad_w2"]))
