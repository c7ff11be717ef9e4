"""A second look at a finalist that one measurement would throw out against all expectation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from cost_model.comparison import Comparison, pooled
from cost_model.signature import node_key, spec_of
from graphs.ir import Graph


def dominates(graph: Graph, original: Graph, sizes: Mapping[str, int]) -> bool:
    """Was nothing done but leave nodes out? Its nodes, by operator, attributes and input types, are some of the
    original's, so that whatever it computes the original computes too."""
    if graph.node_count() >= original.node_count():
        return False
    return _signatures(graph, sizes) < _signatures(original, sizes)


def computes_the_same(graph: Graph, original: Graph, sizes: Mapping[str, int]) -> bool:
    """Are the nodes, by operator, attributes and input types, those of the original? Only constants or names differ."""
    if graph.node_count() != original.node_count():
        return False
    return _signatures(graph, sizes) == _signatures(original, sizes)


def _signatures(graph: Graph, sizes: Mapping[str, int]) -> Counter[str]:
    return Counter(node_key(spec_of(graph, node, sizes), 1) for node in graph.nodes)


def second_look(first: Comparison, again: Comparison) -> Comparison:
    """The first comparison, with both looks pooled for what was measured again."""
    results = dict(first.results)
    for name, found in again.results.items():
        if name != first.baseline and name in results:
            results[name] = pooled(results[name], found)
    return dataclasses.replace(first, results=results)
