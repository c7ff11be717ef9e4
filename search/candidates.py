"""Fusion candidates: groups of pointwise nodes that one kernel could compute without storing what lies between.

A candidate is a connected, convex set of pointwise nodes with one output: grown upward from its root, a node joins
if everything that reads it is already inside. One pass in reverse topological order finds all maximal ones.
Equal candidates (same expression, element types and shapes) count once: each would be generated and measured once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphs import dtypes
from graphs.dims import evaluate
from graphs.ir import Graph, Node
from graphs.operators import find, is_pure
from graphs.text import print_attribute

_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of nodes that could become one kernel.

    `expression` names the inputs A, B, ... by first use; `types` are theirs and the output's; `saved_bytes` is what
    need not be written and read again at the given sizes (None where a size is not known); `count` equal ones.
    """

    expression: str
    types: tuple[str, ...]
    nodes: int
    saved_bytes: int | None
    count: int
    where: str

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        return {"expression": self.expression, "types": list(self.types), "nodes": self.nodes,
                "saved_bytes": self.saved_bytes, "count": self.count, "where": self.where}


def fusion_candidates(graph: Graph, sizes: Mapping[str, int] | None = None) -> list[Candidate]:
    """Unique candidates of at least two nodes, those that save most first."""
    groups = _groups(graph)
    rows: dict[tuple[str, tuple[str, ...]], list[tuple[str, int | None, int]]] = {}
    for root, members in groups:
        expression, types = _signature(graph, root, members)
        saved = _saved(graph, root, members, sizes or {})
        rows.setdefault((expression, types), []).append((root.outputs[0], saved, len(members)))
    found = [Candidate(expression, types, places[0][2], places[0][1], len(places), places[0][0])
             for (expression, types), places in rows.items()]
    return sorted(found, key=lambda row: (-(row.saved_bytes or 0) * row.count, row.expression, row.types))


def _is_pointwise(graph: Graph, node: Node) -> bool:
    record = None if node.is_opaque else find(node.op, node.domain)
    if record is None or not record.pointwise or not is_pure(node) or len(node.outputs) != 1:
        return False
    return graph.type_of(node.outputs[0]) is not None


def _groups(graph: Graph) -> list[tuple[Node, list[Node]]]:
    """(root, members in topological order), two members or more."""
    pointwise = {id(node) for node in graph.nodes if _is_pointwise(graph, node)}
    consumers = graph.consumers()
    outputs = set(graph.outputs)
    root_of: dict[int, int] = {}
    for node in reversed(graph.nodes):
        if id(node) not in pointwise:
            continue
        readers = consumers.get(node.outputs[0], [])
        roots = {root_of.get(id(reader), -1) for reader in readers}
        captured = any(node.outputs[0] not in reader.inputs for reader in readers)
        joins = len(roots) == 1 and -1 not in roots and node.outputs[0] not in outputs and not captured
        root_of[id(node)] = roots.pop() if joins else id(node)
    members: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if id(node) in root_of:
            members.setdefault(root_of[id(node)], []).append(node)
    return [(group[-1], group) for group in members.values() if len(group) > 1]


def _signature(graph: Graph, root: Node, members: list[Node]) -> tuple[str, tuple[str, ...]]:
    """An expression over lettered inputs, shared parts bound with `let`, and the types of inputs and output."""
    inside = {node.outputs[0]: node for node in members}
    uses = Counter(name for node in members for name in node.inputs if name in inside)
    letters: dict[str, str] = {}
    shared: dict[str, str] = {}
    lets: list[str] = []
    texts: dict[str, str] = {}

    def operand(name: str) -> str:
        if name in shared:
            return shared[name]
        if name in texts:
            return texts[name]
        if name not in letters:
            index = len(letters)
            letters[name] = _LETTERS[index] if index < len(_LETTERS) else f"X{index}"
        return letters[name]

    for node in members:
        parts = [operand(name) if name else "" for name in node.inputs]
        text = _expression(node, parts)
        name = node.outputs[0]
        if node is not root and uses[name] > 1:
            shared[name] = f"t{len(lets)}"
            lets.append(f"let {shared[name]} = {text}; ")
        else:
            texts[name] = text if node is root or not _is_infix(node) else f"({text})"
    types = tuple(str(graph.type_of(name)) for name in [*letters, root.outputs[0]])
    return "".join(lets) + texts[root.outputs[0]], types


def _is_infix(node: Node) -> bool:
    return node.op in _INFIX and len(node.inputs) == 2


def _expression(node: Node, parts: list[str]) -> str:
    if _is_infix(node):
        return f"{parts[0]} {_INFIX[node.op]} {parts[1]}"
    record = find(node.op, node.domain)
    assert record is not None
    attrs = [f"{name}={print_attribute(value)}" for name, value in node.attrs.items()
             if value != record.attrs.get(name)]
    return f"{node.op}({', '.join(parts + attrs)})"


def _saved(graph: Graph, root: Node, members: list[Node], sizes: Mapping[str, int]) -> int | None:
    """Bytes of the values between the nodes, written once and read once for each use."""
    uses = Counter(name for node in members for name in node.inputs)
    total = 0.0
    for node in members:
        if node is root:
            continue
        type_ = graph.type_of(node.outputs[0])
        count = None if type_ is None or type_.elements is None else evaluate(type_.elements, sizes)
        if type_ is None or count is None:
            return None
        total += count * dtypes.item_bytes(type_.dtype) * (1 + uses[node.outputs[0]])
    return int(total)
