"""Whole models through a file and back: the same graph, and the same results bit for bit in ONNX Runtime.

And models that ONNX Runtime has fused, whose contrib operators are known and executed here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graphs import load, save, zoo
from graphs.ir import Graph
from graphs.text import print_graph
from runtime import run
from runtime.feeds import draw
from tests.zoo.helpers import SMALL, assert_close, checked, interface, session, sizes_of

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FAST = ("light_bvlc_alexnet", "light_squeezenet", "light_shufflenet", "light_zfnet512")
MODELS = [pytest.param(path, marks=[] if path.stem in FAST else pytest.mark.slow, id=path.stem)
          for path in sorted(LIGHT.glob("*.onnx"))]
FUSED = {  # what ONNX Runtime makes of a model, at least
    "bert-tiny": {"BiasGelu"},
    "resnet-tiny": {"FusedConv"}, "llama-tiny": {"SimplifiedLayerNormalization"}, "logistic-regression": {"FusedGemm"},
}


def round_trip(source: bytes | Path, tmp_path: Path) -> tuple[Graph, bytes]:
    """The graph, and the file that is written of it; read again it must be the same graph."""
    graph = load(source)
    save(graph, tmp_path / "again.onnx")
    again = load(tmp_path / "again.onnx")
    assert print_graph(again) == print_graph(graph)
    assert again.constants == graph.constants and again.declared == graph.declared and again.opsets == graph.opsets
    return graph, (tmp_path / "again.onnx").read_bytes()


def same_results(before: bytes, after: bytes, feeds: dict[str, np.ndarray]) -> None:
    for one, other in zip(session(before).run(None, feeds), session(after).run(None, feeds), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("path", MODELS)
def test_light_models_of_onnx(path: Path, tmp_path: Path) -> None:
    graph, written = round_trip(path, tmp_path)
    assert interface(written) == interface(path.read_bytes())
    same_results(path.read_bytes(), written, draw(graph, 0, {}))


@pytest.mark.parametrize("name", SMALL)
def test_built_models(name: str, tmp_path: Path) -> None:
    model = checked(zoo.build(name))
    graph, written = round_trip(model, tmp_path)
    assert interface(written) == interface(model)
    for sizes in sizes_of(graph):
        same_results(model, written, draw(graph, 0, sizes))


@pytest.mark.slow
@pytest.mark.skipif("EGRAFT_ZOO" not in os.environ, reason="EGRAFT_ZOO names no folder of trained models")
@pytest.mark.parametrize("name", zoo.names(trained=True))
def test_trained_models(name: str, tmp_path: Path) -> None:
    path = zoo.fetch(name)
    graph, written = round_trip(path, tmp_path)
    assert interface(written) == interface(path.read_bytes())
    same_results(path.read_bytes(), written, draw(graph, 0, dict(zoo.describe(name).dims)))


@pytest.mark.parametrize("name", SMALL)
def test_models_fused_by_onnx_runtime(name: str, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(checked(zoo.build(name)), options, providers=["CPUExecutionProvider"])
    graph, written = round_trip(tmp_path / "fused.onnx", tmp_path)
    assert not [node for node in graph.nodes if node.is_opaque]
    assert {node.op for node in graph.nodes} >= FUSED.get(name, set())
    for sizes in sizes_of(graph):
        feeds = draw(graph, 0, sizes)
        same_results((tmp_path / "fused.onnx").read_bytes(), written, feeds)
        assert_close(session(written).run(None, feeds), list(run(graph, feeds).values()))
