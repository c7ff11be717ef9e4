"""Models that state what is not so: ONNX Runtime runs them, and so they are measured."""

from __future__ import annotations

import numpy as np

from cost_model.targets import find_target
from cost_model.targets.base import prepared
from graphs.builder import Builder
from graphs.types import TensorType


def test_output_of_a_falsely_declared_rank() -> None:
    b = Builder("false", opset=17)
    x = b.input("x", "float32", ["n", 3, 4])
    b.output(b.Relu(x), "y", type=TensorType("float32", (3, 4)))
    graph = b.graph()
    runner = prepared(find_target("onnxruntime:cpu"), graph, {"x": np.ones((2, 3, 4), np.float32)})
    for _ in range(3):
        runner.run()
    assert runner.outputs()["y"].shape == (2, 3, 4)
