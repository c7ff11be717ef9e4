"""Firing a rule on a match: the guard's answer becomes typed nodes, or a reason why not.

Both the e-graph search and the application of one rule to one graph go through `fire`, so a rule means the same
thing in both. Everything that no rule has to think of is checked here: the right side's operators exist at the
opset, accept the element types, can be written with these symbolic shapes, and the result has exactly the type of
what it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphs.canonical import complete
from graphs.constants import Constant
from graphs.dims import Expr, product
from graphs.errors import InferenceError
from graphs.inference import infer_site
from graphs.ir import Node
from graphs.operators import REQUIRED, RUNTIME, Operator, Site, accepts, available, find, schema
from graphs.types import TensorType
from graphs.unpacking import unpacks
from graphs.versions import settle_node

from .declare import Leaf, Match, NodeView, Operand, Refusal, Rule, Term, refuse
from .form import from_form, to_form
from .pattern import AttributeVariable, Pattern, Variable


@dataclass(eq=False, slots=True)
class Built:
    """A new node in search form with its types; `output` selects the output that its user reads."""

    op: str
    domain: str
    attrs: Mapping[str, Any]
    args: tuple[Built | Operand | Constant | None, ...]
    types: tuple[TensorType, ...]
    output: int = 0

    @property
    def type(self) -> TensorType:
        return self.types[self.output]

    @property
    def is_constant(self) -> bool:
        """Computed from constants alone, and not left in the graph (`graphs.unpacking`)."""
        first = self.args[0] if self.args else None
        return (all(arg is None or isinstance(arg, Constant) or arg.is_constant for arg in self.args)
                and not unpacks(self.op, self.domain, None if first is None else first.type, self.type))

    def walk(self) -> Iterator[Built]:
        """New nodes, arguments first."""
        for arg in self.args:
            if isinstance(arg, Built):
                yield from arg.walk()
        yield self


Replacement = Built | Operand | Constant


class _Refused(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def fire(rule: Rule, match: Match) -> list[Replacement | None] | Refusal:
    """One replacement for each root (for each member's root in a group rule), or why the rule does not fire.

    A None in the list leaves that root as it is.
    """
    outcome = rule.guard(match)
    if isinstance(outcome, Refusal):
        return outcome
    try:
        leaves = _leaves(rule, match, outcome)
        roots = [member.root for member in match.members] if rule.group else list(match.roots)
        if len(leaves) != len(roots):
            raise ValueError(f"rule {rule.name}: {len(leaves)} replacements for {len(roots)} roots")
        memo = Memo()
        return [None if leaf is None else _checked(leaf, root, match.opset, memo)
                for leaf, root in zip(leaves, roots, strict=True)]
    except _Refused as refused:
        return refuse(refused.reason)


def _leaves(rule: Rule, match: Match, outcome: object) -> Sequence[Leaf | None]:
    if isinstance(outcome, (Term, Operand, Constant)):
        return [outcome]
    if isinstance(outcome, Sequence):
        return outcome
    if rule.after is None:
        raise ValueError(f"rule {rule.name} has no right side and its guard gave none")
    extra = dict(outcome) if isinstance(outcome, Mapping) else {}
    bindings = {**match.bindings, **extra}
    return [_instantiate(pattern, bindings) for pattern in rule.after]


def _instantiate(pattern: Pattern | Variable, bindings: Mapping[str, Any]) -> Leaf | None:
    if isinstance(pattern, Variable):
        return _leaf(bindings[pattern.name])
    args: list[Leaf | None] = []
    for arg in pattern.args:
        if isinstance(arg, Variable) and arg.rest:
            args += [_leaf(item) for item in bindings[arg.name]]
        else:
            args.append(_instantiate(arg, bindings))
    attrs = dict(bindings[pattern.copy_from].attrs) if pattern.copy_from else {}
    for name, value in pattern.attrs:
        attrs[name] = _attribute(value, bindings)
    return Term(pattern.op, tuple(args), attrs, pattern.domain, pattern.output or 0)


def _attribute(value: object, bindings: Mapping[str, Any]) -> object:
    if isinstance(value, AttributeVariable):
        return bindings[value.name]
    if isinstance(value, tuple):
        return tuple(_attribute(item, bindings) for item in value)
    return value


def _leaf(value: object) -> Leaf | None:
    if value is None or isinstance(value, (Operand, Term, Constant)):
        return value
    if isinstance(value, NodeView):
        raise TypeError("a label stands for attributes, not for a value; bind the value to a variable")
    return Constant.of(np.asarray(value))


def _checked(leaf: Leaf, root: NodeView, opset: int, memo: Memo) -> Replacement:
    built = build(leaf, opset, memo)
    if built.type != root.type:
        raise _Refused(f"the right side has type {built.type}, not {root.type}")
    return built


class Memo:
    """Nodes already built: equal terms (of one node, its outputs too) are built once."""

    def __init__(self) -> None:
        self.terms: dict[int, Built] = {}
        self.nodes: dict[tuple[object, ...], Built] = {}


def build(leaf: Leaf, opset: int, memo: Memo | None = None) -> Replacement:
    """Type a term and check that it can be written at an opset.

    Raises an internal refusal that `fire` turns into a `Refusal`.
    """
    memo = Memo() if memo is None else memo
    if not isinstance(leaf, Term):
        return leaf
    if id(leaf) in memo.terms:
        return memo.terms[id(leaf)]
    args = tuple(None if arg is None else build(arg, opset, memo) for arg in leaf.args)
    while args and args[-1] is None:
        args = args[:-1]
    key = (leaf.op, leaf.domain, leaf.outputs, repr(sorted(leaf.attrs.items())), tuple(map(_identity, args)))
    if key not in memo.nodes:
        memo.nodes[key] = _node(leaf, args, opset)
    built = replace(memo.nodes[key], output=leaf.output)  # one node: the same tuple of arguments
    memo.terms[id(leaf)] = built
    return built


def _identity(arg: Replacement | None) -> object:
    if isinstance(arg, Built):
        return id(arg.args), arg.output
    return ("value", arg.key) if isinstance(arg, Operand) else arg


Found = tuple[str, str, Mapping[str, Any], tuple[int, ...], tuple[TensorType, ...]]
_FOUND: dict[object, Found | _Refused] = {}  # what `_found` answered; large graphs repeat the same few nodes
_MOST_FOUND = 50_000


def _node(leaf: Term, args: tuple[Built | Operand | Constant | None, ...], opset: int) -> Built:
    inputs = [None if arg is None else arg.type for arg in args]
    # Small constants can decide a type, and what has no exact text cannot be told apart by a key.
    by_type = not any(isinstance(arg, Constant) for arg in args) and all(map(_is_plain, leaf.attrs.values()))
    key = (leaf.op, leaf.domain, leaf.outputs, opset, repr(sorted(leaf.attrs.items())), *inputs) if by_type else None
    found = _FOUND.get(key) if key is not None else None
    if found is None:
        try:
            found = _found(leaf, args, inputs, opset)
        except _Refused as refused:
            found = refused
        if key is not None:
            if len(_FOUND) > _MOST_FOUND:
                _FOUND.clear()
            _FOUND[key] = found
    if isinstance(found, _Refused):
        raise _Refused(found.reason)
    op, domain, attrs, positions, types = found
    return Built(op, domain, attrs, tuple(args[at] for at in positions), types, leaf.output)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or value is RUNTIME or isinstance(value, int | float | str | Expr)


def _found(leaf: Term, args: tuple[Built | Operand | Constant | None, ...], inputs: list[TensorType | None],
           opset: int) -> Found:
    """Search form, remaining inputs and types of a new node; everything that no rule has to think of is checked."""
    record = find(leaf.op, leaf.domain)
    if record is None:
        raise ValueError(f"no operator record of {leaf.domain}.{leaf.op}")
    if leaf.domain == "" and not available(leaf.op, opset):
        raise _Refused(f"opset {opset} has no {leaf.op} of this meaning")
    attrs = {**{name: default for name, default in record.attrs.items() if default is not REQUIRED}, **leaf.attrs}
    for name in attrs:
        if name not in record.attrs:
            raise ValueError(f"{leaf.op} has no attribute {name!r}")
    if leaf.domain == "":
        _check_types(leaf.op, opset, inputs)
        attrs = _drop_unknown(leaf.op, attrs, record.attrs, record.static, opset)
    attrs = _settled(leaf, attrs, record, inputs, opset)
    types = _types(leaf, attrs, args, inputs)
    form = to_form(leaf.op, leaf.domain, attrs, inputs, types[0])
    spelled = from_form(form.op, form.domain, form.attrs, [inputs[i] for i in form.args], types[0])
    if isinstance(spelled, str):
        raise _Refused(spelled)
    if leaf.domain == "" and not available(spelled.op, opset):
        raise _Refused(f"opset {opset} has no {spelled.op} of this meaning")
    if record.write is not None and spelled.op == leaf.op and leaf.domain == "":
        found = schema(leaf.op, opset)
        if found is not None and record.write(dict(spelled.attrs), found.since_version) is None:
            raise _Refused(f"opset {opset} cannot state {leaf.op} with these attributes")
    return form.op, form.domain, form.attrs, form.args, types


def _settled(leaf: Term, attrs: Mapping[str, Any], record: Operator, inputs: Sequence[TensorType | None],
             opset: int) -> dict[str, Any]:
    """Attributes as canonical nodes hold them: `min=0` of a Clip on floats is 0.0, or equal nodes would differ."""
    done = complete(record, attrs)
    if record.static:
        names = tuple("" if type_ is None else str(index) for index, type_ in enumerate(inputs))
        settle_node(Node(leaf.op, names, ("y",), done, leaf.domain, version=1), opset, lambda name: inputs[int(name)])
    return done


def _check_types(op: str, opset: int, inputs: Sequence[TensorType | None]) -> None:
    for position, type_ in enumerate(inputs):
        if type_ is not None and not accepts(op, opset, type_.dtype, position):
            raise _Refused(f"{op} of opset {opset} does not take {type_.dtype}")


def _drop_unknown(op: str, attrs: dict[str, Any], defaults: Mapping[str, object], static: Mapping[str, int],
                  opset: int) -> dict[str, Any]:
    """Refuse attributes that differ from their default and that the operator lacks at this opset."""
    found = schema(op, opset)
    assert found is not None
    for name, value in attrs.items():
        known = name in found.attributes or (name in static and static[name] < len(found.inputs))
        if not known and value != defaults[name] and op not in ("Reshape", "Expand"):
            raise _Refused(f"{op} of opset {opset} has no {name!r}")
    return attrs


def _types(leaf: Term, attrs: Mapping[str, Any], args: Sequence[Built | Operand | Constant | None],
           inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    if leaf.domain == "" and leaf.op in ("Reshape", "Expand") and attrs.get("shape") is not RUNTIME:
        return (_shape_type(leaf.op, attrs, inputs[0]),)
    constants = [arg if isinstance(arg, Constant) else None for arg in args]
    record = find(leaf.op, leaf.domain)
    assert record is not None
    site = Site(leaf.op, attrs, inputs, [None] * len(inputs), constants, leaf.outputs, leaf.op)
    try:
        found = infer_site(record, site)
    except InferenceError as error:
        raise _Refused(f"the right side is ill-typed: {error.found}") from None
    types: list[TensorType] = []
    for type_ in found.types:
        if not isinstance(type_, TensorType) or not type_.is_known:
            raise _Refused(f"the shape of {leaf.op} on the right side does not follow from the inputs' sizes")
        types.append(type_)
    return tuple(types)


def _shape_type(op: str, attrs: Mapping[str, Any], source: TensorType | None) -> TensorType:
    """Reshape and Expand in search form state their result shape."""
    if source is None or source.shape is None:
        raise _Refused(f"the shape of the value under {op} is not known")
    target = tuple(attrs["shape"])
    if op == "Reshape" and product(source.shape) != product(target):
        raise _Refused(f"{source} has another number of elements than {list(map(str, target))}")
    if op == "Expand":
        offset = len(target) - len(source.shape)
        if offset < 0 or any(dim not in (1, target[offset + i]) for i, dim in enumerate(source.shape)):
            raise _Refused(f"{source} does not expand to {list(map(str, target))}")
    return source.with_shape(target)
