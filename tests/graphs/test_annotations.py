"""Quantization annotations of a file stay with the values that they are about, and with the tensors that they name."""

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

from graphs import Graph, load
from graphs.constants import Constant
from graphs.onnx_io import to_model_proto

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) <float s = {0.1}, int8 z = {3}> { a = Identity(x) r = Relu(a) y = %s }"""
PARAMETERS = {"SCALE_TENSOR": "s", "ZERO_POINT_TENSOR": "z"}


def annotated(last: str = "Neg(r)", values: str = "xary") -> Graph:
    """The graph of a model with annotations for these values, which all name `s` and `z`."""
    model = onnx.parser.parse_model(MODEL % last)
    for value in values:
        made = model.graph.quantization_annotation.add(tensor_name=value)
        for key, name in PARAMETERS.items():
            made.quant_parameter_tensor_names.add(key=key, value=name)
    return load(model.SerializeToString())


def facts(model: ModelProto) -> tuple[list[str], dict[str, np.ndarray]]:
    onnx.checker.check_model(model)
    return ([each.tensor_name for each in model.graph.quantization_annotation],
            {each.name: numpy_helper.to_array(each) for each in model.graph.initializer})


@pytest.mark.parametrize("last", ["Neg(r)", "Mul(r, s)"])
def test_scales_and_zero_points_stay_whether_nodes_read_them_or_not(last: str) -> None:
    graph = annotated(last)
    graph.nodes[1].inputs = ("x",)
    del graph.nodes[0]
    for each in (graph, load(to_model_proto(graph).SerializeToString())):
        values, tensors = facts(to_model_proto(each))
        assert values == ["x", "r", "y"]
        assert tensors.keys() == {"s", "z"} and tensors["s"] == np.float32(0.1) and tensors["z"] == 3


def test_another_constant_of_the_name_takes_no_scale_s_place() -> None:
    graph = annotated()
    graph.constants["s"] = Constant.of(np.array(2, np.float32))
    graph.nodes[-1].op, graph.nodes[-1].inputs, graph.nodes[-1].version = "Mul", ("r", "s"), 14
    assert facts(to_model_proto(graph)) == ([], {"s": np.float32(2)})


def test_nothing_is_kept_for_values_that_are_gone() -> None:
    graph = annotated(values="a")
    graph.nodes[1].inputs = ("x",)
    assert facts(to_model_proto(graph)) == (["a"], {"s": np.float32(0.1), "z": np.int8(3)})
    del graph.nodes[0]
    assert facts(to_model_proto(graph)) == ([], {})
