"""Forward mode: tangents from what is differentiated by to the outputs, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphs.builder import Builder, Value
from graphs.ir import Graph, Node

from .reverse import built, reverse, row_of
from .rows import Grads
from .shapes import expand_to, zeros_like
from .site import Site, float_dtype
from .tape import direction, finish, known, mark_origins, tape


def jvp(graph: Graph, tangents: Sequence[str] | Mapping[str, str | np.ndarray],
        outputs: str | Sequence[str] | None = None) -> Graph:
    """The graph that computes the outputs of `graph` and after them the tangent of each, `tangent_y` for y.

    `tangents` names the values that move (inputs, initializers, inner values) and gives the direction of each: an
    array, the name of a value of the graph, or a new name, which becomes an input of the value's type; in a plain
    sequence the new input of x is `tangent_x`. `outputs` are the values whose tangents are wanted (default: the
    outputs of the graph that hold floats). A tangent at an inner value adds to what reaches it from before.
    Raises as `gradients` does.
    """
    given = dict(tangents) if isinstance(tangents, Mapping) else {name: f"tangent_{name}" for name in tangents}
    b, nodes = tape(graph)
    wanted = [outputs] if isinstance(outputs, str) else outputs
    if wanted is None:
        wanted = [name for name in graph.outputs if float_dtype(b, name) is not None]
    for name in wanted:
        known(b, name, "outputs")
    moving: dict[str, Value] = {}
    for name, along in given.items():
        known(b, name, "tangents")
        moving[name] = direction(b, along, Value(b, name), "tangents")
    forward(b, nodes, moving)
    found = [moving.get(name) or zeros_like(b, Value(b, name)) for name in wanted]
    return finish(b, len(nodes), [(f"tangent_{name}", value) for name, value in zip(wanted, found)], graph)


def forward(b: Builder, nodes: Sequence[Node], moving: dict[str, Value]) -> None:
    """Walk nodes forwards and add to `moving` (value name -> tangent, at first of what moves)."""
    seeded = set(moving)
    for node in nodes:
        if moving.keys().isdisjoint(node.uses):
            continue
        if all(not name or float_dtype(b, name) is None for name in node.outputs):
            continue  # integers do not move
        site = Site(b, node, set(moving))
        start = len(b.unfinished.nodes)
        tangents = [moving.get(name) if site.wants(index) else None for index, name in enumerate(site.names)]
        if all(each is None for each in tangents):
            continue
        row = row_of(node)
        found = built(site, row.jvp or transposed, tangents)
        for name, tangent in zip(node.outputs, found):
            if name and tangent is not None and float_dtype(b, name) is not None:
                moving[name] = moving[name] + tangent if name in seeded else tangent
        mark_origins(b, start, node)


def transposed(s: Site, tangents: Grads) -> Grads:
    """The tangents of outputs by way of the row's `vjp`.

    `vjp` is linear in its cotangents u, so that the tangent is the gradient of <vjp(u), tangents> by u, for any u;
    the nodes that compute vjp(u) itself are left over and dropped in the end.
    """
    b, found = s.b, list[Value | None]()
    for index, name in enumerate(s.node.outputs):
        if not name or float_dtype(b, name) is None:
            found.append(None)
            continue
        u = b.Identity(zeros_like(b, Value(b, name)))  # a name of its own, to differentiate by
        start = len(b.unfinished.nodes)
        parts = row_of(s.node).vjp(s, [u if k == index else None for k in range(len(s.node.outputs))])
        adjoints: dict[str, Value] = {}
        for part, tangent in zip(parts, tangents):
            if part is not None and tangent is not None:
                grown = expand_to(b, tangent, part)
                adjoints[part.name] = adjoints[part.name] + grown if part.name in adjoints else grown
        reverse(b, b.unfinished.nodes[start:], adjoints, [u.name])
        found.append(adjoints.get(u.name))
    return found
