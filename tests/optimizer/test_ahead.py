"""What is made ahead comes in its order, errors included, and nothing is made while something is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from graphs.errors import SearchFailed
from graphs.inference import infer
from graphs.text import parse_graph
from optimizer.ahead import LEAD, Ahead, workers_for
from rules.catalogue import all_rules
from search import Budget, saturate


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_in_order_and_not_too_far_ahead(workers: int) -> None:
    made: list[int] = []

    def job(number: int) -> Callable[[], int]:
        def make() -> int:
            made.append(number)
            if number == 4:
                raise SearchFailed("job", "4 fails", "do without")
            return number * number

        return make

    with Ahead([job(number) for number in range(12)], workers) as ahead:
        for number in range(12):
            if number == 4:
                with pytest.raises(SearchFailed):
                    ahead.take()
            else:
                assert ahead.take() == number * number
            assert len(made) <= number + 1 + (workers + LEAD if workers else 0)
    assert sorted(made) == list(range(12))


def test_the_rest_is_not_made() -> None:
    made: list[int] = []
    with Ahead([lambda number=number: made.append(number) for number in range(50)], 2) as ahead:  # type: ignore[misc]
        ahead.take()
    assert len(made) <= 1 + 2 + LEAD


def test_nothing_is_made_while_something_is_measured() -> None:
    running: set[int] = set()
    lock = threading.Lock()

    def job(number: int) -> Callable[[], None]:
        def make() -> None:
            with lock:
                running.add(number)
            time.sleep(0.002)
            with lock:
                running.discard(number)

        return make

    with Ahead([job(number) for number in range(40)], 4) as ahead:
        for number in range(40):
            ahead.take()
            if number % 5 == 0:
                with ahead.quiet():
                    assert not running
                    time.sleep(0.004)
                    assert not running


@pytest.mark.parametrize(("cores", "jobs", "workers"), [(1, 50, 0), (2, 50, 2), (2, 3, 1), (64, 50, 4), (64, 0, 0)])
def test_workers(monkeypatch: pytest.MonkeyPatch, cores: int, jobs: int, workers: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert workers_for(jobs) == workers


def test_search_processes_outlive_the_threads_that_asked_for_them() -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[2, 4]) -> (y) { t = Relu(x) y = Relu(t) }')
    infer(graph)
    job = partial(saturate, graph, [rule for rule in all_rules() if rule.name.startswith("relu")], Budget())
    for _ in range(3):
        with Ahead([job] * 4, 2) as ahead:
            for _ in range(4):
                ahead.take()
        for _ in range(3):  # processes that ended with the threads would fail here, or a little later
            assert job().stop == "saturated"
            time.sleep(0.1)
