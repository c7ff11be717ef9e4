"""What the search hands to the finalists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphs.ir import Graph
from search.steps import Step

if TYPE_CHECKING:
    from search.fusions import Fusion


@dataclass
class Candidate:
    """A graph that extraction built, with its trace when it is asked for. `rewrites`: the steps from the graph that was
    searched; `steps`: the rows of the whole trace, and `replayed` the graph that they lead to, where inner values may
    have other names; `fusions`: the kinds of Fused nodes."""

    name: str
    graph: Graph
    rewrites: Callable[[], list[Step]]
    predicted: float | None = None
    steps: Callable[[], list[dict[str, Any]]] = list
    replayed: Callable[[], Graph] = Graph
    fusions: list[Fusion] = field(default_factory=list)


@dataclass
class Improved:
    """What the search made of a graph. `prefix`: the steps of normalization; `before` and `predicted_before`: the
    normalized graph's cost on the same model."""

    prefix: list[dict[str, Any]]
    candidates: list[Candidate] = field(default_factory=list)
    refusals: dict[str, Any] = field(default_factory=dict)
    not_used: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)
    predicted_input: float | None = None
    input_sources: Counter[str] = field(default_factory=Counter)  # of its node times: how many come from where
    fusions: dict[str, Any] = field(default_factory=dict)  # what was tried, where the target takes fusions
