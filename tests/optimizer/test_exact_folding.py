"""Under `exact` nothing is computed beforehand that ONNX Runtime would compute to other bits."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from optimizer import optimize
from runtime import run as run_here
from runtime.reproducible import OPERATORS

ort = pytest.importorskip("onnxruntime")
OPTIONS = {"target": "roofline", "effort": "low", "objective": "nodes"}


def through(op: str, random: np.random.Generator) -> Graph:
    """x times what an operator makes of constants."""
    b = Builder("folded", opset=17)
    x, w = b.input("x", "float32", [4, 64]), random.normal(size=(64, 64)).astype(np.float32)
    if op == "Conv":
        kernel = random.normal(size=(1, 1, 3, 3)).astype(np.float32)
        made = b.Reshape(b.Conv(w.reshape(1, 1, 64, 64), kernel, pads=[1, 1, 1, 1]), [64, 64])
    elif op in ("Mul", "Div", "MatMul"):
        made = getattr(b, op)(w, random.uniform(0.1, 3, (64, 64)).astype(np.float32))
    else:
        made = getattr(b, op)(w)
    b.output(b.MatMul(x, made), "y")
    return b.graph()


def runs(graph: Graph, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto_bytes(graph), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("op", ["Exp", "Softmax", "Tanh", "Erf", "Conv", "MatMul"])
def test_what_has_bits_of_the_runtime_stays_under_exact(op: str) -> None:
    random = np.random.default_rng(0)
    graph, x = through(op, random), random.normal(size=(4, 64)).astype(np.float32)
    result = optimize(graph, precision="exact", **OPTIONS)
    assert op in [node.op for node in result.graph.nodes if node.outputs != ("y",)]
    np.testing.assert_array_equal(runs(result.graph, x), runs(graph, x))
    folded = optimize(graph, **OPTIONS)
    assert [node.op for node in folded.graph.nodes] == ["MatMul"]
    assert {step["exactness"] for step in folded.trace.steps if step["rule"] == "fold-constants"} == {"rounding"}


@pytest.mark.parametrize("op", ["Mul", "Div", "Abs", "Floor"])
def test_what_every_runtime_computes_alike_is_folded_under_exact(op: str) -> None:
    random = np.random.default_rng(0)
    graph, x = through(op, random), random.normal(size=(4, 64)).astype(np.float32)
    result = optimize(graph, precision="exact", **OPTIONS)
    assert [node.op for node in result.graph.nodes] == ["MatMul"]
    np.testing.assert_array_equal(runs(result.graph, x), runs(graph, x))
    assert {step["exactness"] for step in result.trace.steps} == {"exact"}


UNARY = ("Abs", "Ceil", "Floor", "Round", "Sqrt", "Neg", "Relu", "IsNaN", "IsInf")
BINARY = ("Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 6e-8, -6e-8, 65504.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_operators_that_exact_folds_have_the_bits_of_onnxruntime(dtype: str) -> None:
    assert set(UNARY) | set(BINARY) <= OPERATORS
    b = Builder("bits", opset=17)
    pairs = np.array([(p, q) for p in SPECIAL for q in SPECIAL], dtype)
    x, y = (b.input(name, dtype, [len(pairs)]) for name in "xy")
    for op in UNARY:
        if op != "IsInf" or dtype == "float32":
            b.output(getattr(b, op)(x), op.lower())
    for op in BINARY:
        b.output(getattr(b, op)(x, y), op.lower())
    for to in (1, 10, 11):
        b.output(b.Cast(x, to=to), f"cast{to}")
    graph, feeds = b.graph(), {"x": pairs[:, 0], "y": pairs[:, 1]}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = ort.InferenceSession(proto_bytes(graph), options).run(None, feeds)
    for (name, mine), right in zip(run_here(graph, feeds).items(), wanted, strict=True):
        assert mine.dtype == right.dtype
        np.testing.assert_array_equal(mine, right, err_msg=name)
        if right.dtype.kind == "f":
            known = ~np.isnan(right)
            np.testing.assert_array_equal(np.signbit(mine[known]), np.signbit(right[known]), err_msg=name)


@pytest.mark.parametrize("op", ["Max", "Min", "Clip", "ReduceMax", "ArgMax", "TopK", "MaxPool", "Unique", "Sign"])
def test_what_picks_the_largest_is_not_among_them(op: str) -> None:
    assert op not in OPERATORS
