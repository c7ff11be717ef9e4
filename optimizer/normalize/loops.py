"""Loops that run once, or never, whatever the inputs are."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import schema

from .branches import inline_branch


def inline_short_loops(graph: Graph) -> list[str]:
    """Put the body of a Loop that runs once in its place; what goes through a Loop that never runs passes it by."""
    changed: list[str] = []
    names: NameSupply | None = None
    for node in list(graph.nodes):
        if node.op != "Loop" or node.domain != "" or node.is_opaque:
            continue
        trips = _trips(graph, node)
        carried = len(node.inputs[2:])
        if trips is None or (trips == 0 and any(node.outputs[carried:])):
            continue
        names = names or NameSupply(graph.names())
        body = _one_run(graph, node, names) if trips else _no_run(node)
        if body is not None:
            inline_branch(graph, node, body, names)
            changed.append(next((out for out in node.outputs if out), "a loop without outputs"))
    return changed


def _trips(graph: Graph, node: Node) -> int | None:
    """0 or 1 where the Loop runs so often, else None."""
    given = (*node.inputs, "", "")[:2]  # what is left out at the end of the inputs is not there
    count, condition = (_scalar(graph, name) for name in given)
    goes_on = given[1] == "" or condition is True
    if condition is False or (count is not None and int(count) <= 0):
        return 0
    return 1 if goes_on and count is not None and int(count) == 1 else None


def _scalar(graph: Graph, name: str) -> int | bool | None:
    constant = graph.constants.get(name)
    if constant is None or constant.array.size != 1:
        return None
    return constant.array.reshape(-1)[0].item()  # type: ignore[no-any-return]


def _no_run(node: Node) -> Graph:
    body = Graph(node.name or "no run")
    body.outputs = [*node.inputs[2:], *node.outputs][: len(node.outputs)]  # the rest is unnamed
    return body


def _one_run(graph: Graph, node: Node, names: NameSupply) -> Graph | None:
    """The body with its inputs bound to what the first run sees, giving the Loop's outputs in order."""
    inner = node.attrs["body"]
    assert isinstance(inner, Graph)
    body = inner.copy()
    unsqueeze = schema("Unsqueeze", graph.opset)
    number, condition, *carried = body.inputs
    if unsqueeze is None or len(carried) != len(node.inputs[2:]) or "" in node.inputs[2:]:
        return None
    first, true = names.fresh(number), names.fresh(condition)
    body.rename_uses({number: first, condition: true, **dict(zip(carried, node.inputs[2:], strict=True))}, outputs=True)
    body.constants[first] = Constant.of(np.asarray(0, np.int64))
    body.constants[true] = Constant.of(np.asarray(True))
    for name in (number, condition, *carried):
        body.types.pop(name, None)
    body.inputs, body.outputs = [], body.outputs[1 : 1 + len(node.outputs)]
    for index in range(len(carried), len(body.outputs)):  # one row of each scan output
        row = names.fresh(f"{body.outputs[index]}_row")
        body.nodes.append(Node("Unsqueeze", (body.outputs[index],), (row,), {"axes": (0,)}, "", names.fresh(row),
                               unsqueeze.since_version))
        body.outputs[index] = row
    return body
