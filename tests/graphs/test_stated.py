"""Types that a file states of values inside of it: kept with the nodes that they belong to, and measured."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from cost_model.signature import graph_digest
from graphs.ir import Graph
from graphs.onnx_io import load_onnx, to_model_proto
from graphs.onnx_io.stated import forget, is_stated


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])


def _model(*inner: str) -> Graph:
    def branch(op: str) -> onnx.GraphProto:
        nodes = [helper.make_node(op, ["b"], [f"i{op}"]), helper.make_node("Neg", [f"i{op}"], [f"o{op}"])]
        return helper.make_graph(nodes, op, [], [_info(f"o{op}")],
                                 value_info=[_info(f"i{op}")] if f"i{op}" in inner else [])

    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["b"]),
             helper.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Sin"))]
    graph = helper.make_graph(nodes, "g", [_info("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
                              [_info("y")], value_info=[_info(name) for name in inner if name in "ab"])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_onnx(made.SerializeToString())


def _stated(graph: Graph) -> set[str]:
    def names(proto: onnx.GraphProto) -> set[str]:
        inner = [each.g for node in proto.node for each in node.attribute if each.HasField("g")]
        return {info.name for info in proto.value_info}.union(*map(names, inner))

    return names(to_model_proto(graph).graph)


def test_a_graph_that_is_as_it_was_read_says_what_the_file_said() -> None:
    assert _stated(_model("a", "b", "iExp")) == {"a", "b", "iExp"}
    assert _stated(_model("a", "b", "iExp").copy()) == {"a", "b", "iExp"}
    assert _stated(_model()) == set() and not is_stated(_model())


def test_what_is_said_of_other_nodes_is_not_said_any_more() -> None:
    graph = _model("a", "b", "iExp").copy()
    graph.nodes[1].op = "Neg"
    assert _stated(graph) == {"iExp"} and is_stated(graph)
    forget(graph)
    assert _stated(graph) == set() and not is_stated(graph)


def test_a_runtime_may_run_another_graph_where_types_are_stated() -> None:
    plain, one, other, both = (graph_digest(_model(*inner)) for inner in ((), ("a",), ("b",), ("a", "iExp")))
    assert len({plain, one, other, both}) == 4
    forgotten = _model("a", "iExp")
    forget(forgotten)
    assert graph_digest(forgotten) == plain
