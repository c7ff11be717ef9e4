"""Costs of many nodes: known ones at once, the others estimated first and measured within a budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from graphs.ir import Graph, Node, is_fused
from graphs.nested import seeing
from graphs.operators import is_pure
from graphs.types import TensorType

from .bodies import computed_on_load
from .costs import FREE, Cost, NodeInput, NodeSpec
from .neighbourhoods import Neighbourhood, Places, saving
from .peaks import Peaks
from .probe import output_types
from .records import Record
from .signature import alike, spec_of
from .sizes import static_type
from .targets.base import NODE_BUDGET, Overhead, Target, cost_from, is_view
from .timings import Timings
from .work import Work, work

NO_TIME = "the time for measuring was used up"
NESTED = "it holds a nested graph"


@dataclass(frozen=True)
class Measured:
    """What `NodeCosts.measure` did: how many nodes, in how many seconds, how many were left for want of
    budget.
    """

    count: int
    seconds: float
    left: int


class NodeCosts:
    """Costs of nodes on a target, at given sizes of symbols, for a thread count and an opset.

    `cost` answers at once: from the timing database, or with an estimate, and then remembers what `measure`
    has to do. Nodes with the same signature are one. `budget_seconds` is for all calls of `measure`
    together. With a frozen database (or `frozen`) estimates stay estimates, and `measure` raises FrozenMiss.
    """

    def __init__(
        self,
        target: Target,
        timings: Timings,
        sizes: Mapping[str, int],
        *,
        threads: int = 1,
        opset: int = 17,
        budget_seconds: float = 10.0,
        frozen: bool = False,
    ) -> None:
        self.target = target
        self.timings = timings
        self.sizes = dict(sizes)
        self.threads = threads
        self.opset = opset
        self.budget_seconds = budget_seconds
        if frozen:
            self.timings.freeze()
        self.quiet: Callable[[], AbstractContextManager[None]] = nullcontext  # around what is measured
        self._costs: dict[str, Cost] = {}
        self._types: dict[TensorType, TensorType | None] = {}  # at the sizes of the run
        self._alike: dict[object, tuple[NodeSpec, str, Cost | None]] = {}
        self._missing: dict[str, NodeSpec] = {}
        self._peaks: Peaks | None = None
        self._overhead: Overhead | None = None

    def cost(
        self,
        op: str,
        domain: str,
        attrs: Mapping[str, object],
        inputs: Sequence[NodeInput],
        output_count: int = 1,
        version: int = -1,
    ) -> Cost:
        """What a node costs, as far as is known now. `attrs` are canonical; types may hold symbols."""
        return self.cost_of(NodeSpec(op, domain, attrs, tuple(inputs), output_count, self.opset, version))

    def node_in(self, graph: Graph, node: Node, known: Set[str] = frozenset()) -> Cost:
        """What a node of a graph costs. Types must have been inferred. Nodes that are alike are described once.

        `known`: values that the graph computes when it is loaded. Only bodies ask for them: what in a branch depends on
        constants alone is free, wherever these stand.
        """
        if node.holds_graphs and not is_fused(node):
            return self._holding(graph, node, {*graph.constants, *known})
        same = alike(graph, node)
        if same is None:
            return self.cost_of(spec_of(graph, node, self.sizes))
        place = (same, *graph.opsets.items())
        described = self._alike.get(place)
        if described is None:
            described = self._alike[place] = self._described(spec_of(graph, node, self.sizes))
        return self._cost(*described)

    def _holding(self, graph: Graph, node: Node, known: Set[str]) -> Cost:
        """The estimate of a node that holds graphs, which see the values around them. It is not kept: a node in a body
        may be measured any time."""
        if computed_on_load(graph, node, known) and is_pure(node):
            return FREE
        bodies = [self._body(seeing(graph, body), known) for body in node.graphs]
        return dataclasses.replace(self._of_bodies(node.op, bodies), note=NESTED)

    def _body(self, body: Graph, outer: Set[str]) -> float:
        """Seconds of the nodes of a body: of those without a kernel none, as outside of bodies."""
        known, seconds = {*outer, *body.constants}, 0.0
        for node in body.nodes:
            if computed_on_load(body, node, known):
                known.update(node.outputs)
                continue
            cost = self.node_in(body, node, known)
            seconds += 0.0 if math.isinf(cost.seconds) else cost.seconds
        return seconds

    def _of_bodies(self, op: str, bodies: Sequence[float]) -> Cost:
        return Cost(self.overhead().launch + (max(bodies) if op == "If" else sum(bodies)), "roofline")

    def know(self, graph: Graph, node: Node, cost: Cost) -> None:
        """What a node costs that is measured in another way: a Fused one."""
        self._costs[self.signature(spec_of(graph, node, self.sizes))] = cost

    def signature(self, spec: NodeSpec) -> str:
        """The key that the node's cost is filed under."""
        return self.target.key(self._sized(spec), self.threads)

    def cost_of(self, spec: NodeSpec) -> Cost:
        """What the described node costs, as far as is known now."""
        return self._cost(*self._described(spec))

    def _described(self, spec: NodeSpec) -> tuple[NodeSpec, str, Cost | None]:
        """The description at the sizes of the run, its signature, and its cost where that needs no measurement."""
        spec = self._sized(spec)
        known = self.target.known_cost(spec)
        return spec, "" if known is not None else self.target.key(spec, self.threads), known

    def _cost(self, spec: NodeSpec, key: str, known: Cost | None) -> Cost:
        if known is not None:
            return known
        if key in self._costs:
            return self._costs[key]
        reason = unmeasurable(spec)
        if reason:
            return self._keep(key, dataclasses.replace(self.estimate(spec), note=reason))
        record = self._look_up(key)
        if record is not None and not (record.failed and self._may_measure()):
            return self._keep(key, self._or_estimate(cost_from(record, "database"), spec))
        if self.target.measures or (self.timings.frozen and self.target.database is not None):
            self._missing[key] = spec
        return self._keep(key, self.estimate(spec))

    def _look_up(self, key: str) -> Record | None:
        """The database's record; what is only asked for may be missing even in a frozen one."""
        place = self.target.place
        if place is None:
            return None
        database = self.target.database or self.timings
        return None if database.peek(key, *place) is None else database.get(key, *place)

    def missing(self) -> list[str]:
        """Signatures that are only estimated and can be measured: the largest estimates first."""
        return sorted(self._missing, key=lambda key: (-self._costs[key].seconds, key))

    def measure(self, signatures: Iterable[str] | None = None, budget_seconds: float | None = None) -> Measured:
        """Measure what is missing (or the named signatures of that) until the budget in seconds is used up.

        Raises FrozenMiss where something would have to be measured and the database is frozen.
        """
        budget = self.budget_seconds if budget_seconds is None else min(budget_seconds, self.budget_seconds)
        wanted = None if signatures is None else set(signatures)
        todo = [key for key in self.missing() if wanted is None or key in wanted]
        if not todo:
            return Measured(0, 0.0, 0)
        with self.quiet():
            start = time.perf_counter()
            done = self._measure(todo, start + budget)
            seconds = time.perf_counter() - start
        self.budget_seconds = max(0.0, self.budget_seconds - seconds)
        return Measured(done, seconds, len(todo) - done)

    def _measure(self, todo: list[str], end: float) -> int:
        """How many were measured before `end`."""
        for done, key in enumerate(todo):
            if self.timings.frozen and self.target.place is not None:
                self.timings.get(key, *self.target.place)  # raises FrozenMiss: this had to be measured
            if time.perf_counter() >= end:
                self._leave(todo[done:])
                return done
            spec = self._missing.pop(key)
            found = self.target.measure_node(spec, self.threads, self.timings, NODE_BUDGET)
            self._costs[key] = self._or_estimate(found, spec)
        return len(todo)

    def _leave(self, keys: Iterable[str]) -> None:
        """Record that there was no time for them: a frozen database then says that they are estimated, and a run that
        may measure tries again."""
        for key in keys:
            if self._may_measure():
                self.timings.add(key, self.target.name, self.target.fingerprint, "node", (), 0.0, {"failed": NO_TIME})

    def neighbourhoods(self, graph: Graph) -> list[tuple[Neighbourhood, float]]:
        """Nodes of a graph that the target runs as one kernel, with the seconds that this saves (negative: costs).

        What was not measured yet is measured within the budget, and what is left then saves nothing. Raises
        FrozenMiss where something would have to be measured and the database is frozen.
        """
        if self.target.place is None:
            return []
        places = Places(graph, self.sizes, self.threads)
        costs: dict[str, Cost] = {}
        found: list[tuple[Neighbourhood, float]] = []
        for each in self.target.neighbourhoods(graph, self.timings):
            key = places.key(each)
            if key not in costs:
                costs[key] = self._together(key, places, each)
            found.append((each, saving([self.cost_of(spec) for spec in places.specs(each)], costs[key])))
        return [row for row in found if row[1]]

    def _together(self, key: str, places: Places, each: Neighbourhood) -> Cost:
        """Infinite seconds where they are not known."""
        place = self.target.place
        assert place is not None
        database = self.target.database  # of another machine: what it lacks is not known
        record = self.timings.get(key, *place) if database is None else database.peek(key, *place)
        if record is not None and not (record.failed and self._may_measure()):
            found = cost_from(record, "database")
        elif self.budget_seconds <= 0 or not self.target.measures:
            if self._may_measure():
                self.timings.add(key, self.target.name, self.target.fingerprint, "neighbourhood", (), 0.0,
                                 {"failed": NO_TIME})
            return Cost(math.inf, "unsupported", note="not measured: not possible here, or the budget was used up")
        else:
            with self.quiet():  # waiting for that is not measuring
                start = time.perf_counter()
                found = self.target.measure_neighbourhood(places, each, self.timings)
                self.budget_seconds = max(0.0, self.budget_seconds - (time.perf_counter() - start))
        return found if found.is_measured else dataclasses.replace(found, seconds=math.inf)

    def sources(self) -> dict[str, int]:
        """How many signatures are known in which way; for reports."""
        return dict(Counter(cost.source for cost in self._costs.values()))

    def estimate(self, spec: NodeSpec) -> Cost:
        """Optimistic seconds from operations, bytes and this device's peaks, plus the launch overhead.

        Of an If the most expensive branch counts, of a Loop or Scan one turn; a description does not tell what bodies
        read of the graph around them, which `node_in` knows.
        """
        spec = self._sized(spec)
        launch = self.overhead().launch
        inner = [
            graph
            for value in spec.attrs.values()
            for graph in (value if isinstance(value, tuple) else (value,))
            if isinstance(graph, Graph)
        ]
        if inner:
            return self._of_bodies(spec.op, [self._body(graph, frozenset()) for graph in inner])
        if is_view(spec):
            return Cost(launch, "roofline")
        found = node_work(spec)
        if found is None:
            return Cost(launch, "roofline", note="shapes unknown: launch overhead only")
        return Cost(launch + self.peaks().seconds(found.flops, found.bytes), "roofline")

    def peaks(self) -> Peaks:
        """Peaks of the device, measured when first needed."""
        if self._peaks is None:
            with self.quiet():
                self._peaks = self.target.peaks(self.threads, self.timings)
        return self._peaks

    def overhead(self) -> Overhead:
        """Call and launch overhead of the target, measured when first needed."""
        if self._overhead is None:
            with self.quiet():
                self._overhead = self.target.overhead(self.threads, self.timings)
        return self._overhead

    def _or_estimate(self, cost: Cost, spec: NodeSpec) -> Cost:
        if cost.source != "roofline":
            return cost
        return dataclasses.replace(self.estimate(spec), note=cost.note)

    def _may_measure(self) -> bool:
        return self.target.measures and not self.timings.frozen

    def _keep(self, key: str, cost: Cost) -> Cost:
        self._costs[key] = cost
        return cost

    def _sized(self, spec: NodeSpec) -> NodeSpec:
        """With sizes for symbols, in types; attributes that hold symbols do not exist."""
        if all(each.type is None or each.type.is_static for each in spec.inputs):
            return spec
        inputs = tuple(each if each.type is None else NodeInput(self._static(each.type), each.constant, each.array)
                       for each in spec.inputs)
        return dataclasses.replace(spec, inputs=inputs)

    def _static(self, type_: TensorType) -> TensorType | None:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = static_type(type_, self.sizes)
        return found


def unmeasurable(spec: NodeSpec) -> str:
    """Why a node cannot be measured alone, empty where it can."""
    for value in spec.attrs.values():
        if any(isinstance(item, Graph) for item in (value if isinstance(value, tuple) else (value,))):
            return NESTED
    for position, each in enumerate(spec.inputs):
        if not each.absent and (each.type is None or not each.type.is_static):
            return f"the shape of input {position} is unknown"
    return ""


def node_work(spec: NodeSpec) -> Work | None:
    """Operations and bytes of a node, None where its shapes are unknown."""
    types = [None if each.absent else each.type for each in spec.inputs]
    if unmeasurable(spec):
        return None
    outputs = output_types(spec)
    return None if outputs is None else work(spec.op, spec.domain, spec.attrs, types, outputs)
