"""Finalists of a large model: so many sessions at a time as fit into memory, and the same choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cost_model.targets.base import Runner
from graphs.ir import Graph
from optimizer import finalists
from optimizer.finalists import INPUT, Finalist, race
from tests.optimizer.test_finalists import BEFORE, HEAD, MICROSECOND, Scripted, context_of, graph_of

RIVALS = {op: f"{HEAD} y = {op}(x) }}" for op in ("Relu", "Neg", "Abs")}
TIMES = {"Relu": 9.5, "Neg": 8.0, "Abs": 9.0}


class Counting(Scripted):
    """Knows how many sessions live."""

    live = most = 0

    def prepare(self, graph: Graph, feeds: Mapping[str, np.ndarray], threads: int = 1) -> Runner:
        runner = super().prepare(graph, feeds, threads)
        self.live += 1
        self.most = max(self.most, self.live)

        def close() -> None:
            self.live -= 1

        return Runner(runner.run, runner.outputs, close)


@pytest.mark.parametrize(("together", "most"), [(2, 2), (3, 3), (1 << 30, 4)])
def test_sessions_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, most: int) -> None:
    monkeypatch.setattr(finalists, "TOGETHER_BYTES", together)  # a graph without weights counts as one byte
    target = Counting({BEFORE: [(10.0,)], **{text: [(TIMES[op],)] for op, text in RIVALS.items()}})
    entries = [Finalist(INPUT, graph_of(BEFORE), list)]
    entries += [Finalist(op, graph_of(text), list, TIMES[op] * MICROSECOND) for op, text in RIVALS.items()]
    context = context_of(tmp_path / "t.db", target)
    outcome = race(entries, context, 10 * MICROSECOND)
    assert target.most == most and target.live == 0
    assert [entry.name for entry in outcome.ranked] == ["Neg", "Abs", "Relu", INPUT]
    assert outcome.comparison is not None
    found = {name: each.ratio for name, each in outcome.comparison.results.items()}
    assert found == pytest.approx({INPUT: 1.0, "Relu": 0.95, "Neg": 0.8, "Abs": 0.9})
    sessions = target.sessions.total()
    again = race(entries, context, 10 * MICROSECOND)  # all parts are in the database
    assert again.comparison is not None and again.comparison.kind == "database"
    assert again.comparison.results == outcome.comparison.results and target.sessions.total() == sessions


@pytest.mark.parametrize(("predicted", "left_out"), [(8.01, "longer"), (7.99, "longer"), (8.1, ""), (7.9, "")])
def test_of_two_that_are_predicted_alike_the_simpler_is_measured(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predicted: float, left_out: str) -> None:
    monkeypatch.setattr(finalists, "LARGE_SECONDS", 1e-9)
    longer = f"{HEAD} t = Relu(x) y = Neg(t) }}"
    target = Counting({BEFORE: [(10.0,)], RIVALS["Relu"]: [(9.0,)], longer: [(8.0,)]})
    entries = [Finalist(INPUT, graph_of(BEFORE), list),
               Finalist("longer", graph_of(longer), list, predicted * MICROSECOND),
               Finalist("Relu", graph_of(RIVALS["Relu"]), list, 8.0 * MICROSECOND)]
    outcome = race(entries, context_of(tmp_path / "t.db", target), 10 * MICROSECOND)
    assert outcome.comparison is not None
    assert set(outcome.comparison.results) == {INPUT, "Relu", "longer"} - {left_out}
    assert set(outcome.left_out) == {left_out} - {""}


def test_of_a_large_model_only_what_may_still_win_is_looked_at_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower, sessions = f"{HEAD} a = Abs(x) y = Relu(a) }}", []
    for seconds in (1.0, 1e-9):
        monkeypatch.setattr(finalists, "LARGE_SECONDS", seconds)
        target = Scripted({BEFORE: [(10.0,)], RIVALS["Neg"]: [(8.0,)], slower: [(11.5,)]})
        entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist("Neg", graph_of(RIVALS["Neg"]), list, 8e-6),
                   Finalist("slower", graph_of(slower), list, 7.9e-6)]
        outcome = race(entries, context_of(tmp_path / f"{seconds}.db", target), 10 * MICROSECOND)
        assert outcome.ranked[0].name == "Neg"
        sessions.append(target.sessions[str(graph_of(slower))])
    assert sessions == [2, 1]


def test_a_large_model_that_is_slower_than_the_input_once_is_looked_at_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "LARGE_SECONDS", 1e-9)
    leaner = f"{HEAD} y = Relu(x) }}"
    target = Scripted({BEFORE: [(10.0,)], leaner: [(11.5,), (9.9,)]})
    entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist("new", graph_of(leaner), list)]
    outcome = race(entries, context_of(tmp_path / "t.db", target), 10 * MICROSECOND)
    assert (outcome.ranked[0].name, target.sessions[str(graph_of(leaner))]) == ("new", 2)
