"""One canonical node as an ONNX model of one node at a version, and its outputs from a runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from graphs.constants import Constant
from graphs.dtypes import ONNX_NUMBER, name_of
from graphs.ir import Node
from graphs.onnx_io.nodes import Written, write_node
from graphs.types import TensorType

_state = onnxruntime.capi.onnxruntime_pybind11_state
Arrays = Sequence["np.ndarray | None"]


def node_of(op: str, attrs: dict[str, object], inputs: Arrays, outputs: int, version: int) -> Node:
    names = tuple("" if array is None else f"x{index}" for index, array in enumerate(inputs))
    return Node(op, names, tuple(f"y{index}" for index in range(outputs)), attrs, version=version)


def model_of(node: Node, inputs: Arrays, opset: int, results: Arrays) -> onnx.ModelProto | str:
    """The model, or the reason why the node cannot be written at this opset."""
    types = {
        name: TensorType(name_of(array.dtype), array.shape)
        for name, array in zip(node.inputs, inputs)
        if array is not None
    }
    written = write_node(node, opset, types.get)
    if isinstance(written, str):
        return written
    graph = onnx.GraphProto(name="one")
    names: list[str] = []
    for given in written.inputs:
        if isinstance(given, str):
            names.append(given)
            continue
        name, constant = given
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(constant.array), f"static_{name}"))
        names.append(f"static_{name}")
    proto = helper.make_node(node.op, names, node.outputs, domain=node.domain)
    proto.attribute.extend(_attribute(name, value, kind) for name, value, kind in written.attrs)
    graph.node.append(proto)
    for name, type_ in types.items():
        graph.input.append(helper.make_tensor_value_info(name, ONNX_NUMBER[type_.dtype], type_.shape))
    for name, array in zip(node.outputs, results):
        if array is not None:
            graph.output.append(helper.make_tensor_value_info(name, ONNX_NUMBER[name_of(array.dtype)], None))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _attribute(name: str, value: object, kind: Written | int | None) -> onnx.AttributeProto:
    if isinstance(value, Constant):
        value = onnx.numpy_helper.from_array(np.array(value.array))
    return helper.make_attribute(name, value, attr_type=kind)  # type: ignore[arg-type]


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Outputs of ONNX Runtime without its optimizations, None where it lacks the operator for these types."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (_state.NotImplemented, _state.InvalidGraph):
        return None  # InvalidGraph: below opset 6 it inserts Casts for float16 of the wrong form
    return session.run(None, feeds)


def by_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of the ONNX reference evaluator."""
    with np.errstate(all="ignore"):
        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
