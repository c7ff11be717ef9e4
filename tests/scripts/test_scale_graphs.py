"""The large graphs that are measured are of the size that is asked for, and run to finite numbers."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.inference import infer
from runtime import Session
from runtime.feeds import draw
from scripts.scale_graphs import LARGE
from search.partition import partition


@pytest.mark.parametrize(("name", "size", "least"), [("bert", 3, 200), ("random-cells", 600, 600),
                                                     ("unrolled-lstm", 12, 12 * 19)])
def test_they_run(name: str, size: int, least: int) -> None:
    graph = LARGE[name].make(size)
    infer(graph)
    assert least <= len(graph.nodes) <= least + 100
    outputs = Session(graph).run(draw(graph, 0, {"batch": 2, "sequence": 16}))
    for each in outputs.values():
        assert np.isfinite(each).all() and np.ptp(each) > 0


def test_no_two_regions_of_random_cells_are_equal() -> None:
    graph = LARGE["random-cells"].make(2000)
    infer(graph)
    keys = [region.key for region in partition(graph)]
    assert len(keys) > 10 and len(set(keys)) == len(keys)
