"""A graph as terms: pure known operators by what they compute, everything else by its identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from graphs.constants import Constant, Facts
from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, is_pure
from graphs.text import print_attribute
from graphs.types import TensorType
from rules.form import Form, from_form, to_form

from .alike import plain
from .terms import ABSENT, SMALL, Head, Leaf, Tables, Term, attribute_key

BIG = 1 << 16  # elements from which on only facts that cost little are looked for


@dataclass
class Shared:
    """What two graphs in one e-graph share: tables, labels of inputs by the second graph's names, and identities of
    nodes that are what they are only by identity (the first such node of one graph is the first of the other)."""

    tables: Tables
    inputs: dict[str, int] = field(default_factory=dict)
    identities: dict[object, int] = field(default_factory=dict)
    constants: dict[object, Constant] = field(default_factory=dict)


@dataclass
class Encoded:
    """A graph's terms and where each value and node went. `spelled_anew`: nodes whose term reads fewer inputs."""

    graph: Graph
    tables: Tables
    labels: dict[str, int] = field(default_factory=dict)  # value name -> label
    nodes: dict[int, int] = field(default_factory=dict)  # node index -> label of the node's term
    constants: dict[object, str] = field(default_factory=dict)  # leaf key -> name of the constant
    spelled_anew: set[int] = field(default_factory=set)
    shared: Shared | None = None

    def large_constants(self) -> dict[int, Constant]:
        """Constants of graphs that share tables, by the index of their leaf, where the leaf has no value itself."""
        known = {} if self.shared is None else self.shared.constants
        return {index: known[leaf.key] for index, leaf in enumerate(self.tables.leaves)
                if leaf.kind == "constant" and leaf.value is None and leaf.key in known}


def encode(graph: Graph, keep: Collection[str] = (), shared: Shared | None = None) -> Encoded:
    """The terms of a graph. Nodes named in `keep` are left as they are."""
    done = Encoded(graph, Tables(graph.opset) if shared is None else shared.tables, shared=shared)
    for name in graph.inputs:
        done.labels[name] = shared.inputs.get(name, -1) if shared is not None else -1
        if done.labels[name] < 0:
            done.labels[name] = _leaf(done.tables, Leaf("input", graph.type_of(name), name), ("input", name))
    for name, constant in graph.constants.items():
        done.labels[name] = _constant(done, name, constant)
    kept, counted = set(keep), Counter[object]()
    for index, node in enumerate(graph.nodes):
        _node(done, index, node, bool(node.name) and node.name in kept, counted)
    done.tables.bounds.append(len(done.tables.terms))
    return done


def _leaf(tables: Tables, leaf: Leaf, key: object) -> int:
    return tables.add(Term(tables.head(Head("leaf")), tables.leaf(leaf, key), ()), leaf.type)


def _constant(done: Encoded, name: str, constant: Constant) -> int:
    small, shared = constant.size <= SMALL, done.shared
    sure = small or shared is not None
    key = ("constant", constant.dtype, constant.shape, constant.digest if sure else constant.sample)
    known = done.constants.get(key)
    if known is not None and not sure and done.graph.constants[known] != constant:
        key = ("constant", constant.dtype, constant.shape, constant.digest)
        known = done.constants.get(key)
    if known is not None:
        return done.labels[known]
    done.constants[key] = name
    if shared is not None:
        shared.constants[key] = constant
    index = done.tables.leaf(Leaf("constant", constant.type, name, facts_of(constant), constant if small else None,
                                  key), key)
    return done.tables.add(Term(done.tables.head(Head("leaf")), index, ()), constant.type)


def facts_of(constant: Constant) -> Facts:
    """Facts of a constant; of a very big one only those that cost little."""
    if constant.size <= BIG or constant.dtype not in ("float32", "float64", "float16"):
        return constant.facts
    low, high = float(constant.array.min()), float(constant.array.max())
    finite = bool(np.isfinite(low) and np.isfinite(high))
    if low == high or not finite:
        return constant.facts
    return Facts(None, low, high, True, False)


def _node(done: Encoded, index: int, node: Node, keep: bool, counted: Counter[object]) -> None:
    graph, tables = done.graph, done.tables
    known = not keep and not node.is_opaque and not any(True for _ in node.graphs) and is_pure(node)
    outputs = list(node.outputs)
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    types = tuple(graph.type_of(name) if name else None for name in outputs)
    if known:
        form = search_form(graph, node, types[0])
        args = [done.labels[node.inputs[at]] if node.inputs[at] else ABSENT for at in form.args]
        if any(name and at not in form.args for at, name in enumerate(node.inputs)):
            done.spelled_anew.add(index)
        while args and args[-1] == ABSENT:
            args.pop()
        head = tables.head(Head("op", form.domain, form.op))
        term = Term(head, tables.attribute(form.attrs, len(outputs)), tuple(args))
        if head in tables.commutative and len(args) == 2 and tables.constant[args[0]]:
            term = term._replace(args=(args[1], args[0]))
    else:
        captured = tuple(done.labels[name] if name else ABSENT for name in [*node.inputs, *_captured(node)])
        identity = index if done.shared is None else _identity(done.shared, node, types, counted)
        term = Term(tables.head(Head("opaque", node.domain, node.op)), identity, captured)
    label = tables.add(term, types[0] if len(outputs) == 1 else None, types if len(outputs) > 1 else None)
    done.nodes[index] = label
    if len(outputs) == 1:
        done.labels[outputs[0]] = label
        return
    for position, name in enumerate(outputs):
        if name:
            term = Term(tables.head(Head("proj")), position, (label,))
            done.labels[name] = tables.add(term, types[position])


def _identity(shared: Shared, node: Node, types: tuple[TensorType | None, ...], counted: Counter[object]) -> int:
    """The same number for the k-th node of this kind in each graph."""
    copy = node.copy()
    places = {name: f"@{place}" for place, name in enumerate([*node.inputs, *_captured(node)])}
    for nested in copy.graphs:
        nested.rename_uses({name: places[name] for name in nested.captured() if name in places}, outputs=True)
    alike = {name: plain(value) if isinstance(value, Graph) else value for name, value in copy.attrs.items()}
    attrs = tuple(sorted((name, repr(attribute_key(print_attribute(value)))) for name, value in alike.items()))
    kind = (node.domain, node.op, node.overload, node.version, attrs, len(node.inputs), tuple(map(str, types)))
    counted[kind] += 1
    return shared.identities.setdefault((kind, counted[kind]), len(shared.identities))


def _captured(node: Node) -> list[str]:
    return [name for name in node.uses if name not in node.inputs]


def search_form(graph: Graph, node: Node, output: TensorType | None) -> Form:
    """The search form of a node, or the node as it is where its form could not be written in ONNX again."""
    inputs = [graph.type_of(name) if name else None for name in node.inputs]
    form = to_form(node.op, node.domain, node.attrs, inputs, output)
    if form.op != node.op or "shape" in form.attrs:
        spelled = from_form(form.op, form.domain, form.attrs, [inputs[at] for at in form.args], output)
        runtime = any(value is RUNTIME for value in node.attrs.values())
        if isinstance(spelled, str) and runtime:
            return Form(node.op, node.domain, dict(node.attrs), tuple(range(len(node.inputs))))
    return form
