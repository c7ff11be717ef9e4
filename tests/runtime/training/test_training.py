"""Losses, optimizers and the graph of a training step."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest

from graphs import load
from graphs.builder import Builder
from graphs.dtypes import numpy_dtype
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from runtime import Session, gradients, run
from runtime.training import (
    SGD,
    Adam,
    AdamW,
    Muon,
    Optimizer,
    add_loss,
    initial_state,
    mean_squared_error,
    next_state,
    softmax_cross_entropy,
    training_step,
)

RNG = np.random.default_rng(11)
X, T, W = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 3)), RNG.normal(size=(4, 3))
Numbers = tuple[np.ndarray, dict[str, np.ndarray]]


def linear_model() -> Graph:
    """The mean squared error of x w against t."""
    b = Builder()
    x, t = b.input("x", "float64", ["n", 4]), b.input("t", "float64", ["n", 3])
    b.output(mean_squared_error(b, x @ b.constant(W, "w"), t), "loss")
    return b.graph()


def descent(w: np.ndarray) -> np.ndarray:
    return 2 / T.size * X.T @ (X @ w - T)


def sgd(w: np.ndarray, state: dict[str, np.ndarray], step: int) -> Numbers:
    g = descent(w) + 0.1 * w
    buffer = 0.9 * state.get("m", 0) + g
    return w - 0.05 * (g + 0.9 * buffer), {"m": buffer}


def adam(decay: float, apart: float) -> Callable[[np.ndarray, dict[str, np.ndarray], int], Numbers]:
    def update(w: np.ndarray, state: dict[str, np.ndarray], step: int) -> Numbers:
        g = descent(w) + decay * w
        m = 0.9 * state.get("m", 0) + 0.1 * g
        v = 0.99 * state.get("v", 0) + 0.01 * g**2
        moved = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.99**step)) + 1e-8)
        return w * (1 - 0.05 * apart) - 0.05 * moved, {"m": m, "v": v}

    return update


@pytest.mark.parametrize(("optimizer", "reference"), [
    (SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.1), sgd),
    (Adam(0.05, beta2=0.99, weight_decay=0.2), adam(0.2, 0)),
    (AdamW(0.05, beta2=0.99, weight_decay=0.3), adam(0, 0.3)),
], ids=["sgd", "adam", "adamw"])  # fmt: skip
def test_steps_follow_the_published_formulas(optimizer: Optimizer, reference: Callable[..., Numbers]) -> None:
    graph = training_step(linear_model(), "loss", optimizer)
    session, state = Session(graph), initial_state(graph)
    w, memory = W, dict[str, np.ndarray]()
    for step in range(1, 5):
        found = session.run({"x": X, "t": T, **state})
        assert found["loss"] == pytest.approx(np.mean((X @ w - T) ** 2))
        w, memory = reference(w, memory, step)
        state = {name: found[output] for name, output in next_state(graph).items()}
        np.testing.assert_allclose(state["w"], w, rtol=1e-6)
    if optimizer.counts:
        assert state["step"] == 4


@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_muon_moves_matrices_along_an_almost_orthogonal_direction(shape: tuple[int, int]) -> None:
    b = Builder()
    w = b.constant(RNG.normal(size=shape), "w")
    bias = b.constant(np.ones(shape[1]), "bias")
    b.output(b.ReduceSum((w + bias) * b.input("k", "float64", shape), keepdims=0), "loss")
    graph = training_step(b.graph(), "loss", Muon(0.5, weight_decay=0.0, match_rms=True))
    k, state = RNG.normal(size=shape), initial_state(graph)
    assert set(state) == {"w", "w_momentum", "bias", "bias_mean", "bias_square", "step"}
    found = run(graph, {"k": k, **state})
    move = (state["w"] - found["next_w"]) / (0.5 * 0.2 * np.sqrt(max(shape)))
    left, _, right = np.linalg.svd(k, full_matrices=False)
    np.testing.assert_allclose(left.T @ move @ right.T, np.eye(min(shape)), atol=0.35)  # five rounds reach 0.7 to 1.2


def test_a_learning_rate_can_be_fed() -> None:
    graph = training_step(linear_model(), "loss", SGD("rate"))
    found = run(graph, {"x": X, "t": T, "rate": np.float32(0.25), **initial_state(graph)})
    np.testing.assert_allclose(found["next_w"], W - 0.25 * descent(W))


def test_a_step_is_a_model_that_onnx_runtime_runs() -> None:
    b = Builder()
    x, t = b.input("x", "float32", ["n", 4]), b.input("t", "int64", ["n"])
    h = b.Relu(x @ b.constant(W.astype(np.float32), "w1"))
    b.output(softmax_cross_entropy(b, h @ b.constant(np.eye(3, dtype=np.float32), "w2"), t), "loss")
    graph = training_step(b.graph(), "loss", AdamW(0.05))
    data = proto_bytes(graph)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds = {"x": X.astype(np.float32), "t": T.argmax(1)}
    expected = run(graph, {**feeds, **initial_state(graph)})
    for name, value in zip(graph.outputs, session.run(None, feeds)):  # parameters and state by default
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)
    assert next_state(load(data)) == next_state(graph)


def test_a_loss_can_be_put_on_a_model() -> None:
    b = Builder()
    b.output(b.input("x", "float64", ["n", 4]) @ b.constant(W, "w"), "y")
    model = b.graph()
    squared = run(add_loss(model, "mse"), {"x": X, "target": T})
    assert squared["loss"] == pytest.approx(np.mean((X @ W - T) ** 2))
    labels = T.argmax(1)
    entropy = run(add_loss(model, "softmax-cross-entropy", labels=True), {"x": X, "target": labels})
    y = X @ W
    expected = np.mean(np.log(np.exp(y).sum(1)) - y[np.arange(6), labels])
    assert entropy["loss"] == pytest.approx(expected)
    hot = run(add_loss(model, "softmax-cross-entropy"), {"x": X, "target": np.eye(3)[labels]})
    assert hot["loss"] == pytest.approx(expected)


def test_cross_entropy_of_huge_logits_is_finite() -> None:
    b = Builder()
    x, t = b.input("x", "float32", [1, 2]), b.input("t", "int64", [1])
    b.output(softmax_cross_entropy(b, x, t), "loss")
    found = run(gradients(b.graph(), "loss", "x"), {"x": np.float32([[1e4, -1e4]]), "t": np.array([1])})
    assert found["loss"] == 2e4 and found["grad_x"].tolist() == [[1, -1]]


def test_what_is_trained_by_default() -> None:
    b = Builder()
    x = b.input("x", "float32", [2, 3, 4])
    ones = [b.constant(np.ones(3, np.float32), name) for name in ("scale", "bias", "mean", "var")]
    y = b.BatchNormalization(x, *ones) * b.constant(2.0, "half")
    b.output(b.ReduceSum(y + b.constant(np.ones(4, np.float32), "shift"), keepdims=0), "loss")
    from runtime.training.step import trainable

    assert trainable(b.graph(), "loss") == ["scale", "bias", "shift"]


@pytest.mark.parametrize(("dtype", "optimizer", "says"), [
    ("float16", Adam(), "epsilon 1e-08 is 0 in float16"), ("bfloat16", AdamW(), "beta2 0.999 is 1 in bfloat16"),
    ("float16", SGD(1e-9), "learning_rate 1e-09 is 0"), ("float16", Adam(epsilon=1e-4), ""), ("float16", Muon(), ""),
    ("bfloat16", SGD(0.1, 0.9), ""), ("float32", Adam(), ""),
])
def test_numbers_that_a_type_does_not_hold_are_refused(dtype: str, optimizer: Optimizer, says: str) -> None:
    """Where the gradient is zero, Adam in float16 would divide 0 by 0."""
    b = Builder()
    x = b.input("x", dtype, [3])
    w = b.constant(np.ones((3, 2), numpy_dtype(dtype)), "w")
    b.output(b.ReduceSum(x @ w, keepdims=0), "loss")
    if says:
        with pytest.raises(InvalidOption, match=says):
            training_step(b.graph(), "loss", optimizer)
        return
    step = training_step(b.graph(), "loss", optimizer)
    found = run(step, {"x": np.array([0, 1, 2], numpy_dtype(dtype)), **initial_state(step)})
    assert np.isfinite(found["next_w"].astype(np.float32)).all()


@pytest.mark.parametrize("name", ["x", "w", "loss", "step", ""])
def test_a_learning_rate_takes_no_name_that_means_something(name: str) -> None:
    with pytest.raises(InvalidOption, match="learning rate"):
        training_step(linear_model(), "loss", Adam(name))


def test_options_that_are_not_possible() -> None:
    with pytest.raises(InvalidOption, match="one element"):
        training_step(linear_model(), "x", SGD())
    with pytest.raises(InvalidOption, match="no initializer"):
        training_step(linear_model(), "loss", SGD(), ["v"])
    with pytest.raises(InvalidOption, match="unknown"):
        add_loss(linear_model(), "hinge")
