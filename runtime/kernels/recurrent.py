"""Kernels of the recurrent operators: a loop over time; products project the inputs of a few steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from . import OUTPUTS, Arrays, rows
from ._activations import sigmoid
from ._windows import widen

KERNELS, kernel = rows()

Activation = Callable[[np.ndarray], np.ndarray]
# A cell maps (projected input, previous states) to the new states; the first state is the output.
Cell = Callable[[np.ndarray, "tuple[np.ndarray, ...]"], "tuple[np.ndarray, ...]"]

_PARTS = 128  # of the steps, that are projected one after the other
# Default alpha and beta; None where a function has no such parameter.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0), "leakyrelu": (0.01, None), "thresholdedrelu": (1.0, None), "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5), "elu": (1.0, None),
}  # fmt: skip


def _function(name: str, alpha: float, beta: float) -> Activation:
    table: dict[str, Activation] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
        "affine": lambda x: alpha * x + beta,
        "leakyrelu": lambda x: np.where(x >= 0, x, alpha * x),
        "thresholdedrelu": lambda x: np.where(x > alpha, x, 0),
        "scaledtanh": lambda x: alpha * np.tanh(beta * x),
        "hardsigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "elu": lambda x: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.logaddexp(x, 0),
    }
    if name not in table:
        raise NotImplementedError(f"activation {name}")
    return table[name]


def named_activations(attrs: Mapping[str, object], default: Sequence[str],
                      directions: int) -> list[list[tuple[str, float, float]]]:
    """The activation functions of each direction: name in small letters, alpha, beta (0 where it has none).

    Alphas and betas go, in order, to the functions that have one.
    """
    names = [str(name).lower() for name in attrs.get("activations") or ()]  # type: ignore[attr-defined]
    if not names:
        names = [name.lower() for name in default] * directions
    alphas = iter(attrs.get("activation_alpha") or ())  # type: ignore[call-overload]
    betas = iter(attrs.get("activation_beta") or ())  # type: ignore[call-overload]
    found: list[tuple[str, float, float]] = []
    for name in names[: len(default) * directions]:
        alpha, beta = _PARAMETERS.get(name, (None, None))
        alpha = None if alpha is None else next(alphas, alpha)
        beta = None if beta is None else next(betas, beta)
        found.append((name, float(alpha or 0), float(beta or 0)))
    if len(found) < len(default) * directions:
        raise NotImplementedError(f"{len(names)} activations for {directions} directions")
    return [found[i * len(default):(i + 1) * len(default)] for i in range(directions)]


def activations(attrs: Mapping[str, object], default: Sequence[str], directions: int,
                dtype: np.dtype) -> list[list[Activation]]:
    """The activation functions of each direction."""
    return [[_function(name, dtype.type(alpha), dtype.type(beta)) for name, alpha, beta in each]
            for each in named_activations(attrs, default, directions)]


def _clipped(attrs: Mapping[str, object]) -> Activation:
    clip = attrs.get("clip")
    if not clip:
        return lambda x: x
    bound = float(clip)  # type: ignore[arg-type]
    return lambda x: np.clip(x, -bound, bound)


def _reversed_steps(x: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """Steps in reverse order, of each sequence only its own steps."""
    if lengths is None:
        return x[::-1]
    steps = np.arange(x.shape[0])[:, None]
    order = np.where(steps < lengths[None, :], lengths[None, :] - 1 - steps, steps)
    return np.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=0)


def _scan(x: np.ndarray, weights: np.ndarray, bias: np.ndarray, states: tuple[np.ndarray, ...],
          lengths: np.ndarray | None, cell: Cell, outputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The last states. The projections of all steps would take several times the bytes of the outputs."""
    count = max(1, len(x) // _PARTS)
    for first in range(0, len(x), count):
        projected = x[first:first + count] @ weights  # a product for each step, however many there are
        projected += bias
        for step, each in enumerate(projected, first):
            new = cell(each, states)
            if lengths is None:
                outputs[step], states = new[0], new
                continue
            live = (step < lengths)[:, None]
            outputs[step] = np.where(live, new[0], 0)
            states = tuple(np.where(live, after, before) for after, before in zip(new, states))
        del projected, each  # before the next are made
    return states


def _run(attrs: Mapping[str, object], inputs: Arrays, count: int,
         make: Callable[[int], tuple[np.ndarray, Cell]], initial: Sequence[int]) -> Sequence[np.ndarray]:
    """All directions. `make(d)` gives the bias of the projection and the cell of direction d."""
    x, w, r = inputs[0], inputs[1], inputs[2]
    assert x is not None and w is not None and r is not None
    if any(value is not None and value.ndim != 3 for value in (x, *(_get(inputs, index) for index in initial))):
        raise ValueError("the data or an initial state have not three axes")  # NumPy would broadcast them
    lengths, layout = _get(inputs, 4), bool(attrs.get("layout"))
    steps = widen(x.swapaxes(0, 1) if layout else x)
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[str(attrs["direction"])]
    y = np.empty((len(steps), len(backward), steps.shape[1], r.shape[2]), steps.dtype)
    all_states = []
    for direction, reverse in enumerate(backward):
        bias, cell = make(direction)
        own = y[:, direction]
        outputs = own if not reverse else own[::-1] if lengths is None else np.empty_like(own)
        states = []
        for index in initial:
            given = _get(inputs, index)
            if given is None:
                states.append(np.zeros((steps.shape[1], r.shape[2]), steps.dtype))
            else:
                states.append(widen(given[:, direction] if layout else given[direction]))
        ordered = _reversed_steps(steps, lengths) if reverse else steps
        all_states.append(_scan(ordered, widen(w[direction]).T, bias, tuple(states), lengths, cell, outputs))
        if reverse and lengths is not None:
            own[...] = _reversed_steps(outputs, lengths)
    finals = [np.stack([states[k] for states in all_states], axis=0) for k in range(len(initial))]
    if layout:
        y, finals = y.transpose(2, 0, 1, 3), [final.swapaxes(0, 1) for final in finals]
    return [value.astype(x.dtype, copy=False) for value in (y, *finals)][:count]


def _get(inputs: Arrays, index: int) -> np.ndarray | None:
    return inputs[index] if index < len(inputs) else None


def _prepare(inputs: Arrays) -> tuple[int, np.ndarray, np.ndarray, int]:
    """Hidden size, recurrent weights (directions, gates * hidden, hidden), biases (directions, 2, ...), directions."""
    r, bias = inputs[2], _get(inputs, 3)
    assert r is not None
    wide = widen(r)
    directions, width, hidden = wide.shape
    nothing = np.broadcast_to(np.zeros((), wide.dtype), (directions, 2, width))
    return hidden, wide, nothing if bias is None else widen(bias).reshape(directions, 2, width), directions


@kernel("RNN")
def rnn(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """H = f(x W^T + H R^T + b)."""
    _, r, bias, directions = _prepare(inputs)
    functions, clip = activations(attrs, ("Tanh",), directions, r.dtype), _clipped(attrs)

    def make(direction: int) -> tuple[np.ndarray, Cell]:
        recurrent, (f,) = r[direction].T, functions[direction]

        def cell(x: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return (f(clip(x + states[0] @ recurrent)),)

        return bias[direction].sum(axis=0), cell

    return _run(attrs, inputs, int(attrs.get(OUTPUTS, 2)), make, (5,))  # type: ignore[call-overload]


@kernel("GRU")
def gru(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Gates z (update), r (reset), h (hidden)."""
    hidden, r, bias, directions = _prepare(inputs)
    functions, clip = activations(attrs, ("Sigmoid", "Tanh"), directions, r.dtype), _clipped(attrs)
    late = bool(attrs["linear_before_reset"])

    def make(direction: int) -> tuple[np.ndarray, Cell]:
        recurrent, (f, g) = r[direction].T, functions[direction]
        project = bias[direction, 0] + bias[direction, 1]
        inner = bias[direction, 1, 2 * hidden:]
        if late:  # this bias is added before the reset gate multiplies
            project[2 * hidden:] = bias[direction, 0, 2 * hidden:]
        to_gates, to_hidden = recurrent[:, : 2 * hidden], recurrent[:, 2 * hidden:]

        def cell(x: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            before = states[0]
            gates = f(clip(x[:, : 2 * hidden] + before @ to_gates))
            update, reset = gates[:, :hidden], gates[:, hidden:]
            part = reset * (before @ to_hidden + inner) if late else (reset * before) @ to_hidden
            candidate = g(clip(x[:, 2 * hidden:] + part))
            return ((1 - update) * candidate + update * before,)

        return project, cell

    return _run(attrs, inputs, int(attrs.get(OUTPUTS, 2)), make, (5,))  # type: ignore[call-overload]


@kernel("LSTM")
def lstm(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Gates i, o, f, c in this order in the weights; peepholes i, o, f."""
    hidden, r, bias, directions = _prepare(inputs)
    functions, clip = activations(attrs, ("Sigmoid", "Tanh", "Tanh"), directions, r.dtype), _clipped(attrs)
    peepholes, coupled = _get(inputs, 7), bool(attrs["input_forget"])
    peep = None if peepholes is None else widen(peepholes).reshape(directions, 3, hidden)

    def make(direction: int) -> tuple[np.ndarray, Cell]:
        recurrent, (f, g, h) = r[direction].T, functions[direction]

        def cell(x: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            before = states[1]
            i, o, forget, c = np.split(x + states[0] @ recurrent, 4, axis=1)
            if peep is not None:
                i, forget = i + peep[direction, 0] * before, forget + peep[direction, 2] * before
            i = f(clip(i))
            forget = 1 - i if coupled else f(clip(forget))
            memory = forget * before + i * g(clip(c))
            if peep is not None:
                o = o + peep[direction, 1] * memory
            return f(clip(o)) * h(memory), memory

        return bias[direction].sum(axis=0), cell

    return _run(attrs, inputs, int(attrs.get(OUTPUTS, 3)), make, (5, 6))  # type: ignore[call-overload]
