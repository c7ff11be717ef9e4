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

from graphs.constants import Constant
from graphs.dtypes import name_of
from graphs.inference import contents_of, infer_node
from graphs.ir import Node
from graphs.onnx_io.nodes import canonicalize
from graphs.types import TensorType
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


def read(model: onnx.ModelProto, constants: dict[str, Constant]) -> Node:
    from graphs.onnx_io.values import read_attribute

    proto = model.graph.node[0]
    attrs = {a.name: read_attribute(a, proto.op_type, "", None, None) for a in proto.attribute}  # type: ignore[arg-type]
    node = Node(proto.op_type, tuple(proto.input), tuple(proto.output), attrs)
    opset = next(each.version for each in model.opset_import if not each.domain)
    canonicalize(node, opset, constants.get)
    return node


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


def check_types(node: Node, feeds: dict[str, np.ndarray], results: list[np.ndarray], static: bool) -> None:
    constants = [Constant.of(feeds[name]) if name else None for name in node.inputs]
    known = [contents_of(each) if each is not None and static else None for each in constants]
    types = [None if each is None else each.type for each in constants]
    found = infer_node(node, types, known, constants if static else [None] * len(constants), "y")
    for type_, array in zip(found.types, results):
        assert isinstance(type_, TensorType)
        assert type_.dtype == name_of(array.dtype)
        assert type_.shape is None or len(type_.shape) == array.ndim
        for dim, size in zip(type_.shape or (), array.shape):
            assert not isinstance(dim, int) or dim == size
    if found.contents is not None:
        assert found.contents == tuple(int(item) for item in results[0].ravel())


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
            constants = {name: Constant.of(array) for name, array in feeds.items()} if static else {}
            node = read(case.model, constants)
            assert not node.is_opaque, case.name
            results = evaluate(node, [feeds[name] if name else None for name in node.inputs])
            check_outputs(node, results, expected)
            check_types(node, feeds, results, static)
