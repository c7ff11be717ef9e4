"""Names of nodes outlive a trace, whose text has none."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from graphs.ir import Graph
from graphs.onnx_io import load_onnx, to_model_proto
from optimizer import journal
from optimizer.normalize import normalize


def _model() -> Graph:
    def branch(op: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Identity", ["x"], [f"i{op}"]),
                 helper.make_node(op, [f"i{op}"], [f"o{op}"], f"my {op}")]
        return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(f"o{op}", TensorProto.FLOAT, [2])])

    nodes = [helper.make_node("If", ["c"], ["a"], "my If", then_branch=branch("Exp"), else_branch=branch("Sin")),
             helper.make_node("Identity", ["a"], ["y"], "gone")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
                                           helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    return load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def test_a_node_that_a_patch_writes_anew_keeps_its_name() -> None:
    given = _model()
    changed = given.copy()
    normalize(changed)
    replayed = journal.apply(given, journal.diff(given, changed))
    (node,) = to_model_proto(replayed).graph.node
    assert (node.op_type, node.name, list(node.output)) == ("If", "my If", ["y"])
    names = {each.op_type: each.name for branch in node.attribute for each in branch.g.node}
    assert (names["Exp"], names["Sin"]) == ("my Exp", "my Sin")
