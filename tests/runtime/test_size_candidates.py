"""Sizes that are guessed where some are given: they follow those, and stay small."""

from __future__ import annotations

import math
from itertools import islice

from graphs.dims import evaluate
from graphs.text import parse_graph
from runtime.feeds import MAX_GUESSED, size_candidates

LOSS = """graph "g" opset 17 (x: float32[`?x.0`, 3, h, w], target: float32[`?target.0`, 3, h, w]) -> (y) {
  y = Sub(x, target)
}"""


def test_a_size_that_is_equal_by_default_follows_the_given_one() -> None:
    second = list(islice(size_candidates(parse_graph(LOSS), {"?x.0": 3}), 2))[1]
    assert second == {"?x.0": 3, "?target.0": 3, "h": 32, "w": 32}
    assert all(sizes["?x.0"] == 3 for sizes in size_candidates(parse_graph(LOSS), {"?x.0": 3}))


def test_guesses_stay_small() -> None:
    """Of inputs, and of what is made of them: a table of all pairs."""
    pairs = 'graph "g" opset 17 (x: float32[batch, 1, n], z: float32[batch, m, 1]) -> (y) { y = Add(x, z) }'
    for text, given in ((LOSS, {"?x.0": 3}), (LOSS, {}), (pairs, {"batch": 3})):
        graph = parse_graph(text)
        found = list(size_candidates(graph, given))
        assert len(found) > 10
        shape = graph.types["y"].shape  # type: ignore[union-attr]
        assert all(math.prod(evaluate(dim, sizes) or 0 for dim in shape or ()) <= MAX_GUESSED for sizes in found)


def test_what_was_asked_for_is_no_guess() -> None:
    graph = parse_graph(LOSS)
    assert next(size_candidates(graph, {"h": 1 << 20, "w": 1 << 10}))["h"] == 1 << 20
