"""Scan of opset 8, which stays opaque in graphs, is executed as ONNX Runtime executes it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import graphs
from runtime import run


def scan_model(lengths: bool, directions: list[int]) -> onnx.ModelProto:
    """Running sums of two sequences, multiplied."""
    def info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Add", ["s", "p"], ["t"]),
             helper.make_node("Identity", ["t"], ["u"])]
    body = helper.make_graph(nodes, "body", [info("s", 2), info("a", 2), info("b", 2)], [info("t", 2), info("u", 2)])
    node = helper.make_node("Scan", ["n" if lengths else "", "s0", "x", "y"], ["end", "sums"], body=body,
                            num_scan_inputs=2, directions=directions)
    inputs = [info("s0", 3, 2), info("x", 3, 4, 2), info("y", 3, 4, 2)]
    inputs += [helper.make_tensor_value_info("n", TensorProto.INT64, [3])] if lengths else []
    graph = helper.make_graph([node], "g", inputs, [info("end", 3, 2), info("sums", 3, 4, 2)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)


@pytest.mark.parametrize("directions", [[0, 0], [1, 0]])
@pytest.mark.parametrize("lengths", [None, [4, 2, 1]])
def test_like_onnx_runtime(lengths: list[int] | None, directions: list[int]) -> None:
    rng = np.random.default_rng(0)
    feeds = {"s0": rng.normal(size=(3, 2)), "x": rng.normal(size=(3, 4, 2)), "y": rng.normal(size=(3, 4, 2))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    if lengths is not None:
        feeds["n"] = np.array(lengths)
    model = scan_model(lengths is not None, directions)
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    ours = run(graphs.load(model.SerializeToString()), feeds)
    for mine, right in zip(ours.values(), theirs):
        np.testing.assert_allclose(mine, right, rtol=1e-6)
