"""Lowerings of the recurrent operators: one product projects the inputs of all steps, then each step is a product
with the state and a kernel for the gates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from runtime.codegen.recurrent import ACTIVATIONS, Cell, cell_kernel

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from ._product import LIBRARY, emit_product

LOWERINGS, lowering = rows()
_DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@lowering("LSTM", "GRU", "RNN")
def _recurrent(emitter: Emitter) -> None:
    op, attrs = emitter.node.op, emitter.attrs
    x = emitter.tensor(0)
    if x.dtype not in LIBRARY:
        raise NoKernel(f"{op} of {x.dtype}")
    backward, layout = _DIRECTIONS[str(attrs["direction"])], bool(attrs["layout"])
    activations = _activations(emitter, len(backward))
    x = _turned(x, (1, 0, 2)) if layout else x
    w, r = emitter.dense(1), emitter.dense(2)
    (steps, batch, _), hidden = x.shape, r.shape[2]
    if 0 in (steps, batch, hidden):
        raise NoKernel(f"{op} of nothing")
    shape = (batch, steps, len(backward), hidden) if layout else (steps, len(backward), batch, hidden)
    # All results as (..., direction, batch, hidden), whatever the layout.
    y = emitter.output(0, shape)
    y = _turned(y, (1, 2, 0, 3)) if layout else y
    finals = []
    for index in range(1, 3 if op == "LSTM" else 2):
        made = emitter.output(index, (batch, len(backward), hidden) if layout else (len(backward), batch, hidden))
        finals.append(_turned(made, (1, 0, 2)) if layout else made)
    initial = [_turned(emitter.dense(index), (1, 0, 2)) if layout else emitter.dense(index)
               for index in (5, 6)[:len(finals)] if emitter.has(index)]
    given = [index for index in (5, 6)[:len(finals)] if emitter.has(index)]
    lengths = emitter.dense(4) if emitter.has(4) else None
    for direction, reverse in enumerate(backward):
        states = {index: _at(each, direction) for index, each in zip(given, initial)}
        cell = Cell(op, x.dtype, batch, hidden, (), activations[direction], float(attrs.get("clip") or 0.0),
                    bool(attrs.get("input_forget")))
        vectors = {name: _at(emitter.dense(index), direction) for name, index in (("b", 3), ("p", 7))
                   if emitter.has(index) and (name == "b" or op == "LSTM")}
        if lengths is not None:
            vectors["length"] = lengths
        scan = _Scan(emitter, cell, _at(r, direction), vectors, bool(attrs.get("linear_before_reset")))
        scan.run(_projected(emitter, x, _at(w, direction)), _at(_turned(y, (1, 0, 2, 3)), direction),
                 [_at(each, direction) for each in finals], (states.get(5), states.get(6)), reverse)


def _activations(emitter: Emitter, directions: int) -> list[tuple[str, ...]]:
    default = _DEFAULTS[emitter.node.op]
    names = [str(name).lower() for name in emitter.attrs.get("activations") or default * directions]
    if len(names) < len(default) * directions or not set(names) <= set(ACTIVATIONS):
        raise NoKernel(f"{emitter.node.op} with activations {', '.join(names)}")
    return [tuple(names[at * len(default):(at + 1) * len(default)]) for at in range(directions)]


def _turned(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return tensor.viewed(tuple(tensor.shape[axis] for axis in order), tuple(tensor.strides[axis] for axis in order))


def _at(tensor: Tensor, index: int) -> Tensor:
    """A view of one entry of the first axis."""
    return tensor.viewed(tensor.shape[1:], tensor.strides[1:], index * tensor.strides[0])


def _columns(tensor: Tensor, first: int, count: int) -> Tensor:
    """A view of some of the last axis."""
    return tensor.viewed((*tensor.shape[:-1], count), tensor.strides, first * tensor.strides[-1])


def _projected(emitter: Emitter, x: Tensor, w: Tensor) -> Tensor:
    """x @ w^T for all steps."""
    made = emitter.temporary((*x.shape[:2], w.shape[0]), x.dtype)
    emit_product(emitter, x, _turned(w, (1, 0)), made)
    return made


@dataclass
class _Scan:
    """The steps of one direction."""

    emitter: Emitter
    cell: Cell
    r: Tensor  # (gates * hidden, hidden)
    vectors: dict[str, Tensor]
    late: bool

    def run(self, g: Tensor, y: Tensor, finals: list[Tensor], initial: tuple[Tensor | None, Tensor | None],
            reverse: bool) -> None:
        """All steps: `g` projected inputs, `y` outputs (both by step), `finals` and `initial` the states."""
        steps, ends = g.shape[0], "length" in self.vectors
        h, c = initial
        clock = self.emitter.constant(np.arange(steps, dtype=np.int32)) if ends else None
        spare = [[self._state() for _ in range(2)] for _ in range(2)]  # that states alternate between
        order = range(steps - 1, -1, -1) if reverse else range(steps)
        for count, step in enumerate(order):
            last = count == steps - 1
            tensors = dict(self.vectors)
            if clock is not None:
                tensors["t"] = clock.viewed((1,), (1,), step)
            made = {"y": _at(y, step)}
            if ends:
                made["h"] = finals[0] if last else spare[0][count % 2]
            if self.cell.kind == "LSTM":
                made["c"] = finals[1] if last else spare[1][count % 2]
            self._step(_at(g, step), h, c, tensors, made)
            h, c = made.get("h", made["y"]), made.get("c")
        if not ends and self.emitter.wants(1) and h is not None:
            self.emitter.copy(h, finals[0])

    def _state(self) -> Tensor:
        return self.emitter.temporary((self.cell.batch, self.cell.hidden), self.cell.dtype)

    def _step(self, g: Tensor, h: Tensor | None, c: Tensor | None, tensors: dict[str, Tensor],
              made: dict[str, Tensor]) -> None:
        hidden, emitter = self.cell.hidden, self.emitter
        kind = self.cell.kind
        tensors["g"] = g
        if c is not None:
            tensors["c0"] = c
        if h is not None and (kind == "GRU" or "length" in tensors):
            tensors["h0"] = h
        if kind == "GRU" and self.late:
            kind = "GRU late"
            if h is not None:
                tensors["r"] = emitter.temporary(g.shape, g.dtype)
                emit_product(emitter, h, _turned(self.r, (1, 0)), tensors["r"])
        elif kind == "GRU" and h is not None:
            gates = self.r.viewed((2 * hidden, hidden), self.r.strides)
            emit_product(emitter, h, _turned(gates, (1, 0)), _columns(g, 0, 2 * hidden), beta=1.0)
            reset = self._state()
            inputs = {name: each for name, each in tensors.items() if name in ("g", "b", "h0")}
            self._launch("GRU reset", inputs, {"rh": reset})
            inner = self.r.viewed((hidden, hidden), self.r.strides, 2 * hidden * self.r.strides[0])
            emit_product(emitter, reset, _turned(inner, (1, 0)), _columns(g, 2 * hidden, hidden), beta=1.0)
        elif h is not None:
            emit_product(emitter, h, _turned(self.r, (1, 0)), g, beta=1.0)
        self._launch(kind, tensors, made)

    def _launch(self, kind: str, tensors: dict[str, Tensor], made: dict[str, Tensor]) -> None:
        used = {**tensors, **made}
        operands = tuple((name, each.strides[0] if each.rank > 1 else 1) for name, each in used.items())
        self.emitter.launch(cell_kernel(replace(self.cell, kind=kind, operands=operands)), *used.values())


