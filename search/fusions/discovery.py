"""Find the fusions of a graph: enumerate, generate, check and measure what is new, and choose.

Candidates are taken in the order of what they may save. One that lies inside of another that was measured and is
faster than its nodes is left alone at first: the larger one saves all that it could save, and more. Where the larger
one is not taken in the end, because it overlaps with another, it is looked at then. What the budget leaves unmeasured
is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

from cost_model.sizes import default_measure_sizes
from cost_model.targets import Target
from cost_model.timings import Timings
from graphs.ir import Graph, Node
from graphs.types import TensorType, Type
from runtime.fusion import Group, body_of, fuse, is_splat, signature, with_sizes

from .apart import Try
from .budget import TARGET, FusionBudget
from .choose import packing_of
from .enumerate import Enumeration, enumerate_groups, is_movement
from .labels import label_of
from .measure import Measured
from .trials import trials_for, trials_on_host

FAULTS = ("faulty", "crashed")  # verdicts of what a kernel did wrong
BUDGET, INSIDE, REFUSED = "left for want of budget", "inside of others", "refused"
WHY_NOT = {  # verdict -> what it means, for people who ask why a set is no kernel of the result
    "faster": "its kernel is faster, but overlaps with others that save more, or no graph with it won as a whole",
    "equal": "its kernel was measured no faster than its nodes",
    "slower": "its kernel was measured slower than its nodes",
    "faulty": "its kernel gave wrong numbers when it was checked", "crashed": "its kernel crashed when it was checked",
    INSIDE: "a larger set, of which it is a part, has a kernel that is faster than its nodes",
    BUDGET: "it was not tried: the budget went to sets that write more (--effort high has a larger one)",
    REFUSED: "a result with its kernel failed validation",
}
FROZEN = "the frozen timing database has no record of its kernel"
IMPOSSIBLE = 1 / 16  # of a candidate of the budget: that there is no kernel is found in milliseconds
MOST_ROUNDS = 4  # of looking at what lay inside of others and was left


@dataclass
class Fusion:
    """A fusion that was chosen: its nodes' operators, what people call it, how often it stands in the graph, and
    seconds for one. `body` has sizes in the place of symbols. `variant`: how a GPU launches it, if not as usual."""

    signature: str
    operators: tuple[str, ...]
    types: tuple[str, ...]
    count: int
    fused: float
    unfused: float
    where: str
    body: Graph
    variant: str = ""
    inside: dict[str, int] = field(default_factory=dict)  # how often of `count` in which nested graphs

    @property
    def label(self) -> str:
        """The name of the pattern, for reports only."""
        return label_of(self.body)

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        found = {"signature": self.signature, "label": self.label, "operators": list(self.operators),
                 "types": list(self.types), "count": self.count, "fused_seconds": self.fused,
                 "unfused_seconds": self.unfused, "where": self.where}
        return {**found, **({"variant": self.variant} if self.variant else {}),
                **({"inside": dict(self.inside)} if self.inside else {})}


@dataclass
class Discovery:
    """What was found. `graph` has a Fused node for each chosen group; `counts` says how many sets there were, how many
    were unique, measured, known, impossible, faulty, crashed, slower, inside of others, and left for want of budget.
    `impossible`: why there is no kernel, and how often."""

    graph: Graph
    groups: list[Group]
    fusions: list[Fusion]
    counts: dict[str, int]
    faults: list[str] = field(default_factory=list)
    note: str = ""
    impossible: dict[str, int] = field(default_factory=dict)
    placed: list[tuple[Fusion, Group]] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Seconds that all fusions save, as measured one by one."""
        return sum(each.count * (each.unfused - each.fused) for each in self.fusions)

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        return {"fusions": [each.to_dict() for each in self.fusions], "counts": dict(self.counts),
                "impossible": dict(self.impossible), "faults": list(self.faults), "gain_seconds": self.gain,
                "note": self.note}

    def lines(self) -> list[str]:
        """For people."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        found = [f"fusions: {counts}" if not self.note else f"no fusions: {self.note}"]
        for each in self.fusions:
            what = f"{each.label}: {' '.join(each.operators)} [{'; '.join(each.types)}]"
            found.append(f"  {each.count} x {what}: {each.unfused * 1e6:.0f} us -> {each.fused * 1e6:.0f} us")
        return found


@dataclass
class _Candidate:
    groups: list[Group]
    body: Graph
    weight: float


@dataclass
class Look:
    """The candidates of one graph by signature."""

    graph: Graph
    candidates: dict[str, _Candidate]
    sets: int
    cut: int
    new: float = 0.0  # candidates that were tried for it, or for it and others


def discover(graph: Graph, sizes: Mapping[str, int] | None = None, timings: Timings | None = None, *,
             threads: int = 1, exact: bool = False, budget: FusionBudget | None = None,
             attempt: Try | None = None, target: Target | str = TARGET) -> Discovery:
    """The fusions of a graph at sizes of its symbols, measured on this machine (or known from `timings`).

    The graph that comes out runs on `target`, `egraft:cpu` or `egraft:cuda`. Without a C compiler for the one, or a GPU
    for the other, nothing is found, and `note` says so. `attempt` tries a candidate; the usual one does it in a process
    of its own.
    """
    own = timings if timings is not None else Timings(":memory:")
    with Explorer(own, threads=threads, exact=exact, budget=budget, attempt=attempt, target=target) as explorer:
        return explorer.discover(graph, sizes)


class Explorer:
    """Looks for fusions in several graphs that belong together, and knows what it saw. `refused`: signatures of bodies
    that are never taken. `on_host`: of nested graphs, which a GPU's target runs on the processor."""

    def __init__(self, timings: Timings, *, threads: int = 1, exact: bool = False, budget: FusionBudget | None = None,
                 attempt: Try | None = None, target: Target | str = TARGET, on_host: bool = False) -> None:
        self.timings, self.threads, self.exact = timings, threads, exact
        self.budget = budget or FusionBudget()
        self.refused: set[str] = set()
        self.seen: dict[str, str] = {}  # signature -> verdict, or why there is none
        self.trials = trials_on_host(target) if on_host and isinstance(target, Target) else trials_for(target, attempt)
        self._known: dict[str, Measured] = {}
        self._bodies: Bodies = {}
        self._places: dict[str, tuple[tuple[str, ...], str, int]] = {}  # operators, an output, how many places
        self._impossible: Counter[str] = Counter()
        self._faults: list[str] = []
        self._fresh = self._measured = self._sets = self._several = self._cut = 0
        self._seconds = 0.0
        self._shared: float | None = None  # new candidates of graphs that share a budget

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that tries candidates."""
        self.trials.close()

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Graphs that are looked at within have one budget of candidates together: those that are nested in one."""
        self._shared = 0.0
        try:
            yield
        finally:
            self._shared = None

    def discover(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> Discovery:
        """The best fusions of a graph at sizes of its symbols."""
        if self.trials.missing is not None:
            return Discovery(graph, [], [], {}, note=self.trials.missing)
        return self._discovery(*self._explore(graph, sizes))

    def faster(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> list[tuple[Group, Measured]]:
        """All groups of a graph that were measured to be faster as one kernel."""
        if self.trials.missing is not None:
            return []
        look, measured, _ = self._explore(graph, sizes)
        return [(group, found) for key, found in measured.items() if found.gain > 0
                for group in look.candidates[key].groups]

    @property
    def counts(self) -> dict[str, int]:
        """Of all graphs so far: sets, and different candidates by what became of them."""
        verdicts = Counter(self.seen.values())
        generated = sum(count for name, count in verdicts.items() if name in _TRIED)
        found = {"sets": self._sets, "of several outputs": self._several, "roots cut": self._cut,
                 "unique": len(self.seen), "generated": generated, "measured": self._measured,
                 "known": len(self._known) - self._fresh, **sorted_counts(verdicts)}
        return {name: count for name, count in found.items() if count or name in ("sets", "unique")}

    def report(self) -> dict[str, Any]:
        """Of all graphs so far, in JSON types."""
        return {"counts": self.counts, "impossible": sorted_counts(self._impossible), "faults": list(self._faults),
                "note": self.trials.note}

    def why_not(self, chosen: Collection[str]) -> Iterator[tuple[tuple[str, ...], str, str, int]]:
        """Of each set that is no kernel of a result whose kernels have the signatures `chosen`: its operators, the
        reason, an output, and in how many places it stands."""
        for key, verdict in self.seen.items():
            if key in chosen or key not in self._places:
                continue
            operators, output, count = self._places[key]
            note = self._known[key].note if key in self._known else ""
            reason = WHY_NOT.get(verdict, verdict) if verdict != BUDGET or not self.timings.frozen else FROZEN
            if verdict == "impossible":
                reason = f"there is no kernel for it: {note}"
            yield operators, reason, output, count

    def _explore(self, graph: Graph, sizes: Mapping[str, int] | None) -> tuple[
            Look, dict[str, Measured], list[tuple[str, Group]]]:
        """The candidates of a graph, what is known of those that were worth trying, and the groups that save most."""
        types = with_sizes(graph, default_measure_sizes(graph) if sizes is None else sizes)
        enumeration = enumerate_groups(graph, types, self.budget.most_per_root, self.budget.most_nodes,
                                       library=not self.trials.threads)  # a GPU
        look = Look(graph, _unique(graph, enumeration, types, self._bodies), len(enumeration.groups), enumeration.cut,
                    self._shared or 0.0)
        self._sets, self._cut = max(self._sets, look.sets), max(self._cut, look.cut)
        self._several = max(self._several, enumeration.several)
        measured = self._tried(look, frozenset())
        chosen = self._packed(look, measured)
        for _ in range(MOST_ROUNDS):  # what lay inside of others that were not taken in the end
            covered = {index for _, group in chosen for index in group.nodes
                       if not is_movement(look.graph.nodes[index])}
            more = self._tried(look, covered, measured)
            measured |= more
            if all(each.gain == 0 for each in more.values()):
                break
            chosen = self._packed(look, measured)
        if self._shared is not None:
            self._shared = look.new
        return look, measured, chosen

    def _tried(self, look: Look, covered: Collection[int],
               known: Mapping[str, Measured] = MappingProxyType({})) -> dict[str, Measured]:
        """What is found of candidates that have a place apart from the nodes that are `covered`, but for `known` ones;
        not of those that lie inside of larger ones that are faster."""
        settled: dict[int, set[int]] = {}  # node -> numbers of the groups around it that are faster
        found: dict[str, Measured] = {}
        number = 0
        order = sorted(look.candidates.items(), key=lambda each: (-each[1].weight * len(each[1].groups), each[0]))
        for key, each in order:
            if key in known or not any(set(group.nodes).isdisjoint(covered) for group in each.groups):
                continue
            self._places.setdefault(key, (tuple(node.op for node in each.body.nodes), each.groups[0].output,
                                          len(each.groups)))
            if key in self.refused:
                self.seen[key] = REFUSED
                continue
            if _inside(each, settled):
                self.seen.setdefault(key, INSIDE)
                continue
            fresh = key not in self._known
            result = None if fresh and look.new >= self.budget.candidates else self._result(key, each.body)
            if result is None:
                self.seen.setdefault(key, BUDGET)
                continue
            if fresh:
                look.new += IMPOSSIBLE if result.verdict == "impossible" else 1.0
            found[key] = result
            if result.gain > 0 and not _is_chain(each.body):
                for group in each.groups:
                    for index in group.nodes:
                        settled.setdefault(index, set()).add(number)
                    number += 1
        return found

    def _result(self, key: str, body: Graph) -> Measured | None:
        """What is known of a candidate, or found out now; None where nothing can be found out."""
        known = self._known.get(key)
        if known is not None:
            return known
        found = self.trials.recorded(body, self.exact, self.threads, self.timings)
        if found is None:
            if self.timings.frozen or self._seconds > self.budget.seconds:
                return None
            started = time.monotonic()
            tried = self.trials.attempt(body, self.exact, self.threads)
            self._seconds += time.monotonic() - started
            if tried is None:
                return None
            found = self.trials.record(body, self.exact, self.threads, self.timings, *tried)
            self._fresh += 1
            self._measured += found.verdict in _TRIED
        self._known[key], self.seen[key] = found, found.verdict
        if found.verdict == "impossible":
            self._impossible[found.note] += 1
        if found.verdict in FAULTS:
            self._faults.append(f"{' '.join(node.op for node in body.nodes)}: {found.note}")
        return found

    @staticmethod
    def _packed(look: Look, measured: Mapping[str, Measured]) -> list[tuple[str, Group]]:
        """The groups that save most together, each with its signature."""
        places = [(key, group) for key in look.candidates if key in measured and measured[key].gain > 0
                  for group in look.candidates[key].groups]
        gains = [(group, measured[key].gain) for key, group in places]
        shared = {index for index, node in enumerate(look.graph.nodes) if is_movement(node)}
        return [places[place] for place in packing_of(look.graph, gains, shared)]

    def _discovery(self, look: Look, measured: Mapping[str, Measured], chosen: list[tuple[str, Group]]) -> Discovery:
        fusions: dict[str, Fusion] = {}
        placed: list[tuple[Fusion, Group]] = []
        for key, plain in chosen:
            group = replace(plain, variant=measured[key].variant)
            if key not in fusions:
                fusions[key] = _fusion(key, look.candidates[key].body, measured[key], group.output)
            fusions[key].count += 1
            placed.append((fusions[key], group))
        ordered = sorted(fusions.values(), key=lambda each: (-(each.unfused - each.fused) * each.count, each.signature))
        groups = [group for _, group in placed]
        graph = fuse(look.graph, groups, self.exact) if groups else look.graph
        return Discovery(graph, groups, ordered, {**self.counts, "chosen": len(groups)}, list(self._faults),
                         impossible=sorted_counts(self._impossible), placed=placed)


_TRIED = ("faster", "equal", "slower", *FAULTS)


def sorted_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first."""
    return dict(sorted(counts.items(), key=lambda row: (-row[1], row[0])))


def _is_chain(body: Graph) -> bool:
    """Whether it has two products: each with what is around it may be faster, so both are measured too."""
    return sum(node.op == "Conv" for node in body.nodes) > 1


def _inside(each: _Candidate, settled: Mapping[int, Collection[int]]) -> bool:
    """Whether each of its places lies in a larger group that is faster."""
    return all(set.intersection(*(set(settled.get(index, ())) for index in group.nodes)) for group in each.groups)


def _fusion(key: str, body: Graph, measured: Measured, where: str) -> Fusion:
    types = tuple(str(body.types[name]) for name in (*body.inputs, *body.outputs))
    return Fusion(key, tuple(node.op for node in body.nodes), types, 0, measured.fused, measured.unfused, where, body,
                  measured.variant)


Bodies = dict[tuple[object, ...], tuple[str, Graph]]  # how a group is wired -> its signature and body


def _unique(graph: Graph, enumeration: Enumeration, types: Mapping[str, Type],
            bodies: Bodies | None = None) -> dict[str, _Candidate]:
    """The candidates by signature. Groups that are wired alike (equal layers, several looks) share one body."""
    found: dict[str, _Candidate] = {}
    known: Bodies = {} if bodies is None else bodies
    wiring = _Wiring(graph, types)
    for group in enumeration.groups:
        wired = wiring.of(group)
        if wired not in known:
            made, _ = body_of(graph, group, types)
            known[wired] = signature(made), made
        key, body = known[wired]
        if key in found:
            found[key].groups.append(group)
        else:
            found[key] = _Candidate([group], body, _weight(graph, group, types))
    return found


def _weight(graph: Graph, group: Group, types: Mapping[str, Type]) -> float:
    """Bytes that the nodes of a group write one by one; a convolution unfolds its image before."""
    total = 0.0
    for index in group.nodes:
        node = graph.nodes[index]
        type_ = types.get(node.outputs[0])
        if not is_movement(node) and isinstance(type_, TensorType):
            total += (type_.static_bytes or 0.0) + _unfolded(node, type_, types)
    return total


def _unfolded(node: Node, made: TensorType, types: Mapping[str, Type]) -> float:
    """Bytes of the windows of a convolution's image, each for itself."""
    weights = types.get(node.inputs[1]) if node.op == "Conv" and not node.domain else None
    if not isinstance(weights, TensorType) or not weights.shape or not made.elements:
        return 0.0
    maps, depth = weights.shape[0], prod(each for each in weights.shape[1:] if isinstance(each, int))
    group = node.attrs["group"]
    assert isinstance(group, int)
    return (made.static_bytes or 0.0) / maps * depth * group if isinstance(maps, int) else 0.0


class _Wiring:
    """What a group is made of, node by node in the order of the graph: cheaper than a body, and equal only for groups
    of equal bodies."""

    def __init__(self, graph: Graph, types: Mapping[str, Type]) -> None:
        self.graph, self.types = graph, types
        self._nodes: dict[int, tuple[object, ...]] = {}
        self._values: dict[str, str] = {}

    def of(self, group: Group) -> tuple[object, ...]:
        """The key of a group."""
        numbers: dict[str, int] = {}
        key: list[object] = []
        for index in group.nodes:
            node = self.graph.nodes[index]
            key.append(self._node(index))
            for name in node.inputs:
                if name and name not in numbers:
                    numbers[name] = len(numbers)
                    key.append(self._value(name))
                key.append(numbers[name] if name else -1)
            for name in node.outputs:
                numbers[name] = len(numbers)
                key.append(self._type(name) if name else "")
        return (*key, *(numbers[name] for name in group.outputs))

    def _node(self, index: int) -> tuple[object, ...]:
        found = self._nodes.get(index)
        if found is None:
            node = self.graph.nodes[index]
            attrs = tuple(sorted((name, type(value).__name__, repr(value)) for name, value in node.attrs.items()))
            found = self._nodes[index] = (node.op, node.domain, node.version, len(node.outputs), attrs)
        return found

    def _value(self, name: str) -> str:
        constant = self.graph.constants.get(name)
        if constant is None:
            return self._type(name)
        return f"splat {constant.digest} {constant.type}" if is_splat(constant) else f"constant {constant.type}"

    def _type(self, name: str) -> str:
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = str(self.types.get(name) or self.graph.type_of(name))
        return found
