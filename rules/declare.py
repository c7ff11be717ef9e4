"""How a rule is declared, and what its guard sees.

    @rule(
        family="movement", exactness="exact",
        meaning="Two transposes in a row are one transpose.",
        before="Transpose(Transpose(x, perm=p), perm=q)",
        after="Transpose(x, perm=r)",
        example='''graph opset 17 (x: float32[2, 3, 4]) -> (y) {
            t = Transpose(x, perm=[1, 0, 2])
            y = Transpose(t, perm=[0, 2, 1]) }''',
        near_miss='graph ... the guard, or the pattern, must refuse here',
    )
    def transpose_transpose(m: Match) -> Outcome:
        return {"r": tuple(m["p"][axis] for axis in m["q"])}

The function is the guard. It returns `refuse("why")`, or a dict with the variables that only the right side has
(an ndarray or Constant for a value, anything else for an attribute; {} or None if there is none), or, for right
sides that no pattern can state, the replacement itself (a `Term`, or one for each pattern of `before`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from graphs.constants import Constant, Facts
from graphs.dims import DimLike
from graphs.types import TensorType

from .pattern import Pattern, Variable, parse_pattern

EXACTNESS = ("exact", "rounding", "finite", "approximate")  # from the strongest promise to the weakest


def allowed(exactness: str, request: str) -> bool:
    """True where a rule of a class may be used for a request of a class."""
    return EXACTNESS.index(exactness) <= EXACTNESS.index(request)


class Operand:
    """A value that a variable matched (in the e-graph: an e-class).

    `key` identifies it to the engine. `type` is always known (values of unknown type never match).
    """

    __slots__ = ("_constant", "_forms", "facts", "is_constant", "key", "type")

    def __init__(self, key: object, type_: TensorType, is_constant: bool = False, facts: Facts | None = None,
                 constant: Callable[[], Constant | None] = lambda: None,
                 forms: Callable[[str], Sequence[NodeView]] = lambda op: ()) -> None:
        self.key, self.type, self.is_constant, self.facts = key, type_, is_constant, facts
        self._constant, self._forms = constant, forms

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> tuple[DimLike, ...]:
        """The shape; rules only match values of known rank."""
        assert self.type.shape is not None
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def array(self) -> np.ndarray | None:
        """The elements of a constant if they are at hand (small constants), else None. Refuse on None."""
        constant = self._constant() if self.is_constant else None
        return None if constant is None else constant.array

    @property
    def splat(self) -> float | int | bool | None:
        """The one value that all elements of a constant have, else None (also when not at hand)."""
        return self.facts.splat if self.facts is not None else None

    def forms(self, op: str) -> Sequence[NodeView]:
        """Nodes of this operator that are known to compute the value. Call `m.use(view)` on each one relied upon."""
        return self._forms(op)

    def __repr__(self) -> str:
        return f"Operand({self.key}: {self.type}{' constant' if self.is_constant else ''})"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A matched node: attributes in search form, its operands (None = absent), the type of the matched output.

    `key` identifies the node to the engine; `output` tells which of the node's outputs was matched.
    """

    op: str
    attrs: Mapping[str, Any]
    args: tuple[Operand | None, ...]
    type: TensorType
    key: object = None
    output: int = 0
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """A new node in search form. Leaves are `Operand` or `Constant`. `output` selects one of `outputs` outputs."""

    op: str
    args: tuple[Term | Operand | Constant | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    output: int = 0
    outputs: int = 1


Leaf = Term | Operand | Constant


def term(op: str, *args: Leaf | None, output: int = 0, outputs: int = 1, domain: str = "", **attrs: Any) -> Term:
    """Build a new node; attributes that are left out take their defaults."""
    return Term(op, tuple(args), attrs, domain, output, outputs)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rule did not fire here."""

    reason: str


def refuse(reason: str) -> Refusal:
    """The answer of a guard that does not hold."""
    return Refusal(reason)


class Match:
    """What a guard sees: `m.x` is the Operand of variable x, `m["p"]` the value of attribute variable p, `m.c` the
    NodeView of label c, `m.roots[i]` the NodeView of the i-th pattern's root, `m.opset` the version to write at.

    With `group=...`, `m.members` holds the matches that share the group variable (each a Match), `m` is the first.
    """

    def __init__(self, bindings: Mapping[str, Any], roots: Sequence[NodeView], opset: int,
                 members: Sequence[Match] = ()) -> None:
        self.bindings, self.roots, self.opset, self.members = dict(bindings), tuple(roots), opset, tuple(members)
        self.used: list[NodeView] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["bindings"][name]
        except KeyError:
            raise AttributeError(f"the pattern binds no {name!r}") from None

    def __getitem__(self, name: str) -> Any:
        return self.bindings[name]

    @property
    def root(self) -> NodeView:
        return self.roots[0]

    def use(self, view: NodeView) -> NodeView:
        """State that the rewrite relies on this further node (from `Operand.forms`)."""
        self.used.append(view)
        return view


Outcome = Mapping[str, Any] | Refusal | Leaf | Sequence[Leaf | None] | None


@dataclass(frozen=True)
class Rule:
    """One named rewrite rule. `before` has one pattern, or several for a rule that joins nodes."""

    name: str
    family: str
    exactness: str
    meaning: str
    before: tuple[Pattern, ...]
    after: tuple[Pattern | Variable, ...] | None
    guard: Callable[[Match], Outcome]
    example: str
    near_miss: str
    group: str = ""
    source: str = ""
    zero_sign: bool = False  # it may change the sign of a zero: not used where that could show (`rules.zero_signs`)

    def renamed(self, name: str) -> Rule:
        """The same rule under another name, for rules that one function declares for several operators."""
        return replace(self, name=name)

    def text(self) -> str:
        """The rule in one line."""
        right = "..." if self.after is None else "; ".join(map(str, self.after))
        return f"{'; '.join(map(str, self.before))} => {right}"


def rule(*, family: str, exactness: str, meaning: str, before: str | Sequence[str], example: str, near_miss: str,
         after: str | Sequence[str] | None = None, group: str = "",
         zero_sign: bool = False) -> Callable[[Callable[[Match], Outcome]], Rule]:
    """Declare a rule; the function's name with `-` for `_` is the rule's name."""
    if exactness not in EXACTNESS:
        raise ValueError(f"exactness {exactness!r} is none of {EXACTNESS}")
    texts = (before,) if isinstance(before, str) else tuple(before)
    left = tuple(parse_pattern(text) for text in texts)
    if not all(isinstance(pattern, Pattern) for pattern in left):
        raise ValueError(f"the left side {texts} must start with an operator")
    labels = frozenset(node.label for pattern in left for node in pattern.nodes() if node.label)  # type: ignore[union-attr]
    rights = None if after is None else (after,) if isinstance(after, str) else tuple(after)
    right = None if rights is None else tuple(parse_pattern(text, labels) for text in rights)

    def declare(guard: Callable[[Match], Outcome]) -> Rule:
        line = inspect.unwrap(guard).__code__.co_firstlineno  # asking for the source text would parse it
        source = f"{guard.__module__.replace('.', '/')}.py:{line}"
        return Rule(guard.__name__.strip("_").replace("_", "-"), family, exactness, meaning, left, right, guard,  # type: ignore[arg-type]
                    example, near_miss, group, source, zero_sign)

    return declare
