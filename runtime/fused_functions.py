"""Fused nodes out of a file: calls of the functions that `fusion.as_functions` wrote become Fused nodes again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from graphs.constants import Constant
from graphs.ir import Graph, Node, is_fused
from graphs.nested import alone, nested_again
from graphs.onnx_io.functions import inline_functions
from graphs.structure import drop_unused_constants
from graphs.types import Type

from .fusion import CALL, DOMAIN, EXACT_CALL, Group, fuse, is_exact_call, is_fused_call, variant_of_call


def fused_again(graph: Graph) -> Graph:
    """The graph with a Fused node for each call of a function that holds the body of one; itself where there is none.

    Calls whose bodies mean something else at the graph's operator sets stay calls.
    """
    here = [_calls(graph, each) for each in graph.walk()]
    calls = [node for each in here for node in each]
    if not calls:
        return graph
    made = graph.copy()
    inline_functions(made, frozenset(graph.functions) - {(node.domain, node.op, node.overload) for node in calls})
    # Bodies of fused nodes hold no graphs: those that there are stand where they stood.
    return _without_domain(_regrouped(made, iter(here), {}, {}, made))


def _calls(model: Graph, graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_fused_call(node) and all(node.outputs)
            and (node.domain, node.op, node.overload) in model.functions]


def _regrouped(graph: Graph, calls: Iterator[list[Node]], types: Mapping[str, Type],
               constants: Mapping[str, Constant], outermost: Graph) -> Graph:
    """The graph with a Fused node for each of the calls that stood in it; `calls` goes on to those of nested graphs, in
    the order of `Graph.walk`."""
    own = next(calls)
    types, constants = {**types, **graph.types}, {**constants, **graph.constants}
    for node in graph.nodes:
        for name, value in list(node.attrs.items()):
            if isinstance(value, Graph):
                node.attrs[name] = _regrouped(value, calls, types, constants, outermost)
            elif isinstance(value, tuple) and value and isinstance(value[0], Graph):
                node.attrs[name] = tuple(_regrouped(each, calls, types, constants, outermost) for each in value)
    if own:
        nested = graph is not outermost
        made = alone(graph, types, constants, outermost) if nested else graph  # as they were found: knowing constants
        for exact in (False, True):
            groups = [group for node in own if is_exact_call(node) == exact and (group := _group(made, node))]
            made = fuse(made, groups, exact) if groups else made
        graph = nested_again(made, graph, constants) if nested else made
    drop_unused_constants(graph)
    return graph


def _group(graph: Graph, call: Node) -> Group | None:
    """The nodes between what a call read and what it made; None where it stands elsewhere, or is still a call."""
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    inside: set[int] = set()
    waiting = list(call.outputs)
    stop: Collection[str] = set(call.inputs)
    while waiting:
        index = makers.get(waiting.pop())
        if index is None or index in inside:
            continue
        if is_fused_call(graph.nodes[index]):
            return None
        inside.add(index)
        waiting += [name for name in graph.nodes[index].inputs if name and name not in stop]
    if not inside:
        return None
    return Group(tuple(sorted(inside)), call.outputs[0], call.outputs[1:], variant_of_call(call))


def unfused(graph: Graph) -> Graph:
    """The graph with the bodies in the place of such calls, for whoever has no kernels for them; itself if it has
    none."""
    keys = {key for key in graph.functions if key[0] == DOMAIN and key[1].startswith((CALL, EXACT_CALL))}
    if not keys:
        return graph
    made = graph.copy()
    inline_functions(made, frozenset(graph.functions) - keys)
    return _without_domain(made)


def _without_domain(graph: Graph) -> Graph:
    if all(node.domain != DOMAIN or is_fused(node) for each in graph.walk() for node in each.nodes):
        graph.opsets.pop(DOMAIN, None)
    return graph
