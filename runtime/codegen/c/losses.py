"""Losses with labels in fused kernels: a row of scores, the element at its label.

A loss that is reduced is a loss for each row, and a reduction of those (`parted`).
"""

from __future__ import annotations

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph, Node

from .lowering import Lower, Lowering
from .normalization import log_softmax
from .views import NotFusable, View

LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
_VERSION = 18  # of the operators that `parted` writes


def _loss(lowering: Lowering, node: Node, output: int, view: View) -> int:
    """Minus the logarithm at the label, times the label's weight; 0 where the label is the one that is ignored."""
    scores, labels = node.inputs[:2]
    dtype, classes = lowering.dtype(scores), lowering.shape(scores)[1]
    if output or dtype not in ("float32", "float64") or node.attrs["reduction"] != "none":
        raise NotFusable(f"{node.op} of {dtype}, output {output}")
    lowering.needs_rounding(node.op)
    label = lowering.value(labels, view)
    kind, number = lowering.items[label].dtype, node.attrs["ignore_index"]
    ignored = None
    if number is not None:
        ignored = lowering.op("a0 == a1", "bool", label, lowering.literal(number, kind), helper=kind)  # type: ignore[arg-type]
        label = lowering.op("a0 ? a1 : a2", kind, ignored, lowering.literal(0, kind), label)
    place = lowering.index(label, classes)
    inside = (*view[:1], place, *view[1:])
    found = (log_softmax(lowering, scores, 1, inside) if node.op == "SoftmaxCrossEntropyLoss"
             else lowering.value(scores, inside))
    found = lowering.op("-a0", dtype, lowering.picked(found, place))
    if len(node.inputs) > 2 and node.inputs[2]:
        weight = lowering.picked(lowering.value(node.inputs[2], (place,)), place)
        found = lowering.op("a0 * a1", dtype, found, weight)
    return found if ignored is None else lowering.op("a0 ? a1 : a2", dtype, ignored, lowering.literal(0, dtype), found)


LOWERINGS: dict[str, Lower] = dict.fromkeys(LOSSES, _loss)


def parted(graph: Graph) -> Graph:
    """The graph with losses for each row, and their sums or means; itself where it has no reduced loss."""
    if all(node.op not in LOSSES or node.attrs["reduction"] == "none" for node in graph.nodes):
        return graph
    made = graph.copy()
    made.nodes = []
    for node in graph.nodes:
        if node.op not in LOSSES or node.attrs["reduction"] == "none":
            made.nodes.append(node)
            continue
        rows, y = f"{node.outputs[0]}/rows", node.outputs[0]
        attrs = {**node.attrs, "reduction": "none"}
        made.nodes.append(Node(node.op, node.inputs, (rows,), attrs, version=node.version))
        counted = node.attrs["ignore_index"] is not None or (len(node.inputs) > 2 and bool(node.inputs[2]))
        if node.attrs["reduction"] == "sum" or not counted:
            made.nodes.append(_reduction("ReduceSum" if node.attrs["reduction"] == "sum" else "ReduceMean", rows, y))
            continue
        made.nodes.append(_reduction("ReduceSum", rows, f"{y}/sum"))
        made.nodes.append(_reduction("ReduceSum", _factor(made, node), f"{y}/count"))
        made.nodes.append(_node("Div", (f"{y}/sum", f"{y}/count"), y))
    return made


def _factor(graph: Graph, node: Node) -> str:
    """What each label counts in a mean."""
    scores, labels, *weights = node.inputs
    y, number = node.outputs[0], node.attrs["ignore_index"]
    types = [graph.type_of(name) for name in (labels, scores)]
    labels_in, scores_in = (dtypes.numpy_dtype(type_.dtype) if type_ else None for type_ in types)
    if labels_in is None or scores_in is None:
        raise NotFusable(f"{node.op} of unknown types")
    safe, one = labels, f"{y}/one"
    graph.constants[one] = Constant.of(np.ones((), scores_in))
    if number is not None:
        graph.constants[f"{y}/ignored"] = Constant.of(np.asarray(number, labels_in))
        graph.constants[f"{y}/first"] = Constant.of(np.zeros((), labels_in))
        graph.constants[f"{y}/zero"] = Constant.of(np.zeros((), scores_in))
        safe = f"{y}/safe"
        graph.nodes.append(_node("Equal", (labels, f"{y}/ignored"), f"{y}/is ignored"))
        graph.nodes.append(_node("Where", (f"{y}/is ignored", f"{y}/first", labels), safe))
    if weights and weights[0]:
        one = f"{y}/weights"
        graph.nodes.append(Node("Gather", (weights[0], safe), (one,), {"axis": 0}, version=13))
    if number is None:
        return one
    graph.nodes.append(_node("Where", (f"{y}/is ignored", f"{y}/zero", one), f"{y}/factor"))
    return f"{y}/factor"


def _reduction(op: str, x: str, y: str) -> Node:
    return Node(op, (x,), (y,), {"axes": None, "keepdims": 0, "noop_with_empty_axes": 0}, version=_VERSION)


def _node(op: str, inputs: tuple[str, ...], y: str) -> Node:
    return Node(op, inputs, (y,), {}, version=_VERSION)
