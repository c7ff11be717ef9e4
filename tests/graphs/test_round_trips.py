"""Random graphs through every form and back: text, JSON, ONNX at several opsets."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import Graph, dims, load
from graphs.builder import Builder, Value
from graphs.errors import InvalidOption
from graphs.json_form import dumps, from_json, to_json
from graphs.onnx_io import proto_bytes, to_model_proto, writable
from graphs.text import parse_graph, print_graph
from graphs.types import TensorType

UNARY = ["Relu", "Neg", "Exp", "Sigmoid", "Identity"]
BINARY = ["Add", "Mul", "Sub", "Max"]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs over matrices (n, 4): arithmetic, movement, reductions, a branch now and then."""
    b = Builder(draw(st.sampled_from(["g", "two words", "é"])), opset=draw(st.sampled_from([11, 13, 17, 18, 21])))
    values: list[Value] = [b.input("x", "float32", ["n", 4]), b.input("other name", "float32", ["n", 4])]
    condition = b.input("c", "bool", [])
    for _ in range(draw(st.integers(1, 8))):
        value, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        values.append(step(b, draw, value, other, condition))
    for index, value in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))):
        b.output(value, f"out {index}")
    return b.graph()


def step(b: Builder, draw: st.DrawFn, value: Value, other: Value, condition: Value) -> Value:
    kind = draw(st.sampled_from(["unary", "binary", "number", "reshape", "slice", "reduce", "clip", "squeeze", "if"]))
    if kind == "unary":
        return b.value(draw(st.sampled_from(UNARY)), value)
    if kind == "binary":
        return b.value(draw(st.sampled_from(BINARY)), value, other)
    if kind == "number":
        array = np.array(draw(st.lists(st.floats(width=32), min_size=4, max_size=4)), np.float32)
        return value * array
    if kind == "reshape":
        return b.Reshape(b.Reshape(value, [0, 2, 2]), [-1, 4])
    if kind == "slice":
        return b.Concat(b.Slice(value, [2], [4], [1]), b.Slice(value, starts=[0], ends=[2], axes=[-1]), axis=1)
    if kind == "reduce":
        return value - b.ReduceMean(value, axes=[draw(st.sampled_from([-1, 1]))], keepdims=1)
    if kind == "clip":
        return b.Clip(value, min=draw(st.sampled_from([None, 0, -1.5])), max=draw(st.sampled_from([None, 6])))
    if kind == "squeeze":
        return b.Squeeze(b.Unsqueeze(value, axes=[0]), axes=[0])
    then, rest = b.nested("then"), b.nested("else")
    then.output(then.Mul(value, np.float32(2)))
    rest.output(rest.Relu(rest.Add(value, other)))
    return b.If(condition, then_branch=then.graph(), else_branch=rest.graph())


@settings(max_examples=40)
@given(graphs())
def test_text_and_json(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text)
    assert print_graph(again) == text
    assert {name: str(type_) for name, type_ in again.types.items()} == {
        name: str(type_) for name, type_ in graph.types.items()}
    assert print_graph(from_json(dumps(graph))) == text
    assert to_json(from_json(dumps(graph))) == to_json(graph)


@settings(max_examples=40)
@given(graphs(), st.sampled_from([None, 9, 11, 13, 18, 21]))
def test_onnx(graph: Graph, opset: int | None) -> None:
    reasons = [reason for node in graph.nodes if (reason := writable(node, opset or graph.opset, graph))]
    try:
        model = to_model_proto(graph, opset)
    except InvalidOption:
        assert reasons
        return
    assert not reasons
    onnx.checker.check_model(model, full_check=True)
    read = load(model.SerializeToString())
    assert [node.op for node in read.nodes] == [node.op for node in graph.nodes]
    assert not any(node.is_opaque for each in read.walk() for node in each.nodes)
    assert (read.inputs, read.outputs) == (graph.inputs, graph.outputs)
    assert {name: str(read.types[name]) for name in read.outputs} == {
        name: str(graph.types[name]) for name in graph.outputs}
    if opset is None:
        assert proto_bytes(read) == proto_bytes(load(proto_bytes(read)))


def test_dimensions_without_a_name_stay_tied() -> None:
    """Of a file that says nothing, "?" and one name; what nothing else has stays as it was."""
    def info(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    def named(proto: onnx.ModelProto) -> dict[str, list[str]]:
        return {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim]
                for each in (*proto.graph.input, *proto.graph.output)}

    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x = info("x", None, "?", None, "n")
    x.doc_string = "kept"
    proto = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [info("y", None, None, None, None)]),
                                   opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    graph = load(proto.SerializeToString())
    assert named(to_model_proto(graph)) == named(proto)
    first, second, third, fourth = graph.types["x"].shape  # type: ignore[union-attr]
    sums = dims.mul(first, third)
    graph.inputs += ["t", "a", "b"]
    graph.types["t"] = TensorType("float32", (first, second, 4, fourth))
    graph.types["a"] = graph.types["b"] = TensorType("float32", (sums,))
    for _ in range(3):  # again from what was written
        written = to_model_proto(graph)
        graph = load(written.SerializeToString())
        shapes = {name: [str(dim) for dim in graph.types[name].shape] for name in graph.inputs}  # type: ignore
        assert shapes["x"] == ["`?x.0`", "`?x.1:?`", "`?x.2`", "n"]
        assert shapes["t"] == ["`?x.0`", "`?x.1:?`", "4", "n"] and shapes["a"] == shapes["b"] != ["`?a.0`"]
        assert named(written)["x"][2] == "" and named(written)["y"] == [""] * 4
        assert written.graph.input[0].doc_string == "kept"
    onnx.checker.check_model(written, full_check=True)
    graph.inputs = ["x"]
    assert named(to_model_proto(graph))["x"] == ["?x.0", "?x.1:?", "", "n"]  # as its file said
