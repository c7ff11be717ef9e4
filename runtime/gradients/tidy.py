"""Takes the ones that a gradient starts with out of the nodes that they run through.

A cotangent of a scalar loss is one number, spread out again and again. Here the number is followed through Expand,
Reshape, Neg and Mul, and put where it is needed: -(1 spread to the shape of t) * t becomes -t. Every value stays the
same bit for bit (the sign of a NaN aside), and so does each shape.
"""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import is_float
from graphs.ir import Graph, NameSupply, Node
from graphs.types import TensorType

_SHAPERS = frozenset({"Expand", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose"})


class _Tidy:
    """One walk over the new nodes of a graph."""

    def __init__(self, graph: Graph, start: int) -> None:
        self.graph, self.start = graph, start
        self.names = NameSupply(graph.names())
        self.number: dict[str, np.ndarray] = {}  # value -> the number that all its elements are
        self.spread: dict[str, Node] = {}  # value -> the Expand of one number that makes it
        self.alias: dict[str, str] = {}
        self.scalars: dict[Constant, str] = {}
        self.makers = graph.producers()

    def run(self) -> None:
        graph = self.graph
        for name, constant in graph.constants.items():
            if constant.shape == () and is_float(constant.dtype):
                self.number[name] = constant.array
                self.scalars.setdefault(constant, name)
        for index in range(self.start, len(graph.nodes)):
            node = graph.nodes[index]
            node.inputs = tuple(self.alias.get(name, name) for name in node.inputs)
            if node.holds_graphs:
                Graph(nodes=[node]).rename_uses(self.alias)
            elif not node.domain and not node.is_opaque and len(node.outputs) == 1:
                graph.nodes[index] = self.visit(node)

    def visit(self, node: Node) -> Node:
        """The node that computes the same."""
        out = node.outputs[0]
        numbers = [self.number.get(name) for name in node.inputs]
        if node.op in _SHAPERS and numbers and numbers[0] is not None:
            return self.shaper(node, numbers[0])
        if node.op == "Neg" and numbers[0] is not None:
            self.number[out] = -numbers[0]
            source = self.spread.get(node.inputs[0])
            return node if source is None else self.expand(node, -numbers[0], source)
        if node.op == "Mul":
            for side in (0, 1):
                number, other = numbers[side], node.inputs[1 - side]
                if number is not None and self.same_shape(other, out):
                    return self.scaled(node, number, other, side)
        return node

    def shaper(self, node: Node, number: np.ndarray) -> Node:
        self.number[node.outputs[0]] = number
        states_all = node.op == "Expand" or (node.op == "Reshape" and len(node.inputs) > 1 and node.attrs["allowzero"])
        return self.expand(node, number, node) if states_all else node

    def expand(self, node: Node, number: np.ndarray, shape_of: Node) -> Node:
        """The number spread out as another Expand (or a Reshape to a whole shape) says."""
        if shape_of.op == "Expand" and not self.reaches(shape_of):
            return node
        made = Node("Expand", (self.constant(number), *shape_of.inputs[1:]), node.outputs,
                    {"shape": shape_of.attrs["shape"]}, name=node.name, version=8, origins=node.origins)
        self.spread[node.outputs[0]] = made
        return made

    def reaches(self, expand: Node) -> bool:
        """Whether the target of an Expand is the whole shape of its result (a 1 in it keeps another size)."""
        source = self.graph.type_of(expand.inputs[0])
        return source is not None and (source.shape == () or self.whole(expand))

    def whole(self, expand: Node) -> bool:
        target = expand.attrs["shape"]
        type_ = self.graph.type_of(expand.outputs[0])
        if isinstance(target, tuple):
            return type_ is not None and type_.shape == target
        made = self.makers.get(expand.inputs[1])
        asked = self.graph.type_of(made.inputs[0]) if made is not None and made.op == "Shape" else None
        whole = made is not None and made.attrs["start"] == 0 and made.attrs["end"] is None
        return whole and asked is not None and type_ is not None and asked.shape is not None and (
            asked.shape == type_.shape)

    def scaled(self, node: Node, number: np.ndarray, other: str, side: int) -> Node:
        """A product with one number: nothing, a negation, or a product with a scalar."""
        if number == 1 and node.outputs[0] not in self.graph.outputs:
            self.alias[node.outputs[0]] = other
            return node
        if number == 1 or number == -1:
            op, version = ("Identity", 1) if number == 1 else ("Neg", 6)
            return Node(op, (other,), node.outputs, {}, name=node.name, version=version, origins=node.origins)
        inputs = list(node.inputs)
        inputs[side] = self.constant(number)
        node.inputs = tuple(inputs)
        return node

    def same_shape(self, a: str, b: str) -> bool:
        types = self.graph.type_of(a), self.graph.type_of(b)
        return all(isinstance(each, TensorType) and each.shape is not None for each in types) and (
            types[0].shape == types[1].shape)  # type: ignore[union-attr]

    def constant(self, number: np.ndarray) -> str:
        """The name of a scalar constant."""
        wanted = Constant.of(number)
        if wanted not in self.scalars:
            name = self.scalars[wanted] = self.names.fresh("constant")
            self.graph.constants[name], self.number[name] = wanted, number
        return self.scalars[wanted]


def tidy(graph: Graph, start: int) -> None:
    """Simplify the nodes from position `start` on, in place. Types of the graph must be inferred."""
    _Tidy(graph, start).run()
