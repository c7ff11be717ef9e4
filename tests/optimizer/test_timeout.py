"""A run whose time is over hands back the best that was validated, and says what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer.context import EFFORTS, Context, within
from optimizer.pipeline import optimize

TEXT = """graph opset 17 (x: float32[N, 4]) -> (y) {
    a = Identity(x)
    b = Neg(a)
    c = Neg(b)
    y = Exp(c)
}"""


def _optimized(folder: Path, **more: Any) -> Any:
    graph = parse_graph(TEXT)
    infer(graph)
    return optimize(graph, target="onnxruntime:cpu", threads=1, effort="low", timings=str(folder / "t.db"), **more)


def _operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_no_time_at_all(tmp_path: Path) -> None:
    result = _optimized(tmp_path, timeout=1e-6)
    assert result.report["unchanged"] and _operators(result.graph) == ["Identity", "Neg", "Neg", "Exp"]
    assert any("the input is handed back" in warning for warning in result.report["warnings"])


@pytest.mark.parametrize(("left_out", "expected"), [
    ("for a search", ["Neg", "Neg", "Exp"]), ("to measure all finalists", ["Exp"]),
    ("for costs and errors of the steps", ["Exp"]), ("to validate anything", ["Identity", "Neg", "Neg", "Exp"])])
def test_what_was_found_until_then_is_validated(left_out: str, expected: list[str], tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def late(self: Context, what: str, share: float = 1.0) -> bool:
        asked.append(what)
        return what.startswith(left_out)

    monkeypatch.setattr(Context, "late", late)
    result = _optimized(tmp_path, timeout=1000.0)
    assert any(what.startswith(left_out) for what in asked)
    assert _operators(result.graph) == expected
    assert result.report["unchanged"] or result.report["validation"]["status"] == "passed"


def test_limits_fit_into_the_timeout() -> None:
    for effort in EFFORTS.values():
        short = within(effort, 4.0)
        assert short.budget.wall_seconds + short.measure_seconds + short.compare.budget < 4.0
        assert within(effort, None) is effort
        assert within(effort, 1e6) == effort
