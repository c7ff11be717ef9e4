"""Recompute or keep: the same values in less memory, at the least added time.

A training step keeps what its forward pass computes until the backward pass reads it. Here, first, nodes are moved:
what ends in outputs (the update of a parameter) runs as soon as it can. Then values are dropped after a use and
computed again before the next one, until the peak of live bytes is within a limit. Which ones is a search: in each
round every gap in the life of a value is a candidate, and the one that takes most of what lies above the level, for the
time it costs, is taken (T. Chen and others, "Training deep nets with sublinear memory cost", 2016, and P. Jain and
others, "Checkmate", 2020, on which choices there are; the greedy rule is the one of XLA's pass, refined by trying
several weights of time against memory and by taking back what turned out not to be needed). It goes down level by
level, on the same way whatever the limit is, to a quarter below the limit: all plans on the way are kept, and the
cheapest within the limit is taken, so that a looser limit does not cost more than one that is a little tighter.

A second computation of the same value is what every optimizer removes, and what a runtime may do at any time. So its
operand is multiplied by a one that the graph computes from a value of the backward pass (1 to the power of any number
is 1, NaN included): it is another value for all who look, exactly equal, and not there before it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cost_model.memory import Lifetimes, peak_activation_bytes
from graphs.builder import Builder, Value
from graphs.dtypes import ONNX_NUMBER, is_float
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.types import TensorType

from .recompute_search import Facts, Plan, Search, Seconds, dtype_of, key_of, renamed

CONE = 64  # nodes that may be moved together
FEW = 1024  # bytes of a value that may as well be there from the start
WEIGHTS = (1.0, 0.5)  # exponents of time against memory that are tried
BELOW = 0.75  # of a limit: what is searched down to; plans that take less still are hardly cheaper


def within(graph: Graph, sizes: Mapping[str, int], limit: float, seconds: Seconds,
           whole: float | None = None) -> tuple[Graph, Plan]:
    """The graph whose intermediate values take at most `limit` bytes at a time (`peak_activation_bytes`), and the plan
    that it follows. Where none was found it is the one that takes least. `whole`: see `plans`."""
    graph = graph.copy()  # it gets the types of new values
    return chosen(graph, plans(graph, sizes, seconds, whole, BELOW * limit), sizes, limit)


def chosen(graph: Graph, found: Sequence[Plan], sizes: Mapping[str, int], limit: float) -> tuple[Graph, Plan]:
    """The cheapest of plans that keeps a limit, carried out; else the one that takes least."""
    rows = sorted((plan for plan in found if plan.peak <= limit), key=lambda plan: (plan.seconds, plan.peak))
    for plan in rows:
        made, plan = _measured(graph, plan, sizes)
        if plan.peak <= limit:
            return made, plan
    return _measured(graph, min(found, key=lambda plan: (plan.peak, plan.seconds)), sizes)


def _measured(graph: Graph, plan: Plan, sizes: Mapping[str, int]) -> tuple[Graph, Plan]:
    made = applied(graph, plan, sizes)
    return made, replace(plan, peak=peak_activation_bytes(made, sizes))  # a few numbers more than planned


def plans(graph: Graph, sizes: Mapping[str, int], seconds: Seconds, whole: float | None = None,
          enough: float = 0.0) -> list[Plan]:
    """All that the search finds, from the order as it is to `enough` bytes or the least that can be reached: for each
    fortieth of `whole` bytes (the peak of the graph, unless given) one at least. The graph gets the types of new
    values."""
    facts = Facts(graph, sizes, seconds)
    found = [Plan(graph.nodes, Lifetimes(graph, graph.nodes, sizes, facts.bytes).peak)]
    order = flushed(graph)
    for weight in WEIGHTS:
        found += Search(facts, order, weight, whole or found[0].peak).plans(enough)
    return found


def flushed(graph: Graph) -> list[Node]:
    """The nodes in another order: when all that still depends on a value can run, it does, with what only that needs.
    It ends in outputs then, and leaves nothing behind. Small values that need only inputs, constants and each other
    come first."""
    return _Flush(graph).order


def _is_small(graph: Graph, name: str) -> bool:
    type_ = graph.types.get(name)
    return not name or (isinstance(type_, TensorType) and type_.static_bytes is not None and type_.static_bytes <= FEW)


class _Flush:
    """See `flushed`."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.order = graph, list[Node]()
        self.readers: dict[str, list[int]] = {}
        self.makers = {out: index for index, node in enumerate(graph.nodes) for out in node.outputs if out}
        for index, node in enumerate(graph.nodes):
            for name in node.uses:
                self.readers.setdefault(name, []).append(index)
        self.ready, self.done = {*graph.inputs, *graph.constants}, set[int]()
        for index, node in enumerate(graph.nodes):
            small = all(_is_small(graph, name) for name in node.outputs)
            if small and is_pure(node) and self.ready.issuperset(node.uses):
                self._place(index)
        self.given = set(self.ready)  # what needs no value of the forward pass
        self._flush(range(len(graph.nodes)))

    def _flush(self, indices: Iterable[int]) -> None:
        for index in indices:
            if index not in self.done:
                self._place(index)
                self._flush(self._cone(index))

    def _place(self, index: int) -> None:
        self.done.add(index)
        self.order.append(self.graph.nodes[index])
        self.ready.update(self.graph.nodes[index].outputs)

    def _next(self, index: int) -> list[int]:
        """The nodes that read a node's outputs."""
        return [each for name in self.graph.nodes[index].outputs if name for each in self.readers.get(name, ())]

    def _cone(self, start: int) -> list[int]:
        """All nodes that depend on a node, and what only they need of what is given, in order; none where one of them
        cannot run yet."""
        found, waiting = set[int](), [start]
        while waiting and len(found) <= CONE:
            more = {each for each in self._next(waiting.pop()) if each not in self.done and each not in found}
            found |= more
            waiting += more
        missing = [name for index in found for name in self.graph.nodes[index].uses]
        while missing and len(found) <= CONE:
            name = missing.pop()
            index = self.makers.get(name, start)
            if name in self.ready or index in found:
                continue
            node = self.graph.nodes[index]
            if not (is_pure(node) and self.given.issuperset(node.uses) and found.issuperset(self._next(index))):
                return []
            found.add(index)
        return sorted(found) if len(found) <= CONE else []


def applied(graph: Graph, found: Plan, sizes: Mapping[str, int]) -> Graph:
    """The graph in the order of a plan, with the nodes that recompute: each group reads its operands through a product
    with a one that is there only when the values are that the group's readers wait for."""
    result = graph.copy()
    result.nodes = list(found.nodes)
    b = Builder.continuing(result)
    result.nodes = []
    read = Lifetimes(graph, found.nodes, sizes).last_read
    ones: dict[int, Value] = {}
    products: dict[str, str] = {}
    for index, node in enumerate(found.nodes):
        group = found.apart.get(key_of(node))
        if group is not None:
            if group not in ones:
                awaited = _awaited(graph, found.nodes, index, read)
                ones[group] = _late_one(b, products.get(awaited, awaited))
            one, operand = ones[group], Value(b, node.inputs[0])
            factor = one if operand.dtype == "float32" else b.Cast(one, to=ONNX_NUMBER[operand.dtype or ""])
            products[node.outputs[0]] = b.Mul(operand, factor).name
        else:
            result.nodes.append(renamed(node, products))
    infer(result)
    return result


def _awaited(graph: Graph, nodes: Sequence[Node], at: int, read: Mapping[str, int]) -> str:
    """The youngest float before node `at` that is still to be read; where there is none, the youngest one, or an input:
    what is computed again then need not wait for anything."""
    floats = [name for node in reversed(nodes[:at]) for name in node.outputs
              if name and name not in graph.outputs and is_float(dtype_of(graph, name))]
    inputs = [name for name in graph.inputs if is_float(dtype_of(graph, name))]
    waited = next((name for name in floats if read.get(name, -1) >= at), None)
    return waited or [*floats, *inputs, nodes[at].inputs[0]][0]


def _late_one(b: Builder, name: str) -> Value:
    """1 as a float32 scalar, computed from the first element (if there is any) of a value."""
    value = Value(b, name)
    rank = len(value.shape or ())
    first = value if not rank else b.Slice(value, np.zeros(rank, np.int64), np.ones(rank, np.int64),
                                           np.arange(rank, dtype=np.int64))
    number = first if value.dtype == "float32" else b.Cast(first, to=ONNX_NUMBER["float32"])
    return b.Pow(b.constant(1.0), b.ReduceSum(number, keepdims=0))
