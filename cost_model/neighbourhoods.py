"""Neighbourhoods: nodes that a runtime makes one kernel of when it loads a graph, and what that saves or costs.

Which ones is not listed anywhere here: the runtime is asked what it makes of the graph. Each kind is then measured
as a small graph of its own, beside the sum of its nodes measured alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.operators import is_pure

from .costs import Cost, NodeSpec
from .probe import Unmeasurable, draw
from .signature import graph_digest, node_key, spec_of

CERTAIN = 0.1  # of a time: what two sessions that run the same kernel differ by
LARGEST = 24  # nodes of one neighbourhood; what a runtime makes of more is no neighbourhood but a rewritten model


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Indices of the graph's nodes, in order, that the runtime joins; the last one computes what leaves it."""

    nodes: tuple[int, ...]

    def operators(self, graph: Graph) -> str:
        """`Add+Erf+Mul`, for people."""
        return "+".join(graph.nodes[index].op for index in self.nodes)


def kernels_key(graph: Graph) -> str:
    """Under which name it is filed what a target joins in a graph."""
    return f"kernels {graph_digest(graph)}"


def to_note(found: Sequence[Neighbourhood]) -> dict[str, Any]:
    """As a record notes them."""
    return {"neighbourhoods": [list(each.nodes) for each in found]}


def from_note(note: Mapping[str, Any]) -> list[Neighbourhood]:
    """The reverse of `to_note`."""
    return [Neighbourhood(tuple(each)) for each in note["neighbourhoods"]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node of the graph that the runtime runs: what it reads and writes, by names of values."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def joined(graph: Graph, kernels: Sequence[Kernel]) -> list[Neighbourhood]:
    """Neighbourhoods that the kernels show: each kernel that no node of the graph is, with the nodes between what it
    reads and what it writes.

    Left out are those whose nodes cannot be told by the names of values, and those whose inner values something else
    reads too: then the runtime computes them twice, or not in this kernel.
    """
    producer = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    constant = constant_values(graph)
    readers: dict[str, set[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.uses:
            readers.setdefault(name, set()).add(index)
    found: list[Neighbourhood] = []
    taken: set[int] = set()
    for kernel in kernels:
        outputs = [name for name in kernel.outputs if name]
        if len(outputs) != 1 or outputs[0] not in producer or _same(graph.nodes[producer[outputs[0]]], kernel):
            continue
        members = _between(graph, outputs[0], set(kernel.inputs) | constant, producer)
        if members is None or not 2 <= len(members) <= LARGEST or taken & members:
            continue
        inner = {name for index in members for name in graph.nodes[index].outputs if name} - set(outputs)
        leaks = any(readers.get(name, set()) - members for name in inner) or inner & set(graph.outputs)
        if leaks or not all(_plain(graph.nodes[index]) for index in members):
            continue
        taken |= members
        found.append(Neighbourhood(tuple(sorted(members))))
    return found


def _plain(node: Node) -> bool:
    return not node.is_opaque and not node.holds_graphs and is_pure(node)


def _same(node: Node, kernel: Kernel) -> bool:
    """Is the kernel the node itself? Names of constants may differ, the operator and the values do not."""
    return node.op == kernel.op and (node.domain or "") == kernel.domain


def constant_values(graph: Graph) -> set[str]:
    """Values known before the graph runs."""
    found = set(graph.constants)
    for node in graph.nodes:
        if _plain(node) and node.inputs and all(name in found for name in node.inputs if name):
            found.update(name for name in node.outputs if name)
    return found


def _between(graph: Graph, output: str, stop: set[str], producer: Mapping[str, int]) -> set[int] | None:
    """Nodes from the output back to where it stops; None where a way ends at an input without meeting a stop."""
    members: set[int] = set()
    todo = [output]
    while todo:
        name = todo.pop()
        if name in stop and name != output:
            continue
        if name not in producer or len(members) > LARGEST:
            return None
        index = producer[name]
        if index not in members:
            members.add(index)
            todo += [each for each in graph.nodes[index].inputs if each]
    return members


class Places:
    """Neighbourhoods of one graph as something to be measured: their keys and graphs of their own."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], threads: int) -> None:
        self.graph, self.sizes, self.threads = graph, sizes, threads
        self._constant = constant_values(graph)

    def specs(self, found: Neighbourhood) -> list[NodeSpec]:
        """The nodes as `NodeCosts` prices them."""
        return [self._spec(self.graph.nodes[index]) for index in found.nodes]

    def key(self, found: Neighbourhood) -> str:
        """Under which name its time is filed: the nodes' own keys and how they are wired; weights by type."""
        number: dict[str, str] = {}
        lines = []
        for index, spec in zip(found.nodes, self.specs(found), strict=True):
            node = self.graph.nodes[index]
            reads = [number.setdefault(name, f"v{len(number)}") if name else "-" for name in node.inputs]
            makes = [number.setdefault(name, f"v{len(number)}") if name else "-" for name in node.outputs]
            lines.append(f"{makes} = {node_key(spec, self.threads)} {reads}")
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return f"neighbourhood {found.operators(self.graph)} {digest[:32]} threads={self.threads}"

    def probe(self, found: Neighbourhood) -> tuple[Graph, dict[str, np.ndarray]]:
        """A graph of the neighbourhood alone, with feeds. Raises Unmeasurable where a type is not known."""
        small = Graph("probe", opsets=dict(self.graph.opsets))
        feeds: dict[str, np.ndarray] = {}
        made: set[str] = set()
        for index, spec in zip(found.nodes, self.specs(found), strict=True):
            node = self.graph.nodes[index]
            for position, name in enumerate(node.inputs):
                if not name or name in made or name in feeds or name in small.constants:
                    continue
                each = spec.inputs[position]
                if each.type is None or not each.type.is_static:
                    raise Unmeasurable(f"the shape of {name!r} is unknown")
                array = draw(spec, position, each)
                if each.constant:
                    small.constants[name] = Constant(each.type, lambda array=array: array)  # type: ignore[misc]
                else:
                    small.inputs.append(name)
                    small.types[name] = small.declared[name] = each.type
                    feeds[name] = array
            small.nodes.append(node.copy())
            made.update(name for name in node.outputs if name)
        small.outputs = [name for name in self.graph.nodes[found.nodes[-1]].outputs if name]
        infer(small)
        return small, feeds

    def _spec(self, node: Node) -> NodeSpec:
        """Values computed from constants alone are constants too: the runtime computes them when it loads."""
        spec = spec_of(self.graph, node, self.sizes)
        inputs = tuple(each if each.constant or name not in self._constant
                       else dataclasses.replace(each, constant=True)
                       for name, each in zip(node.inputs, spec.inputs, strict=True))
        return dataclasses.replace(spec, inputs=inputs)


def saving(nodes: Sequence[Cost], together: Cost) -> float:
    """Seconds that running the nodes as one kernel saves for certain; negative: what it costs for certain.

    The spread of the measurements, and `CERTAIN` of the time, are taken off: what one node can do as well as several
    that are joined is then done by one.
    """
    alone = sum(cost.seconds for cost in nodes)
    if not math.isfinite(alone) or not math.isfinite(together.seconds):
        return 0.0
    noise = math.sqrt(together.spread ** 2 + sum(cost.spread ** 2 for cost in nodes))
    found, margin = alone - together.seconds, max(noise, CERTAIN * together.seconds)
    return math.copysign(max(0.0, abs(found) - margin), found)
