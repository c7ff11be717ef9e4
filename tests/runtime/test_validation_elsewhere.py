"""One of the graphs in another runtime, in the rounds of an earlier validation: so a result is validated on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, validate
from runtime.validation import rounds

X = 'graph "g" opset 17 (x: float32[n, 12]) -> (y) { %s }'
SOFTMAX, PARTS = "y = Softmax(x)", "e = Exp(x)\n s = ReduceSum(e, keepdims=1)\n y = Div(e, s)"


def test_the_same_rounds_are_run_again_and_judged_alike() -> None:
    original, same, wrong = (parse_graph(X % text) for text in (SOFTMAX, SOFTMAX, "y = Softmax(x, axis=0)"))
    seen: list[np.ndarray] = []
    prepared: list[Graph] = []

    def elsewhere(graph: Graph) -> rounds.Run | None:
        if graph is original:
            return None
        prepared.append(graph)
        session = Session(graph)

        def call(feeds: Mapping[str, Any]) -> list[Any]:
            seen.append(feeds["x"])
            return list(session.run(feeds).values())

        return call

    first = validate(original, original.copy())
    assert first.ok and {each.special for each in first.rounds} == {False, True}
    again = validate(original, same, executor=elsewhere, plan=first.rounds)
    assert again.ok and prepared == [same]
    assert [(each.seed, each.sizes, each.special, each.huge) for each in again.rounds] == [
        (each.seed, each.sizes, each.special, each.huge) for each in first.rounds]
    for each, values in zip(again.rounds, seen, strict=True):
        np.testing.assert_array_equal(values, rounds.feeds_of(original, each, "rounding")["x"])
    assert validate(original, wrong, executor=elsewhere, plan=first.rounds).status == "failed"
    assert all(each.ok and not each.reason for each in first.rounds)


def test_what_does_not_run_there_fails_with_what_was_said() -> None:
    """Exp of large numbers: infinity by infinity is NaN, where the softmax of them is a number."""
    original, parts = parse_graph(X % SOFTMAX), parse_graph(X % PARTS)
    feeds = {"x": np.full((2, 12), 200, np.float32)}

    def elsewhere(graph: Graph) -> rounds.Run | None:
        session = Session(graph)
        return (lambda given: list(session.run(given).values())) if graph is parts else None

    found = validate(original, parts, feeds=feeds, executor=elsewhere, plan=[rounds.Round(0, {}, given=True)])
    assert found.status == "failed" and "y" in found.reason
