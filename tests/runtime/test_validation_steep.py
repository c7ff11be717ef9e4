"""Right graphs whose outputs have steep places pass, wrong ones do not."""

from __future__ import annotations

import pytest

from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import validate
from runtime.feeds import draw

HEAD = "graph opset 17 (x: float32[1024, 64], w: float32[64, 64]) -> (y) {"
WHOLE = f"{HEAD} t = MatMul(x, w) a = Abs(t) y = Sqrt(a) }}"
HALVES = f"""{HEAD}
    s = constant int64[2] [32, 32]
    p, q = Split(x, s, axis=1)
    u, v = Split(w, s, axis=0)
    g = MatMul(p, u)
    h = MatMul(q, v)
    t = Add(g, h)
    a = Abs(t)
    y = Sqrt(a)
}}"""
SHIFTED = HALVES.replace("a = Abs(t)", "e = constant float32[] 2e-5\n    r = Abs(t)\n    a = Add(r, e)")


def _graph(text: str) -> Graph:
    graph = parse_graph(text)
    infer(graph)
    return graph


@pytest.mark.parametrize("seed", [4, 5])
def test_a_sum_in_another_order_before_a_root_near_zero_is_rounding(seed: int) -> None:
    """One element of 65536, to which the first runs with moved inputs happened to do little."""
    assert validate(_graph(WHOLE), _graph(HALVES), seed=seed).ok


def test_a_shift_before_the_root_is_found_however_steep_the_root_is() -> None:
    assert not validate(_graph(WHOLE), _graph(SHIFTED), seed=4).ok


COUNTED = """graph "g" opset 17 (n: int64[], x: float32[4, 4]) -> (y) {
  c = Cast(n, to=1)
  k = constant float32[] -0.1
  m = Mul(c, k)
  p = Exp(m)
  one = constant float32[] %s
  d = Sub(one, p)
  r = Sqrt(d)
  y = Mul(x, r)
}"""


def test_integers_that_make_everything_nan_give_way_to_others() -> None:
    """1 - e^(-n/10) is negative for each n below 0, which no floats help."""
    graph, wrong = parse_graph(COUNTED % 1), parse_graph(COUNTED % 1.001)
    seed = next(seed for seed in range(20) if draw(graph, seed)["n"] < 0)
    found = validate(graph, graph, seed=seed)
    assert found.ok and "integers were drawn not negative" in found.notes[0]
    assert draw(graph, seed, spread=found.rounds[0].spread)["n"] > 0
    assert validate(graph, wrong, seed=seed).status == "failed"
