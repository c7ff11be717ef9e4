"""What other runtimes compute, one node at a time, so that a graph may hold operators that no single one has.

ONNX Runtime comes first: 16-bit floats it computes in float32, and they are rounded here. Where it lacks an operator,
`onnx.reference` computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from graphs.dtypes import ONNX_NUMBER, name_of
from graphs.ir import Graph, Node
from graphs.onnx_io import to_model_proto
from graphs.types import TensorType
from runtime.cuda.executor import Executor
from runtime.reference import single_node_graph

from .harness import SEEDS, compile_all, emulate

SMALL = ("float16", "bfloat16")


def node_by_node(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph."""
    values: dict[str, Any] = dict(feeds)
    values.update((name, constant.array) for name, constant in graph.constants.items())
    for node in graph.nodes:
        single = single_node_graph(node, graph, graph.types)
        for name in single.inputs:
            single.types.setdefault(name, TensorType(name_of(values[name].dtype), values[name].shape))
        found = one_node(to_model_proto(single), node, [values[name] for name in single.inputs])
        values.update(zip([name for name in node.outputs if name], found))
    return [values[name] for name in graph.outputs]


def one_node(model: onnx.ModelProto, node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A model of one node."""
    names = [each.name for each in model.graph.input]
    small = next((array.dtype for array in inputs if array.dtype.name in SMALL), None)
    if small is not None and node.op != "Cast":
        wide = [array.astype(np.float32) if array.dtype == small else array for array in inputs]
        found = _run(_in_float32(model, small.name), names, wide)
        return [array.astype(small) if array.dtype == np.float32 else array for array in found]
    if node.op in ("Erf", "Gelu", "HardSwish", "Shrink") and inputs[0].dtype == np.float64:
        return [_in_double(node, inputs[0])]
    try:
        return _run(model, names, inputs)
    except Exception as error:  # every class that ONNX Runtime has is one of its own
        if not any(word in str(error) for word in ("NOT_IMPLEMENTED", "bfloat16", "Numpy_type 256")):
            raise
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, dict(zip(names, inputs)))]


def _in_double(node: Node, x: np.ndarray) -> np.ndarray:
    """Operators by their definition, where both runtimes have float32 in their calculation of float64."""
    erf = np.vectorize(math.erf)
    with np.errstate(all="ignore"):
        if node.op == "Erf":
            return erf(x)
        if node.op == "HardSwish":
            return x * np.clip(x / 6 + 0.5, 0, 1)
        if node.op == "Shrink":
            bias, lambd = node.attrs["bias"], node.attrs["lambd"]
            return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))
        if node.attrs["approximate"] == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _run(model: onnx.ModelProto, names: Sequence[str], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs)))


def _in_float32(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """The model with float32 in the place of a 16-bit float."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for each in (*wide.graph.input, *wide.graph.output):
        if each.type.tensor_type.elem_type == ONNX_NUMBER[dtype]:
            each.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for constant in wide.graph.initializer:
        if constant.data_type == ONNX_NUMBER[dtype]:
            array = onnx.numpy_helper.to_array(constant).astype(np.float32)
            constant.CopyFrom(onnx.numpy_helper.from_array(array, constant.name))
    return wide


def agree(graph: Graph, feeds: Mapping[str, np.ndarray], *, rtol: Mapping[str, float],
          exact: Collection[str] = (), on_host: Sequence[str] = ()) -> Executor:
    """The graph on the emulated device, in several orders of threads, against `node_by_node`.

    `rtol` by dtype; outputs named in `exact` must have every bit, the sign of zero included, but for what a NaN
    carries. No node may be left to NumPy, except `on_host`. All kernels compile for CUDA.
    """
    wanted = node_by_node(graph, feeds)
    executor = None
    for seed in SEEDS:
        found, executor = emulate(graph, feeds, seed)
        left = [entry for entry in executor.on_host if entry.split()[0] not in on_host]
        assert not left, left
        for name, mine, right in zip(graph.outputs, found, wanted, strict=True):
            assert (mine.dtype, mine.shape) == (right.dtype, right.shape), (name, mine.dtype, mine.shape, right.dtype,
                                                                            right.shape)
            if right.dtype.kind in "biu" or name in exact:
                np.testing.assert_array_equal(comparable(mine), comparable(right), err_msg=name)
            else:
                atol = 1e-14 if right.dtype == np.float64 else 1e-6
                np.testing.assert_allclose(mine.astype(np.float64), right.astype(np.float64), atol=atol,
                                           rtol=rtol[name_of(right.dtype)], err_msg=name)
    assert executor is not None
    compile_all(executor)
    return executor


def comparable(array: np.ndarray) -> np.ndarray:
    """Bits of floats, all NaN the same; other elements as they are."""
    if "float" not in array.dtype.name:
        return array
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape).copy()
    bits[np.asarray(array != array)] = np.iinfo(bits.dtype).max
    return bits


__all__ = ["agree", "comparable", "node_by_node"]
