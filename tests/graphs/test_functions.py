"""Model-local functions: kept verbatim, and inlined so that the values stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs.errors import InvalidModel
from graphs.ir import Graph
from graphs.onnx_io import inline_functions, load_onnx, to_model_proto
from graphs.text import print_graph
from runtime import Session

TWO = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def attribute(node: onnx.NodeProto, name: str, reference: str, kind: int) -> onnx.NodeProto:
    node.attribute.add(name=name, ref_attr_name=reference, type=kind)
    return node


def function(name: str, nodes: list, inputs: tuple = ("a",), outputs: tuple = ("b",), opsets: list | None = None,
             attributes: tuple = (), defaults: tuple = ()) -> onnx.FunctionProto:
    return helper.make_function("f", name, inputs, outputs, nodes, opsets or TWO, attributes, defaults)


def model(nodes: list, functions: list, outputs: tuple = ("y",)) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=TWO, functions=functions, ir_version=9)


def call(name: str, inputs: list, outputs: list, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, domain="f", name=f"call_{outputs[0]}", **attrs)


def run(proto: onnx.ModelProto) -> list:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [each.tolist() for each in session.run(None, {"x": np.float32([-1, 2])})]


def inlined(proto: onnx.ModelProto) -> Graph:
    """The graph after inlining, checked to compute the same."""
    kept = load_onnx(proto.SerializeToString())
    assert to_model_proto(kept).functions == proto.functions
    expected = run(proto)
    assert run(to_model_proto(kept)) == expected
    graph = load_onnx(proto.SerializeToString())
    assert inline_functions(graph) and not graph.functions
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    assert run(written) == expected
    return graph


LEAKY = attribute(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "slope", onnx.AttributeProto.FLOAT)


def test_attributes_are_put_in_with_their_defaults() -> None:
    default = helper.make_attribute("slope", 0.5)
    leaky = function("Leaky", [LEAKY], defaults=(default,))
    graph = inlined(model([call("Leaky", ["x"], ["t"]), call("Leaky", ["t"], ["y"], slope=0.25)], [leaky]))
    assert [node.attrs["alpha"] for node in graph.nodes] == [0.5, 0.25]
    assert [node.origins for node in graph.nodes] == [("call_t",), ("call_y",)]


def test_an_attribute_that_is_not_given_is_not_there() -> None:
    graph = inlined(model([call("Leaky", ["x"], ["y"])], [function("Leaky", [LEAKY], attributes=("slope",))]))
    assert graph.nodes[0].attrs["alpha"] == pytest.approx(0.01)  # the default of LeakyRelu


def test_inner_names_never_meet_outer_ones() -> None:
    body = [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Abs", ["t"], ["x"]),
            helper.make_node("Add", ["x", "t"], ["b"])]
    nodes = [call("F", ["x"], ["t"]), call("F", ["t"], ["u"]), helper.make_node("Sub", ["u", "x"], ["y"])]
    inlined(model(nodes, [function("F", body)]))


def test_a_call_runs_with_the_kernels_of_its_body() -> None:
    """Relu keeps -0.0 in ONNX Runtime and here, not in the reference evaluator; not all outputs are wanted here."""
    two = function("Two", [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Relu", ["a"], ["c"])],
                   outputs=("b", "c"))
    x = np.float32([-0.0, 2])
    session = pytest.importorskip("onnxruntime").InferenceSession(
        model([call("Two", ["x"], ["t", "y"])], [two]).SerializeToString(), providers=["CPUExecutionProvider"])
    graph = load_onnx(model([call("Two", ["x"], ["", "y"])], [two]).SerializeToString())
    assert Session(graph).run({"x": x})["y"].tobytes() == session.run(None, {"x": x})[0].tobytes()


def test_functions_call_functions() -> None:
    inner = function("Inner", [helper.make_node("Exp", ["a"], ["b"])])
    outer = function("Outer", [call("Inner", ["a"], ["m"]), call("Inner", ["m"], ["b"])])
    assert [node.op for node in inlined(model([call("Outer", ["x"], ["y"])], [outer, inner])).nodes] == ["Exp", "Exp"]


def test_inputs_handed_through_and_outputs_not_wanted() -> None:
    both = function("Both", [helper.make_node("Neg", ["a"], ["b"])], outputs=("a", "b"))
    nodes = [call("Both", ["x"], ["y", ""]), call("Both", ["x"], ["z", "w"])]
    graph = load_onnx(model(nodes, [both], outputs=("y", "z", "w")).SerializeToString())
    inline_functions(graph)
    assert {node.op for node in graph.nodes} == {"Identity", "Neg"}
    assert run(to_model_proto(graph)) == [[-1, 2], [-1, 2], [1, -2]]


def test_constants_and_branches_inside_a_function() -> None:
    two = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.float32([2, 2])))
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float32(0)))

    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["a", "t"], ["t2"])], op, [],
                                 [helper.make_tensor_value_info("t2", TensorProto.FLOAT, [2])])

    body = [two, zero, helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
            helper.make_node("Greater", ["s", "zero"], ["c"]),
            helper.make_node("If", ["c"], ["b"], then_branch=branch("Mul"), else_branch=branch("Add"))]
    graph = inlined(model([call("F", ["x"], ["t"]), call("F", ["t"], ["y"])], [function("F", body)]))
    assert len([node for node in graph.nodes if node.op == "If"]) == 2


def test_a_function_of_another_opset_is_raised_to_the_model() -> None:
    squeeze = [helper.make_node("Unsqueeze", ["a"], ["t"], axes=[0]),
               helper.make_node("Squeeze", ["t"], ["b"], axes=[0])]
    body = function("Old", squeeze, opsets=[helper.make_opsetid("", 11)])
    proto = model([call("Old", ["x"], ["y"])], [body])
    graph = load_onnx(proto.SerializeToString())
    inline_functions(graph)
    assert [node.attrs["axes"] for node in graph.nodes] == [(0,), (0,)]
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    assert run(written) == [[-1, 2]]


def test_a_body_that_means_something_else_here_stays_a_call() -> None:
    body = function("Old", [helper.make_node("Softmax", ["a"], ["b"], axis=0)], opsets=[helper.make_opsetid("", 11)])
    graph = load_onnx(model([call("Old", ["x"], ["y"])], [body]).SerializeToString())
    before = print_graph(graph)
    assert inline_functions(graph) == [] and print_graph(graph) == before and graph.functions


def test_recursion_is_refused() -> None:
    body = function("F", [call("F", ["a"], ["b"])])
    graph = load_onnx(model([call("F", ["x"], ["y"])], [body]).SerializeToString())
    with pytest.raises(InvalidModel, match="calls itself"):
        inline_functions(graph)


def test_functions_that_double_are_refused_when_read() -> None:
    bodies = [function("F0", [helper.make_node("Neg", ["a"], ["b"])])]
    bodies += [function(f"F{level}", [call(f"F{level - 1}", ["a"], ["t"]), call(f"F{level - 1}", ["t"], ["b"])])
               for level in range(1, 41)]
    assert load_onnx(model([call("F9", ["x"], ["y"])], bodies).SerializeToString()).functions
    with pytest.raises(InvalidModel, match="stand for more than"):
        load_onnx(model([call("F40", ["x"], ["y"])], bodies).SerializeToString())


SHADOWED = [("", "Relu", ""), ("", "Relu", "mine"), ("ai.onnx", "Relu", ""), ("", "HardSwish", ""),
            ("ai.onnx.ml", "Normalizer", ""), ("com.microsoft", "Gelu", "")]


@pytest.mark.parametrize(("domain", "name", "overload"), [*SHADOWED, ("com.microsoft", "Own", ""), ("f", "Relu", "")])
def test_a_function_does_not_replace_an_operator(domain: str, name: str, overload: str) -> None:
    """As in ONNX Runtime, whose own kernel wins over a function; what lies in its own domain only the runtime knows."""
    negation = helper.make_function(domain, name, ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], TWO[:1],
                                    overload=overload)
    called = "" if domain == "ai.onnx" else domain
    opsets = [*TWO, *([helper.make_opsetid(called, 1)] if called not in ("", "f") else [])]
    inner = helper.make_node(name, ["a"], ["b"], domain=called, overload=overload)
    proto = model([call("Outer", ["x"], ["y"])], [negation, function("Outer", [inner], opsets=opsets)])
    proto.opset_import.extend(opsets[2:])
    proto.ir_version = 10
    expected = run(proto)
    assert (expected == [[1, -2]]) == ((domain, name, overload) not in SHADOWED)
    graph = load_onnx(proto.SerializeToString())
    assert run(to_model_proto(graph)) == expected
    inline_functions(graph)
    assert [node.op for node in graph.nodes] == ["Neg" if domain == "f" else name]
    assert run(to_model_proto(graph)) == expected


@pytest.mark.parametrize("depth", [100, 101])
def test_functions_that_call_each_other_deeply(depth: int) -> None:
    """ONNX Runtime takes 100 as well, and no more."""
    chain = [function("F0", [helper.make_node("Neg", ["a"], ["b"])])] + [
        function(f"F{level}", [call(f"F{level - 1}", ["a"], ["b"])]) for level in range(1, depth)]
    graph = load_onnx(model([call(f"F{depth - 1}", ["x"], ["y"])], chain).SerializeToString())
    if depth > 100:
        with pytest.raises(InvalidModel, match="more than 100 deep"):
            inline_functions(graph)
    else:
        inline_functions(graph)
        assert [node.op for node in graph.nodes] == ["Neg"]
