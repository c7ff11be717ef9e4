"""Nested graphs written again inside of a new one, so that rows of control flow can go on from their nodes."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.builder import Builder, Value
from graphs.ir import Graph
from graphs.operators import is_pure
from graphs.structure import drop_unused_constants
from graphs.types import TensorType

from .site import Site


def check_repeatable(s: Site) -> None:
    """Raise where running a body again would give other values."""
    if not is_pure(s.node):
        raise s.fail("its body holds a random or unknown operator, which would not give the same again")


def inline(b: Builder, body: Graph, given: Sequence[Value]) -> list[Value]:
    """Add the nodes of `body` to the builder of another nested graph, under new names; the values of its outputs."""
    names = {name: value.name for name, value in zip(body.inputs, given)}
    for name, constant in body.constants.items():
        names[name] = b.constant(constant).name
    for node in body.nodes:
        made = node.copy()
        made.rename_uses(names)
        fresh = [b.fresh(name) if name else "" for name in node.outputs]
        names.update(zip(node.outputs, fresh))
        made.outputs = tuple(fresh)
        b.place(made)
    return [Value(b, names.get(name, name)) for name in body.outputs]


def input_like(b: Builder, s: Site, type_: object, stem: str) -> Value:
    """A new input of a nested graph; where it is used decides its type in the end, this one holds meanwhile."""
    if not isinstance(type_, TensorType):
        raise s.fail(f"the type of {stem!r} in its body is not known")
    name = b.fresh(stem)
    b.unfinished.inputs.append(name)
    b.unfinished.types[name] = type_
    return Value(b, name)


def finished(b: Builder, outputs: Sequence[Value]) -> Graph:
    """The nested graph with these outputs, without what they do not need. An output is made by a node of its own."""
    graph = b.unfinished
    for value in outputs:
        made = {name for node in graph.nodes for name in node.outputs} - set(graph.outputs)
        b.output(value if value.name in made else b.Identity(Value(b, value.name)))
    used, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if not used.isdisjoint(node.outputs):
            kept.append(node)
            used.update(node.uses)
    graph.nodes[:] = reversed(kept)
    drop_unused_constants(graph)
    return graph
