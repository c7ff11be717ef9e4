"""Find the fusions of a graph: enumerate, generate, check and measure what is new, and choose.

Candidates are taken in the order of what they may save. One that lies inside of another that was measured and is
faster than its nodes is left alone: the larger one saves all that it could save, and more. What the budget leaves
unmeasured is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_model.sizes import default_measure_sizes
from cost_model.timings import Timings
from graphs.ir import Graph
from graphs.types import TensorType, Type
from runtime.codegen.c import unavailable
from runtime.fusion import Group, body_of, fuse, signature, with_sizes

from .choose import best_packing
from .enumerate import Enumeration, enumerate_groups, is_movement
from .measure import Measured, measured


@dataclass(frozen=True, slots=True)
class FusionBudget:
    """`candidates` bounds what is generated and measured, `seconds` is the emergency brake."""

    most_per_root: int = 200
    most_nodes: int = 48
    candidates: int = 80
    seconds: float = 90.0


@dataclass
class Fusion:
    """A fusion that was chosen: its nodes' operators, how often it stands in the graph, and seconds for one."""

    signature: str
    operators: tuple[str, ...]
    types: tuple[str, ...]
    count: int
    fused: float
    unfused: float
    where: str

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        return {"signature": self.signature, "operators": list(self.operators), "types": list(self.types),
                "count": self.count, "fused_seconds": self.fused, "unfused_seconds": self.unfused,
                "where": self.where}


@dataclass
class Discovery:
    """What was found. `graph` has a Fused node for each chosen group; `counts` says how many sets there were, how many
    were unique, measured, known, impossible, faulty, slower, inside of others, and left for want of budget."""

    graph: Graph
    groups: list[Group]
    fusions: list[Fusion]
    counts: dict[str, int]
    faults: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def gain(self) -> float:
        """Seconds that all fusions save, as measured one by one."""
        return sum(each.count * (each.unfused - each.fused) for each in self.fusions)

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        return {"fusions": [each.to_dict() for each in self.fusions], "counts": dict(self.counts),
                "faults": list(self.faults), "gain_seconds": self.gain, "note": self.note}

    def lines(self) -> list[str]:
        """For people."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        found = [f"fusions: {counts}" if not self.note else f"no fusions: {self.note}"]
        for each in self.fusions:
            times = f"{each.unfused * 1e6:.0f} us -> {each.fused * 1e6:.0f} us"
            found.append(f"  {each.count} x {' '.join(each.operators)} [{'; '.join(each.types)}]: {times}")
        return found


@dataclass
class _Candidate:
    groups: list[Group]
    body: Graph
    weight: float
    measured: Measured | None = None


def discover(graph: Graph, sizes: Mapping[str, int] | None = None, timings: Timings | None = None, *,
             threads: int = 1, exact: bool = False, budget: FusionBudget | None = None) -> Discovery:
    """The fusions of a graph at sizes of its symbols, measured on this machine (or known from `timings`).

    The graph that comes out runs on `egraft:cpu`. Without a C compiler nothing is found, and `note` says so.
    """
    reason = unavailable()
    if reason is not None:
        return Discovery(graph, [], [], {}, note=reason)
    budget = budget or FusionBudget()
    own = timings if timings is not None else Timings(":memory:")
    types = with_sizes(graph, default_measure_sizes(graph) if sizes is None else sizes)
    enumeration = enumerate_groups(graph, types, budget.most_per_root, budget.most_nodes)
    candidates = _unique(graph, enumeration, types)
    counts = Counter({"sets": len(enumeration.groups), "roots cut": enumeration.cut, "unique": len(candidates)})
    faults = _measure_all(candidates, exact, threads, own, budget, counts)
    return _chosen(graph, candidates, exact, counts, faults)


def _unique(graph: Graph, enumeration: Enumeration, types: Mapping[str, Type]) -> dict[str, _Candidate]:
    found: dict[str, _Candidate] = {}
    for group in enumeration.groups:
        body, _ = body_of(graph, group, types)
        key = signature(body)
        if key in found:
            found[key].groups.append(group)
        else:
            found[key] = _Candidate([group], body, _weight(graph, group, types))
    return found


def _weight(graph: Graph, group: Group, types: Mapping[str, Type]) -> float:
    """Bytes that the nodes of a group write one by one."""
    total = 0.0
    for index in group.nodes:
        node = graph.nodes[index]
        type_ = types.get(node.outputs[0])
        if not is_movement(node) and isinstance(type_, TensorType):
            total += type_.static_bytes or 0.0
    return total


def _measure_all(candidates: Mapping[str, _Candidate], exact: bool, threads: int, timings: Timings,
                 budget: FusionBudget, counts: Counter[str]) -> list[str]:
    started, faults = time.monotonic(), []
    settled: dict[int, set[int]] = {}  # node -> numbers of the groups around it that are faster
    number = 0
    order = sorted(candidates.items(), key=lambda each: (-each[1].weight * len(each[1].groups), each[0]))
    for _, each in order:
        inside = all(set.intersection(*(settled.get(index, set()) for index in group.nodes)) for group in each.groups)
        if inside:
            counts["inside of others"] += 1
            continue
        if counts["measured"] >= budget.candidates or time.monotonic() - started > budget.seconds:
            counts["left for want of budget"] += 1
            continue
        each.measured, now = measured(each.body, exact, threads, timings)
        counts["measured" if now else "known"] += 1
        if each.measured.verdict != "faster":
            counts[each.measured.verdict] += 1
        if each.measured.verdict == "faulty":
            faults.append(f"{' '.join(node.op for node in each.body.nodes)}: {each.measured.note}")
        if each.measured.gain > 0:
            for group in each.groups:
                for index in group.nodes:
                    settled.setdefault(index, set()).add(number)
                number += 1
    return faults


def _chosen(graph: Graph, candidates: Mapping[str, _Candidate], exact: bool, counts: Counter[str],
            faults: list[str]) -> Discovery:
    places = [(key, group) for key, each in candidates.items() if each.measured is not None for group in each.groups]
    gains = [(group, candidates[key].measured.gain) for key, group in places]  # type: ignore[union-attr]
    shared = {index for index, node in enumerate(graph.nodes) if is_movement(node)}
    taken = best_packing(gains, shared)
    groups = [gains[place][0] for place in taken]
    fusions: dict[str, Fusion] = {}
    for place in taken:
        key, group = places[place]
        if key in fusions:
            fusions[key].count += 1
            continue
        each = candidates[key]
        assert each.measured is not None
        types = tuple(str(each.body.types[name]) for name in (*each.body.inputs, *each.body.outputs))
        fusions[key] = Fusion(key, tuple(node.op for node in each.body.nodes), types, 1, each.measured.fused,
                              each.measured.unfused, group.output)
    ordered = sorted(fusions.values(), key=lambda each: (-(each.unfused - each.fused) * each.count, each.signature))
    counts["chosen"] = len(groups)
    return Discovery(fuse(graph, groups, exact), groups, ordered, dict(counts), faults)
