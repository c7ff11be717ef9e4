"""Nested graphs with what they see of the graphs around them: as they run, and as graphs of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .constants import Constant
from .ir import Graph
from .types import Type


def seeing(graph: Graph, body: Graph) -> Graph:
    """The body with types and constants of what it reads from the graph that it stands in; nodes are shared.

    Types of both must have been inferred. What the graph itself sees of graphs around it is seen through it, so that
    of bodies in bodies the outer one comes first.
    """
    captured = [name for name in body.captured() if name]
    types = {name: graph.types[name] for name in captured if name in graph.types}
    known = {name: graph.constants[name] for name in captured if name in graph.constants}
    return replace(body, constants={**known, **body.constants}, types={**types, **body.types}, opsets=graph.opsets)


def alone(body: Graph, types: Mapping[str, Type], constants: Mapping[str, Constant], outermost: Graph) -> Graph:
    """The body as a graph of its own: what it reads of graphs around it, whose types and constants are given, are
    inputs and constants of it. `outermost` states operator sets and functions: nested graphs have none."""
    own = body.copy()
    for name in own.captured():
        if name in constants:
            own.constants[name] = constants[name]
        else:
            own.inputs.append(name)
            if name in types:
                own.types[name] = types[name]
    own.opsets, own.functions = dict(outermost.opsets), outermost.functions
    return own


def nested_again(made: Graph, body: Graph, constants: Mapping[str, Constant]) -> Graph:
    """What was made of a body that was `alone`, to take its place: those names are read of graphs around it again."""
    made.inputs = list(body.inputs)
    for name in body.captured():  # another constant may have got the name of one that the body does not read any more
        if name in constants and made.constants.get(name) == constants[name]:
            del made.constants[name]
    made.name, made.doc = body.name, body.doc
    made.declared, made.opsets, made.functions = dict(body.declared), dict(body.opsets), dict(body.functions)
    return made
