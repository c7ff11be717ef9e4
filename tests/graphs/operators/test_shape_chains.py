"""Shape arithmetic as exporters write it, through the text form and the whole of inference."""

from __future__ import annotations

import pytest

from graphs.inference import contents, infer
from graphs.text import parse_graph

HEADS = """
graph "split heads" opset 17 (x: float32[batch, seq, 768]) -> (y, k) {
  zero = constant int64[] 0
  one = constant int64[] 1
  two = constant int64[] 2
  heads = constant int64[] 12
  s = Shape(x)
  b = Gather(s, zero)
  t = Gather(s, one)
  c = Gather(s, two)
  d = Div(c, heads)
  b1 = Unsqueeze(b, axes=[0])
  t1 = Unsqueeze(t, axes=[0])
  h1 = constant int64[1] [12]
  d1 = Unsqueeze(d, axes=[0])
  target = Concat(b1, t1, h1, d1, axis=0)
  r = Reshape(x, target, shape=runtime)
  y = Transpose(r, perm=[0, 2, 1, 3])
  k = Reshape(r, shape=[0, 0, -1])
}
"""

EXPAND = """
graph "mask" opset 17 (ids: int64[batch, seq], m: float32[batch, seq]) -> (e, p, f) {
  minus = constant int64[3] [-1, -1, -1]
  wanted = constant int64[3] [-1, 4, -1]
  fours = constant int64[3] [4, 4, 4]
  zero = constant int64[] 0
  one = constant int64[] 1
  s = Shape(ids)
  t = Gather(s, one)
  p = Range(zero, t, one)
  i = Equal(wanted, minus)
  target = Where(i, fours, wanted)
  q = Unsqueeze(m, axes=[1, 2])
  f = ConstantOfShape(s)
  n = constant int64[1] [1]
  t1 = Unsqueeze(t, axes=[0])
  four = Concat(n, n, t1, t1, axis=0)
  e = Expand(q, four, shape=runtime)
}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEADS, {"y": "float32[batch, 12, seq, 64]", "k": "float32[batch, seq, 768]"}),
        (EXPAND, {"e": "float32[batch, 1, seq, seq]", "p": "int64[seq]", "f": "float32[batch, seq]"}),
    ],
)
def test_shapes_stay_symbolic(text: str, expected: dict[str, str]) -> None:
    graph = parse_graph(text)
    infer(graph)
    assert {name: str(graph.types[name]) for name in graph.outputs} == expected


def test_contents_of_a_chain() -> None:
    known = contents(parse_graph(HEADS))
    assert ", ".join(map(str, known["target"])) == "batch, seq, 12, 64"
    assert contents(parse_graph(EXPAND))["target"] == (4, 4, 4)
