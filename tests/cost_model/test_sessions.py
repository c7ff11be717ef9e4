"""Speed-ups over pairs of fresh sessions, by scripted times: nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cost_model.comparison import Comparison
from cost_model.protocol import Settings
from cost_model.sessions import LEAST_PAIRS, MOST_PAIRS
from cost_model.targets import resolve
from cost_model.targets.base import Runner
from cost_model.timings import Timings
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from tests.cost_model.fakes import FakeTarget, FakeTime

FEEDS = {"x": np.ones((2, 4), np.float32)}
MICROSECOND = 1e-6


def graph(body: str) -> Graph:
    found = parse_graph(f'graph "g" opset 18 (x: float32[2, 4]) -> (y) {{ {body} }}')
    infer(found)
    return found


BOTH = {"input": graph("y = Relu(x)"), "new": graph("y = Abs(x)")}


class Placed(FakeTarget):
    """Each session of `new` has a time of its own for as long as it lives; loading takes `load` seconds."""

    def __init__(self, news: list[float], base: float = 100.0, load: float = 0.0, called: float = 0.0) -> None:
        super().__init__()
        self.time = FakeTime()
        self.clocks = self.time.clocks
        self.news, self.base, self.load, self.called = news, base, load, called
        self.count: Counter[str] = Counter()
        self.living = self.most = 0

    def prepare(self, graph: Graph, feeds: Mapping[str, np.ndarray], threads: int = 1) -> Runner:
        super().prepare(graph, feeds, threads)
        name = "new" if graph.nodes[0].op == "Abs" else "input"
        seconds = self.news[self.count[name] % len(self.news)] if name == "new" else self.base
        self.count[name] += 1
        self.time.now += self.load
        self.living += 1
        self.most = max(self.most, self.living)

        def close() -> None:
            self.living -= 1

        call = self.time.runner((seconds + self.called) * MICROSECOND) if self.called else None
        return Runner(self.time.runner(seconds * MICROSECOND), dict, close, call=call)


def compared(target: FakeTarget, timings: Timings | None = None, seconds: float = 10.0,
             held: int = 0) -> Comparison | None:
    return target.compare_sessions(BOTH, "input", FEEDS, threads=1, seconds=seconds, settings=Settings(),
                                   timings=timings or Timings(":memory:"), held=held)


def test_the_interval_is_that_of_sessions_and_not_of_rounds() -> None:
    """Within a pair all rounds agree; what sessions differ by is in the interval, and no single one decides."""
    target = Placed([80.0, 70.0, 76.0, 84.0, 78.0, 82.0, 74.0, 90.0])
    found = compared(target)
    assert found is not None and found.pairs == MOST_PAIRS == 8
    result = found.results["new"]
    assert (result.ratio, result.low, result.high) == pytest.approx((0.79, 0.70, 0.90))
    assert result.confidence >= 0.99 and result.verdict == "faster"
    assert (target.most, target.living) == (16, 0)  # earlier sessions live on, so that none gets the memory of another


def test_a_gain_that_some_sessions_do_not_have_is_none() -> None:
    found = compared(Placed([80.0, 99.0]))
    assert found is not None and found.results["new"].verdict == "equal"
    assert (found.results["new"].low, found.results["new"].high) == pytest.approx((0.8, 0.99))


def test_runs_are_timed_as_callers_make_them() -> None:
    found = compared(Placed([50.0], called=50.0))
    assert found is not None and found.results["new"].seconds == pytest.approx(100 * MICROSECOND)


@pytest.mark.parametrize(("seconds", "pairs"), [
    (0.1, None), (0.25, LEAST_PAIRS), (0.95, 4), (1.2, 5), (60.0, MOST_PAIRS),
])  # fmt: skip
def test_another_pair_is_begun_as_far_as_the_time_reaches(seconds: float, pairs: int | None) -> None:
    """A pair takes 0.2 s for loading, and a little for the runs. Where it takes far too long there is no second one."""
    target = Placed([80.0], load=0.1)
    found = compared(target, seconds=seconds)
    if pairs is None:
        assert found is None and target.count["new"] == 1 and target.living == 0
        return
    assert found is not None and found.pairs == pairs == target.count["new"] == target.count["input"]


def test_sessions_that_hold_much_are_few() -> None:
    for held, pairs in ((100 << 20, 3), (30 << 20, 4)):
        found = compared(Placed([80.0]), held=held)
        assert found is not None and found.pairs == pairs


def test_they_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    first = compared(Placed([80.0, 70.0]), Timings(path))
    warm = Placed([1.0])
    for timings, seconds in ((Timings(path), 10.0), (Timings(path, frozen=True), 0.0)):
        again = compared(warm, timings, seconds)
        assert first is not None and again is not None and not warm.prepared
        assert (again.kind, again.pairs, again.results) == ("database", first.pairs, first.results)
        assert len(timings.used) == 1  # what a run used stands in its hash
    assert Timings(path).damaged() == 0


def test_nothing_is_measured_without_time_nor_for_a_frozen_database(tmp_path: Path) -> None:
    target = Placed([80.0])
    assert compared(target, seconds=0.0) is None
    compared(Placed([80.0]), Timings(tmp_path / "t.db"))
    frozen = Timings(tmp_path / "t.db", frozen=True)
    backwards = target.compare_sessions(BOTH, "new", FEEDS, threads=1, seconds=9.0, settings=Settings(), timings=frozen)
    assert backwards is None
    assert not target.prepared and not frozen.used


def test_what_measures_nothing_has_none() -> None:
    assert resolve("roofline", True, None).compare_sessions(
        BOTH, "input", FEEDS, threads=1, seconds=9.0, settings=Settings(), timings=Timings(":memory:")) is None


def test_a_graph_is_not_compared_with_itself() -> None:
    target = Placed([80.0])
    same = {"input": BOTH["input"], "new": BOTH["input"].copy()}
    assert target.compare_sessions(same, "input", FEEDS, threads=1, seconds=9.0, settings=Settings(),
                                   timings=Timings(":memory:")) is None
    assert not target.prepared
