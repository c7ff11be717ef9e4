"""Graphs of unusual structure through `optimize`: compared in ONNX Runtime, replayed, the interface kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import load
from graphs.onnx_io import to_model_proto
from graphs.text import parse_graph
from optimizer import optimize

from .checking import examine, session

# name: (inputs, outputs, body)
GRAPHS = {
    "an output that is an input": ("x: float32[2, n]", "x, y", "a = Neg(x) y = Neg(a)"),
    "nothing but an input": ("x: float32[2, n]", "x", ""),
    "nothing but a constant": ("x: float32[2]", "k", "k = constant float32[2] [1, 2]"),
    "an output that is an input that rules lead to": ("x: float32[2, n]", "y, z", "a = Neg(x) y = Neg(a) z = Neg(a)"),
    "equal outputs": ("x: float32[2, n]", "a, b, c", "a = Exp(x) b = Exp(x) c = Identity(a)"),
    "empty tensors": ("x: float32[0, 3], z: float32[3, 0]", "y, s, t",
                      "a = Neg(x) y = Neg(a) s = ReduceSum(x, axes=[0]) t = MatMul(z, x)"),
    "tensors of rank 0": ("x: float32[], z: float32[]", "y, s", "a = Add(x, z) b = Sub(a, z) y = Mul(b, b) "
                          "s = Reshape(x, shape=[1, 1])"),
    "inputs and outputs that are left out": (
        "x: float32[4, 5]", "y, d, n", "h = constant float32[] 2 c = Clip(x, , h, min=runtime, max=runtime) "
        "y = Clip(c, min=0.0, max=1.0) d, e = Dropout(x) g = constant float32[5] [1, 2, 3, 4, 5] "
        "n, , i = LayerNormalization(x, g)"),
    "names in other scripts": (
        "`вход`: float32[2, 3], `輸入 🙂`: float32[2, 3]", "`výstup`", "`a b` = Add(`вход`, `輸入 🙂`) "
        "c = constant float32[] 1 d = Mul(`a b`, c) `výstup` = Relu(d)"),
    "names that egraft would make": (
        "constant: float32[2, 3], constant_1: float32[2, 3], mul: float32[3], mul_1: float32[3, 3], "
        "y_before: float32[2]", "y, add, add_1, matmul, split, split_1",
        "k = constant float32[3] [2, 3, 4] a = Mul(constant, k) b = Mul(a, mul) y = MatMul(b, mul_1) "
        "w = constant float32[3, 2] [1, 2, 3, 4, 5, 6] c = MatMul(constant_1, w) add = Add(c, y_before) "
        "v = constant float32[3, 1] [1, 2, 3] split = MatMul(constant_1, v) u = constant float32[3, 1] [4, 5, 6] "
        "split_1 = MatMul(constant_1, u) t = Transpose(y, perm=[1, 0]) add_1 = Transpose(t, perm=[1, 0]) "
        "o = constant float32[1] [1] matmul = Mul(a, o)"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("precision", ["exact", "rounding"])
def test_structure(name: str, precision: str, tmp_path: Path) -> None:
    inputs, outputs, body = GRAPHS[name]
    graph = parse_graph(f'graph "g" opset 18 ({inputs}) -> ({outputs}) {{ {body} }}')
    outcome = examine(graph, precision, str(tmp_path / "timings.db"), again=True)
    assert not outcome.fault and not outcome.dropped, f"{outcome.fault}{outcome.dropped}\n{graph}"
    assert outcome.compared and outcome.replayed and outcome.again == []


def test_a_body_is_not_rewritten_for_nothing(tmp_path: Path) -> None:
    graph = parse_graph("""graph "g" opset 18 (s: float32[4, 3], x: float32[2]) -> (y, z) {
        y, z = Scan(s, num_scan_inputs=1,
                    body=graph (e: float32[3]) -> (a, b) { b = Identity(x) a = Identity(x) }) }""")
    outcome = examine(graph, "rounding", str(tmp_path / "timings.db"))
    assert not outcome.fault and outcome.compared and not outcome.changed


def test_an_input_with_a_default_and_a_value_of_the_name_of_a_node(tmp_path: Path) -> None:
    """The initializer of an input is only its default; another value is fed."""
    nodes = [helper.make_node("Mul", ["x", "k"], ["m"]), helper.make_node("Mul", ["m", "one"], ["y"], name="x")]
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "k", "y")}
    constants = [numpy_helper.from_array(np.full(2, value, np.float32), name) for name, value in (("k", 2), ("one", 1))]
    model = helper.make_model(helper.make_graph(nodes, "g", [infos["x"], infos["k"]], [infos["y"]], constants),
                              opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    result = optimize(load(model.SerializeToString()), target="roofline", effort="low",
                      timings=str(tmp_path / "timings.db"), objective="nodes")
    made = to_model_proto(result.graph)
    onnx.checker.check_model(made, full_check=True)
    assert len(made.graph.node) == 1
    x, k = np.array([1, 2], np.float32), np.array([5, 7], np.float32)
    for feeds in ({"x": x}, {"x": x, "k": k}):
        assert session(made)(feeds)["y"].tolist() == session(model)(feeds)["y"].tolist()
