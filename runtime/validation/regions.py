"""A pair of graphs cut at the nodes that cannot be executed, into parts that can be.

What such a node reads becomes an output, what it gives an input of its type, for which values are drawn like for any
input. The parts hang together by the cut nodes alone, so each is validated on its own: one after the other, at sizes
of its own, and none has to live with what random numbers from another part make of its inputs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from graphs.canonical import version_at
from graphs.errors import EgraftError
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.types import Type

from .pins import OPAQUE, Pins


@dataclass(frozen=True, slots=True)
class Region:
    """A part of both graphs with the same inputs and outputs, and nothing in it that cannot be executed."""

    original: Graph
    optimized: Graph


def split(original: Graph, optimized: Graph, pins: Pins, types: dict[str, Type]) -> list[Region] | None:
    """The regions, None where nothing is opaque or the graphs cannot be cut alike (opaque nodes without a partner, or
    inside nested graphs). `types`: of the outputs of opaque nodes of the original."""
    pairs = [pin for pin in pins.pairs if pin.kind == OPAQUE]
    if not pairs or any(kind == OPAQUE for kind, _ in (*pins.alone_original, *pins.alone_optimized)):
        return None
    names = _names([pin.original for pin in pairs])
    cut_types = {f"output {position} of {name}": types[value] for name, pin in zip(names, pairs)
                 for position, value in enumerate(pin.original.outputs) if value in types}
    a = _cut(original, dict(zip(names, (pin.original for pin in pairs))), cut_types)
    b = _cut(optimized, dict(zip(names, (pin.optimized for pin in pairs))), cut_types)
    if a is None or b is None or (a.inputs, a.outputs) != (b.inputs, b.outputs):
        return None
    try:
        infer(a)
        infer(b)
    except EgraftError:
        return None  # the types that were guessed do not fit
    found: list[Region] = []
    constant: list[str] = []  # what depends on no input is one region
    for group in _groups(a, b):
        wanted = _needed(a, group)[1] | _needed(b, group)[1]
        inputs = [name for name in a.inputs if name in wanted]
        if inputs:
            found.append(Region(_part(a, group, inputs), _part(b, group, inputs)))
        else:
            constant += group
    return [*found, *([Region(_part(a, constant, []), _part(b, constant, []))] if constant else [])]


def _names(nodes: list[Node]) -> list[str]:
    labels = [node.label for node in nodes]
    return [label if labels.count(label) == 1 else f"{label} ({node.outputs[0]})"
            for label, node in zip(labels, nodes)]


def _cut(graph: Graph, nodes: dict[str, Node], types: dict[str, Type]) -> Graph | None:
    """The graph with nodes taken out; Identities join their ends to new inputs and outputs."""
    names = {id(node): name for name, node in nodes.items()}
    if not names.keys() <= {id(node) for node in graph.nodes}:
        return None
    version = version_at("Identity", "", graph.opset) or 13
    made: list[Node] = []
    inputs: dict[str, list[str]] = {}
    outputs: dict[str, list[str]] = {}
    for node in graph.nodes:
        name = names.get(id(node))
        if name is None:
            made.append(node.copy() if node.holds_graphs else node)  # inference writes into nested graphs
            continue
        inputs[name], outputs[name] = [], []
        for position, value in enumerate(node.inputs):
            if value:
                outputs[name].append(f"input {position} of {name}")
                made.append(Node("Identity", (value,), (outputs[name][-1],), version=version))
        for position, value in enumerate(node.outputs):
            if value:
                inputs[name].append(f"output {position} of {name}")
                made.append(Node("Identity", (inputs[name][-1],), (value,), version=version))
    return dataclasses.replace(
        graph, nodes=made, inputs=[*graph.inputs, *(each for name in nodes for each in inputs[name])],
        outputs=[*graph.outputs, *(each for name in nodes for each in outputs[name])],
        types={}, declared={**graph.declared, **types}, constants=dict(graph.constants), extras={})


def _groups(a: Graph, b: Graph) -> list[list[str]]:
    """Outputs that share a node in one of the graphs, directly or by others, are of one group."""
    leader = {name: name for name in a.outputs}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for graph in (a, b):
        producers, owner = graph.producers(), dict[int, str]()
        for output in graph.outputs:
            waiting = [output]
            while waiting:
                node = producers.get(waiting.pop())
                if node is None:
                    continue
                if id(node) in owner:
                    leader[find(output)] = find(owner[id(node)])
                else:
                    owner[id(node)] = output
                    waiting.extend(node.uses)
    groups: dict[str, list[str]] = {}
    for name in a.outputs:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def _needed(graph: Graph, outputs: list[str]) -> tuple[list[Node], set[str]]:
    """(the nodes that these outputs need, all values that take part)."""
    wanted, nodes = set(outputs), []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            wanted.update(node.uses)
            nodes.append(node)
    return nodes[::-1], wanted


def _part(graph: Graph, outputs: list[str], inputs: list[str]) -> Graph:
    nodes, wanted = _needed(graph, outputs)
    return dataclasses.replace(
        graph, nodes=nodes, inputs=inputs, outputs=outputs,
        constants={name: value for name, value in graph.constants.items() if name in wanted},
        defaults={name: value for name, value in graph.defaults.items() if name in inputs})
