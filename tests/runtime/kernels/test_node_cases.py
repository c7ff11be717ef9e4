"""The node cases that the ONNX package ships, through our records and kernels."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from graphs import Graph, Node, TensorType, load
from graphs.dtypes import name_of
from graphs.inference import contents
from runtime.execute import evaluate
from runtime.kernels import elementwise, indexing, linear, movement, reduction

FAMILIES = (elementwise, linear, reduction, movement, indexing)
OPERATORS = {name for family in FAMILIES for name in family.KERNELS}


@lru_cache(maxsize=1)
def node_cases() -> dict[str, list[TestCase]]:
    found: dict[str, list[TestCase]] = {op: [] for op in OPERATORS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            nodes = case.model.graph.node
            if len(nodes) == 1 and nodes[0].op_type in found and not nodes[0].domain:
                found[nodes[0].op_type].append(case)
    return found


def as_array(value: object) -> np.ndarray | None:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return None  # a sequence or an optional
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def read(model: onnx.ModelProto, constants: dict[str, np.ndarray]) -> Graph:
    """The model's graph, with some inputs turned into initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = [each for each in model.graph.input if each.name not in constants]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return load(changed.SerializeToString())


def check_outputs(node: Node, results: list[np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, ours in zip(node.outputs, results):
        theirs = expected.get(name)
        if theirs is None:
            continue
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if "float" in ours.dtype.name:
            rough = ours.dtype.itemsize < 4
            np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64),
                                       rtol=1e-2 if rough else 1e-4, atol=1e-3 if rough else 1e-6)  # fmt: skip
        elif ours.dtype.kind == "V":  # 4-bit integers
            np.testing.assert_array_equal(ours.astype(np.int64), theirs.astype(np.int64))
        else:
            np.testing.assert_array_equal(ours, theirs)


def check_types(graph: Graph, results: list[np.ndarray]) -> None:
    known = contents(graph)
    node = graph.nodes[0]
    for name, array in zip(node.outputs, results):
        type_ = graph.types.get(name)
        if not name:
            continue
        assert isinstance(type_, TensorType)
        assert type_.dtype == name_of(array.dtype)
        assert type_.shape is None or len(type_.shape) == array.ndim
        for dim, size in zip(type_.shape or (), array.shape):
            assert not isinstance(dim, int) or dim == size
    if node.outputs[0] in known:
        assert known[node.outputs[0]] == tuple(int(item) for item in results[0].ravel())


@pytest.mark.parametrize("static", [False, True], ids=["runtime", "static"])
@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_node_cases(op: str, static: bool) -> None:
    for case in node_cases()[op]:
        for data, wanted in case.data_sets:
            inputs, outputs = list(map(as_array, data)), list(map(as_array, wanted))
            if any(array is None for array in (*inputs, *outputs)):
                continue
            feeds = dict(zip((each.name for each in case.model.graph.input), inputs))
            expected = dict(zip((each.name for each in case.model.graph.output), outputs))
            fixed = {name: array for name, array in feeds.items() if static}
            graph = read(case.model, fixed)
            node = graph.nodes[0]
            assert not node.is_opaque, case.name
            results = evaluate(node, [feeds[name] if name else None for name in node.inputs], model=graph)
            check_outputs(node, results, expected)
            check_types(graph, results)
