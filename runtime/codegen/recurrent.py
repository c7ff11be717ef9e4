"""Kernels of recurrent cells: everything of one step but the matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar

OUTPUTS = frozenset({"y", "h", "c", "rh"})
_VECTORS = frozenset({"b", "p", "length", "t"})  # that have no rows

ACTIVATIONS: dict[str, Callable[[str, Scalar], str]] = {
    "sigmoid": lambda x, scalar: f"1 / (1 + exp{_suffix(scalar)}(-({x})))",
    "tanh": lambda x, scalar: f"tanh{_suffix(scalar)}({x})",
    "relu": lambda x, scalar: f"eg_max({x}, {scalar.literal(0)})",
}


def _suffix(scalar: Scalar) -> str:
    return "f" if scalar.compute == "float" else ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of a cell for `batch` rows of `hidden` elements.

    `kind`: `LSTM`, `RNN`, `GRU`, `GRU late` (the reset gate after the product), or `GRU reset` (only reset gate times
    state, before its product). `operands` are (name, distance of rows): `g` projected inputs plus what the product
    with the state adds, `r` that product on its own (GRU late), `b` biases, `p` peepholes, `h0` and `c0` the states
    before (zero where absent); `y` the output, `h` and `c` the states after, `rh` of GRU reset. With `length`, rows
    whose length is not above `t` keep their states and put out 0.
    """

    kind: str
    dtype: str
    batch: int
    hidden: int
    operands: tuple[tuple[str, int], ...]
    activations: tuple[str, ...]
    clip: float = 0.0
    coupled: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The operands that are there."""
        return frozenset(name for name, _ in self.operands)


@lru_cache(maxsize=1024)
def cell_kernel(cell: Cell) -> Kernel:
    """The step: one thread an element of the state."""
    text = _Text(cell)
    lines = [f"EG_PARALLEL(i, {cell.batch * cell.hidden})",
             f"  const eg_index row = i / {cell.hidden}, j = i % {cell.hidden};"]
    if "length" in cell.names:
        lines.append("  const bool live = EG_GET(t, 0) < EG_GET(length, row);")
    lines += {"LSTM": _lstm, "RNN": _rnn, "GRU": _gru, "GRU late": _gru, "GRU reset": _reset}[cell.kind](text)
    lines.append("EG_END")
    wide = any(address.is_wide((cell.batch, stride), (stride, 1)) for name, stride in cell.operands)
    parameters = tuple(Parameter(name, "int32" if name in ("length", "t") else cell.dtype, name in OUTPUTS)
                       for name, _ in cell.operands)
    name = "eg_" + cell.kind.lower().replace(" ", "_")
    return Kernel(name, parameters, "\n".join(lines), cell.batch * cell.hidden, exact=False, wide=wide)


class _Text:
    """Pieces of a cell's text."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.scalar = cell, Scalar.of(cell.dtype)
        self.strides = dict(cell.operands)
        self.width = {"LSTM": 4, "RNN": 1}.get(cell.kind, 3) * cell.hidden

    def load(self, name: str, gate: int = 0) -> str:
        """An element of this row, or 0 where the operand is absent."""
        if name not in self.strides:
            return self.scalar.literal(0)
        at = f"{gate * self.cell.hidden} + j" if gate else "j"
        return self.scalar.load(name, at if name in _VECTORS else f"row * {self.strides[name]} + {at}")

    def bias(self, gate: int, recurrent: bool) -> str:
        """The bias of the input's projection or of the state's."""
        if "b" not in self.strides:
            return self.scalar.literal(0)
        at = gate * self.cell.hidden + (self.width if recurrent else 0)
        return self.scalar.load("b", f"{at} + j")

    def gate(self, gate: int) -> str:
        """The sum that goes into a gate."""
        terms = [self.load("g", gate)]
        terms += [self.load("r", gate)] if "r" in self.strides else []
        terms += [self.bias(gate, False), self.bias(gate, True)] if "b" in self.strides else []
        return " + ".join(terms)

    def let(self, name: str, value: str) -> str:
        """A declaration."""
        return f"  const {self.scalar.compute} {name} = {value};"

    def active(self, which: int, value: str) -> str:
        """An activation of a clipped value."""
        if self.cell.clip:
            bound = self.scalar.literal(self.cell.clip)
            value = f"eg_min(eg_max({value}, -{bound}), {bound})"
        return ACTIVATIONS[self.cell.activations[which]](value, self.scalar)

    def store(self, name: str, after: str, before: str) -> list[str]:
        """The statement that stores a new value, or the old one in rows that have ended."""
        if name not in self.strides:
            return []
        value = f"live ? {after} : {before}" if "length" in self.strides else after
        return ["  " + self.scalar.store(name, f"row * {self.strides[name]} + j", value)]

    def results(self, output: str) -> list[str]:
        """Store the new hidden state as output and as state."""
        return [*self.store("y", output, self.scalar.literal(0)), *self.store("h", output, self.load("h0"))]


def _lstm(text: _Text) -> list[str]:
    peeps = "p" in text.strides
    lines = [text.let("before", text.load("c0"))]
    for name, gate, peep in (("in_gate", 0, 0), ("forget_gate", 2, 2)):
        peeped = f" + {text.load('p', peep)} * before" if peeps else ""
        lines.append(text.let(f"{name}_sum", text.gate(gate) + peeped))
    lines.append(text.let("in_gate", text.active(0, "in_gate_sum")))
    lines.append(text.let("forget_gate", "1 - in_gate" if text.cell.coupled else text.active(0, "forget_gate_sum")))
    lines.append(text.let("cell_sum", text.gate(3)))
    lines.append(text.let("memory", f"forget_gate * before + in_gate * ({text.active(1, 'cell_sum')})"))
    lines.append(text.let("out_gate_sum", text.gate(1) + (f" + {text.load('p', 1)} * memory" if peeps else "")))
    squashed = ACTIVATIONS[text.cell.activations[2]]("memory", text.scalar)
    lines.append(text.let("value", f"({text.active(0, 'out_gate_sum')}) * ({squashed})"))
    return [*lines, *text.results("value"), *text.store("c", "memory", "before")]


def _rnn(text: _Text) -> list[str]:
    return [text.let("sum", text.gate(0)), text.let("value", text.active(0, "sum")), *text.results("value")]


def _gru(text: _Text) -> list[str]:
    lines = [text.let("before", text.load("h0")), text.let("update_sum", text.gate(0)),
             text.let("update", text.active(0, "update_sum"))]
    if text.cell.kind == "GRU late":
        lines += [text.let("reset_sum", text.gate(1)), text.let("reset", text.active(0, "reset_sum"))]
        inner = f"reset * ({text.load('r', 2)} + {text.bias(2, True)})"
        lines.append(text.let("hidden_sum", f"{text.load('g', 2)} + {text.bias(2, False)} + {inner}"))
    else:
        lines.append(text.let("hidden_sum", text.gate(2)))
    lines.append(text.let("value", f"(1 - update) * ({text.active(1, 'hidden_sum')}) + update * before"))
    return [*lines, *text.results("value")]


def _reset(text: _Text) -> list[str]:
    return [text.let("reset_sum", text.gate(1)), text.let("reset", text.active(0, "reset_sum")),
            "  " + text.scalar.store("rh", f"row * {text.strides['rh']} + j", f"reset * {text.load('h0')}")]
