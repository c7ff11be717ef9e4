"""Sessions of large models without copies of the weights: ONNX Runtime reads them where the graph holds them.

What its kernels pack or its optimizations fold it keeps in memory of its own; the pages of the graph's weights are
given back once it has done so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from graphs.onnx_io.tensors import write_tensor
from graphs.spill import let_go, trim

SHARED_BYTES = 64 << 20  # of weights in the model; smaller models are handed over as the bytes of their file
_TENSOR_BYTES = 1024  # smaller tensors stay in the model, where ONNX Runtime can read shapes off them
_PLAIN = ("float32", "float64", "int64", "int32", "int8", "uint8")


def shares_weights(graph: Graph) -> bool:
    """Is the graph large enough, and free of nested graphs, whose weights cannot be shared?"""
    if any(True for node in graph.nodes for _ in node.graphs):
        return False
    return sum(constant.nbytes for constant in graph.constants.values()) >= SHARED_BYTES


def shared_model(graph: Graph, options: Any, on_host: bool = True) -> tuple[bytes, list[Any]]:
    """(a model without its large weights, the weights, which must live as long as the session).

    The weights are announced to the session by `options`. Raises AttributeError where ONNX Runtime is too old.
    Announced as external data they are read for optimizations, folding and packing, but what no kernel packs is copied
    (1.32). Tables in which rows are looked up are therefore announced as values of the session, too: no optimization
    changes those in place. Such a value must lie where it is used, so only sessions `on_host` get any.
    """
    import onnxruntime

    tables = _tables(graph) if on_host else frozenset()
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
        if name in tables:
            options.add_initializer(name, weights[-1])
        return proto

    model = to_model_proto(graph, None, head).SerializeToString()
    options.add_external_initializers(names, weights)
    return model, weights


def _tables(graph: Graph) -> frozenset[str]:
    """Constants of which nodes read nothing but whole rows."""
    found = set(graph.constants) - set(graph.outputs)
    for node in graph.nodes:
        rows = node.op == "Gather" and not node.domain and node.attrs.get("axis", 0) == 0
        found.difference_update(node.inputs[1:] if rows else node.uses)
    return frozenset(found)


def give_back(graph: Graph) -> None:
    """After a session has loaded: memory that the graph's mapped weights take, and what was freed while loading."""
    for constant in graph.constants.values():
        let_go(constant.array)
    trim()
