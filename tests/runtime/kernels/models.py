"""One canonical node as an ONNX model of one node at a version, and its outputs from a runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from graphs import Graph, Node, TensorType, Type
from graphs.dtypes import name_of
from graphs.onnx_io import to_model_proto, writable

_state = onnxruntime.capi.onnxruntime_pybind11_state
Arrays = Sequence["np.ndarray | None"]


def node_of(op: str, attrs: dict[str, object], inputs: Arrays, outputs: int, version: int) -> Node:
    names = tuple("" if array is None else f"x{index}" for index, array in enumerate(inputs))
    return Node(op, names, tuple(f"y{index}" for index in range(outputs)), attrs, version=version)


def model_of(node: Node, inputs: Arrays, opset: int, results: Arrays) -> onnx.ModelProto | str:
    """The model, or the reason why the node cannot be written at this opset."""
    types: dict[str, Type] = {
        name: TensorType(name_of(array.dtype), tuple(array.shape))
        for name, array in zip(node.inputs, inputs)
        if array is not None
    }
    made: dict[str, Type] = {
        name: TensorType(name_of(array.dtype)) for name, array in zip(node.outputs, results) if array is not None
    }
    graph = Graph("one", list(types), list(made), [node], types=types | made, declared=types | made)
    graph.opsets, graph.ir_version = {"": opset}, 10
    return writable(node, opset, graph) or to_model_proto(graph)


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
