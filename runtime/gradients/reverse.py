"""Reverse mode: adjoints from the outputs back to what is differentiated by, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphs.builder import Builder, Value
from graphs.errors import InvalidModel, InvalidOption, NotDifferentiable
from graphs.ir import Graph, Node
from graphs.types import TensorType

from .rows import Grads, Row, Vjp, absent, table
from .shapes import full_like, reshape_to, zeros_like
from .site import Site, float_dtype
from .tape import WORKING_OPSET, direction, finish, known, mark_origins, tape

Seeds = Mapping[str, "str | np.ndarray"]


def gradients(graph: Graph, outputs: str | Sequence[str], wrt: str | Sequence[str],
              seeds: Seeds | None = None) -> Graph:
    """The graph that computes the outputs of `graph` and after them, in the order of `wrt`, the gradients.

    `outputs` and `wrt` name any values of the graph: inputs, initializers, inner values. The gradient by w is the sum
    over the outputs y of seed(y) . dy/dw, a tensor of the type of w, called `grad_w` (with a number if that name is
    taken). `seeds` gives a cotangent for an output: an array, the name of a value of the graph, or a new name, which
    becomes an input of the output's type. An output without a seed has ones: a scalar loss its gradient, another
    output that of its sum. A `wrt` that no output depends on has zeros.

    The new nodes hold for every feed and size that the graph takes. Raises NotDifferentiable where an operator on
    the way has no gradient row, InvalidOption for names that are no values or hold no floats.
    """
    tops = [outputs] if isinstance(outputs, str) else list(outputs)
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    b, nodes = tape(graph)
    for name in tops:
        known(b, name, "outputs")
    for name in names:
        known(b, name, "wrt")
    for name in seeds or {}:
        if name not in tops:
            raise InvalidOption(f"seeds of {name!r}", "it is not among the outputs", "name it in outputs, too")
    adjoints: dict[str, Value] = {}
    for name in tops:
        accumulate(adjoints, name, _seed(b, name, (seeds or {}).get(name)))
    reverse(b, nodes, adjoints, names)
    found = [adjoints.get(name) or zeros_like(b, Value(b, name)) for name in names]
    return finish(b, len(nodes), [(f"grad_{name}", value) for name, value in zip(names, found)], graph)


def _seed(b: Builder, name: str, seed: str | np.ndarray | None) -> Value:
    like = Value(b, name)
    if seed is None:
        return full_like(b, like, 1.0)
    return direction(b, seed, like, "seeds")


def accumulate(adjoints: dict[str, Value], name: str, part: Value) -> None:
    """Add a cotangent to what a value has already."""
    adjoints[name] = adjoints[name] + part if name in adjoints else part


def dependents(b: Builder, nodes: Sequence[Node], wrt: Sequence[str]) -> set[str]:
    """The float values that depend on `wrt`, those included. `nodes` are in topological order."""
    found = set(wrt)
    for node in nodes:
        if not found.isdisjoint(node.uses):
            found.update(name for name in node.outputs if name and float_dtype(b, name) is not None)
    return found


def reverse(b: Builder, nodes: Sequence[Node], adjoints: dict[str, Value], wrt: Sequence[str]) -> None:
    """Walk nodes backwards and add to `adjoints` (value name -> cotangent, at first of the outputs).

    Afterwards it holds the cotangent of each value of `wrt` that the outputs depend on. Rows of control flow call
    this on the nodes of a body, with a builder of that body.
    """
    active = dependents(b, nodes, wrt)
    for node in reversed(nodes):
        grads = [adjoints.get(name) if name else None for name in node.outputs]
        if all(each is None for each in grads) or active.isdisjoint(node.uses):
            continue
        site = Site(b, node, active)
        start = len(b.unfinished.nodes)
        for index, part in enumerate(built(site, row_of(node).vjp, grads)):
            if part is not None and site.wants(index):
                accumulate(adjoints, site.names[index], _typed(site, index, part))
        mark_origins(b, start, node)


def _typed(s: Site, index: int, part: Value) -> Value:
    """The cotangent with the operand's shape stated where that is known and inference did not find it."""
    type_ = s[index].type
    certain = isinstance(type_, TensorType) and type_.is_known
    return reshape_to(s.b, part, s[index]) if certain else part


def built(s: Site, row: Vjp, values: Grads) -> Grads:
    """What a row builds. Raises NotDifferentiable where it needs an operator that the opset lacks."""
    try:
        return row(s, values)
    except InvalidModel as error:
        raise NotDifferentiable(s.node.label, f"its gradient cannot be built: {error.where}: {error.found}",
                                f"raise the model to opset {WORKING_OPSET}") from error


def row_of(node: Node) -> Row:
    """The row of a node's operator. Raises NotDifferentiable."""
    found = None if node.is_opaque else table().get((node.domain, node.op))
    if found is None:
        name = f"{node.domain}.{node.op}" if node.domain else node.op
        reason = "the node is opaque" if node.is_opaque else absent().get((node.domain, node.op), "not written yet")
        raise NotDifferentiable(node.label, f"{name} has no gradient row ({reason})",
                                "differentiate by values that do not reach the output through this node, or express "
                                "it by other operators")
    return found
