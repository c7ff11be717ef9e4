"""Running models of the zoo in ONNX Runtime without its optimizations, the way an independent reader would."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from runtime.feeds import draw

SMALL = ["resnet-tiny", "bert-tiny", "llama-tiny", "gpt-tiny", "bilstm-tiny", "logistic-regression", "multiply-add"]
SIZES = [{"batch": batch, "sequence": sequence}
         for batch, sequence in ((1, 16), (3, 9), (2, 1), (1, 31), (5, 24))]


def sizes_of(graph: Graph) -> list[dict[str, int]]:
    """Five sets of sizes for the symbols that the graph has."""
    text = " ".join(str(graph.types[name]) for name in graph.inputs)
    return [{name: size for name, size in sizes.items() if name in text} for sizes in SIZES]


def session(model: bytes) -> onnxruntime.InferenceSession:
    """One thread, no optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def checked(graph: Graph) -> bytes:
    """The graph as an ONNX model that the checker accepts, strict shape inference included."""
    model = to_model_proto(graph)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def interface(model: bytes) -> list[tuple[Any, ...]]:
    """Name, type and dimensions (numbers or names) of inputs and outputs, in order."""
    proto = onnx.load_from_string(model)
    rows: list[tuple[Any, ...]] = []
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
            rows.append((kind, value.name, tensor.elem_type, dims))
    return rows


def assert_close(expected: list[np.ndarray], found: list[np.ndarray], rtol: float = 2e-5) -> None:
    """Equal but for rounding, by the largest magnitude of each output."""
    for one, other in zip(expected, found, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        scale = max(1e-6, float(np.abs(one).max()))
        np.testing.assert_allclose(other, one, rtol=0, atol=rtol * scale)


def feeds_of(graph: Graph, seed: int, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Random inputs."""
    return draw(graph, seed, sizes)
