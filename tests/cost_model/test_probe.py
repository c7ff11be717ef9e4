"""What nodes are measured with."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.costs import NodeInput, NodeSpec
from cost_model.probe import node_graph
from graphs.types import TensorType

ROWS = NodeInput(TensorType("float32", (16, 8)))


@pytest.mark.parametrize(("exponent", "negative"), [
    (3.0, True), (2.0, True), (0.5, False), (-1.0, False), (None, False),
])  # fmt: skip
def test_whole_powers_are_taken_of_either_sign(exponent: float | None, negative: bool) -> None:
    """Of values that are positive alone a cube takes NumPy a hundredth of the time that it takes in a GELU."""
    power = NodeInput(TensorType("float32", ()), exponent is not None,
                      None if exponent is None else np.array(exponent, np.float32))
    _, feeds = node_graph(NodeSpec("Pow", "", {}, (ROWS, power), 1, 17))
    assert bool((feeds["x0"] < 0).any()) == negative
    if negative:
        assert (feeds["x0"] > 0).any()
