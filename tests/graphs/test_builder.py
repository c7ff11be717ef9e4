"""The builder: what it makes is what ONNX means, and mistakes show at once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphs.builder import Builder, Value
from graphs.constants import Constant
from graphs.dims import parse_dim
from graphs.errors import InferenceError, InvalidModel
from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from graphs.operators import RUNTIME
from graphs.text import parse_graph, print_graph


def run(graph: Graph, **feeds: np.ndarray) -> list[np.ndarray]:
    proto = to_model_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_arithmetic_and_numbers() -> None:
    b = Builder("m", opset=17)
    x = b.input("x", "float32", ["n", 2])
    w = np.array([[1, 2], [3, 4]], np.float32)
    b.output((2 * x - 1) / 4 + -x @ w + w[0] * x**2, "y")
    data = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    expected = (2 * data - 1) / 4 + -data @ w + w[0] * data**2
    np.testing.assert_allclose(run(b.graph(), x=data)[0], expected, rtol=1e-6)


def test_numbers_take_the_element_type_of_their_neighbour() -> None:
    b = Builder()
    half, whole = b.input("h", "float16", [2]), b.input("i", "int64", [2])
    assert (half * 2).dtype == "float16" and (1 + whole).dtype == "int64" and b.constant(0.5).dtype == "float32"
    assert b.Clip(half, min=0).builder is b and b._graph.nodes[-1].attrs["min"] == 0.0
    assert isinstance(b._graph.nodes[-1].attrs["min"], float)


def test_static_attributes_in_every_spelling() -> None:
    b = Builder()
    x = b.input("x", "float32", ["n", 6])
    spellings = [b.Reshape(x, [0, 2, 3]), b.Reshape(x, np.array([0, 2, 3])), b.Reshape(x, shape=[0, 2, 3]),
                 b.Reshape(x, b.constant([0, 2, 3])), b.Reshape(x, shape=b.constant([0, 2, 3]))]
    for index, value in enumerate(spellings[:4]):
        assert value.shape == (parse_dim("n"), 2, 3)
        node = b._graph.nodes[index]
        assert (node.inputs, node.attrs["shape"]) == (("x",), (0, 2, 3))


def test_a_computed_shape_is_a_runtime_value() -> None:
    b = Builder()
    x, s = b.input("x", "float32", ["n", 6]), b.input("s", "int64", [2])
    b.output(b.Reshape(x, shape=s), "y")
    node = b.graph().nodes[0]
    assert node.inputs == ("x", "s") and node.attrs["shape"] is RUNTIME


def test_several_outputs_and_their_names() -> None:
    b = Builder()
    x = b.input("x", "float32", [4, 2])
    left, right = b.op("Split", x, axis=0, num_outputs=2, outputs=["left", "right"])
    b.output(right)
    b.output(left, "first")
    b.output(x, "same")
    graph = b.graph()
    assert graph.outputs == ["right", "first", "same"]
    got = run(graph, x=np.arange(8, dtype=np.float32).reshape(4, 2))
    assert got[0].tolist() == [[4, 5], [6, 7]] and got[1].tolist() == [[0, 1], [2, 3]] and got[2].shape == (4, 2)


def test_nested_graphs_see_values_around_them() -> None:
    b = Builder(opset=17)
    x, c = b.input("x", "float32", [2]), b.input("c", "bool", [])
    then, other = b.nested("then"), b.nested("else")
    then.output(then.Mul(x, 2.0))
    other.output(other.Neg(x))
    b.output(b.If(c, then_branch=then.graph(), else_branch=other.graph()), "y")
    graph = b.graph()
    assert str(graph.types["y"]) == "float32[2]"
    assert run(graph, x=np.float32([1, 2]), c=np.array(False))[0].tolist() == [-1, -2]


def test_what_it_builds_prints_and_parses() -> None:
    b = Builder("m", opset=17, opsets={"my.domain": 2})
    x = b.input("x", "float32", ["n", "n + 1"])
    b.output(b.op("Foo", x, domain="my.domain", alpha=0.1, outputs=["y"]))
    text = print_graph(b.graph())
    assert print_graph(parse_graph(text)) == text and "alpha=0.1" in text


def test_the_first_version_of_models_it_makes() -> None:
    for opset, ir in ((9, 8), (17, 8), (21, 10)):
        b = Builder(opset=opset)
        b.output(b.Relu(b.input("x", "float32", [2])), "y")
        assert to_model_proto(b.graph()).ir_version == ir


def test_mistakes_show_at_once() -> None:
    b = Builder(opset=17)
    x = b.input("x", "float32", [2, 3])
    with pytest.raises(InferenceError, match="MatMul"):
        b.MatMul(x, x)
    with pytest.raises(InvalidModel, match="no attribute 'foo'"):
        b.Relu(x, foo=1)
    with pytest.raises(InvalidModel, match="opset 17 has no operator Gelu"):
        b.Gelu(x)
    with pytest.raises(InvalidModel, match="needs the attribute 'to'"):
        b.Cast(x)
    with pytest.raises(InvalidModel, match="it is there already"):
        b.input("x", "float32", [1])
    with pytest.raises(AttributeError):
        b.relu(x)


def test_constants_that_nobody_uses_are_dropped() -> None:
    b = Builder()
    x = b.input("x", "float32", [2])
    b.constant(Constant.of(np.ones(3)), "unused")
    value = b.output(b.Relu(x), "y")
    assert isinstance(value, Value) and b.graph().constants == {}
