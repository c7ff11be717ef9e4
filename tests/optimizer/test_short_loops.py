"""Loops that run once or never are no loops."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from graphs import load
from graphs.ir import Graph
from optimizer.normalize import normalize
from runtime import run

BODY = ("<body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so, float[2] row) "
        "{ co = Identity(ci) f = Cast<to = 1>(i) g = Add(s, f) so = Exp(g) row = Neg(g) }>")


def looped(count: int | None, condition: bool | None, outputs: str = "y, rows") -> Graph:
    given = ("m" if count is not None else "") + ", " + ("c" if condition is not None else "")
    head = "float[2] y" + (", float[k, 2] rows" if "rows" in outputs else "")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => ({head}) '
        f"{{ {outputs} = Loop({given}, x) {BODY} }}")
    for name, value, dtype in (("m", count, np.int64), ("c", condition, np.bool_)):
        if value is not None:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
    return load(model.SerializeToString())


def check(graph: Graph, loops: int) -> None:
    feeds = {"x": np.array([0.25, -3.0], np.float32)}
    expected = run(graph, feeds)
    normalize(graph)
    assert sum(node.op == "Loop" for node in graph.nodes) == loops
    found = run(graph, feeds)
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("condition", [None, True])
def test_one_run(condition: bool | None) -> None:
    check(looped(1, condition), 0)


@pytest.mark.parametrize(("count", "condition"), [(0, None), (-3, True), (5, False), (None, False)])
def test_no_run(count: int | None, condition: bool | None) -> None:
    check(looped(count, condition, "y"), 0)
    check(looped(count, condition), 1)  # its rows are empty, of a shape that only the Loop states


def test_several_runs_stay() -> None:
    check(looped(2, True), 1)


def test_one_run_gives_what_the_specification_says() -> None:
    graph = looped(1, True)
    normalize(graph)
    x = np.array([0.25, -3.0], np.float32)
    found = run(graph, {"x": x})
    np.testing.assert_allclose(found["y"], np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(found["rows"], -x[None])


@pytest.mark.parametrize(("count", "loops"), [(1, 0), (3, 1)])
def test_a_loop_of_which_only_the_count_is_given(count: int, loops: int) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[k, 2] rows) { rows = Loop(m, m) '
        "<body = b (int64 i, bool ci) => (bool co, float[2] row) { co = Identity(ci) row = Neg(x) }> }")
    model.graph.node[0].input[1] = ""
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(count, np.int64), "m"))
    check(load(model.SerializeToString()), loops)
