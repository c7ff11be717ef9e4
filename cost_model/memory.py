"""Peak memory of the values between nodes, in the order of the graph, each freed after its last use."""

from __future__ import annotations

from collections.abc import Mapping

from graphs.ir import Graph

from .sizes import static_type


def value_bytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> float:
    """Bytes of a value at sizes of the symbols, 0 where its rank is unknown."""
    type_ = static_type(graph.type_of(name), sizes)
    return 0.0 if type_ is None else type_.static_bytes or 0.0


def peak_live_bytes(graph: Graph, sizes: Mapping[str, int]) -> float:
    """The largest sum of bytes of live values (inputs and constants not counted; nested graphs not looked
    into).
    """
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(node.uses, index))
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    live = peak = 0.0
    held: dict[str, float] = {}
    for index, node in enumerate(graph.nodes):
        for out in node.outputs:
            if out:
                held[out] = value_bytes(graph, out, sizes)
                live += held[out]
        peak = max(peak, live)
        for name in [*node.uses, *node.outputs]:
            if name in held and last.get(name, -1) <= index:
                live -= held.pop(name)
    return peak
