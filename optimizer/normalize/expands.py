"""Expands that broadcasting makes superfluous."""

from __future__ import annotations

from collections.abc import Mapping

from graphs.dims import DimLike, broadcast
from graphs.ir import Graph, Node
from graphs.operators import find
from graphs.types import TensorType, Type

FIRST_OPSET = 8  # before it, Max, Min, Sum and Mean do not broadcast
ONE_SIDED = {"PRelu", "BiasGelu", "FastGelu"}  # the second operand is broadcast in part, or asked for a size


def drop_expands(graph: Graph) -> list[str]:
    """Let the readers of an Expand read what it expands, where all of them broadcast it to the same sizes anyway."""
    if graph.opset < FIRST_OPSET or not any(node.op == "Expand" for node in graph.nodes):
        return []
    readers: dict[str, list[Node]] = {}
    nested: set[str] = set()
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
        nested.update(set(node.uses) - set(node.inputs))
    changed: list[str] = []
    for node in graph.nodes:
        if node.op != "Expand" or node.domain != "" or node.is_opaque:
            continue
        out, source = node.outputs[0], node.inputs[0]
        users = readers.get(out, [])
        if out in graph.outputs or out in nested or not users:
            continue
        if all(_broadcasts(user, out, source, graph.types) for user in users):
            for user in users:
                user.rename_uses({out: source})
                readers.setdefault(source, []).append(user)
            changed.append(out)
    return changed


def _broadcasts(node: Node, out: str, source: str, types: Mapping[str, Type]) -> bool:
    """Does the node give its output the same sizes when it reads the source?"""
    record = find(node.op, node.domain)
    if record is None or not record.pointwise or node.is_opaque or node.op in ONE_SIDED or len(node.outputs) != 1:
        return False
    shapes = [_shape(types.get(source if name == out else name)) for name in node.inputs]
    before = _shape(types.get(node.outputs[0]))
    if before is None or any(shape is None for shape in shapes):
        return False
    return _joined([shape for shape in shapes if shape is not None]) == before


def _shape(type_: Type | None) -> tuple[DimLike, ...] | None:
    return type_.shape if isinstance(type_, TensorType) else None


def _joined(shapes: list[tuple[DimLike, ...]]) -> tuple[DimLike, ...] | None:
    rank = max(map(len, shapes))
    sizes: list[DimLike] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            size = broadcast(sizes[axis], dim)
            if size is None:
                return None
            sizes[axis] = size
    return tuple(sizes)
