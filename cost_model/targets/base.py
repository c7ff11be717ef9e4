"""What every target offers, and how a target that runs graphs measures a single node."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from graphs.errors import EgraftError, TargetUnavailable
from graphs.ir import Graph, Node
from graphs.machine import cores_visible
from graphs.operators import find, is_pure
from graphs.types import TensorType

from .. import peaks, protocol
from ..calibration import Calibration, calibrated
from ..comparison import Comparison
from ..costs import FREE, Cost, NodeInput, NodeSpec
from ..fingerprint import Fingerprint
from ..neighbourhoods import Neighbourhood, Places
from ..peaks import Peaks
from ..probe import node_graph
from ..records import Record
from ..signature import node_key
from ..timings import Timings

NODE_BUDGET = 0.02  # seconds of sampling for one node; building its session comes on top
RESOLUTION = 1e-8  # seconds: the least that a measured node is said to take
# They move no data inside a graph, though alone, between the caller's buffers, they must copy.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_CHAIN = 32
_LONGEST = 0.1  # seconds of sampling for a node, however slow it is (3 samples at least)
_TINY = 20e-6  # seconds: below, a chain of tiny nodes is the better reference
Feeds = Mapping[str, np.ndarray]


class Unsupported(Exception):
    """The target has no kernel for a node of the graph, or does not run it at these sizes; the text is the
    runtime's own.
    """


@dataclass
class Runner:
    """A prepared graph with its feeds bound: calling it runs it once. `close` lets go of what it holds.

    `launches` is how many kernels a run launches, where the runtime tells: a graph of views launches none. `call` runs
    it as callers do, who hand their values over with each run, where that is another way than `run`.
    """

    run: Callable[[], None]
    outputs: Callable[[], dict[str, np.ndarray]]
    close: Callable[[], None] = field(default=lambda: None)
    launches: int | None = None
    call: Callable[[], None] | None = None

    def __call__(self) -> None:
        self.run()


def prepared(target: Target, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
    """A runner of a whole graph that has run. Raises Unsupported, with what the runtime said, where the
    graph does not load or does not run with these feeds.
    """
    try:
        runner = target.prepare(graph, feeds, threads)
    except (Unsupported, ImportError):
        raise
    except Exception as error:  # runtimes raise classes of their own, which differ by release
        raise Unsupported(said(error)) from error
    try:
        runner.run()
        runner.run()  # with the outputs of the first run bound
    except Exception as error:
        runner.close()
        raise Unsupported(said(error)) from error
    return runner


def said(error: Exception) -> str:
    """What a runtime says of a graph, on one line."""
    found = f"{error.where}: {error.found}" if isinstance(error, EgraftError) else f"{type(error).__name__}: {error}"
    return " ".join(found.split())[:300]


@dataclass(frozen=True)
class Overhead:
    """Seconds: `call` for entering and leaving the runtime, `launch` for each node whatever it does."""

    call: float
    launch: float


class Target(ABC):
    """A runtime on a device.

    `measures`: it runs things here; else its costs are estimates (or another machine's records) and named
    as such. `reads_types`: types that a file states of values inside of it may change what runs.
    """

    name: str
    measures: bool = True
    reads_types: bool = False
    clocks: protocol.Clocks = protocol.REAL  # of whole graphs
    database: Timings | None = None  # where records come from, if not from the caller's database
    origin: str = "this machine"  # whose records those are

    @abstractmethod
    def available(self) -> str | None:
        """None if it can be used here, else the reason why not, one line with what to do."""

    @property
    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """The device and the libraries that its times belong to."""

    @property
    def place(self) -> tuple[str, str] | None:
        """Target name and fingerprint digest that its records are filed under; None if none are looked up."""
        return self.name, self.fingerprint.digest

    @property
    def description(self) -> str:
        """One line for lists and reports."""
        return (self.__doc__ or "").strip().splitlines()[0]

    def require(self) -> None:
        """Raise TargetUnavailable where it is not available."""
        reason = self.available()
        if reason is not None:
            found, _, fix = reason.partition("; ")
            raise TargetUnavailable(f"target {self.name}", found, fix or "choose another target: `egraft targets`")

    def conditions(self) -> dict[str, str]:
        """What else to note with a record: the clocks of a device, say."""
        return {}

    def default_threads(self) -> int:
        """What the runtime would use on its own."""
        return cores_visible()

    def overhead(self, threads: int, timings: Timings) -> Overhead:
        """Call and launch overhead, from the database or measured now."""
        raise NotImplementedError

    def peaks(self, threads: int, timings: Timings) -> Peaks:
        """What the device reaches at best, from the database or measured now."""
        return peaks.peaks(timings, threads)

    @property
    def peaks_filed_under(self) -> str:
        """Target name of the records that `peaks` makes."""
        return peaks.HOST

    def key(self, spec: NodeSpec, threads: int) -> str:
        """Under which name the node's cost is filed."""
        return node_key(spec, threads)

    def known_cost(self, spec: NodeSpec) -> Cost | None:
        """Costs that need no measurement: what is computed before the run."""
        present = [each for each in spec.inputs if not each.absent]
        record = find(spec.op, spec.domain) if spec.version != 0 else None
        node = Node(spec.op, (), (), dict(spec.attrs), spec.domain, version=max(spec.version, 1))
        if present and all(each.constant for each in present) and record is not None and is_pure(node):
            return FREE
        return FREE if spec.op == "Constant" and not spec.domain else None

    @abstractmethod
    def measure_node(self, spec: NodeSpec, threads: int, timings: Timings, budget: float = NODE_BUDGET) -> Cost:
        """Measure one node now and store the result. A node that cannot be measured alone has source
        `roofline` and 0 seconds here; `NodeCosts` puts the estimate in."""

    def neighbourhoods(self, graph: Graph, timings: Timings) -> list[Neighbourhood]:
        """Nodes of the graph that the target joins into one kernel when it loads it; none where it takes graphs as
        they are. From the database, or found now.
        """
        return []

    def measure_neighbourhood(self, places: Places, found: Neighbourhood, timings: Timings,
                              budget: float = NODE_BUDGET) -> Cost:
        """Measure them together now and store the result."""
        raise NotImplementedError

    @abstractmethod
    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """A runner of the graph. Raises Unsupported where the runtime lacks a kernel, TargetUnavailable if
        absent.
        """

    def trial(self, graph: Graph, threads: int = 1) -> Callable[[Feeds], None]:
        """What tries the graph with feeds of one size after the other, and raises Unsupported where it does not run
        with them."""
        return lambda feeds: prepared(self, graph, feeds, threads).close()

    @abstractmethod
    def compare(
        self,
        graphs: Mapping[str, Graph],
        baseline: str,
        feeds: Feeds,
        *,
        threads: int = 1,
        settings: protocol.Settings | None = None,
        timings: Timings | None = None,
        look: int = 1,
    ) -> Comparison:
        """Measure whole graphs against the baseline; a verdict in the database answers at once.

        Each `look` measures anew, with runners of its own, and has a verdict of its own.
        """

    def compare_sessions(self, graphs: Mapping[str, Graph], baseline: str, feeds: Feeds, *, threads: int,
                         seconds: float, settings: protocol.Settings, timings: Timings,
                         held: int = 0) -> Comparison | None:
        """Compare two graphs in pairs of fresh sessions (`cost_model.sessions`). None where that was not done: nothing
        is measured here, a device times itself, the database is frozen and has none, or no `seconds` are left."""
        return None

    def node_cost(
        self,
        op: str,
        domain: str,
        attrs: Mapping[str, object],
        inputs: Sequence[NodeInput],
        output_count: int,
        opset: int,
        *,
        threads: int = 1,
        timings: Timings | None = None,
    ) -> Cost:
        """What one node costs: known, from the database, or measured now. `NodeCosts` is the way for many."""
        from ..node_costs import NodeCosts

        own = timings if timings is not None else Timings(":memory:")
        costs = NodeCosts(self, own, {}, threads=threads, opset=opset)
        spec = NodeSpec(op, domain, attrs, tuple(inputs), output_count, opset)
        if costs.cost_of(spec).source == "roofline":
            costs.measure()
        return costs.cost_of(spec)


def chain(length: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """`length` nodes on one element, one after the other: nothing but overhead."""
    type_ = TensorType("float32", (1,))
    graph = Graph("chain", inputs=["v0"], outputs=[f"v{length}"], opsets={"": 17})
    for index in range(length):
        op = ("Neg", "Abs")[index % 2]
        graph.nodes.append(Node(op, (f"v{index}",), (f"v{index + 1}",), version=13))
    graph.types = {f"v{index}": type_ for index in range(length + 1)}
    graph.declared = {"v0": type_, f"v{length}": type_}
    return graph, {"v0": np.full(1, 0.5, np.float32)}


def reference_work() -> tuple[Graph, dict[str, np.ndarray]]:
    """A matrix multiplication and an elementwise operator, to see how fast the machine is at the moment."""
    spec = NodeSpec(
        "MatMul",
        "",
        {},
        (NodeInput(TensorType("float32", (64, 256))), NodeInput(TensorType("float32", (256, 256)), True)),
        1,
        17,
    )
    graph, feeds = node_graph(spec)
    graph.nodes.append(Node("Exp", ("x2",), ("y1",), version=13))
    graph.inputs.append("x2")
    graph.outputs.append("y1")
    for name in ("x2", "y1"):
        graph.types[name] = TensorType("float32", (64, 1024))
    graph.declared["x2"] = graph.types["x2"]
    return graph, {**feeds, "x2": np.linspace(-1, 1, 65536, dtype=np.float32).reshape(64, 1024)}


class MeasuredTarget(Target):
    """A target whose runtime is in this process."""

    def __init__(self) -> None:
        self._references: dict[tuple[int, str, int], Runner] = {}

    def reference(self, name: str, threads: int, timings: Timings) -> protocol.Reference:
        """`work` or `chain`: what nodes are measured beside. Its nominal time is measured once per
        database.
        """
        place = (os.getpid(), name, threads)  # a session does not survive a fork
        if place not in self._references:
            self._references[place] = self.prepare(
                *(reference_work() if name == "work" else chain(1 + _CHAIN)), threads
            )
        runner = self._references[place]
        inner = protocol.warm_up(runner.run, protocol.Settings())

        def nominal() -> Calibration:
            samples: list[float] = []
            for _ in range(5):
                samples.extend(protocol.measure_one(runner.run, threads, 0.02).raw)
                time.sleep(0.01)  # a disturbance often lasts for tens of milliseconds
            return samples, float(np.quantile(samples, 0.25)), {}

        key = f"reference {name} threads={threads}"
        record = calibrated(timings, key, self.name, self.fingerprint, nominal)
        return protocol.Reference(runner.run, record.median, inner)

    def overhead(self, threads: int, timings: Timings) -> Overhead:
        """From chains of 1 and 33 nodes on one element: the slope is `launch`, what is left of the first
        `call`.
        """

        def chain_of_one() -> Calibration:
            reference = self.reference("chain", threads, timings)
            runner = self.prepare(*chain(1), threads)
            shorts = protocol.measure_one(runner.run, threads, 0.1, reference=reference).seconds
            runner.close()
            return shorts, float(np.median(shorts)), {"chain": reference.nominal}

        key = f"overhead threads={threads}"
        record = calibrated(timings, key, self.name, self.fingerprint, chain_of_one)
        return overhead_from(record)

    def measure_node(self, spec: NodeSpec, threads: int, timings: Timings, budget: float = NODE_BUDGET) -> Cost:
        """Run the node in a session of its own; the call overhead is taken off, that of the launch stays."""
        return self._measure(self.key(spec, threads), "node",
                             lambda: node_graph(one_element(spec) if is_view(spec) else spec), threads, timings, budget)

    def measure_neighbourhood(self, places: Places, found: Neighbourhood, timings: Timings,
                              budget: float = NODE_BUDGET) -> Cost:
        """Run the nodes together in a session of their own; the call overhead is taken off."""
        return self._measure(places.key(found), "neighbourhood", lambda: places.probe(found), places.threads, timings,
                             budget)

    def _measure(self, key: str, kind: Literal["node", "neighbourhood"], make: Callable[[], tuple[Graph, Feeds]],
                 threads: int, timings: Timings, budget: float) -> Cost:
        overhead = self.overhead(threads, timings)
        note: dict[str, Any] = {}
        samples: tuple[float, ...] = ()
        median = 0.0
        try:
            graph, feeds = make()
            runner = self.prepare(graph, feeds, threads)
            try:
                inner = protocol.warm_up(runner.run, protocol.Settings())
                one = protocol.take_sample(runner.run, inner)
                reference = self.reference("chain" if one.alone < _TINY else "work", threads, timings)
                enough = min(_LONGEST, budget + 20 * one.wall)
                timed = protocol.measure_steady(runner.run, threads, enough, reference, inner)
            finally:
                runner.close()
            samples, median = timed.seconds, timed.median
            note = {
                "clock": timed.clock,
                "inner": timed.inner,
                "call": overhead.call,
                "launch": RESOLUTION if runner.launches == 0 else overhead.launch,
                "raw": list(timed.raw),
                "reference": list(timed.around),
                "wall": [each.wall for each in timed.samples],
                **self.conditions(),
            }
        except Unsupported as error:
            median, note = math.inf, {"unsupported": str(error)}
        except ImportError:
            raise
        except Exception as error:
            # Whatever a runtime raises for data that do not fit: recorded, and the node is estimated.
            note = {"failed": f"{type(error).__name__}: {error}"[:500]}
        record = timings.add(key, self.name, self.fingerprint, kind, samples, median, note, lambda old: old.failed)
        return cost_from(record, "measured")

    def compare(
        self,
        graphs: Mapping[str, Graph],
        baseline: str,
        feeds: Feeds,
        *,
        threads: int = 1,
        settings: protocol.Settings | None = None,
        timings: Timings | None = None,
        look: int = 1,
    ) -> Comparison:
        """Measure whole graphs in turns; see `protocol.compare`. Equal graphs are measured once."""
        from .verdicts import compare_graphs

        self.require()
        return compare_graphs(self, graphs, baseline, feeds, threads, settings, timings, look)


    def compare_sessions(self, graphs: Mapping[str, Graph], baseline: str, feeds: Feeds, *, threads: int,
                         seconds: float, settings: protocol.Settings, timings: Timings,
                         held: int = 0) -> Comparison | None:
        """As in the database, else measured now. On a GPU it is not done: devices time runs with flushed caches."""
        from ..sessions import compare_sessions

        if self.name.endswith(":cuda"):
            return None
        return compare_sessions(self, graphs, baseline, feeds, threads=threads, seconds=seconds, settings=settings,
                                timings=timings, held=held)


def overhead_from(record: Record) -> Overhead:
    """What the times of a short and of a long chain tell."""
    launch = max((float(record.note["chain"]) - record.median) / _CHAIN, RESOLUTION)
    return Overhead(max(record.median - launch, 0.0), launch)


def cost_from(record: Record, source: str) -> Cost:
    """The cost that a record of kind `node` tells; source `roofline` with 0 seconds where measuring had
    failed.
    """
    if math.isinf(record.median):
        return Cost(math.inf, "unsupported", note=str(record.note.get("unsupported", "")))
    if not record.samples:
        return Cost(0.0, "roofline", note=f"not measurable alone: {record.note.get('failed', '')}")
    call, launch = (float(record.note.get(name, 0.0)) for name in ("call", "launch"))
    seconds = max(record.median - call, launch, RESOLUTION)  # no node is cheaper than one on one element
    return Cost(seconds, "database" if source == "database" else "measured", record.spread)


def is_view(spec: NodeSpec) -> bool:
    """A node that moves no data inside a graph."""
    return spec.op in VIEWS and not spec.domain and bool(spec.inputs)


def one_element(spec: NodeSpec) -> NodeSpec:
    """A view of one element, so that the copy which only a lone node needs is not counted. All views are that Reshape:
    they do the same, and the search tells them apart by their results alone."""
    first = spec.inputs[0].type
    tiny = NodeInput(TensorType(first.dtype if first is not None else "float32", (1,)))
    return NodeSpec("Reshape", "", {"shape": (1, 1), "allowzero": 0}, (tiny,), 1, spec.opset, opsets=spec.opsets)


def view_key(spec: NodeSpec, threads: int) -> str:
    """All views of one element type share one record."""
    return "view " + node_key(one_element(spec), threads)
