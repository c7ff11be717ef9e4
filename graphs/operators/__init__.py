"""The operator table: records by (domain, name), collected from one file per family.

Adding an operator: write an `Operator` record in the family's file here, a kernel row in `runtime/kernels/`, a work
row in `cost_model/work/`; `tests/` list what is missing.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

import onnx

from ..ir import Node, is_fused
from .record import REQUIRED, RUNTIME, Contents, Operator, Site

FAMILIES = (
    "elementwise", "linear", "convolution", "normalization", "losses", "reduction", "movement", "indexing", "recurrent",
    "attention", "quantization", "control_flow", "random", "contrib", "contrib_attention", "contrib_quantization",
)  # fmt: skip


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], Operator]:
    """All records. The default domain is '' (never 'ai.onnx')."""
    found: dict[tuple[str, str], Operator] = {}
    for family in FAMILIES:
        for operator in import_module(f"{__name__}.{family}").OPERATORS:
            if operator.key in found:
                raise ValueError(f"two records for {operator.key}")
            found[operator.key] = operator
    return found


def find(op: str, domain: str = "") -> Operator | None:
    """The record of an operator, or None."""
    return table().get((domain, op))


def is_pure(node: Node) -> bool:
    """False for opaque, random, training-mode and stateful nodes: never merge, fold or duplicate those.

    A control-flow node is as pure as the nodes inside it, and so is a Fused one.
    """
    record = None if node.is_opaque else find(node.op, node.domain)
    if is_fused(node):
        return all(is_pure(inner) for graph in node.graphs for inner in graph.nodes)
    if record is None or not record.pure:
        return False
    if record.pure_if is not None and not record.pure_if(node.attrs):
        return False
    return all(is_pure(inner) for graph in node.graphs for inner in graph.nodes)


@lru_cache(maxsize=8192)
def schema(op: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """The ONNX schema in force at an opset, or None where the operator does not exist there."""
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def available(op: str, opset: int, domain: str = "") -> bool:
    """True where a canonical node of this operator can be written at an opset."""
    record, found = find(op, domain), schema(op, opset, domain)
    return record is not None and found is not None and found.since_version in record.versions


def accepts(op: str, opset: int, dtype: str, position: int = 0, domain: str = "") -> bool:
    """True where the schema at an opset allows an element type at an input position."""
    from ..dtypes import ONNX_NUMBER, schema_type

    found = schema(op, opset, domain)
    if found is None or dtype not in ONNX_NUMBER:
        return False
    inputs = found.inputs
    formal = inputs[min(position, len(inputs) - 1)] if inputs else None
    if formal is None:
        return True
    return schema_type(dtype) in formal.types


__all__ = ["FAMILIES", "REQUIRED", "RUNTIME", "Contents", "Operator", "Site", "accepts", "available", "find",
           "is_pure", "schema", "table"]
