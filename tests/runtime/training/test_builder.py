"""Programs with variables: what a run computes, assigns and refuses."""

import numpy as np
import pytest

from graphs.errors import InvalidInput, InvalidOption
from runtime import run
from runtime.training import SGD, AdamW, Muon, Optimizer, initial_state, next_state, training_step
from runtime.training.builder import TrainingBuilder, Value

RNG = np.random.default_rng(3)
X, T, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((6, 4), (6, 3), (4, 3)))


def linear() -> tuple[TrainingBuilder, Value, Value, Value, Value]:
    net = TrainingBuilder()
    x, t = net.placeholder("x", "float32", ["n", 4]), net.placeholder("t", "float32", ["n", 3])
    w = net.variable("w", W)
    return net, x, t, w, net.mean_squared_error(net.matmul(x, w), t)


def test_a_run_reads_the_old_variables_and_assigns_at_its_end() -> None:
    net, x, t, w, loss = linear()
    (grad,) = net.gradients(loss, [w])
    update = net.assign(w, w - 0.1 * grad)
    session, expected = net.session(), W.astype(np.float64)
    for _ in range(3):
        before, found, after = session.run([w, loss, update], {x: X, "t": T})
        np.testing.assert_allclose(before, expected, rtol=1e-5)
        np.testing.assert_allclose(found, np.mean((X @ expected - T) ** 2), rtol=1e-5)
        expected = expected - 0.1 * 2 / T.size * X.T @ (X @ expected - T)
        np.testing.assert_allclose(after, expected, rtol=1e-5)
    np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)
    assert session.run(loss, {x: X, t: T}).shape == ()


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(0.1), Muon(0.1)], ids=["sgd", "adamw", "muon"])
def test_minimize_is_a_training_step(optimizer: Optimizer) -> None:
    net, x, t, _, loss = linear()
    plain = net.graph_of([loss])
    session, update = net.session(), net.minimize(loss, optimizer)
    whole = training_step(plain, loss.name, optimizer, ["w"])
    state = initial_state(whole)
    for _ in range(3):
        found = session.run([loss, *update], {x: X, t: T})
        wanted = run(whole, {"x": X, "t": T, **state})
        state = {name: wanted[output] for name, output in next_state(whole).items()}
        np.testing.assert_allclose(found[0], wanted[loss.name], rtol=1e-5)
    np.testing.assert_allclose(session.values["w"], state["w"], rtol=1e-5)


def test_gradients_of_gradients_and_of_what_does_not_matter() -> None:
    net = TrainingBuilder()
    x, y = net.placeholder("x", "float32", []), net.variable("y", 1.0)
    (first,) = net.gradients(x * x * x, [x])
    second, nothing = net.gradients(first, [x, y])
    assert net.session().run([first, second, nothing], {x: 2.0}) == [12.0, 12.0, 0.0]


def test_names_given_after_a_gradient_are_new() -> None:
    # What gradients tidy away leaves constants of its own: a later one must not take their names.
    net, x, t, w, loss = linear()
    (grad,) = net.gradients(loss, [w])
    for number in range(8):
        grad = grad * float(number + 2)
    factor = np.prod(np.arange(2.0, 10.0))
    found = net.session().run(grad, {x: X, t: T})
    np.testing.assert_allclose(found, factor * 2 / T.size * X.T @ (X @ W - T), rtol=1e-4)


def test_a_learning_rate_is_fed() -> None:
    net, x, t, _, loss = linear()
    update = net.minimize(loss, SGD("rate"))
    session = net.session()
    session.run(update, {x: X, t: T, "rate": 0.0})
    np.testing.assert_array_equal(session.values["w"], W)
    session.run(update, {x: X, t: T, "rate": 0.5})
    np.testing.assert_allclose(session.values["w"], W - X.T @ (X @ W - T) / T.size, rtol=1e-4)


def test_the_graph_of_a_step_is_one_like_any_other() -> None:
    net, _, _, w, loss = linear()
    graph = net.graph_of([loss, *net.minimize(loss, SGD(0.1), [w])])
    assert graph.inputs == ["x", "t", "w"] and next_state(graph) == {"w": "next_w"}
    np.testing.assert_array_equal(initial_state(graph)["w"], W)


def test_what_is_refused() -> None:
    net, x, t, w, loss = linear()
    with pytest.raises(InvalidOption, match="no variable"):
        net.assign(x, x)
    with pytest.raises(InvalidOption, match="the value is float32"):
        net.assign(w, loss)
    with pytest.raises(InvalidOption, match="assigned twice"):
        net.session().run([net.assign(w, w * 2.0), net.assign(w, w * 3.0)])
    with pytest.raises(InvalidOption, match="only floats"):
        net.gradients(loss, [net.placeholder("n", "int64", [])])
    with pytest.raises(InvalidInput, match="no such placeholder"):
        net.session().run(loss, {x: X, t: T, "w": W})
    with pytest.raises(InvalidInput, match="missing"):
        net.session().run(loss, {x: X})
