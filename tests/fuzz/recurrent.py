"""LSTM, GRU and RNN: directions, initial states, sequence lengths, activations, absent inputs and outputs."""

from __future__ import annotations

import numpy as np

from graphs.builder import Value

from .maker import Maker, rank_of, size_of
from .operators import Recipe

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def recurrent(op: str) -> Recipe:
    """One node with what it can have."""
    def make(m: Maker) -> object:
        x = m.pick(("float32",), low=3, high=3)
        steps, batch, features = (x.shape or ())[0], (x.shape or ())[1], size_of(x, 2)
        hidden, direction = m.number(1, 3), m.one_of(["forward", "reverse", "bidirectional"])
        ways = 2 if direction == "bidirectional" else 1
        inputs: list[Value | None] = [x, m.weights("float32", (ways, GATES[op] * hidden, features)),
                                      m.weights("float32", (ways, GATES[op] * hidden, hidden)), None, None]
        if m.chance(0.6):
            inputs[3] = m.weights("float32", (ways, 2 * GATES[op] * hidden)) if m.chance(0.7) else (
                m.b.constant(np.zeros((ways, 2 * GATES[op] * hidden), np.float32)))
        if isinstance(batch, int) and isinstance(steps, int) and steps > 0 and m.chance(0.3):
            lengths = [steps] * batch if m.chance(0.5) else [m.number(1, steps) for _ in range(batch)]
            inputs[4] = m.b.constant(np.array(lengths, np.int32))
        for _ in range(STATES[op]):
            inputs.append(_state(m, (ways, batch, hidden)))
        if op == "LSTM" and m.chance(0.2):
            inputs.append(m.weights("float32", (ways, 3 * hidden)))
        outputs = [m.b._names.fresh("r") if m.chance(0.7) else "" for _ in range(STATES[op] + 1)]
        if not any(outputs):
            outputs[-1] = m.b._names.fresh("r")
        m.b._names.taken.difference_update(outputs)
        return _squeezed(m, m.ops(op, *inputs, hidden_size=hidden, direction=direction, outputs=outputs,
                                  **_more(m, op, ways)))
    return make


def _state(m: Maker, shape: tuple) -> Value | None:
    kind = m.number(0, 3)
    if kind == 0 or not all(isinstance(dim, int) for dim in shape):
        return m.input("float32", shape) if m.chance(0.3) else None
    fit = [each for each in m.values if each.dtype == "float32" and each.shape == shape]
    if fit and kind == 1:
        return m.one_of(fit)  # type: ignore[no-any-return]
    return m.b.constant(np.zeros(shape, np.float32)) if kind == 2 else m.weights("float32", shape)


def _more(m: Maker, op: str, ways: int) -> dict[str, object]:
    more: dict[str, object] = {}
    if m.chance(0.2):
        names = ("Relu", "Sigmoid", "Tanh")
        more["activations"] = tuple(m.one_of(names) for _ in ACTIVATIONS[op]) * ways
    elif op == "RNN":
        more["activations"] = ACTIVATIONS[op] * ways
    if m.chance(0.15):
        more["clip"] = m.one_of([1.0, 3.0])
    if op == "GRU" and m.chance(0.4):
        more["linear_before_reset"] = 1
    return more


def _squeezed(m: Maker, made: object) -> object:
    """Models take the axis of directions away, or turn it to the features."""
    several = [each for each in (made if isinstance(made, tuple) else (made,)) if each.name]
    value = m.one_of(several)
    if rank_of(value) == 4 and m.chance(0.4):
        value = m.op("Transpose", value, perm=[0, 2, 1, 3])
        return m.op("Reshape", value, shape=[0, 0, -1])
    axis = rank_of(value) - 3
    return m.op("Squeeze", value, axes=[axis]) if size_of(value, axis) == 1 and m.chance(0.6) else value


RECIPES: dict[str, Recipe] = {op: recurrent(op) for op in GATES}
