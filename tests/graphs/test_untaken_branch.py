"""A branch that is not taken may be ill-typed: the model is not refused for it."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.errors import InferenceError
from graphs.text import parse_graph
from runtime import run

GUARDED = """graph opset 17 (x: float32[2, 3], c: bool[]) -> (y) {
  y = If(c, then_branch=graph () -> (a) { a = Squeeze(x, axes=[0]) }, else_branch=graph () -> (b) { b = Relu(x) })
}"""


def test_an_ill_typed_branch_leaves_types_unknown_and_the_model_runs() -> None:
    graph = parse_graph(GUARDED)
    x = np.array([[-1, 0, 2], [3, -4, 5]], np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x, "c": np.array(False)})["y"], np.maximum(x, 0))


def test_the_same_node_outside_is_refused() -> None:
    with pytest.raises(InferenceError, match="ill-typed"):
        parse_graph("graph opset 17 (x: float32[2, 3]) -> (y) { y = Squeeze(x, axes=[0]) }")
