"""Gradient rows: what one operator does to cotangents (reverse mode) and to tangents (forward mode).

A family's file holds `ROWS`, operator name -> `Row` (`domain.Op` in other domains), and `ABSENT`, operator name ->
why there is none. A row builds nodes of differentiable operators only, so that its result can be differentiated
again, and keeps the element type. There are five ways to write one:

    # 1. Elementwise: one function per input that multiplies by the local derivative; both modes use it.
    "Sin": pointwise(lambda s, g: g * s.b.Cos(s[0])),
    "Mul": pointwise(lambda s, g: g * s[1], lambda s, g: g * s[0]),

    # 2. Linear in all data inputs together: the transpose; forward mode applies the operator itself to tangents.
    "Transpose": linear(lambda s, g: [s.b.Transpose(g, perm=inverse(s.attrs["perm"]))]),

    # 3. Linear in each of some inputs (products): the cotangent of each; forward mode sums over them.
    "MatMul": multilinear(matmul_vjp, data=(0, 1)),

    # 4. Written by other differentiable operators: one value for each float output (see `expanded.py`).
    "MeanVarianceNormalization": expanded(lambda s: [normalized(s)]),

    # 5. Everything else: `vjp`, and `jvp` where it is simpler than what is derived from `vjp` by transposing it.
    def _layer_norm(s: Site, grads: Grads) -> Grads:
        g = grads[0]                              # a cotangent per output, None = 0; not all are None
        x, scale = s[0], s[1]                     # inputs as builder values; s.get(2) may be None
        return [dx if s.wants(0) else None, ...]  # one per operand; None = 0
    "LayerNormalization": Row(_layer_norm)

What no gradient flows through although the operator is executed on floats (Floor, Sign) is `STOPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from graphs.builder import Value
from graphs.operators import FAMILIES

from .shapes import cast_like, expand_to, sum_to, zeros_like
from .site import Site

Grads = Sequence[Value | None]
Vjp = Callable[[Site, Grads], Grads]
Jvp = Callable[[Site, Grads], Grads]
Local = Callable[[Site, Value], Value]


@dataclass(frozen=True)
class Row:
    """`vjp(site, cotangents of outputs) -> cotangents of operands`, `jvp(site, tangents of operands) -> of outputs`.

    None stands for zero everywhere; what is handed in is never all None. A cotangent has the shape of its operand, a
    tangent that of its output. `jvp` None: forward mode transposes `vjp`, which is linear in its cotangents.
    """

    vjp: Vjp
    jvp: Jvp | None = None


def _nothing(s: Site, grads: Grads) -> Grads:
    return []


STOPS = Row(_nothing, _nothing)  # piecewise constant: the derivative is zero wherever there is one


def pointwise(*local: Local | None) -> Row:
    """An elementwise operator of one output. `local[i](s, g)` is g times the derivative by input i, broadcast.

    None: no gradient flows through this input. Where inputs differ in element type, g has that of the output in
    reverse mode and that of input i in forward mode, and the result may have any.
    """

    def at(index: int) -> Local | None:
        return local[index] if index < len(local) else None

    def each(s: Site, index: int, g: Value) -> Value | None:
        function = at(index)
        return None if function is None else function(s, g)

    return variadic(each)


def variadic(local: Callable[[Site, int, Value], Value | None]) -> Row:
    """As `pointwise`, with one function for all inputs that is told which input is meant."""

    def vjp(s: Site, grads: Grads) -> Grads:
        g = grads[0]
        assert g is not None
        found: list[Value | None] = []
        for index in range(len(s.operands)):
            part = local(s, index, g) if s.wants(index) else None
            found.append(None if part is None else sum_to(s.b, cast_like(s.b, part, s[index]), s[index]))
        return found

    def jvp(s: Site, tangents: Grads) -> Grads:
        parts = [local(s, index, t) for index, t in enumerate(tangents) if t is not None]
        return [_total(s, parts)]

    return Row(vjp, jvp)


def _total(s: Site, parts: Sequence[Value | None]) -> Value | None:
    """The sum of what is there, in the type of the output."""
    total: Value | None = None
    for part in parts:
        if part is not None:
            part = cast_like(s.b, part, s.out)
            total = part if total is None else total + part
    return None if total is None else expand_to(s.b, total, s.out)


def linear(transpose: Callable[[Site, Value], Grads], data: Sequence[int] | None = (0,)) -> Row:
    """An operator of one output that is linear in the inputs `data` (None: all) taken together."""

    def vjp(s: Site, grads: Grads) -> Grads:
        assert grads[0] is not None
        return transpose(s, grads[0])

    return jointly_linear(vjp, data)


def jointly_linear(vjp: Vjp, data: Sequence[int] | None = (0,)) -> Row:
    """As `linear` for operators of several outputs."""

    def jvp(s: Site, tangents: Grads) -> Grads:
        positions = range(len(s.node.inputs)) if data is None else data
        inputs = list(s.operands)
        for index in positions:
            value = s.get(index)
            if value is not None:
                t = tangents[index]
                inputs[index] = zeros_like(s.b, value) if t is None else t
        return s.again(inputs)

    return Row(vjp, jvp)


def multilinear(vjp: Vjp, data: Sequence[int] | None) -> Row:
    """An operator of one output that is linear in each of the inputs `data` (None: all) while the others stay."""

    def jvp(s: Site, tangents: Grads) -> Grads:
        positions = range(len(s.node.inputs)) if data is None else data
        parts: list[Value | None] = []
        for index in positions:
            t = tangents[index] if index < len(tangents) else None
            if t is not None:
                parts += s.again([*s.operands[:index], t, *s.operands[index + 1 :]])
        return [_total(s, parts)]

    return Row(vjp, jvp)


def _key(name: str) -> tuple[str, str]:
    domain, _, op = name.rpartition(".")
    return domain, op


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], Row]:
    """All rows by (domain, operator)."""
    found: dict[tuple[str, str], Row] = {}
    for family in FAMILIES:
        for name, row in import_module(f"{__package__}.{family}").ROWS.items():
            if _key(name) in found:
                raise ValueError(f"two gradient rows for {name}")
            found[_key(name)] = row
    return found


@lru_cache(maxsize=1)
def absent() -> dict[tuple[str, str], str]:
    """Why an operator has no row, by (domain, operator)."""
    return {_key(name): reason for family in FAMILIES
            for name, reason in import_module(f"{__package__}.{family}").ABSENT.items()}
