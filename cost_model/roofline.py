"""The roofline of a graph: what its work would take at the device's peaks, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from graphs.ir import Graph, Node

from .node_costs import node_work
from .peaks import Peaks
from .signature import spec_of
from .sizes import static_type
from .targets.base import is_view


@dataclass(frozen=True)
class GraphRoofline:
    """Work of one graph at given sizes.

    `flops`: operations; `unique_bytes`: inputs, outputs and what is read of weights, each once: what must
    move however the graph is computed; `traffic_bytes`: what moves if each node reads and writes memory;
    `intensity`: operations per unique byte. `lower_bound` seconds: at peak rates, without overhead;
    `kernels_bound`: the same node by node, launch overhead included. `launches`: nodes that do something at
    run time (views and what depends on constants alone are not among them). `unknown`: nodes whose shapes
    are unknown or that hold nested graphs; their work is not counted.
    """

    flops: float
    unique_bytes: float
    traffic_bytes: float
    intensity: float
    lower_bound: float
    kernels_bound: float
    launches: int
    unknown: int
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


def graph_roofline(graph: Graph, sizes: Mapping[str, int], peaks: Peaks, launch: float = 0.0) -> GraphRoofline:
    """The roofline of a graph (nested graphs left out) at sizes of its symbols. Types must have been
    inferred.

    `launch` is the overhead of a node in seconds.
    """
    folded = set(graph.constants)
    flops = traffic = kernels = 0.0
    launches = unknown = 0
    for node in graph.nodes:
        if node.uses and all(name in folded for name in node.uses):  # computed when the model is loaded
            folded.update(node.outputs)
            continue
        spec = spec_of(graph, node, sizes)
        if is_view(spec):
            continue
        launches += 1
        found = node_work(spec)
        if found is None:
            unknown += 1
            continue
        flops += found.flops
        traffic += found.bytes
        kernels += peaks.seconds(found.flops, found.bytes) + launch
    unique = _unique_bytes(graph, sizes)
    return GraphRoofline(
        flops,
        unique,
        traffic,
        flops / unique if unique else 0.0,
        peaks.seconds(flops, unique),
        kernels,
        launches,
        unknown,
        peaks.threads,
    )


def _bytes_read(graph: Graph, node: Node, name: str, sizes: Mapping[str, int]) -> float:
    """Bytes of a constant that a node reads: of a table that is looked up, no more than comes out."""
    if node.op in ("Gather", "GatherElements", "GatherND") and name == node.inputs[0]:
        found = static_type(graph.type_of(node.outputs[0]), sizes)
        return float(found.static_bytes or 0.0) if found is not None else 0.0
    return float(graph.constants[name].nbytes)


def _unique_bytes(graph: Graph, sizes: Mapping[str, int]) -> float:
    touched: dict[str, float] = {}
    for node in graph.nodes:
        for name in node.uses:
            if name in graph.constants:
                touched[name] = touched.get(name, 0.0) + _bytes_read(graph, node, name, sizes)
    total = sum(min(count, float(graph.constants[name].nbytes)) for name, count in touched.items())
    for name in [*graph.inputs, *graph.outputs]:
        type_ = static_type(graph.type_of(name), sizes)
        if type_ is not None and name not in graph.constants:
            total += type_.static_bytes or 0.0
    return total
