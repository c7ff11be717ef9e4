"""Rows of operators that are written by other differentiable operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphs.builder import Value

from .forward import forward
from .reverse import reverse
from .rows import Grads, Row
from .site import Site

Build = Callable[[Site], Sequence[Value]]


def expanded(build: Build) -> Row:
    """The row of an operator whose float outputs `build(s)` makes anew from `s[0]`, `s[1]`, ... with other operators.

    Both modes walk over the nodes that `build` adds; what of them the gradient does not need is dropped. Give fewer
    outputs than the operator has where the rest are no floats.
    """

    def vjp(s: Site, grads: Grads) -> Grads:
        start = len(s.b.unfinished.nodes)
        adjoints = {made.name: g for made, g in zip(build(s), grads) if g is not None}
        wanted = [name for index, name in enumerate(s.names) if s.wants(index)]
        reverse(s.b, s.b.unfinished.nodes[start:], adjoints, wanted)
        # Each cotangent once, also where one value is several operands: it is the sum over them already.
        return [adjoints.get(name) if s.names.index(name) == index else None for index, name in enumerate(s.names)]

    def jvp(s: Site, tangents: Grads) -> Grads:
        start = len(s.b.unfinished.nodes)
        made = build(s)
        moving = {name: t for name, t in zip(s.names, tangents) if t is not None}
        forward(s.b, s.b.unfinished.nodes[start:], moving)
        return [moving.get(value.name) for value in made]

    return Row(vjp, jvp)
