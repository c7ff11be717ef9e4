"""Contrib operators get inputs that they can take: indices inside their tables, caches that are full."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from cost_model.node_costs import spec_of
from cost_model.probe import node_graph
from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from runtime import run
from runtime.feeds import draw

EMBEDDING = """graph "g" opset 17 (ids: int32[batch, seq], kinds: int32[batch, seq], words: float32[9, 8],
    places: float32[30, 8], types: float32[2, 8], scale: float32[8], shift: float32[8]) -> (y) {
  y, n = com.microsoft.EmbedLayerNormalization(ids, kinds, words, places, types, scale, shift)
}"""
GROUPED = """graph "g" opset 17 (q: float32[batch, new, 64], k: float32[batch, new, 32], v: float32[batch, new, 32],
    pk: float32[batch, 2, past, 16], pv: float32[batch, 2, past, 16], lengths: int32[batch], total: int32[],
    cosine: float32[99, 8], sine: float32[99, 8]) -> (y, a, b) {
  y, a, b = com.microsoft.GroupQueryAttention(q, k, v, pk, pv, lengths, total, cosine, sine, num_heads=4,
                                              kv_num_heads=2, do_rotary=1)
}"""
ROTARY = """graph "g" opset 17 (x: float32[batch, new, 64], at: int64[batch, new], cosine: float32[5, 8],
    sine: float32[5, 8]) -> (y) {
  y = com.microsoft.RotaryEmbedding(x, at, cosine, sine)
}"""


def like_onnx_runtime(graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    theirs = onnxruntime.InferenceSession(proto_bytes(graph)).run(None, feeds)
    for mine, right in zip(run(graph, feeds).values(), theirs):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", [EMBEDDING, GROUPED, ROTARY],
                         ids=["embedding", "grouped", "rotary"])
def test_drawn_inputs_and_probes_of_single_nodes(text: str) -> None:
    graph = parse_graph(text)
    infer(graph)
    for seed in range(3):
        like_onnx_runtime(graph, draw(graph, seed, {"batch": 2, "seq": 12, "new": 1, "past": 6}))
    spec = spec_of(graph, graph.nodes[0], {"batch": 2, "seq": 12, "new": 1, "past": 6})
    like_onnx_runtime(*node_graph(spec))
