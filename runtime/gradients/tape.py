"""The builder that goes on where a graph ends, and what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count

import numpy as np

from graphs.builder import Builder, Value
from graphs.canonical import version_at
from graphs.errors import InvalidOption, NotDifferentiable
from graphs.ir import Graph, Node
from graphs.onnx_io import writable
from graphs.types import TensorType

from .modernize import WORKING_OPSET, modernize
from .site import float_dtype
from .tidy import tidy


def tape(graph: Graph) -> tuple[Builder, list[Node]]:
    """A builder that continues a copy of the graph, and the nodes of that copy in topological order.

    Rows build at opset 18 or later, where all nodes of the graph have a form there; `finish` goes back.
    """
    copy = graph.copy()
    copy.sort()
    if 0 < copy.opset < WORKING_OPSET:
        modernize(copy)
    if 0 < copy.opset < WORKING_OPSET and all(
        writable(node, WORKING_OPSET, each) is None for each in copy.walk() for node in each.nodes
    ):
        _set_opset(copy, WORKING_OPSET)
    return Builder.continuing(copy), list(copy.nodes)


def _set_opset(graph: Graph, opset: int) -> None:
    graph.opsets = {**graph.opsets, "": opset}
    for each in graph.walk():
        for node in each.nodes:
            if not node.is_opaque and not node.domain:
                node.version = version_at(node.op, "", opset)


def known(b: Builder, name: str, option: str) -> None:
    """Raise InvalidOption unless the name is a value of floats."""
    if name not in values(b):
        raise InvalidOption(option, f"the graph has no value {name!r}", "name an input, initializer or inner value")
    if float_dtype(b, name) is None:
        raise InvalidOption(option, f"{name!r} is {b.scope.lookup(name)[0]}", "only floats have derivatives")


def values(b: Builder) -> set[str]:
    """Names of all values of the outermost graph so far."""
    graph = b.unfinished
    return {*graph.inputs, *graph.constants, *(name for node in graph.nodes for name in node.outputs if name)}


def add_input(b: Builder, name: str, like: Value) -> Value:
    """The value of this name, or else a new input of the type of `like`."""
    if name in values(b):
        return Value(b, name)
    if not isinstance(like.type, TensorType):
        raise InvalidOption(name, f"the type of {like.name!r} is not known", "name a value of known type")
    return b.input(name, like.type.dtype, like.type.shape)


def direction(b: Builder, given: str | np.ndarray, like: Value, option: str) -> Value:
    """A seed or a direction for `like`: an array, or the name of a value or of a new input. Raises InvalidOption for
    another shape, which would be broadcast in silence, and for values that hold no floats of its type."""
    found = add_input(b, given, like) if isinstance(given, str) and given else None
    if found is None and isinstance(given, str):
        raise InvalidOption(f"{option} of {like.name!r}", "an empty name", "name a value, or a new input")
    type_, shape = (found.type, found.shape) if found is not None else (like.type, np.shape(given))
    if not isinstance(type_, TensorType) or (isinstance(like.type, TensorType) and type_.dtype != like.type.dtype):
        raise InvalidOption(f"{option} of {like.name!r}", f"it is {type_}, the value is {like.type}",
                            "give one of the same type")
    if like.shape is not None and shape is not None and (len(shape) != len(like.shape) or any(
            one != other for one, other in zip(shape, like.shape) if isinstance(one, int) and isinstance(other, int))):
        raise InvalidOption(f"{option} of {like.name!r}", f"its shape is {_shown(shape)}, that of the value "
                            f"{_shown(like.shape)}", "give one of the same shape")
    return found if found is not None else b.constant(given, dtype=like.dtype)


def _shown(shape: Sequence[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def finish(b: Builder, kept: int, results: Sequence[tuple[str, Value]], original: Graph) -> Graph:
    """The graph with more outputs: without new nodes that nothing uses, at the original opset if that has a form
    for all nodes, else at the opset it was built at."""
    graph, before = b.unfinished, original.names()
    new = [b.Identity(value) if value.name in before else value for _, value in results]
    taken = graph.names()
    b.outputs({free_name(taken, wanted): value for (wanted, _), value in zip(results, new)})
    tidy(graph, kept)
    _drop_unused(graph, kept)
    _settle_opset(graph, original, kept)
    return b.graph()


def free_name(taken: set[str], stem: str) -> str:
    """The name, or with a number if it is taken, which it is from now on."""
    found = next(name for name in chain([stem], (f"{stem}_{k}" for k in count(1))) if name not in taken)
    taken.add(found)
    return found


def _settle_opset(graph: Graph, original: Graph, kept: int) -> None:
    built = graph.opset
    if built == original.opset:
        for node in graph.nodes[kept:]:
            reason = writable(node, built, graph)
            if reason is not None:
                raise NotDifferentiable(node.label, f"the gradient needs a node that has no form here: {reason}",
                                        f"raise the model to opset {WORKING_OPSET}")
    elif all(writable(node, original.opset, each) is None for each in graph.walk() for node in each.nodes):
        _set_opset(graph, original.opset)


def mark_origins(b: Builder, start: int, node: Node) -> None:
    """Note on the nodes from position `start` on that they come from a node."""
    for made in b.unfinished.nodes[start:]:
        made.origins = made.origins or (node.name or node.outputs[0],)


def _drop_unused(graph: Graph, kept: int) -> None:
    """Take away new nodes (from position `kept` on) whose outputs nobody reads."""
    used = set(graph.outputs)
    for node in graph.nodes[:kept]:
        used.update(node.uses)
    fresh: list[Node] = []
    for node in reversed(graph.nodes[kept:]):
        if not used.isdisjoint(node.outputs):
            fresh.append(node)
            used.update(node.uses)
    graph.nodes[kept:] = reversed(fresh)
