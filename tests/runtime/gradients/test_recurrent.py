"""Gradient rows of LSTM, GRU and RNN."""

import numpy as np
import pytest

from runtime.gradients.recurrent import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t

T, B, I, H = 3, 2, 2, 3
LENGTHS = np.array([3, 1], np.int32)


def inputs(gates: int, directions: int, states: int = 1, lengths: np.ndarray | None = None,
           bare: bool = False, layout: int = 0) -> list[np.ndarray | None]:
    """X, W, R, B, lengths and the first states, of these sizes."""
    found: list[np.ndarray | None] = [t(T, B, I), t(directions, gates * H, I), t(directions, gates * H, H)]
    if bare:
        return found
    found += [t(directions, 2 * gates * H), lengths, *(t(directions, B, H) * (k + 1) for k in range(states))]
    if layout:
        found = [each.swapaxes(0, 1).copy() if k in (0, 5, 6) and each is not None else each
                 for k, each in enumerate(found)]
    return found


SIZE = {"hidden_size": H}
BOTH = {**SIZE, "direction": "bidirectional"}
SAMPLES = [
    Sample("RNN", inputs(1, 1, bare=True), SIZE, outputs=2),
    Sample("RNN", inputs(1, 2, lengths=LENGTHS), {**BOTH, "activations": ["Softsign", "Affine"], "clip": 0.9,
                                                  "activation_alpha": [0.6], "activation_beta": [0.2]}, outputs=2),
    Sample("GRU", inputs(3, 1), {**SIZE, "direction": "reverse"}, outputs=2),
    Sample("GRU", inputs(3, 2, lengths=LENGTHS), {**BOTH, "linear_before_reset": 1}, outputs=2),
    Sample("LSTM", inputs(4, 1, bare=True), SIZE, outputs=3),
    Sample("LSTM", [*inputs(4, 2, 2, LENGTHS), t(2, 3 * H)], {**BOTH}, outputs=3),
    Sample("LSTM", inputs(4, 1, 2, layout=1), {**SIZE, "layout": 1, "input_forget": 1, "direction": "reverse"},
           outputs=3, in_onnxruntime=False),  # it has no layout 1
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
