"""Replaying a trace: apply its steps, one by one, to the graph it started from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphs.ir import Graph
from search import trace as search_trace

from . import journal


def apply_step(graph: Graph, step: Mapping[str, Any]) -> Graph:
    """The graph after one step."""
    if step["patch"].get("kind") == "diff":
        return journal.apply(graph, step["patch"])
    return search_trace.replay(graph, [search_trace.Step.from_dict(dict(step))])


def replay(graph: Graph, steps: Sequence[Mapping[str, Any]]) -> Graph:
    """The graph after all steps. Rewrites that follow each other are applied in one go, which is the same."""
    rewrites: list[search_trace.Step] = []
    for step in steps:
        if step["patch"].get("kind") != "diff":
            rewrites.append(search_trace.Step.from_dict(dict(step)))
            continue
        graph = journal.apply(search_trace.replay(graph, rewrites) if rewrites else graph, step["patch"])
        rewrites = []
    return search_trace.replay(graph, rewrites) if rewrites else graph


def prefixes(graph: Graph, steps: Sequence[Mapping[str, Any]]) -> Iterator[Graph]:
    """The graphs after 0, 1, 2, ... steps."""
    yield graph
    for step in steps:
        graph = apply_step(graph, step)
        yield graph
