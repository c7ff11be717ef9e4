"""An Expand goes where broadcasting does its work, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.text import parse_graph
from optimizer.normalize import normalize
from runtime import run

HEAD = "graph opset 17 (x: float32[n, 3], w: float32[1, 3], c: bool[n, 3], p: float32[1, 3]) -> (y) { s = Shape(x) "
GROW = "e = Expand(w, s, shape=runtime) "


@pytest.mark.parametrize(("body", "expands"), [
    (GROW + "y = Add(e, x) }", 0),
    (GROW + "y = Sub(x, e) }", 0),
    (GROW + "y = Where(c, e, p) }", 0),
    (GROW + "t = Mul(x, e) y = Less(t, e) }", 0),
    ("e = Expand(w, shape=[7, 3]) t = Expand(p, shape=[7, 1]) y = Add(e, t) }", 1),  # one of them is needed
    (GROW + "y = Add(e, p) }", 1),  # the other operand has one row
    (GROW + "t = Add(x, e) r = Relu(e) y = Add(t, r) }", 1),  # Relu does not broadcast
    (GROW + "y = PRelu(e, p) }", 1),  # the data of PRelu are not broadcast
])
@pytest.mark.parametrize("n", [1, 4])
def test_expands(body: str, expands: int, n: int) -> None:
    graph = parse_graph(HEAD + body)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(n, 3)), "w": rng.normal(size=(1, 3)), "p": rng.normal(size=(1, 3))}
    feeds = {**{name: value.astype(np.float32) for name, value in feeds.items()}, "c": rng.random((n, 3)) < 0.5}
    expected = run(graph, feeds)["y"]
    normalize(graph)
    assert sum(node.op == "Expand" for node in graph.nodes) == expands
    np.testing.assert_array_equal(run(graph, feeds)["y"], expected)


def test_an_output_stays() -> None:
    graph = parse_graph("graph opset 17 (x: float32[n, 3], w: float32[1, 3]) -> (y, e) "
                        "{ s = Shape(x) " + GROW + "y = Add(e, x) }")
    normalize(graph)
    assert "Expand" in [node.op for node in graph.nodes]


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_a_bias_keeps_its_expand(op: str) -> None:
    """ONNX Runtime refuses a bias of another length than the last axis."""
    graph = parse_graph("graph opset 17, com.microsoft 1 (x: float32[4, 3], b: float32[1]) -> (y) "
                        f"{{ e = Expand(b, shape=[3]) y = com.microsoft.{op}(x, e) }}")
    normalize(graph)
    assert [node.op for node in graph.nodes] == ["Expand", op]
