"""Equality saturation: a graph and rules in, all equal forms out; extraction, the way back, and the trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphs.ir import Graph
from rules.declare import Rule

from .budget import HIGH, LOW, NORMAL, Budget, Folding
from .encode import Encoded, encode
from .saturated import ENode, Saturated, read_back
from .values import storable
from .worker import POOL, saturate_tables

__all__ = ["HIGH", "LOW", "NORMAL", "Budget", "ENode", "Saturated", "prepare", "run", "saturate"]


def prepare() -> None:
    """Start the search process, which takes a second, while something else is done."""
    POOL.prepare()


def saturate(graph: Graph, rules: Sequence[Rule], budget: Budget = NORMAL,
             keep: Collection[str] = ()) -> Saturated:
    """All forms of a graph that the rules find within the budget, in a child process.

    Types must be inferred. Nodes named in `keep` stay as they are. Raises SearchFailed where the process ended
    before it had anything to show; otherwise `stop` says why it stopped.
    """
    return run(encode(graph, keep), rules, budget)


def run(encoded: Encoded, rules: Sequence[Rule], budget: Budget, folding: Folding | None = None) -> Saturated:
    """Saturate encoded terms; without the rules that turn out to be unsound, if any do. With `folding`, constants are
    computed, and those of equal content are one class."""
    rules, dropped = list(rules), []
    stored = {} if folding is None else storable(encoded.large_constants(), folding)
    while True:
        outcome = saturate_tables(encoded.tables, rules, budget, folding, stored)
        if not outcome.conflicts or not rules:  # without rules only equal nodes merged
            break
        # An unsound rule joined values of different type: nothing of this e-graph may be used.
        blamed = {name for conflict in outcome.conflicts for name in conflict.rules}
        dropped += outcome.conflicts
        kept = [rule for rule in rules if rule.name not in blamed]
        rules = kept if len(kept) < len(rules) else []
    saturated = read_back(encoded, outcome, rules, unpacked=folding is not None)
    saturated.conflicts = dropped
    return saturated
