"""Constants that terms compute: guards see the elements of small ones, proofs compare the content of large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from graphs.constants import Constant
from graphs.dtypes import FLOATS, numpy_dtype
from graphs.ir import Node
from graphs.types import TensorType
from rules.form import Spelling, from_form
from runtime.execute import evaluate
from runtime.reproducible import gives_same_bits

from .budget import Folding
from .terms import ABSENT, SMALL, Tables


class Values:
    """Elements of terms over small constants, worked out once for each label. `exact`: only what every runtime
    computes to the same bits."""

    def __init__(self, tables: Tables, exact: bool = False) -> None:
        self.tables, self.exact = tables, exact
        self._known: dict[int, Constant | None] = {}

    def of(self, label: int) -> Constant | None:
        """The constant that a term is, None where it is none, too large, or not to be computed here."""
        if label not in self._known:
            leaf = self.tables.leaf_of(label)
            if leaf is not None:
                self._known[label] = leaf.value if leaf.kind == "constant" else None
            else:
                self._known[label] = self._compute(label)
        return self._known[label]

    def _compute(self, label: int) -> Constant | None:
        tables, term, type_ = self.tables, self.tables.terms[label], self.tables.types[label]
        elements = None if type_ is None else type_.elements
        if tables.kind(label) != "op" or not isinstance(elements, int) or elements > SMALL:
            return None
        inputs = [None if arg == ABSENT else self.of(arg) for arg in term.args]
        if any(value is None and arg != ABSENT for value, arg in zip(inputs, term.args, strict=True)):
            return None
        results = compute(tables, label, inputs, self.exact)
        return results[0] if results and results[0].type == type_ else None


class Bounds:
    """How large the elements of constant terms may be: small ones are known, of others the facts say, or what their
    operator makes of its arguments."""

    def __init__(self, tables: Tables, values: Values) -> None:
        self.tables, self.values = tables, values
        self._known: dict[int, float | None] = {}

    def may_overflow(self, label: int) -> bool:
        """A float constant may not be finite, though all it is computed from is."""
        args = self.tables.terms[label].args
        return not self._holds(label) and all(arg == ABSENT or self._holds(arg) for arg in args)

    def _holds(self, label: int) -> bool:
        """The elements are finite, or nothing is known of them."""
        value, type_ = self.values.of(label), self.tables.types[label]
        if value is not None:
            return value.facts.finite
        largest = self.of(label)
        return largest is None or type_ is None or type_.dtype not in FLOATS or (
            largest <= float(ml_dtypes.finfo(numpy_dtype(type_.dtype)).max))

    def of(self, label: int) -> float | None:
        """No element is larger, by its absolute value; None where that is not known."""
        if label not in self._known:
            value, leaf = self.values.of(label), self.tables.leaf_of(label)
            facts = value.facts if value is not None else leaf.facts if leaf is not None else None
            if value is None and leaf is None:
                self._known[label] = self._computed(label)
            elif facts is None or not facts.finite or facts.low is None or facts.high is None:
                self._known[label] = None
            else:
                self._known[label] = max(abs(float(facts.low)), abs(float(facts.high)))
        return self._known[label]

    def _computed(self, label: int) -> float | None:
        tables, term = self.tables, self.tables.terms[label]
        op = tables.heads[term.head].op if tables.kind(label) == "op" else ""
        args = [self.of(arg) for arg in (term.args[:1] if op in _MOVES else term.args)]
        known = [each for each in args if each is not None]
        if not known or len(known) < len(args):
            return None
        if op in _MOVES or op == "Concat":
            return max(known)
        if op in ("Add", "Sub"):
            return sum(known)
        if op in ("Mul", "MatMul"):
            first = tables.types[term.args[0]]
            terms = 1 if op == "Mul" else None if first is None or not first.shape else first.shape[-1]
            return float(np.prod(known)) * terms if isinstance(terms, int) else None
        return None


_MOVES = frozenset({"Identity", "Neg", "Abs", "Reshape", "Transpose", "Expand", "Slice", "Squeeze", "Unsqueeze",
                    "Flatten", "Gather", "Tile", "Cast"})  # the elements of the first argument, up to their sign


class Contents:
    """What terms over constants of any size compute, within a budget, and which of them are equal to the bit.

    `stored` holds the elements of constants by their leaf's index. A constant that is computed is known by its digest;
    its elements are kept for what is computed from it. `exact`: only what every runtime computes to the same bits.
    """

    def __init__(self, tables: Tables, stored: Mapping[int, Constant], folding: Folding, exact: bool = False) -> None:
        self.tables, self.stored, self.folding, self.exact = tables, stored, folding, exact
        self.left_out: set[int] = set()  # labels of nodes that the budget did not allow
        self._spent = 0.0
        self._results: dict[int, tuple[Constant, ...] | None] = {}  # label of an operator's node -> its outputs

    def equal(self, classes: Sequence[int], constant: set[int]) -> list[tuple[int, int]]:
        """Pairs of labels in different classes whose content is the same: what is computed first, if one is stored.

        Only where several constant classes have one type is there anything to find, and anything computed.
        """
        pairs: list[tuple[int, int]] = []
        for labels in self._of_one_type(classes, constant):
            first: dict[str, int] = {}
            for label in sorted(labels, key=lambda label: (self.tables.kind(label) != "leaf", label)):
                digest = self._digest(label)
                known = label if digest is None else first.setdefault(digest, label)
                if classes[known] != classes[label]:
                    pairs.append((label, known))
        return pairs

    def _of_one_type(self, classes: Sequence[int], constant: set[int]) -> list[list[int]]:
        found: dict[object, list[int]] = {}
        for label, type_ in enumerate(self.tables.types):
            if type_ is not None and type_.is_static and classes[label] in constant:
                found.setdefault(type_, []).append(label)
        return [labels for labels in found.values() if len({classes[label] for label in labels}) > 1]

    def _digest(self, label: int) -> str | None:
        leaf = self.tables.leaf_of(label)
        if leaf is None:
            value = self._of(label)
            return None if value is None else value.digest
        known = leaf.key if isinstance(leaf.key, tuple) else ()
        return str(known[-1]) if known[:1] == ("constant",) else None

    def _of(self, label: int) -> Constant | None:
        """The constant that a label is, None where it is not to be had."""
        if label == ABSENT:
            return None
        leaf, term = self.tables.leaf_of(label), self.tables.terms[label]
        if leaf is not None:
            return leaf.value or self.stored.get(term.attr)
        if self.tables.kind(label) == "proj":
            results = self._outputs(term.args[0])
            return None if results is None or term.attr >= len(results) else results[term.attr]
        results = self._outputs(label)
        return results[0] if results and len(results) == 1 else None

    def _outputs(self, label: int) -> tuple[Constant, ...] | None:
        if label not in self._results:
            self._results[label] = self._work_out(label)
        return self._results[label]

    def _work_out(self, label: int) -> tuple[Constant, ...] | None:
        tables = self.tables
        term = tables.terms[label]
        if tables.kind(label) != "op":
            return None
        types = tables.output_types.get(label) or (tables.types[label],)
        sizes = [None if type_ is None else type_.elements for type_ in types]
        if not all(isinstance(size, int) for size in sizes):
            return None
        inputs = [self._of(arg) for arg in term.args]
        missing = [arg for value, arg in zip(inputs, term.args, strict=True) if value is None and arg != ABSENT]
        needed = sum(type_.static_bytes or 0.0 for type_ in types if type_ is not None)
        large = any(isinstance(size, int) and size > self.folding.elements for size in sizes)
        if large or self._spent + needed > self.folding.bytes or any(map(self._is_left_out, missing)):
            self.left_out.add(label)
            return None
        if missing:
            return None
        self._spent += needed
        return compute(tables, label, inputs, self.exact)

    def _is_left_out(self, label: int) -> bool:
        """A stored constant that is not at hand, or what could not be computed for want of budget."""
        term = self.tables.terms[label]
        at = term.args[0] if self.tables.kind(label) == "proj" else label
        return at in self.left_out or self.tables.leaf_of(label) is not None


def storable(constants: Mapping[int, Constant], folding: Folding) -> dict[int, Constant]:
    """Those of the constants that the budget lets a search know by content, small ones first."""
    found: dict[int, Constant] = {}
    total = 0.0
    for index, constant in sorted(constants.items(), key=lambda each: (each[1].nbytes, each[0])):
        total += constant.nbytes
        if constant.size <= folding.elements and total <= folding.bytes and constant.dtype != "string":
            found[index] = constant
    return found


def is_reproducible(tables: Tables, label: int) -> bool:
    """Does every runtime compute what a label is from constants to the same bits?"""
    waiting, seen = [label], set[int]()
    while waiting:
        at = waiting.pop()
        if at == ABSENT or at in seen or tables.leaf_of(at) is not None:
            continue
        seen.add(at)
        waiting += tables.terms[at].args
        if tables.kind(at) == "op":
            inputs = [None if arg == ABSENT else tables.types[arg] for arg in tables.terms[at].args]
            spelled = _spelled(tables, at, inputs)
            if isinstance(spelled, str) or not _same_bits(tables, at, spelled, inputs):
                return False
    return True


def _spelled(tables: Tables, label: int, types: Sequence[TensorType | None]) -> Spelling | str:
    term = tables.terms[label]
    head = tables.heads[term.head]
    return from_form(head.op, head.domain, tables.attrs[term.attr], types, _outputs(tables, label)[0])


def _outputs(tables: Tables, label: int) -> Sequence[TensorType | None]:
    return tables.output_types.get(label) or (tables.types[label],)


def _same_bits(tables: Tables, label: int, spelled: Spelling, inputs: Sequence[TensorType | None]) -> bool:
    return gives_same_bits(spelled.op, tables.heads[tables.terms[label].head].domain, spelled.attrs,
                           [type_ for type_ in inputs if type_ is not None], _outputs(tables, label))


def compute(tables: Tables, label: int, inputs: Sequence[Constant | None],
            exact: bool = False) -> tuple[Constant, ...] | None:
    """The outputs of a term's node over constants, by the runtime's kernel; None where it does not compute (with
    `exact` also where another runtime may compute other bits)."""
    head, outputs = tables.heads[tables.terms[label].head], _outputs(tables, label)
    types = [None if value is None else value.type for value in inputs]
    spelled = _spelled(tables, label, types)
    if isinstance(spelled, str) or (exact and not _same_bits(tables, label, spelled, types)):
        return None
    names = tuple("" if value is None else f"v{at}" for at, value in enumerate(inputs))
    made = tuple(f"y{at}" for at in range(len(outputs)))
    node = Node(spelled.op, names, made, dict(spelled.attrs), head.domain, version=1)
    try:
        with np.errstate(all="ignore"):
            results = evaluate(node, [None if value is None else value.array for value in inputs])
    except Exception:  # whatever a kernel raises that gets what it does not accept (an index out of range)
        return None  # what does not compute here is only unknown; the graph keeps the node
    return tuple(Constant.of(np.asarray(result)) for result in results)
