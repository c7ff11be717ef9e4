"""What a saturation found, in terms of the graph: e-nodes, classes, the input's own choice, and the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphs.constants import Constant
from graphs.ir import Graph
from graphs.types import TensorType
from graphs.unpacking import unpacks
from graphs.wording import counted
from rules.declare import Rule
from rules.form import Spelling, from_form

from .encode import Encoded
from .saturation import Conflict, Firing, Outcome, Refusals
from .terms import ABSENT, Leaf, Tables


@dataclass(slots=True, eq=False)
class ENode:
    """One way to compute a class.

    `kind`: op, leaf, proj (output `output` of the node that is its only argument) or opaque. `args` are classes, -1
    for an absent one. `attrs` are in search form; `spelling` is the ONNX node, or why there is none. `outputs` are
    the types of the node's outputs, `inputs` those of the arguments, `constants` says which arguments are known
    before the graph runs. `origin` is the index of the first original node that is this e-node.
    """

    index: int
    kind: str
    op: str
    domain: str
    attrs: Mapping[str, Any]
    args: tuple[int, ...]
    cls: int
    labels: list[int]
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]
    constants: tuple[bool, ...]
    spelling: Spelling | str | None = None
    origin: int | None = None
    leaf: Leaf | None = None
    output: int = 0
    rules: tuple[str, ...] = ()  # that made it, for e-nodes that no original node is
    children: tuple[int, ...] = field(init=False)  # classes that must be there, each once

    def __post_init__(self) -> None:
        self.children = tuple(dict.fromkeys(arg for arg in self.args if arg >= 0))

    def __str__(self) -> str:
        return f"{self.op or self.kind}({', '.join(map(str, self.args))}) in {self.cls}"


@dataclass(eq=False)
class Saturated:
    """The e-graph read back. Classes are numbered by the smallest label in them."""

    graph: Graph
    encoded: Encoded
    tables: Tables
    rules: Sequence[Rule]
    classes: list[int]  # label -> class
    enodes: list[ENode]
    by_class: dict[int, list[ENode]]
    types: dict[int, TensorType | None]
    constant: frozenset[int]
    outputs: list[int]  # class of each graph output
    incumbent: dict[int, ENode]
    firings: list[Firing]
    refusals: dict[str, Refusals]
    stop: str
    statistics: dict[str, Any] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    bytes_of: dict[int, float] = field(default_factory=dict)
    computed: list[Firing] = field(default_factory=list)  # constants of equal content, as firings of COMPUTED
    left_out: int = 0  # constants that were not computed because of the budget

    @cached_property
    def of_label(self) -> dict[int, ENode]:
        """The e-node of each label."""
        return {label: enode for enode in self.enodes for label in enode.labels}

    def class_of(self, value: str) -> int:
        """The class of a value of the graph."""
        return self.classes[self.encoded.labels[value]]

    def constant_of(self, enode: ENode) -> Constant | None:
        """The constant that a leaf e-node stands for."""
        if enode.leaf is None or enode.leaf.kind != "constant":
            return None
        if enode.leaf.value is not None:
            return enode.leaf.value
        if self.encoded.shared is not None:
            return self.encoded.shared.constants[enode.leaf.key]
        return self.graph.constants[enode.leaf.name]

    def place(self, label: int) -> str:
        """The original node or value that a label stands for, or what a rule made there."""
        cls = self.classes[label]
        names = [name for name, other in self.encoded.labels.items() if self.classes[other] == cls]
        return names[0] if names else str(self.of_label[label])

    def why_not(self, rule: str) -> list[str]:
        """What became of a rule: how often it matched, and why its guard refused, with a place for each reason."""
        matches = self.statistics["matches"].get(rule, 0)
        refused = self.refusals.get(rule, Refusals())
        if not matches and not refused.counts:
            return [f"{rule}: its pattern matches nowhere"]
        fired = sum(self.rules[firing.rule].name == rule for firing in self.firings)
        lines = [f"{rule}: {counted(matches, 'match', 'matches')}, fired {counted(fired, 'time')}"]
        for reason, count in refused.counts.items():
            where = ", ".join(self.place(label) for label in refused.samples[reason][:3])
            lines.append(f"refused {counted(count, 'time')}: {reason}; for example at {where}")
        return lines

    def rule_of(self, firing: Firing) -> Rule:
        """The rule that fired."""
        return self.rules[firing.rule]


def read_back(encoded: Encoded, outcome: Outcome, rules: Sequence[Rule], unpacked: bool = False) -> Saturated:
    """The outcome of a saturation as e-nodes and classes. `unpacked`: what is made of weights that stay stored in few
    bits (`graphs.unpacking`) is constant, too."""
    graph, tables, classes = encoded.graph, outcome.tables, outcome.classes
    enodes = _enodes(encoded, tables, classes)
    by_class: dict[int, list[ENode]] = {}
    for enode in enodes:
        by_class.setdefault(enode.cls, []).append(enode)
    types = _class_types(tables, classes)
    constant = _constant_classes(enodes, types, unpacked)
    for enode in enodes:
        enode.constants = tuple(arg in constant for arg in enode.args)
        enode.inputs = tuple(types.get(arg) for arg in enode.args)
        _spell(enode, tables, types)
    _makers(enodes, outcome, rules)
    of_label = {label: enode for enode in enodes for label in enode.labels}
    incumbent = _incumbent(encoded, classes, of_label)
    statistics = {
        "iterations": outcome.iterations, "seconds": outcome.seconds, "terms": len(tables.terms),
        "enodes": len(enodes), "classes": len(by_class), "firings": len(outcome.firings),
        "held": {name: list(at) for name, at in outcome.banned.items()},
        "matches": {rules[index].name: count for index, count in sorted(outcome.matches.items())},
    }
    return Saturated(graph, encoded, tables, rules, classes, enodes, by_class, types, constant,
                     [classes[encoded.labels[name]] for name in graph.outputs], incumbent, outcome.firings,
                     {rules[index].name: each for index, each in sorted(outcome.refusals.items())}, outcome.stop,
                     statistics, outcome.conflicts, outcome.errors, computed=outcome.computed,
                     left_out=outcome.left_out)


def _enodes(encoded: Encoded, tables: Tables, classes: list[int]) -> list[ENode]:
    origins = {label: index for index, label in sorted(encoded.nodes.items(), reverse=True)}
    found: dict[tuple[int, int, tuple[int, ...]], ENode] = {}
    for label, term in enumerate(tables.terms):
        head = tables.heads[term.head]
        if head.kind == "none":
            continue
        args = tuple(-1 if arg == ABSENT else classes[arg] for arg in term.args)
        key = (term.head, term.attr, tuple(sorted(args)) if term.head in tables.commutative else args)
        enode = found.get(key)
        if enode is None:
            outputs = tables.output_types.get(label) or (tables.types[label],)
            attrs = tables.attrs[term.attr] if head.kind == "op" else {}
            enode = found[key] = ENode(len(found), head.kind, head.op, head.domain, attrs, args, classes[label], [],
                                       (), outputs, ())
            enode.leaf = tables.leaf_of(label)
            enode.output = term.attr if head.kind == "proj" else 0
        enode.labels.append(label)
        if label in origins and enode.origin is None:
            enode.origin = origins[label]
    return list(found.values())


def _class_types(tables: Tables, classes: list[int]) -> dict[int, TensorType | None]:
    types: dict[int, TensorType | None] = {}
    for label, type_ in enumerate(tables.types):
        known = types.get(classes[label])
        if known is None or (type_ is not None and type_.is_known and not known.is_known):
            types[classes[label]] = type_
    return types


def _constant_classes(enodes: list[ENode], types: Mapping[int, TensorType | None], unpacked: bool) -> frozenset[int]:
    constant = {enode.cls for enode in enodes if enode.leaf is not None and enode.leaf.kind == "constant"}
    left = set() if unpacked else {enode.index for enode in enodes if enode.kind == "op" and enode.args and unpacks(
        enode.op, enode.domain, types.get(enode.args[0]), enode.outputs[0])}
    changed = True
    while changed:
        changed = False
        for enode in enodes:
            if enode.kind in ("op", "proj") and enode.cls not in constant and enode.index not in left and \
                    all(arg < 0 or arg in constant for arg in enode.args):
                constant.add(enode.cls)
                changed = True
    return frozenset(constant)


def _spell(enode: ENode, tables: Tables, types: dict[int, TensorType | None]) -> None:
    if enode.kind == "op":
        enode.spelling = from_form(enode.op, enode.domain, enode.attrs, enode.inputs, enode.outputs[0])


def _makers(enodes: list[ENode], outcome: Outcome, rules: Sequence[Rule]) -> None:
    made: dict[int, dict[str, None]] = {}
    for firing in outcome.firings:
        for label in firing.built:
            made.setdefault(label, {})[rules[firing.rule].name] = None
    for enode in enodes:
        if enode.origin is None:
            enode.rules = tuple(dict.fromkeys(name for label in enode.labels for name in made.get(label, ())))


def _incumbent(encoded: Encoded, classes: list[int], of_label: dict[int, ENode]) -> dict[int, ENode]:
    """The original graph as a choice: for each class the first original node that computes it."""
    chosen: dict[int, ENode] = {}
    originals = sorted({*encoded.labels.values(), *encoded.nodes.values()})
    for label in originals:
        chosen.setdefault(classes[label], of_label[label])
    return chosen
