"""One contrib node in ONNX Runtime and here: values, inferred types (static and symbolic sizes), and the way to a
file and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

import graphs
from cost_model.work import work
from graphs.constants import Constant
from graphs.dims import evaluate
from graphs.dtypes import ONNX_NUMBER, name_of
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.onnx_io import proto_bytes
from graphs.types import TensorType
from runtime import run
from runtime.execute import evaluate as execute
from tests.runtime.kernels.harness import Arrays, check_close, run_ort

MICROSOFT = "com.microsoft"


def make_model(op: str, inputs: Arrays, outputs: int | Sequence[int] = 1, *, domain: str = MICROSOFT,
               symbolic: bool = False, constants: Sequence[int] = (), **attrs: object) -> onnx.ModelProto:
    """A model of one node; absent inputs are None, `outputs` is a number or the positions wanted."""
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    wanted = range(outputs) if isinstance(outputs, int) else outputs
    results = [f"o{index}" if index in wanted else "" for index in range(max(wanted) + 1)]
    infos, tensors = [], []
    for index, (name, array) in enumerate(zip(names, inputs)):
        if array is None:
            continue
        if index in constants:
            tensors.append(onnx.numpy_helper.from_array(array, name))
            continue
        shape = [f"d{index}_{axis}" for axis in range(array.ndim)] if symbolic else array.shape
        infos.append(helper.make_tensor_value_info(name, ONNX_NUMBER[name_of(array.dtype)], shape))
    node = helper.make_node(op, names, results, domain=domain, **{k: v for k, v in attrs.items() if v is not None})
    shown = [helper.make_empty_tensor_value_info(name) for name in results if name]
    graph = helper.make_graph([node], "test", infos, shown, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def load(model: onnx.ModelProto) -> Graph:
    """Our graph, whose node must be known and keep its meaning through a file."""
    graph = graphs.load(model.SerializeToString())
    node, = graph.nodes
    assert not node.is_opaque, node
    again, = graphs.load(proto_bytes(graph)).nodes
    assert (again.attrs, again.inputs, again.outputs) == (node.attrs, node.inputs, node.outputs)
    return graph


def check_types(graph: Graph, inputs: Arrays, results: Sequence[np.ndarray], loose: bool) -> None:
    """Inferred types against results."""
    infer(graph)
    sizes: dict[str, int] = {}
    for name in graph.inputs:
        type_, array = graph.types[name], inputs[int(name[1:])]
        assert isinstance(type_, TensorType) and type_.shape is not None and array is not None
        sizes.update((str(dim), size) for dim, size in zip(type_.shape, array.shape))
    for name, array in zip(graph.outputs, results):
        type_ = graph.types.get(name)
        assert isinstance(type_, TensorType) and type_.dtype == name_of(array.dtype), f"{name}: {type_}"
        assert loose or type_.shape is not None, f"{name}: no shape"
        if type_.shape is not None:
            found = [evaluate(dim, sizes) for dim in type_.shape]
            assert len(found) == array.ndim, f"{type_} for {array.shape}"
            assert all(size in (real, None) for size, real in zip(found, array.shape)), f"{type_} for {array.shape}"


def check_wider(node: Node, inputs: Arrays, found: Sequence[np.ndarray]) -> None:
    """Validation executes graphs in float64: every kernel has to, with results that are nearly the same."""
    wide = [array.astype(np.float64) if array is not None and array.dtype == np.float32 else array for array in inputs]
    results = [each for each, name in zip(execute(node, wide), node.outputs) if name]
    for mine, other in zip(found, results, strict=True):
        assert mine.shape == other.shape
        rounding = 1e-3 * max(1.0, float(np.abs(mine).max(initial=0))) if mine.dtype.kind == "f" else 1
        np.testing.assert_allclose(other.astype(np.float64), mine.astype(np.float64), rtol=0, atol=rounding)


def ours(op: str, inputs: Arrays, outputs: int | Sequence[int] = 1, loose: bool = False,
         **attrs: object) -> list[np.ndarray]:
    """Our results, checked against what was inferred for static and for symbolic sizes."""
    graph = load(make_model(op, inputs, outputs, **attrs))  # type: ignore[arg-type]
    feeds = {name: inputs[int(name[1:])] for name in graph.inputs}
    found = list(run(graph, feeds).values())
    check_types(graph, inputs, found, loose)
    node, = graph.nodes
    check_wider(node, inputs, found)
    types = [None if array is None else Constant.of(array).type for array in (*inputs, *found)]
    effort = work(node.op, node.domain, node.attrs, types[: len(inputs)], types[len(inputs):])
    assert np.isfinite(effort.flops) and effort.flops >= 0 and effort.bytes > 0
    check_types(load(make_model(op, inputs, outputs, symbolic=True, **attrs)), inputs, found, True)  # type: ignore[arg-type]
    return found


def compare(op: str, inputs: Arrays, outputs: int | Sequence[int] = 1, *, slack: float = 1.0, loose: bool = False,
            **attrs: object) -> None:
    """Ours against ONNX Runtime."""
    constants: Sequence[int] = attrs.get("constants", ())  # type: ignore[assignment]
    fed = [None if index in constants else array for index, array in enumerate(inputs)]
    theirs = run_ort(make_model(op, inputs, outputs, **attrs), fed)  # type: ignore[arg-type]
    check_close(ours(op, inputs, outputs, loose, **attrs), theirs, slack)
