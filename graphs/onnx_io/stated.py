"""Types that a file states of values inside of it (`value_info`).

Nothing is inferred from them, but a runtime may: ONNX Runtime joins an Add with a LayerNormalization where the sizes of
both operands are stated to be equal, whatever they are. So a graph that is as it was read is written with them, and
measured so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ValueInfoProto

from ..ir import Graph, Node

EXTRA = "stated"  # key among a graph's extras


@dataclass(frozen=True, slots=True)
class Stated:
    """By name of a value the bytes of its ValueInfoProto; of a graph with these nodes."""

    infos: dict[str, bytes]
    nodes: tuple[tuple[str, ...], ...]


def keep(graph: Graph, infos: Iterable[ValueInfoProto]) -> None:
    """Keep what is stated of the outputs of nodes that are no outputs of the graph."""
    inner = {name for node in graph.nodes for name in node.outputs if name}.difference(graph.outputs)
    found = {info.name: info.SerializeToString(deterministic=True) for info in infos if info.name in inner}
    if found:
        graph.extras[EXTRA] = Stated(found, _nodes(graph.nodes))


def stated(graph: Graph) -> list[ValueInfoProto]:
    """What is stated of a graph whose nodes are those that were read; of others nothing is known."""
    known = graph.extras.get(EXTRA)
    if not isinstance(known, Stated) or known.nodes != _nodes(graph.nodes):
        return []
    return [ValueInfoProto.FromString(known.infos[name]) for node in graph.nodes for name in node.outputs
            if name in known.infos]


def is_stated(graph: Graph) -> bool:
    """Does anything stand in the file of a graph, nested ones included?"""
    return any(stated(each) for each in graph.walk())


def forget(graph: Graph) -> None:
    """Nothing is stated any more, in nested graphs either."""
    for each in graph.walk():
        each.extras.pop(EXTRA, None)


def _nodes(nodes: Iterable[Node]) -> tuple[tuple[str, ...], ...]:
    return tuple((node.domain, node.op, *node.inputs, "", *node.outputs) for node in nodes)
