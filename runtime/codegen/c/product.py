"""Matrix products and convolutions in fused kernels: what their operators add to the product itself.

The product is computed by the engine (`native`), tile by tile; a kernel reads it and does the rest (`tiles`).
"""

from __future__ import annotations

from graphs.ir import Node

from .lowering import Lower, Lowering
from .views import NotFusable, View

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})


def _product(lowering: Lowering, node: Node, view: View) -> int:
    if {lowering.dtype(name) for name in node.inputs if name} != {"float32"}:
        raise NotFusable(f"{node.op} of other than float32")
    return lowering.product_of(node, view)


def _matmul(lowering: Lowering, node: Node, output: int, view: View) -> int:
    return _product(lowering, node, view)


def _gemm(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found = _product(lowering, node, view)
    alpha, beta = (float(node.attrs[name]) for name in ("alpha", "beta"))  # type: ignore[arg-type]
    if alpha != 1:
        found = lowering.op("a0 * a1", "float32", found, lowering.literal(alpha, "float32"))
    if len(node.inputs) > 2 and node.inputs[2] and beta != 0:
        added = lowering.operand(node, 2, view)
        if beta != 1:
            added = lowering.op("a0 * a1", "float32", added, lowering.literal(beta, "float32"))
        found = lowering.op("a0 + a1", "float32", found, added)
    return found


def _conv(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found = _product(lowering, node, view)
    if len(node.inputs) > 2 and node.inputs[2]:
        found = lowering.op("a0 + a1", "float32", found, lowering.value(node.inputs[2], (view[1],)))
    return found


LOWERINGS: dict[str, Lower] = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv}
