"""How much a search may do. Everything but the seconds and `memory` stops at a reproducible place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one saturation.

    A rule with more than `matches` new matches in one iteration fires that many, waits `ban` iterations and may then
    fire twice as many. `seconds` (of processor time) is looked at between iterations and gives the best so far; after
    `hard_seconds` (of processor time: a busy machine takes nothing away), after `wall_seconds`, or beyond `memory`
    bytes of address space, the child process is killed and the last checkpoint counts.
    """

    iterations: int = 12
    nodes: int = 12_000
    matches: int = 1_000
    ban: int = 2
    seconds: float = 20.0
    hard_seconds: float = 60.0
    wall_seconds: float = 300.0
    memory: int = 6 << 30


@dataclass(frozen=True, slots=True)
class Folding:
    """How much a proof may compute of constants: elements of one, bytes of all that are computed, and as many bytes
    of the model's own constants that it may look at. What is left out is counted."""

    elements: int = 1 << 26
    bytes: int = 1 << 29


FOLDING = Folding()
LOW = Budget(iterations=5, nodes=4_000, matches=300, seconds=8.0, hard_seconds=30.0, wall_seconds=150.0)
NORMAL = Budget()
HIGH = Budget(iterations=25, nodes=40_000, matches=4_000, seconds=120.0, hard_seconds=300.0, wall_seconds=900.0)
