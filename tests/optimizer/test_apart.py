"""Validation in another process gives the same report, and its loss costs nothing but time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs import zoo
from graphs.ir import Graph
from optimizer import apart, optimize
from optimizer.apart import Apart
from runtime.validation import validate


@pytest.fixture()
def for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "suits", lambda graph, feeds=None: True)


def optimized(path: Path, graph: Graph, **settings: Any) -> Any:
    return optimize(graph, target="roofline", timings=str(path / "t.db"), fresh=True, **settings)


@pytest.mark.usefixtures("for_all")
def test_the_report_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo.build("bert-tiny")
    results = []
    monkeypatch.setattr(Apart, "result", lambda self, given=Apart.result: results.append(given(self)) or results[-1])
    there = optimized(tmp_path, graph)
    assert len(results) == 1 and results[0].ok
    monkeypatch.setattr(apart, "suits", lambda graph, feeds=None: False)
    here = optimized(tmp_path, graph)
    assert len(results) == 1
    assert there.report["validation"] == here.report["validation"] and there.trace.steps == here.trace.steps


@pytest.mark.usefixtures("for_all")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_process_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    plain = Apart.begin

    def begin(self: Apart, *given: Any) -> bool:
        if when == "before":
            self.process.kill()
            self.process.wait()
            return plain(self, *given)
        begun = plain(self, *given)
        self.process.kill()
        return begun

    monkeypatch.setattr(Apart, "begin", begin)
    found = optimized(tmp_path, zoo.build("bert-tiny"))
    assert found.report["validation"]["ok"] and found.report["steps"] > 0 and not found.report["warnings"]


def test_what_raises_there_is_told_as_nothing() -> None:
    graph = zoo.build("multiply-add")
    process = Apart()
    try:
        for exactness, ok in (("rounding", True), ("no such class", False), ("exact", True)):
            assert process.begin(graph, graph, {"exactness": exactness})
            found = process.result()
            assert (found is not None and found.ok) == ok
        assert found is not None and found.to_dict() == validate(graph, graph, "exact").to_dict()
    finally:
        process.kill()


def test_which_graphs_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    graph = zoo.build("bert-tiny")
    assert not apart.suits(graph)
    monkeypatch.setattr(apart, "LARGE_NODES", 10)
    assert apart.suits(graph) and apart.suits(graph, {"x": np.zeros(9)})
    assert not apart.suits(graph, {"x": np.zeros(apart.MOST_BYTES, np.uint8)})
    monkeypatch.setattr(apart, "MOST_BYTES", 10)
    assert not apart.suits(graph)
    monkeypatch.setattr(apart, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert not apart.suits(graph)
