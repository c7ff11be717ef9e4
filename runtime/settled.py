"""Nodes whose results follow from sizes alone: computed once for each set of sizes, and kept.

Exported models compute the shapes of their Reshapes, masks and positions from the sizes of activations, in dozens of
tiny nodes. Here `Shape` gives the same array again for the same sizes, and a node all of whose operands are arrays that
it has seen gives what it gave then. Nothing is inferred about sizes: what a node reads decides, each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from graphs.constants import Constant
from graphs.errors import EgraftError
from graphs.ir import Graph, Node, is_fused
from graphs.operators import is_pure
from graphs.types import TensorType

from .execute import NodeFunction, evaluate

MOST_BYTES = 1 << 18  # of one result that is kept; larger ones are computed each time
MOST_KEPT = 8  # results of one node
_OF_SIZES = ("Shape", "Size")


def settled_nodes(graph: Graph) -> set[int]:
    """The places of nodes that read sizes and constants alone, and always answer the same."""
    known = {"", *graph.constants}
    found: set[int] = set()
    for place, node in enumerate(graph.nodes):
        of_sizes = node.op in _OF_SIZES and not node.domain and not node.is_opaque
        if (of_sizes or (node.inputs and all(name in known for name in node.uses))) and is_pure(node) \
                and (is_fused(node) or not node.holds_graphs):
            found.add(place)
            known.update(node.outputs)
    return found


def precomputed(graph: Graph, model: Graph | None = None) -> Graph:
    """The graph with what depends on constants alone computed beforehand: joined weights are packed like others then.
    `model`: the one that it is nested in.

    Results that take more than twice the memory of what they are computed from stay as they are (a compressed or
    repeated constant is meant to), and so do those that cannot be computed: they fail when they are asked for.
    """
    known = dict(graph.constants)
    made: dict[int, dict[str, Constant]] = {}
    for place, node in enumerate(graph.nodes):
        if not (node.uses and all(name in known for name in node.uses) and is_pure(node)) \
                or (node.holds_graphs and not is_fused(node)) or not set(graph.outputs).isdisjoint(node.outputs):
            continue
        found = _computed(graph, node, known, model or graph)
        if found is not None:
            made[place] = found
            known.update(found)
    if not made:
        return graph
    result = graph.copy()
    result.nodes = [node for place, node in enumerate(graph.nodes) if place not in made]
    result.constants.update({name: constant for each in made.values() for name, constant in each.items()})
    read = {*graph.outputs}.union(*(node.uses for node in result.nodes))
    result.constants = {name: constant for name, constant in result.constants.items() if name in read}
    return result


def _computed(graph: Graph, node: Node, known: Mapping[str, Constant],
              model: Graph) -> dict[str, Constant] | None:
    operands = [known[name] if name else None for name in node.inputs]
    try:
        values = evaluate(node, [None if each is None else each.array for each in operands], model=model)
    except (EgraftError, ValueError, IndexError, TypeError, ArithmeticError):
        return None
    found: dict[str, Constant] = {}
    for name, value in zip(node.outputs, values):
        if name and not isinstance(value, np.ndarray):
            return None
        if name:
            type_ = graph.type_of(name)
            found[name] = Constant.of(value, type_.dtype if isinstance(type_, TensorType) else None)
    size = sum(each.nbytes for each in operands if each is not None)
    return found if sum(each.nbytes for each in found.values()) <= 2 * size + MOST_BYTES else None


def remembering(node: Node, function: NodeFunction, constants: Collection[int] = ()) -> NodeFunction:
    """The function of such a node, which keeps what it gave. `constants`: places of its inputs that are constants.

    Where another operand is too large to be kept, it is computed anew in each run, and so is this.
    """
    # With its operands: while they live, their ids are theirs.
    kept: dict[Any, tuple[Sequence[Any], Sequence[Any]]] = {}
    of_sizes = node.op in _OF_SIZES and not node.domain

    def call(values: Sequence[Any]) -> Sequence[Any]:
        key = values[0].shape if of_sizes else tuple(map(id, values))
        known = kept.get(key)
        if known is not None:
            return known[1]
        found = [np.asarray(value) if isinstance(value, np.generic) else value for value in function(values)]
        lasting = of_sizes or all(value is None or _is_kept(value) for place, value in enumerate(values)
                                  if place not in constants)
        if lasting and all(map(_is_kept, found)):
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[key] = (() if of_sizes else tuple(values)), found
        return found

    return call


def _is_kept(value: Any) -> bool:
    """Sequences are not."""
    return isinstance(value, np.ndarray) and value.nbytes <= MOST_BYTES
