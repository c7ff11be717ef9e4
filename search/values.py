"""Small constants that terms compute: guards see the elements of `Mul(w, s)` as they see those of a stored constant."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.errors import EgraftError
from graphs.ir import Node
from rules.form import from_form
from runtime.execute import evaluate

from .terms import ABSENT, SMALL, Tables


class Values:
    """Elements of terms over small constants, worked out once for each label."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
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
        head = tables.heads[term.head]
        elements = None if type_ is None else type_.elements
        if head.kind != "op" or type_ is None or not isinstance(elements, int) or elements > SMALL:
            return None
        values = [None if arg == ABSENT else self.of(arg) for arg in term.args]
        if any(value is None and arg != ABSENT for value, arg in zip(values, term.args, strict=True)):
            return None
        types = [None if value is None else value.type for value in values]
        spelled = from_form(head.op, head.domain, tables.attrs[term.attr], types, type_)
        if isinstance(spelled, str):
            return None
        names = tuple("" if value is None else f"v{at}" for at, value in enumerate(values))
        node = Node(spelled.op, names, ("y",), dict(spelled.attrs), head.domain, version=1)
        try:
            with np.errstate(all="ignore"):
                result = evaluate(node, [None if value is None else value.array for value in values])
        except (EgraftError, ArithmeticError, IndexError, TypeError, ValueError):
            return None  # what does not compute here is only unknown to guards; the graph keeps the node
        made = Constant.of(np.asarray(result[0]))
        return made if made.type == type_ else None
