"""Sessions that read large weights where the graph holds them compute and optimize as those of the file."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.targets import find_target, sharing
from graphs import zoo
from runtime.feeds import draw


@pytest.mark.parametrize("name", ["bert-tiny", "resnet-tiny"])
def test_the_same_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo.build(name)
    target = find_target("onnxruntime:cpu")
    feeds = draw(graph, 0, {each: size for each, size in {"batch": 2, "sequence": 9}.items()
                            if each in zoo.describe(name).dims})
    expected = target.prepare(graph, feeds).outputs()
    assert not sharing.shares_weights(graph)
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1)
    assert sharing.shares_weights(graph)
    runner = target.prepare(graph, feeds)
    del graph
    found = runner.outputs()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
