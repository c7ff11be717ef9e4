"""Models of the zoo at small sizes, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.ir import Graph
from graphs.zoo import build
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.feeds import draw
from runtime.session import check_feeds

from .harness import expected, make_device, needs_compiler

pytestmark = needs_compiler
# Model, what it is built with, sizes of a run.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "resnet": ("resnet-tiny", {"image": 16}, {"batch": 2}),
    "bottleneck": ("resnet50", {"blocks": (1, 1), "width": 4, "image": 32, "classes": 5}, {"batch": 1}),
    "bert": ("bert-tiny", {"hidden": 16, "heads": 2, "intermediate": 24, "vocabulary": 20, "positions": 8},
             {"batch": 2, "sequence": 5}),
    "llama": ("llama-tiny", {"hidden": 16, "heads": 4, "groups": 2, "intermediate": 24}, {"batch": 2, "sequence": 4}),
    "tagger": ("bilstm-tiny", {}, {"batch": 2, "sequence": 4}),
    "logistic": ("logistic-regression", {}, {"batch": 4}),
    "multiply-add": ("multiply-add", {}, {"batch": 2}),
}  # fmt: skip


def _run(graph: Graph, feeds: dict[str, Any], seed: int) -> tuple[list[Any], Executor]:
    device = make_device(seed)
    device.captures = True  # a GPU always does
    executor = Executor(graph, device, Context.of(graph))
    sizes = check_feeds(graph, feeds)[1]
    executor.run(feeds, sizes)
    return executor.run(feeds, sizes), executor  # the second run finds memory as the first left it


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_without_numpy_as_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    model, built_with, sizes = MODELS[name]
    graph = build(model, **built_with)
    feeds = draw(graph, 0, sizes)
    wanted = expected(graph, feeds, tmp_path)
    found, executor = _run(graph, feeds, seed=1)
    for output, mine, right in zip(graph.outputs, found, wanted, strict=True):
        assert mine.dtype == right.dtype and mine.shape == right.shape
        np.testing.assert_allclose(mine, right, rtol=2e-4, atol=2e-5, err_msg=output)
    work = executor.work
    assert not work.on_host, work.on_host
    assert work.planned and work.captured, work.not_captured
    assert work.peak_bytes is not None and work.without_reuse is not None and work.peak_bytes <= work.without_reuse
