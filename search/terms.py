"""The tables behind an e-graph: terms over labels, interned attributes, leaves.

A *term* is what was once inserted: a head (which operator), an attribute id, and the labels of its arguments. Its
index in the table is its *label*; labels never change, while the e-class of a label grows. Label 0 is the absent
optional argument. The tables are plain data, so that they travel to the child process and back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from graphs.constants import Constant, Facts
from graphs.operators import find
from graphs.types import TensorType

ABSENT = 0  # label of the absent optional argument
SMALL = 1024  # constants of at most this many elements are known to guards by value


class Head(NamedTuple):
    """What stands at the top of a term. Kinds: op, leaf, proj, opaque, none."""

    kind: str
    domain: str = ""
    op: str = ""


def constructor(head: Head, arity: int) -> str:
    """Name of the constructor of a head with so many arguments."""
    if head.kind == "op":
        domain = re.sub(r"\W", "_", head.domain)
        return f"op_{domain}_{head.op}_{arity}" if domain else f"op_{head.op}_{arity}"
    return {"leaf": "Leaf", "proj": "Proj", "none": "None_"}.get(head.kind, f"opaque_{arity}")


class Term(NamedTuple):
    """One inserted term; `attr` is an attribute id (op), leaf index (leaf), output (proj) or node index (opaque)."""

    head: int
    attr: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input (`name`) or a constant (`constant`: key into the parent's constants, or a small new one)."""

    kind: str
    type: TensorType | None
    name: str = ""
    facts: Facts | None = None
    value: Constant | None = None
    key: object = None


def attribute_key(value: object) -> object:
    """A hashable key that tells apart what must not be confused: 1, 1.0 and True, 0.0 and -0.0, NaN payloads."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return ("b", bool(value))
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return ("f", struct.pack("<d", float(value)))
    if isinstance(value, list | tuple):
        return ("t", *map(attribute_key, value))
    if isinstance(value, Constant):
        return ("c", value.digest)
    return value  # dimensions, RUNTIME: compared by themselves


@dataclass
class Tables:
    """All terms of an e-graph and what is known of each."""

    opset: int
    heads: list[Head] = field(default_factory=list)
    attrs: list[Mapping[str, Any]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # attribute id -> number of outputs of the node
    leaves: list[Leaf] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    types: list[TensorType | None] = field(default_factory=list)  # None: unknown, or a node with several outputs
    constant: list[bool] = field(default_factory=list)  # known before the graph runs
    output_types: dict[int, tuple[TensorType | None, ...]] = field(default_factory=dict)  # nodes with several outputs
    head_ids: dict[Head, int] = field(default_factory=dict)
    attr_ids: dict[object, int] = field(default_factory=dict)
    leaf_ids: dict[object, int] = field(default_factory=dict)
    commutative: set[int] = field(default_factory=set)  # heads
    bounds: list[int] = field(default_factory=list)  # number of terms after each graph that was encoded

    def __post_init__(self) -> None:
        if not self.terms:
            self.add(Term(self.head(Head("none")), 0, ()), None)

    def head(self, head: Head) -> int:
        """Id of a head."""
        found = self.head_ids.get(head)
        if found is None:
            found = self.head_ids[head] = len(self.heads)
            self.heads.append(head)
            record = find(head.op, head.domain) if head.kind == "op" else None
            if record is not None and record.commutative:
                self.commutative.add(found)
        return found

    def attribute(self, attrs: Mapping[str, Any], outputs: int = 1) -> int:
        """Id of the attributes of a node with this many outputs."""
        key = (outputs, *sorted((name, attribute_key(value)) for name, value in attrs.items()))
        found = self.attr_ids.get(key)
        if found is None:
            found = self.attr_ids[key] = len(self.attrs)
            self.attrs.append(dict(attrs))
            self.outputs.append(outputs)
        return found

    def leaf(self, leaf: Leaf, key: object) -> int:
        """Index of a leaf; leaves with the same key are the same."""
        found = self.leaf_ids.get(key)
        if found is None:
            found = self.leaf_ids[key] = len(self.leaves)
            self.leaves.append(leaf)
        return found

    def constant_leaf(self, constant: Constant) -> int:
        """Index of the leaf of a constant that is at hand."""
        key = ("constant", constant.dtype, constant.shape, constant.digest)
        return self.leaf(Leaf("constant", constant.type, facts=constant.facts, value=constant, key=key), key)

    def add(self, term: Term, type_: TensorType | None,
            outputs: tuple[TensorType | None, ...] | None = None) -> int:
        """Append a term; its label."""
        self.terms.append(term)
        self.types.append(type_)
        self.constant.append(self._is_constant(term))
        if outputs is not None:
            self.output_types[len(self.terms) - 1] = outputs
        return len(self.terms) - 1

    def _is_constant(self, term: Term) -> bool:
        kind = self.heads[term.head].kind
        if kind == "leaf":
            return self.leaves[term.attr].kind == "constant"
        return kind in ("op", "proj") and all(arg == ABSENT or self.constant[arg] for arg in term.args)

    def kind(self, label: int) -> str:
        """Kind of the head of a term."""
        return self.heads[self.terms[label].head].kind

    def leaf_of(self, label: int) -> Leaf | None:
        """The leaf, where the term is one."""
        term = self.terms[label]
        return self.leaves[term.attr] if self.heads[term.head].kind == "leaf" else None
