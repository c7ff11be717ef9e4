"""Replaying a trace: apply its steps, one by one, to the graph it started from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphs.constants import Constant
from graphs.errors import ParseError
from graphs.ir import Graph
from search import trace as search_trace
from search.steps import INLINE_ELEMENTS

from . import journal


class Stored(dict[str, Constant]):
    """Constants by digest that steps may name without holding them: of the graph they start from, and of earlier
    steps. Digests are worked out when first needed."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def see(self, graph: Graph) -> None:
        """Add the constants of a graph on the way."""
        if self:
            self.update(_by_digest(graph))
        self.graph = graph

    def __missing__(self, digest: str) -> Constant:
        self.update(_by_digest(self.graph))
        if digest not in self:
            raise ParseError(f"constant sha256:{digest[:12]}...", "the model has no such constant",
                             "replay the trace with the model it was made for")
        return self[digest]


def _by_digest(graph: Graph) -> dict[str, Constant]:
    return {constant.digest: constant for constant in graph.constants.values() if constant.size > INLINE_ELEMENTS}


def rewrite_of(step: Mapping[str, Any], stored: Stored) -> search_trace.Step:
    """The step of the search that a row of a trace holds; constants that it brings become known."""
    found = search_trace.Step.from_dict(step, stored)
    stored.update({constant.digest: constant for constant in found.patch.constants.values()
                   if constant.size > INLINE_ELEMENTS} if step["patch"]["data"] else {})
    return found


def apply_step(graph: Graph, step: Mapping[str, Any], stored: Stored | None = None) -> Graph:
    """The graph after one step."""
    if step["patch"].get("kind") == "diff":
        return journal.apply(graph, step["patch"])
    return search_trace.replay(graph, [rewrite_of(step, stored if stored is not None else Stored(graph))])


def replay(graph: Graph, steps: Sequence[Mapping[str, Any]]) -> Graph:
    """The graph after all steps. Rewrites that follow each other are applied in one go, which is the same."""
    rewrites: list[search_trace.Step] = []
    stored = Stored(graph)
    for step in steps:
        if step["patch"].get("kind") != "diff":
            rewrites.append(rewrite_of(step, stored))
            continue
        graph = journal.apply(search_trace.replay(graph, rewrites) if rewrites else graph, step["patch"])
        stored.see(graph)
        rewrites = []
    return search_trace.replay(graph, rewrites) if rewrites else graph


def prefixes(graph: Graph, steps: Sequence[Mapping[str, Any]]) -> Iterator[Graph]:
    """The graphs after 0, 1, 2, ... steps."""
    yield graph
    stored = Stored(graph)
    for step in steps:
        graph = apply_step(graph, step, stored)
        stored.see(graph)
        yield graph
