"""Resized planes in fused kernels: the engine mixes them (`lanes`), a kernel does the rest."""

from __future__ import annotations

from graphs.ir import Node

from .lanes import RESIZED, of_resize
from .lowering import Lower, Lowering
from .views import NotFusable, View


def _resize(lowering: Lowering, node: Node, output: int, view: View) -> int:
    if lowering.dtype(node.inputs[0]) != "float32":
        raise NotFusable(f"{node.op} of other than float32")
    if of_resize(node, tuple(lowering.shape(node.inputs[0]))) is None:
        raise NotFusable("Resize of few channels, of other axes than those of planes, or of a part")
    return lowering.product_of(node, view)


LOWERINGS: dict[str, Lower] = dict.fromkeys(RESIZED, _resize)
