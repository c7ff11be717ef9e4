"""Gradient rows of the recurrent family: each direction is a product that projects all inputs, then a Scan over time.

The formulas are those of ONNX. Sequences of different lengths keep their states, and give zeros, behind their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphs.builder import Builder, Value
from runtime.kernels.recurrent import named_activations

from ._bodies import input_like
from .expanded import expanded
from .movement import size_of_axis
from .rows import Row
from .shapes import scalar
from .site import Site

Function = Callable[[Value], Value]
# (gate inputs from x, states) -> new states, in the builder of the body; the first one is the output.
Step = Callable[[Value, Sequence[Value]], Sequence[Value]]


def _function(b: Builder, name: str, alpha: float, beta: float) -> Function:
    table: dict[str, Function] = {
        "relu": b.Relu, "tanh": b.Tanh, "sigmoid": b.Sigmoid, "softsign": b.Softsign, "softplus": b.Softplus,
        "affine": lambda x: x * alpha + beta,
        "leakyrelu": lambda x: b.LeakyRelu(x, alpha=alpha),
        "thresholdedrelu": lambda x: b.ThresholdedRelu(x, alpha=alpha),
        "scaledtanh": lambda x: b.Tanh(x * beta) * alpha,
        "hardsigmoid": lambda x: b.HardSigmoid(x, alpha=alpha, beta=beta),
        "elu": lambda x: b.Elu(x, alpha=alpha),
    }  # fmt: skip
    return table[name]


@dataclass
class _Direction:
    """What the cell of one direction is made of, as values of the graph around the Scan, read in the body `b`."""

    s: Site
    b: Builder
    number: int
    defaults: tuple[str, ...]

    def weights(self, index: int) -> Value | None:
        """This direction's part of an input, None where it is absent."""
        value, b = self.s.get(index), self.s.b
        if value is None:
            return None
        if value.shape is not None and value.shape[0] == 1:
            return b.Squeeze(value, axes=[0])
        return b.Gather(value, b.constant(self.number), axis=0)

    def inside(self, value: Value) -> Value:
        """A value of the graph around, as the body reads it."""
        return Value(self.b, value.name)

    def split(self, value: Value, parts: int) -> list[Value]:
        """Equal parts of a vector of the graph around, as the body reads them."""
        made = self.s.b.op("Split", value, outputs=parts, axis=0, num_outputs=parts)
        return [self.inside(each) for each in (made if isinstance(made, tuple) else (made,))]

    @property
    def functions(self) -> list[Function]:
        """Activations, what is before them clipped."""
        directions = 2 if self.s.attrs["direction"] == "bidirectional" else 1
        chosen = named_activations(self.s.attrs, self.defaults, directions)[self.number]
        return [_function(self.b, *each) for each in chosen]

    def clipped(self, value: Value) -> Value:
        """Between -clip and clip."""
        bound = self.s.attrs.get("clip")
        if not bound:
            return value
        ends = [scalar(self.b, sign * float(bound), value) for sign in (-1, 1)]  # type: ignore[arg-type]
        return self.b.Clip(value, *ends)


Make = Callable[[_Direction], tuple[Value | None, Step]]


def _by_scan(defaults: tuple[str, ...], initial: tuple[int, ...], make: Make) -> Row:
    """The row of an operator whose `make` gives the bias of the projection and the step of a direction."""

    def build(s: Site) -> Sequence[Value]:
        b, layout = s.b, bool(s.attrs["layout"])
        x = b.Transpose(s[0], perm=[1, 0, 2]) if layout else s[0]
        backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[str(s.attrs["direction"])]
        found = [_direction(s, x, number, reverse, defaults, initial, make) for number, reverse in enumerate(backward)]
        y = b.Concat(*(b.Unsqueeze(each[0], axes=[1]) for each in found), axis=1)
        finals = [b.Concat(*(b.Unsqueeze(each[1 + k], axes=[0]) for each in found), axis=0)
                  for k in range(len(initial))]
        if layout:
            y, finals = b.Transpose(y, perm=[2, 0, 1, 3]), [b.Transpose(each, perm=[1, 0, 2]) for each in finals]
        return [y, *finals]

    return expanded(build)


def _direction(s: Site, x: Value, number: int, reverse: bool, defaults: tuple[str, ...], initial: tuple[int, ...],
               make: Make) -> list[Value]:
    """The outputs of all steps (time, batch, hidden) and the last states of one direction."""
    b, lengths = s.b, s.get(4)
    ends = None if lengths is None else b.Cast(lengths, to=7)
    if reverse and ends is not None:
        x = b.ReverseSequence(x, ends, time_axis=0, batch_axis=1)
    inner = b.nested("step")
    one = _Direction(s, inner, number, defaults)
    bias, step = make(one)
    w = one.weights(1)
    assert w is not None
    projected = x @ b.Transpose(w, perm=[1, 0])
    if bias is not None:
        projected = projected + bias
    scanned = [projected]
    if ends is not None:
        steps = b.Range(b.constant(0), b.Squeeze(size_of_axis(b, x, 0), axes=[0]), b.constant(1))
        scanned.append(b.Less(b.Unsqueeze(steps, axes=[1, 2]), b.Unsqueeze(ends, axes=[0, 2])))
    starts = [_start(s, one, x, index) for index in initial]
    states = [input_like(inner, s, value.type, "state") for value in starts]
    slices = [input_like(inner, s, None if value.type is None else value.type.with_shape(value.shape[1:]), "slice")  # type: ignore[union-attr, index]
              for value in scanned]
    new = list(step(slices[0], states))
    shown = new[0]
    if ends is not None:
        shown = inner.Where(slices[1], new[0], scalar(inner, 0.0, new[0]))
        new = [inner.Where(slices[1], after, before) for after, before in zip(new, states)]
    for value in (*new, inner.Identity(shown)):
        inner.output(value)
    flipped = int(reverse and ends is None)
    made = b.op("Scan", *starts, *scanned, outputs=len(new) + 1, body=inner.unfinished, num_scan_inputs=len(scanned),
                scan_input_directions=[flipped] * len(scanned), scan_output_directions=[flipped])
    *last, y = made  # type: ignore[misc]
    if reverse and ends is not None:
        y = b.ReverseSequence(y, ends, time_axis=0, batch_axis=1)
    return [y, *last]


def _start(s: Site, one: _Direction, x: Value, index: int) -> Value:
    """The first state (batch, hidden), zeros where it is not given."""
    b, given = s.b, s.get(index)
    if given is not None and s.attrs["layout"]:
        return b.Gather(given, b.constant(one.number), axis=1)
    found = one.weights(index)
    if found is not None:
        return found
    sizes = b.Concat(size_of_axis(b, x, 1), size_of_axis(b, s[2], 2), axis=0)
    return b.Expand(scalar(b, 0.0, x), sizes)


def _recurrent(one: _Direction) -> Value:
    """The recurrent weights, transposed: (hidden, gates * hidden)."""
    r = one.weights(2)
    assert r is not None
    return one.s.b.Transpose(r, perm=[1, 0])


def _halves(one: _Direction) -> tuple[Value, Value] | None:
    """The biases of the inputs and of the states."""
    bias = one.weights(3)
    return None if bias is None else one.s.b.Split(bias, outputs=2, axis=0, num_outputs=2)


def _rnn(one: _Direction) -> tuple[Value | None, Step]:
    """H = f(x W' + H R' + b)."""
    halves, r = _halves(one), one.inside(_recurrent(one))

    def step(x: Value, states: Sequence[Value]) -> Sequence[Value]:
        (f,) = one.functions
        return [f(one.clipped(x + states[0] @ r))]

    return None if halves is None else halves[0] + halves[1], step


def _gru(one: _Direction) -> tuple[Value | None, Step]:
    """Gates z (update), r (reset), h (hidden)."""
    outer, halves, late = one.s.b, _halves(one), bool(one.s.attrs["linear_before_reset"])
    bias, inner = None, None
    if halves is not None:
        parts = [outer.Split(each, outputs=3, axis=0, num_outputs=3) for each in halves]
        last = parts[0][2] if late else parts[0][2] + parts[1][2]  # late: added before the reset gate multiplies
        bias = outer.Concat(parts[0][0] + parts[1][0], parts[0][1] + parts[1][1], last, axis=0)
        inner = one.inside(parts[1][2])
    columns = outer.Split(_recurrent(one), outputs=3, axis=1, num_outputs=3)
    update_r, reset_r, hidden_r = (one.inside(each) for each in columns)

    def step(x: Value, states: Sequence[Value]) -> Sequence[Value]:
        (f, g), b, before = one.functions, one.b, states[0]
        update_x, reset_x, hidden_x = b.Split(x, outputs=3, axis=1, num_outputs=3)
        update = f(one.clipped(update_x + before @ update_r))
        reset = f(one.clipped(reset_x + before @ reset_r))
        if late:
            part = before @ hidden_r
            part = reset * (part if inner is None else part + inner)
        else:
            part = (reset * before) @ hidden_r
        candidate = g(one.clipped(hidden_x + part))
        return [(1.0 - update) * candidate + update * before]

    return bias, step


def _lstm(one: _Direction) -> tuple[Value | None, Step]:
    """Gates i, o, f, c in this order in the weights; peepholes i, o, f."""
    halves, r = _halves(one), one.inside(_recurrent(one))
    peepholes, coupled = one.weights(7), bool(one.s.attrs["input_forget"])
    peep = None if peepholes is None else one.split(peepholes, 3)

    def step(x: Value, states: Sequence[Value]) -> Sequence[Value]:
        f, g, h = one.functions
        before = states[1]
        i, o, forget, c = one.b.Split(x + states[0] @ r, outputs=4, axis=1, num_outputs=4)
        if peep is not None:
            i, forget = i + peep[0] * before, forget + peep[2] * before
        i = f(one.clipped(i))
        forget = 1.0 - i if coupled else f(one.clipped(forget))
        memory = forget * before + i * g(one.clipped(c))
        if peep is not None:
            o = o + peep[1] * memory
        return [f(one.clipped(o)) * h(memory), memory]

    return None if halves is None else halves[0] + halves[1], step


ROWS: dict[str, Row] = {
    "LSTM": _by_scan(("Sigmoid", "Tanh", "Tanh"), (5, 6), _lstm),
    "GRU": _by_scan(("Sigmoid", "Tanh"), (5,), _gru),
    "RNN": _by_scan(("Tanh",), (5,), _rnn),
}

ABSENT: dict[str, str] = {}
