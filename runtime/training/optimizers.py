"""Optimizers: the nodes that compute a parameter's next value from its gradient and its state.

The formulas are those of `torch.optim`; a number (learning rate and so on) is a constant of the graph, or, where a
name is given instead, a scalar float32 input of that name, so that a schedule can feed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype
from graphs.errors import InvalidOption

State = dict[str, Value]
Rate = float | str


class Optimizer(Protocol):
    """`slots(w)` are names and fill values of the state tensors of w, each of its type; `update` gives the next w
    and the next state. `step` is the number of this step, 1 at first, in the type of w."""

    @property
    def counts(self) -> bool: ...  # whether `update` reads `step`

    def inputs(self) -> list[str]: ...  # names of the numbers that are inputs

    def slots(self, w: Value) -> Mapping[str, float]: ...

    def update(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               rates: Mapping[str, Value]) -> tuple[Value, State]: ...


def rate(b: Builder, number: Rate, like: Value, rates: Mapping[str, Value]) -> Value:
    """A number in the type of `like`."""
    if not isinstance(number, str):
        return b.constant(number, dtype=like.dtype)
    return rates[number] if like.dtype == "float32" else b.CastLike(rates[number], like)


def _named(number: Rate) -> list[str]:
    return [number] if isinstance(number, str) else []


def decayed(b: Builder, w: Value, learning_rate: Value, weight_decay: float) -> Value:
    """w (1 - learning rate * decay)."""
    return w if not weight_decay else w * (1.0 - learning_rate * weight_decay)


@dataclass(frozen=True)
class SGD:
    """w - rate * d, where d = g + decay * w; with momentum d is the buffer, momentum * buffer + d, or as Nesterov."""

    learning_rate: Rate = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    counts: bool = field(default=False, init=False)

    def inputs(self) -> list[str]:
        """A learning rate that is fed."""
        return _named(self.learning_rate)

    def slots(self, w: Value) -> Mapping[str, float]:
        """A buffer where there is momentum."""
        return {"momentum": 0.0} if self.momentum else {}

    def update(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               rates: Mapping[str, Value]) -> tuple[Value, State]:
        """One step."""
        if self.weight_decay:
            g = g + w * self.weight_decay
        following: State = {}
        if self.momentum:
            buffer = state["momentum"] * self.momentum + g
            following = {"momentum": buffer}
            g = g + buffer * self.momentum if self.nesterov else buffer
        return w - rate(b, self.learning_rate, w, rates) * g, following


@dataclass(frozen=True)
class Adam:
    """Moving means of g and g^2, both corrected for their start at zero; the decay is part of the gradient.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1.
    """

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    counts: bool = field(default=True, init=False)

    def inputs(self) -> list[str]:
        """A learning rate that is fed."""
        return _named(self.learning_rate)

    def slots(self, w: Value) -> Mapping[str, float]:
        """The two means."""
        return {"mean": 0.0, "square": 0.0}

    def update(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               rates: Mapping[str, Value]) -> tuple[Value, State]:
        """One step."""
        if self.weight_decay:
            g = g + w * self.weight_decay
        return self._moved(b, w, g, state, step, rate(b, self.learning_rate, w, rates))

    def _moved(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               learning_rate: Value) -> tuple[Value, State]:
        assert step is not None
        mean = state["mean"] * self.beta1 + g * (1.0 - self.beta1)
        square = state["square"] * self.beta2 + (g * g) * (1.0 - self.beta2)
        whole1 = 1.0 - b.Pow(b.constant(self.beta1, dtype=w.dtype), step)
        whole2 = b.Sqrt(1.0 - b.Pow(b.constant(self.beta2, dtype=w.dtype), step))
        below = b.Sqrt(square) / whole2 + self.epsilon
        return w - (learning_rate / whole1) * (mean / below), {"mean": mean, "square": square}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with a decay that is apart from the gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    def update(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               rates: Mapping[str, Value]) -> tuple[Value, State]:
        """One step."""
        learning_rate = rate(b, self.learning_rate, w, rates)
        return self._moved(b, decayed(b, w, learning_rate, self.weight_decay), g, state, step, learning_rate)


@dataclass(frozen=True)
class Muon:
    """For matrices: the momentum, made orthogonal by Newton and Schulz's iteration (Jordan and others, 2024).

    Parameters that are no matrices of known sizes follow `others`. The iteration runs in the parameter's type (in
    `torch.optim.Muon` it runs in bfloat16). `match_rms` scales steps to the size of AdamW's, 0.2 sqrt(max(rows,
    columns)); without it the factor is sqrt(max(1, rows / columns)).
    """

    learning_rate: Rate = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    steps: int = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    epsilon: float = 1e-7
    match_rms: bool = False
    others: AdamW = AdamW()
    counts: bool = field(default=True, init=False)

    def inputs(self) -> list[str]:
        """Learning rates that are fed."""
        return _named(self.learning_rate) + self.others.inputs()

    def slots(self, w: Value) -> Mapping[str, float]:
        """A buffer, or what `others` keeps."""
        return self.others.slots(w) if _matrix(w) is None else {"momentum": 0.0}

    def update(self, b: Builder, w: Value, g: Value, state: State, step: Value | None,
               rates: Mapping[str, Value]) -> tuple[Value, State]:
        """One step."""
        sizes = _matrix(w)
        if sizes is None:
            return self.others.update(b, w, g, state, step, rates)
        buffer = state["momentum"] * self.momentum + g * (1.0 - self.momentum)
        moved = g * (1.0 - self.momentum) + buffer * self.momentum if self.nesterov else buffer
        rows, columns = sizes
        factor = 0.2 * math.sqrt(max(rows, columns)) if self.match_rms else math.sqrt(max(1.0, rows / columns))
        learning_rate = rate(b, self.learning_rate, w, rates)
        kept = decayed(b, w, learning_rate, self.weight_decay)
        return kept - (learning_rate * factor) * self._orthogonal(b, moved, rows > columns), {"momentum": buffer}

    def _orthogonal(self, b: Builder, x: Value, tall: bool) -> Value:
        one, two, three = self.coefficients
        x = b.Transpose(x, perm=[1, 0]) if tall else x
        norm = b.Sqrt(b.ReduceSum(x * x, keepdims=0))
        x = x / b.Max(norm, b.constant(self.epsilon, dtype=x.dtype))
        for _ in range(self.steps):
            gram = x @ b.Transpose(x, perm=[1, 0])
            x = x * one + (gram * two + (gram @ gram) * three) @ x
        return b.Transpose(x, perm=[1, 0]) if tall else x


def check_numbers(optimizer: Optimizer, w: Value) -> None:
    """Raise InvalidOption for a number of the optimizer that the type of `w` does not hold, so that an update would
    divide by zero or do nothing: 1e-8 is 0 in float16, and 0.999 is 1 in bfloat16."""
    rule: Any = optimizer.others if isinstance(optimizer, Muon) and _matrix(w) is None else optimizer
    kind = numpy_dtype(w.dtype or "float32")
    for each in fields(rule):
        number = getattr(rule, each.name)
        if not isinstance(number, float):
            continue
        held = float(np.asarray(number).astype(kind))
        if (held == 0.0) != (number == 0.0) or (held >= 1.0) != (number >= 1.0):
            raise InvalidOption(f"optimizer {type(optimizer).__name__}", f"{each.name} {number:g} is {held:g} in "
                                f"{w.dtype}, the type of parameter {w.name!r} and its state",
                                "give a number that this type holds, or train a model with float32 parameters")


def _matrix(w: Value) -> tuple[int, int] | None:
    shape = w.shape
    if shape is None or len(shape) != 2 or not all(isinstance(size, int) for size in shape):
        return None
    return int(shape[0]), int(shape[1])  # type: ignore[arg-type]


OPTIMIZERS: dict[str, type[SGD] | type[Adam] | type[Muon]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "muon": Muon}


def optimizer(name: str, **options: float | str | bool) -> Optimizer:
    """The optimizer of a name: sgd, momentum (SGD with momentum 0.9), adam, adamw, muon."""
    if name == "momentum":
        return SGD(**{"momentum": 0.9, **options})  # type: ignore[arg-type]
    if name not in OPTIMIZERS:
        raise InvalidOption(f"optimizer {name!r}", "it is unknown", f"use one of momentum, {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](**options)  # type: ignore[arg-type]
