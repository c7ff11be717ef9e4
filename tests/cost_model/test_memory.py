"""Bytes that live at one time, counted by hand."""

from __future__ import annotations

import pytest

from cost_model.memory import peak_live_bytes
from graphs.inference import infer
from graphs.text import parse_graph

V = 4 * 4  # bytes of a float32[4]


def peak(text: str, **sizes: int) -> float:
    graph = parse_graph(text)
    infer(graph)
    return peak_live_bytes(graph, sizes)


def test_a_value_lives_until_it_was_read() -> None:
    assert peak('graph "g" opset 18 (x: float32[n]) -> (y) { a = Neg(x) b = Exp(a) y = Add(a, b) }', n=4) == 3 * V


@pytest.mark.parametrize("then, live", [
    ("t = Neg(a)", 2 * V),  # what is around, and what the branch makes: the result of the If lies there
    ("b = Neg(a) d = Exp(b) t = Add(b, d)", 4 * V),
])
def test_the_largest_branch_lives_on_top_of_what_is_around(then: str, live: int) -> None:
    found = peak(f"""graph "g" opset 18 (x: float32[4], c: bool[]) -> (y) {{
      a = Neg(x)
      y = If(c, then_branch=graph "t" () -> (t) {{ {then} }}, else_branch=graph "e" () -> (e) {{ e = Abs(a) }}) }}""")
    assert found == live


def test_a_turn_of_a_loop_lives_on_top_of_what_is_around() -> None:
    """Around it a lives, in a turn p, q and r; afterwards a, y and z."""
    assert peak("""graph "g" opset 18 (x: float32[4], m: int64[], go: bool[]) -> (z) {
      a = Neg(x)
      y = Loop(m, go, x, body=graph "b" (i: int64[], c: bool[], s: float32[4]) -> (c, r) {
        p = Neg(s) q = Exp(p) r = Add(p, q) })
      z = Add(a, y) }""") == V + 3 * V
