"""The error of each step: of that step alone, against values worked out by hand; steps that are exact move nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.ir import Graph
from graphs.text import parse_graph, print_graph
from optimizer import steperrors, stepnotes
from optimizer.context import open_context
from optimizer.number_text import moved_text
from optimizer.options import Options
from optimizer.pipeline import optimize
from optimizer.replay import replay
from search.steps import Patch, Step

TEXT = """graph "m" opset 17 (x: float32[4]) -> (y, z) {
  a = Add(x, x)  y = Mul(a, x)  z = Neg(y) }"""


def steps_of(*patches: Patch) -> list[dict[str, Any]]:
    opsets = {"": 17}
    return [Step(index, "r", "rounding", "", [], [], [], patch, opset=17, opsets=opsets).to_dict()
            for index, patch in enumerate(patches)]


def patch(text: str, replace: dict[str, str], names: list[str], graph: Graph) -> Patch:
    """New nodes over values of a graph."""
    inputs = ", ".join(f"{name}: float32[4]" for name in names)
    made = parse_graph(f"graph opset 17 ({inputs}) -> ({', '.join(replace.values())}) {{ {text} }}")
    return Patch(made.nodes, made.constants, replace, dict(made.types))


def errors(graph: Graph, steps: list[dict[str, Any]], x: np.ndarray, tmp_path: Path) -> list[Any]:
    np.savez(tmp_path / "x.npz", x=x)
    options = Options(target="roofline", timings=str(tmp_path / "t.db"), inputs=str(tmp_path / "x.npz"))
    found = stepnotes.add_notes(graph, steps, open_context(graph, options))
    assert print_graph(found) == print_graph(replay(graph, steps))
    return [step["error"] for step in steps]


def test_an_error_is_that_of_its_step_alone(tmp_path: Path) -> None:
    """a = 2x becomes 2x + 0.5; then y = a * x, from the new a, becomes the same product; then z = -y becomes |y|."""
    graph = parse_graph(TEXT)
    x = np.array([1, -2, 3, 4], np.float32)
    first = patch("two = constant float32[] 2.0 half = constant float32[] 0.5 p = Mul(x, two) q = Add(p, half)",
                  {"a": "q"}, ["x"], graph)
    second = patch("r = Mul(x, q)", {"y": "r"}, ["x", "q"], graph)
    third = patch("s = Abs(y)", {"z": "s"}, ["y"], graph)
    found = errors(graph, steps_of(first, second, third), x, tmp_path)
    assert found[0] == {"value": "a", "absolute": 0.5, "relative": 0.0625, "changed": 4}
    assert found[1] == {"value": "y", "absolute": 0.0, "relative": 0.0, "changed": 0}
    assert found[2] == {"value": "z", "absolute": 64.0, "relative": 2.0, "changed": 4}
    assert [moved_text(each) for each in found] == [
        "'a' moves by at most 0.5, 0.0625 of its largest element", "'y' does not move",
        "'z' moves by at most 64, 2 of its largest element"]


def test_infinities_elsewhere_are_no_number(tmp_path: Path) -> None:
    graph = parse_graph("graph opset 17 (x: float32[4]) -> (y) { y = Sqrt(x) }")
    x = np.array([1, -1, np.inf, 4], np.float32)
    same = patch("r = Sqrt(x)", {"y": "r"}, ["x"], graph)
    other = patch("b = Abs(x) r2 = Sqrt(b)", {"y": "r2"}, ["x"], graph)
    assert errors(graph, steps_of(same), x, tmp_path)[0]["changed"] == 0  # NaN is NaN
    found = errors(graph, steps_of(other), x, tmp_path)[0]
    assert found == {"value": "y", "absolute": None, "relative": None, "changed": 1}
    assert moved_text(found) == "'y' differs in 1 elements, not by a number"


def test_exact_steps_of_a_whole_run_move_nothing(tmp_path: Path) -> None:
    graph = parse_graph("""graph "m" opset 17 (x: float32[2, 3, 4]) -> (y) {
      w = constant float32[4, 2] [0.1, -0.2, 0.3, 0.7, -1.1, 0.9, 0.35, 0.6]  b = constant float32[2] [0.3, -0.7]
      three = constant float32[] 3.0  seven = constant float32[] 7.0
      s = Transpose(x, perm=[1, 0, 2])  t = Transpose(s, perm=[1, 0, 2])  i = Identity(t)
      m = MatMul(i, w)  a = Add(m, b)  d = Div(a, three)  y = Mul(d, seven) }""")
    result = optimize(graph, target="roofline", effort="low", objective="nodes", timings=str(tmp_path / "t.db"))
    rows = result.trace.steps
    assert {row["exactness"] for row in rows} >= {"exact", "rounding"}
    for row in rows:
        error = row["error"]
        assert error is not None or not row["before"], row
        assert error is None or not error["changed"] or row["exactness"] != "exact", row
        assert error is None or error["relative"] < 1e-5, row
        assert row["change_source"] in ("", "roofline")


def test_large_models_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steperrors, "MOST_OPERATIONS", 1.0)
    graph = parse_graph(TEXT)
    steps = steps_of(patch("s = Abs(y)", {"z": "s"}, ["y"], graph))
    assert errors(graph, steps, np.ones(4, np.float32), tmp_path) == [None]
