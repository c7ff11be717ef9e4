"""Nodes that turn what a file stores in few bits into more: weights stay stored in few bits."""

from __future__ import annotations

from .dtypes import item_bytes
from .ir import Graph, Node
from .types import TensorType, Type

# A cast of a constant may store so many bytes more: flags and small tables.
CAST_BYTES = 1024
_NOT_WEIGHTS = frozenset({"bool", "string"})


def unpacks(op: str, domain: str, source: Type | None, result: Type | None) -> bool:
    """Is a constant `source` better stored as it is than as the `result` that this node makes of it?

    So is what is dequantized, of whatever type, unless it is one number: runtimes have kernels for operators whose
    operands are dequantized, and take those only where they see the DequantizeLinear. So is what is cast from a type
    of at most 8 bits to a wider one, unless it is small.
    """
    if not isinstance(source, TensorType) or not isinstance(result, TensorType):
        return False
    if op == "DequantizeLinear":
        return result.elements != 1
    if domain or op not in ("Cast", "CastLike") or source.dtype in _NOT_WEIGHTS or item_bytes(source.dtype) > 1:
        return False
    before, after = source.static_bytes, result.static_bytes
    return before is not None and after is not None and after - before > CAST_BYTES


def stays(graph: Graph, node: Node) -> bool:
    """`unpacks` of a node: over a constant it is not folded, and what it gives is none."""
    return bool(node.inputs) and bool(node.outputs) and unpacks(
        node.op, node.domain, graph.type_of(node.inputs[0]), graph.type_of(node.outputs[0]))


__all__ = ["CAST_BYTES", "stays", "unpacks"]
