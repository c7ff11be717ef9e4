"""Operators that newer opsets lack, written by those that they have, so that rows can build at `WORKING_OPSET`."""

from __future__ import annotations

from graphs.canonical import complete
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import RUNTIME, find

WORKING_OPSET = 18  # has all that rows build: ScatterElements with a sum, axes of reductions as inputs


def modernize(graph: Graph) -> None:
    """Rewrite, in place, the nodes of the outermost graph that have no form at newer opsets.

    Scatter becomes ScatterElements, Upsample Resize. A mask of Dropout that is read by nobody is not a float.
    A Softmax that sees its input as a matrix (before opset 13) becomes one along the last axis, of the matrix where
    that is another tensor.
    """
    names = NameSupply(graph.names())
    read = {name for node in graph.nodes for name in node.uses} | set(graph.outputs)
    nodes: list[Node] = []
    for node in graph.nodes:
        if not node.is_opaque and not node.domain:
            if node.op == "Scatter":
                node.op, node.attrs = "ScatterElements", {**node.attrs, "reduction": "none"}
            elif node.op == "Upsample":
                _resize(node)
            elif node.attrs.get("legacy_mask") and read.isdisjoint(node.outputs[1:]):
                node.outputs, node.attrs = node.outputs[:1], {**node.attrs, "legacy_mask": 0}
            elif node.attrs.get("flatten"):
                nodes += _along_last_axis(graph, node, names)
                continue
        nodes.append(node)
    graph.nodes = nodes


def _resize(node: Node) -> None:
    """Upsample as the Resize that it is: asymmetric coordinates, rounded down."""
    record = find("Resize")
    assert record is not None
    node.op, node.inputs = "Resize", (node.inputs[0], *(("", *node.inputs[1:]) if len(node.inputs) > 1 else ()))
    node.attrs = complete(record, {
        "scales": node.attrs["scales"], "mode": node.attrs["mode"], "nearest_mode": "floor",
        "coordinate_transformation_mode": "asymmetric"})


def _along_last_axis(graph: Graph, node: Node, names: NameSupply) -> list[Node]:
    type_ = graph.type_of(node.inputs[0])
    axis = int(node.attrs["axis"])  # type: ignore[call-overload]
    last = type_ is not None and type_.rank is not None and axis in (-1, type_.rank - 1)
    attrs = {**node.attrs, "axis": -1, "flatten": 0}
    if last:
        node.attrs = attrs
        return [node]
    (x,), (y,) = node.inputs, node.outputs
    matrix, result, shape = (names.fresh(f"{y}_{stem}") for stem in ("matrix", "rows", "shape"))
    return [
        Node("Flatten", (x,), (matrix,), {"axis": axis}, version=1),
        Node(node.op, (matrix,), (result,), attrs, name=node.name, version=node.version),
        Node("Shape", (x,), (shape,), {"start": 0, "end": None}, version=1),
        Node("Reshape", (result, shape), (y,), {"shape": RUNTIME, "allowzero": 0}, version=5),
    ]
