"""The roofline of a graph: what its work would take at the device's peaks, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphs.constants import Constant
from graphs.dims import Expr, evaluate
from graphs.ir import Graph, Node, is_fused
from graphs.nested import seeing
from graphs.operators.control_flow import stays_true

from .costs import NodeSpec
from .memory import value_bytes
from .node_costs import node_work, unmeasurable
from .peaks import Peaks
from .signature import alike, spec_of
from .sizes import static_type
from .targets.base import is_view
from .work import Work, work

LOOK_UPS = ("Gather", "GatherElements", "GatherND")  # they read what they take of their first input

@dataclass(frozen=True)
class GraphRoofline:
    """Work of one graph at given sizes.

    `flops`: operations; `unique_bytes`: inputs, outputs and what is read of weights, each once: what must
    move however the graph is computed; `traffic_bytes`: what moves if each node reads and writes memory;
    `intensity`: operations per unique byte, `traffic_intensity`: per byte that nodes move (what fusion raises).
    `lower_bound` seconds: at peak rates, without overhead, with unique bytes in a cache if they fit, and
    what sets it: `bound`, `compute` or `memory`; `kernels_bound`: the same node by node, launch overhead
    included. `launches`: nodes that do something at run time (views and what depends on constants alone are
    not among them). `unknown`: nodes whose shapes are unknown; their work is not counted.

    Of an If the branch counts that takes less at peak rates, so that the bound is one; bodies of Loop and Scan
    count as often as they run, once where only the data tell how often (`loops_once`: how many such loops).
    """

    flops: float
    unique_bytes: float
    traffic_bytes: float
    intensity: float
    traffic_intensity: float
    lower_bound: float
    bound: str
    kernels_bound: float
    launches: int
    unknown: int
    loops_once: int
    threads: int

    def to_dict(self, seconds: float | None = None) -> dict[str, Any]:
        """JSON types. With measured `seconds`, `achieved`: the lower bound's share of them."""
        achieved = self.lower_bound / seconds if seconds else None
        return {**asdict(self), "seconds": seconds, "achieved": achieved}


@dataclass
class _Count:
    """Sums over nodes; `read` holds bytes read of each constant (by identity: names may recur in other bodies)."""

    flops: float = 0.0
    traffic: float = 0.0
    kernels: float = 0.0
    launches: int = 0
    unknown: int = 0
    loops_once: int = 0
    read: dict[int, float] = field(default_factory=dict)

    def add(self, other: _Count, times: int = 1) -> None:
        """Add what runs `times` times; constants are read once however often."""
        self.flops += times * other.flops
        self.traffic += times * other.traffic
        self.kernels += times * other.kernels
        self.launches += times * other.launches
        self.unknown += other.unknown
        self.loops_once += other.loops_once
        for place, count in other.read.items() if times else ():
            self.read[place] = self.read.get(place, 0.0) + count


@dataclass(frozen=True)
class _Device:
    sizes: Mapping[str, int]
    peaks: Peaks
    launch: float
    works: dict[object, tuple[bool, Work | None]] = field(default_factory=dict)  # of nodes that are alike


def graph_roofline(graph: Graph, sizes: Mapping[str, int], peaks: Peaks, launch: float = 0.0) -> GraphRoofline:
    """The roofline of a graph, nested graphs included, at sizes of its symbols. Types must have been
    inferred.

    `launch` is the overhead of a node in seconds.
    """
    constants: dict[int, Constant] = {}
    found = _count(graph, _Device(sizes, peaks, launch), {}, constants)
    unique = sum(min(count, float(constants[place].nbytes)) for place, count in found.read.items())
    for name in [*graph.inputs, *graph.outputs]:
        type_ = static_type(graph.type_of(name), sizes)
        if type_ is not None and name not in graph.constants:
            unique += type_.static_bytes or 0.0
    seconds = peaks.least(found.flops, unique)
    return GraphRoofline(
        found.flops,
        unique,
        found.traffic,
        found.flops / unique if unique else 0.0,
        found.flops / found.traffic if found.traffic else 0.0,
        seconds,
        "compute" if seconds > 0 and found.flops / peaks.flops >= seconds else "memory",
        found.kernels,
        found.launches,
        found.unknown,
        found.loops_once,
        peaks.threads,
    )


def _count(graph: Graph, device: _Device, outer: Mapping[str, tuple[Constant, ...]],
           constants: dict[int, Constant]) -> _Count:
    """What the nodes of a graph do, whose surroundings have the values `outer` of constants; `constants` takes all
    that are read.

    `stored` holds, of each value that needs no run, the constants that it was computed from; of a view of one (which
    no node reads before its reader) as well.
    """
    found = _Count()
    stored = {**outer, **{name: (constant,) for name, constant in graph.constants.items()}}
    folded = set(stored)
    for node in graph.nodes:
        uses = node.uses
        if uses and all(name in folded for name in uses):  # computed when the model is loaded
            made = tuple({id(each): each for name in uses for each in stored[name]}.values())
            stored.update((name, made) for name in node.outputs if name)
            folded.update(node.outputs)
            continue
        if is_fused(node):
            _count_fused(graph, node, device, found)
        elif node.holds_graphs:
            inner = {name: stored[name] for name in uses if name in folded}
            if not _count_bodies(graph, node, device, inner, constants, found):
                continue
        else:
            view, does = _does(graph, node, device)
            if view:
                if node.inputs[0] in stored:
                    stored.update((name, stored[node.inputs[0]]) for name in node.outputs if name)
                continue
            found.launches += 1
            if does is None:
                found.unknown += 1
                continue
            found.flops += does.flops
            found.traffic += does.bytes
            found.kernels += device.peaks.seconds(does.flops, does.bytes) + device.launch
        for name in dict.fromkeys(node.inputs):
            if name in stored:
                _read(stored[name], _bytes_read(graph, node, name, device.sizes), constants, found.read)
    return found


def _read(sources: Iterable[Constant], moved: float, constants: dict[int, Constant], read: dict[int, float]) -> None:
    """Add the bytes that a node reads to those of the constants that they come from, of all no more than it reads."""
    for constant in sources:
        part = min(moved, float(constant.nbytes))
        constants[id(constant)] = constant
        read[id(constant)] = read.get(id(constant), 0.0) + part
        moved -= part


def _does(graph: Graph, node: Node, device: _Device) -> tuple[bool, Work | None]:
    """Whether a node only looks at memory otherwise, else its work. Nodes that are alike are looked at once."""
    same = alike(graph, node)
    outputs = [graph.type_of(name) if name else None for name in node.outputs]
    place = None if same is None else (same, *graph.opsets.items(), *outputs)
    found = device.works.get(place) if place is not None else None
    if found is None:
        spec = spec_of(graph, node, device.sizes)
        found = (True, None) if is_view(spec) else (False, _work(graph, node, spec, device.sizes))
        if place is not None:
            device.works[place] = found
    return found


def _work(graph: Graph, node: Node, spec: NodeSpec, sizes: Mapping[str, int]) -> Work | None:
    """With the output types that the graph knows: they may follow from contents, which a lone node does not show."""
    if unmeasurable(spec):
        return None
    outputs = [static_type(graph.type_of(name), sizes) if name else None for name in node.outputs]
    if any(name and type_ is None for name, type_ in zip(node.outputs, outputs)):
        return node_work(spec)
    return work(spec.op, spec.domain, spec.attrs, [None if each.absent else each.type for each in spec.inputs], outputs)


def _count_fused(graph: Graph, node: Node, device: _Device, found: _Count) -> None:
    """Add a node that runs as one kernel: the work of its body, the bytes that enter and leave it."""
    body = node.attrs["body"]
    assert isinstance(body, Graph)
    inside = _count(body, device, {}, {})
    types = [static_type(graph.type_of(name), device.sizes) for name in (*node.inputs, *node.outputs) if name]
    moved = sum(_bytes_read(graph, node, name, device.sizes) for name in node.inputs)
    moved += sum(value_bytes(graph, name, device.sizes) for name in node.outputs)
    found.launches += 1
    found.unknown += bool(inside.unknown) or None in types
    found.flops += inside.flops
    found.traffic += moved
    found.kernels += device.peaks.seconds(inside.flops, moved) + device.launch


def _count_bodies(graph: Graph, node: Node, device: _Device, outer: Mapping[str, tuple[Constant, ...]],
                  constants: dict[int, Constant], found: _Count) -> bool:
    """Add a node that holds graphs: its own launch, and its bodies as often as they run. Whether a body does
    something that counts."""
    bodies = [_count(seeing(graph, body), device, outer, constants) for body in node.graphs]
    found.launches += 1
    found.kernels += device.launch
    if node.op == "If" and not node.domain:
        bodies = [min(bodies, key=lambda each: each.kernels)]
        rounds: int | None = 1
    else:
        rounds = _rounds(graph, node, device.sizes)
    found.loops_once += rounds is None
    for body in bodies:
        found.add(body, 1 if rounds is None else rounds)
    return any(body.traffic for body in bodies) and rounds != 0


def _rounds(graph: Graph, node: Node, sizes: Mapping[str, int]) -> int | None:
    """How often a body runs, None where only the data tell (or nobody knows the operator)."""
    body = node.attrs.get("body")
    if not isinstance(body, Graph) or node.domain or node.is_opaque:
        return None
    if node.op == "Scan":
        return _scanned(graph, node, sizes)
    trips = graph.constants.get(node.inputs[0]) if node.op == "Loop" and any(node.inputs[:1]) else None
    starts = len(node.inputs) < 2 or not node.inputs[1] or (
        (first := graph.constants.get(node.inputs[1])) is not None and bool(first.array.all()))
    if trips is None or trips.size != 1 or not starts or not stays_true(body):
        return None
    return max(0, int(trips.array.reshape(-1)[0]))


def _scanned(graph: Graph, node: Node, sizes: Mapping[str, int]) -> int | None:
    count = node.attrs.get("num_scan_inputs")
    if not isinstance(count, int) or not 0 < count <= len(node.inputs):
        return None
    axes = node.attrs.get("scan_input_axes")
    axis = axes[0] if isinstance(axes, tuple) and axes else 0
    type_ = graph.type_of(node.inputs[len(node.inputs) - count])
    if type_ is None or type_.shape is None or not -len(type_.shape) <= axis < len(type_.shape):
        return None
    dim = type_.shape[axis]
    return evaluate(dim, sizes) if isinstance(dim, Expr) else int(dim)


def _bytes_read(graph: Graph, node: Node, name: str, sizes: Mapping[str, int]) -> float:
    """Bytes of an input that a node reads: of a table that is looked up, no more than comes out."""
    whole = value_bytes(graph, name, sizes)
    if is_fused(node):
        body = node.attrs["body"]
        assert isinstance(body, Graph)
        taken = sum(_looked_up(body, inner, sizes) for inner, given in zip(body.inputs, node.inputs) if given == name)
        return min(whole, taken)
    return min(whole, value_bytes(graph, node.outputs[0], sizes)) if _looks_up(node, name) else whole


def _looked_up(body: Graph, name: str, sizes: Mapping[str, int]) -> float:
    """Bytes of an input of a body that it reads, no limit where another node than a look-up reads it."""
    readers = [node for node in body.nodes if name in node.uses]
    if not readers or name in body.outputs or not all(_looks_up(node, name) for node in readers):
        return math.inf
    return sum(value_bytes(body, node.outputs[0], sizes) for node in readers)


def _looks_up(node: Node, name: str) -> bool:
    return node.op in LOOK_UPS and not node.domain and node.inputs[0] == name and name not in node.inputs[1:]
