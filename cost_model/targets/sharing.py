"""Sessions of large models without copies of the weights: ONNX Runtime reads them where the graph holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from graphs.onnx_io.tensors import write_tensor

SHARED_BYTES = 64 << 20  # of weights in the model; smaller models are handed over as the bytes of their file
_TENSOR_BYTES = 1024  # smaller tensors stay in the model, where ONNX Runtime can read shapes off them
_PLAIN = ("float32", "float64", "int64", "int32", "int8", "uint8")


def shares_weights(graph: Graph) -> bool:
    """Is the graph large enough, and free of nested graphs, whose weights cannot be shared?"""
    if any(True for node in graph.nodes for _ in node.graphs):
        return False
    return sum(constant.nbytes for constant in graph.constants.values()) >= SHARED_BYTES


def shared_model(graph: Graph, options: Any) -> tuple[bytes, list[Any]]:
    """(a model without its large weights, the weights, which must live as long as the session).

    The weights are announced to the session by `options`. Raises AttributeError where ONNX Runtime is too old.
    """
    import onnxruntime

    names: list[str] = []
    weights: list[Any] = []

    def head(constant: Constant, name: str) -> TensorProto:
        small = constant.nbytes < _TENSOR_BYTES or constant.dtype not in _PLAIN
        if small or graph.constants.get(name) is not constant:
            return write_tensor(constant, name)
        proto = TensorProto(name=name, data_type=dtypes.ONNX_NUMBER[constant.dtype], dims=constant.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "shared"), ("offset", "0"), ("length", str(constant.nbytes))):
            proto.external_data.add(key=key, value=value)
        names.append(name)
        weights.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(constant.array)))
        return proto

    model = to_model_proto(graph, None, head).SerializeToString()
    options.add_external_initializers(names, weights)
    return model, weights
