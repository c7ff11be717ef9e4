"""A model that ONNX Runtime has fused already is optimized around its contrib operators, and validated."""

from __future__ import annotations

from pathlib import Path

from graphs.text import parse_graph
from optimizer import optimize

FUSED = """graph "g" opset 17 (x: float32[n, 4, 8]) -> (y) {
  zero = constant float32[] 0
  w = constant float32[2, 2] [1, 2, 3, 4]
  big = Expand(w, shape=[4, 2, 2])
  weights = Reshape(big, shape=[8, 2])
  row = constant float32[8] [1, 2, 3, 4, 5, 6, 7, 8]
  thin = constant float32[2] [1, 2]
  n, unused, unread, sum = com.microsoft.SkipLayerNormalization(x, x, row, row)
  more = Add(sum, zero)
  t = Transpose(more, perm=[0, 2, 1])
  u = Transpose(t, perm=[0, 2, 1])
  a = Add(u, n)
  m = com.microsoft.FusedMatMul(a, weights, alpha=0.5)
  y = com.microsoft.BiasGelu(m, thin)
}"""


def test_a_fused_model(tmp_path: Path) -> None:
    graph = parse_graph(FUSED.replace("n, unused, unread, sum", "n, , , sum"))
    result = optimize(graph, target="roofline", effort="low", timings=str(tmp_path / "timings.db"))
    assert [node.op for node in result.graph.nodes] == ["SkipLayerNormalization", "Add", "FusedMatMul", "BiasGelu"]
    assert result.report["validation"]["ok"] and not result.report["dropped"]
