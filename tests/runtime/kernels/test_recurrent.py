"""LSTM, GRU and RNN against ONNX Runtime: directions, lengths, initial states, peepholes, clipping, activations."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from graphs.errors import ExecutionFailed
from graphs.text import parse_graph
from runtime import run
from runtime.kernels.recurrent import lstm
from tests.runtime.kernels.harness import canonical, compare, evaluate_ours
from tests.runtime.kernels.test_convolution import Draw

F = np.float32
GATES = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}
PLAIN = ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Elu", "Softsign"]
WITH_ALPHA = ["Affine", "ScaledTanh", "ThresholdedRelu"]


def inputs(op: str, draw: Draw, directions: int) -> tuple[list[np.ndarray | None], int]:
    """Random inputs and the hidden size."""
    steps, batch, width, hidden = draw.whole(1, 5), draw.whole(1, 3), draw.whole(1, 4), draw.whole(1, 4)
    gates = GATES[op][0]
    arrays: list[np.ndarray | None] = [
        draw.normal(steps, batch, width),
        draw.normal(directions, gates * hidden, width),
        draw.normal(directions, gates * hidden, hidden),
        draw.pick(None, draw.normal(directions, 2 * gates * hidden)),
        draw.pick(None, draw.rng.integers(1, steps + 1, batch).astype(np.int32)),
        draw.pick(None, draw.normal(directions, batch, hidden)),
    ]
    if op == "LSTM":
        arrays += [
            draw.pick(None, draw.normal(directions, batch, hidden)),
            draw.pick(None, draw.normal(directions, 3 * hidden)),
        ]
    return arrays, hidden


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("op", GATES)
def test_recurrent(op: str, seed: int) -> None:
    draw, (_, functions) = Draw(seed), GATES[op]
    direction = draw.pick("forward", "reverse", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    arrays, hidden = inputs(op, draw, directions)
    attrs: dict[str, object] = {"direction": direction, "hidden_size": hidden}
    if draw.pick(True, False, False):
        attrs["clip"] = 0.7
    if draw.pick(True, False):
        attrs["activations"] = [draw.pick(*PLAIN, *WITH_ALPHA) for _ in range(functions * directions)]
        attrs["activation_alpha"] = draw.rng.uniform(0.1, 1, functions * directions).tolist()
        attrs["activation_beta"] = draw.rng.uniform(0.1, 1, functions * directions).tolist()
    if op == "GRU":
        attrs["linear_before_reset"] = draw.whole(0, 1)
    if op == "LSTM":
        attrs["input_forget"] = draw.whole(0, 1)
    compare(op, arrays, draw.pick(7, 14, 21), 3 if op == "LSTM" else 2, slack=10, **attrs)


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout(op: str) -> None:
    draw = Draw(5)
    arrays, _ = inputs(op, draw, 2)
    form = canonical(op, {"direction": "bidirectional"}, arrays, 14)
    assert form is not None
    outputs = 3 if op == "LSTM" else 2
    plain = evaluate_ours(op, *form, outputs)
    turned = [None if a is None else a.swapaxes(0, 1) if k in (0, 5, 6) else a for k, a in enumerate(arrays)]
    other = evaluate_ours(op, dict(form[0], layout=1), turned, outputs)
    np.testing.assert_array_equal(other[0], plain[0].transpose(2, 0, 1, 3))
    for a, b in zip(other[1:], plain[1:]):
        np.testing.assert_array_equal(a, b.swapaxes(0, 1))


@pytest.mark.parametrize("name", WITH_ALPHA)
def test_activations_whose_defaults_are_disputed_stay_opaque(name: str) -> None:
    arrays, _ = inputs("RNN", Draw(0), 1)
    assert canonical("RNN", {"activations": (name,)}, arrays, 14) is None


@pytest.mark.parametrize("broken", ["data", "state"])
def test_other_ranks_fail(broken: str) -> None:
    """ONNX asks for three axes (and ONNX Runtime insists); NumPy would broadcast two of them to something."""
    graph = parse_graph("graph opset 17 (x: float32[...], h: float32[...], w: float32[1, 8, 3], "
                        "r: float32[1, 8, 2]) -> (y) "
                        "{ y = LSTM(x, w, r, , , h, hidden_size=2) }")
    feeds = {name: np.ones(shape, np.float32) for name, shape in (("w", (1, 8, 3)), ("r", (1, 8, 2)))}
    feeds["x"] = np.ones((5, 3) if broken == "data" else (5, 1, 3), np.float32)
    feeds["h"] = np.ones((1, 2) if broken == "state" else (1, 1, 2), np.float32)
    with pytest.raises(ExecutionFailed, match="three axes"):
        run(graph, feeds)


def test_a_bidirectional_lstm_takes_little_more_than_its_outputs() -> None:
    """All projections at once would take 4 times the bytes of the outputs of a direction, twice."""
    rng = np.random.default_rng(0)
    x, w, r = (rng.normal(size=size).astype(np.float32) for size in ((64, 2, 16), (2, 512, 16), (2, 512, 128)))
    lstm({"direction": "bidirectional", "input_forget": 0}, [x, w, r])  # what a first call leaves behind is not its own
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        found = lstm({"direction": "bidirectional", "input_forget": 0}, [x, w, r])
        taken = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    assert taken < 1.25 * sum(each.nbytes for each in found)
