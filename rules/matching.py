"""Matching patterns on a concrete graph: producers play the part of e-classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphs.canonical import default_of
from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.operators import REQUIRED, find, is_pure
from graphs.types import TensorType
from graphs.unpacking import stays

from .declare import Match, NodeView, Operand, Rule
from .form import to_form
from .pattern import AttributeVariable, Pattern, Variable

Bindings = dict[str, Any]


@dataclass
class Site:
    """One graph as rules see it. Build a new one after each change of the graph."""

    graph: Graph
    producers: dict[str, tuple[Node, int]] = field(init=False)
    _operands: dict[str, Operand | None] = field(init=False, default_factory=dict)
    _views: dict[str, NodeView | None] = field(init=False, default_factory=dict)
    _names: dict[Constant, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = {}
        for node in self.graph.nodes:
            for index, name in enumerate(node.outputs):
                if name:
                    self.producers[name] = (node, index)
        for name, constant in self.graph.constants.items():
            self._names.setdefault(constant, name)

    def operand(self, name: str) -> Operand | None:
        """A value as an operand; None where its rank is not known. Its key is the value's name (for constants: the
        first name of that content)."""
        if name not in self._operands:
            self._operands[name] = self._operand(name)
        return self._operands[name]

    def _operand(self, name: str) -> Operand | None:
        type_ = self.graph.type_of(name)
        if type_ is None or type_.shape is None:
            return None
        constant = self.graph.constants.get(name)
        if constant is not None:
            return Operand(self._names[constant], type_, True, constant.facts, lambda: constant)
        view = self.view(name)

        def forms(op: str) -> Sequence[NodeView]:
            return (view,) if view is not None and view.op == op else ()

        computed = view is not None and all(arg is None or arg.is_constant for arg in view.args) and not stays(
            self.graph, self.producers[name][0])
        return Operand(name, type_, computed, forms=forms)

    def view(self, name: str) -> NodeView | None:
        """The node that makes a value, in search form; None for inputs, constants and nodes that rules must not see.
        """
        if name not in self._views:
            self._views[name] = self._view(name)
        return self._views[name]

    def _view(self, name: str) -> NodeView | None:
        if name not in self.producers:
            return None
        node, index = self.producers[name]
        type_ = self.graph.type_of(name)
        if any(True for _ in node.graphs) or not is_pure(node) or type_ is None or type_.shape is None:
            return None
        form = to_form(node.op, node.domain, node.attrs, self.types(node), self.graph.type_of(node.outputs[0]))
        args: list[Operand | None] = []
        for position in form.args:
            operand = self.operand(node.inputs[position]) if node.inputs[position] else None
            if operand is None and node.inputs[position]:
                return None
            args.append(operand)
        while args and args[-1] is None:
            args.pop()
        return NodeView(form.op, form.attrs, tuple(args), type_, name, index, node.domain)

    def types(self, node: Node) -> list[TensorType | None]:
        """Types of a node's inputs."""
        return [self.graph.type_of(name) if name else None for name in node.inputs]


def matches(graph: Graph | Site, rule: Rule) -> Iterator[Match]:
    """Every place where the rule's patterns match (the guard has not been asked yet), in the order of nodes."""
    site = graph if isinstance(graph, Site) else Site(graph)
    opset = site.graph.opset
    if rule.group:
        yield from _groups(site, rule, opset)
        return
    for bindings, roots in _joined(site, rule.before, {}, ()):
        yield Match(bindings, roots, opset)


def _groups(site: Site, rule: Rule, opset: int) -> Iterator[Match]:
    groups: dict[object, dict[object, Match]] = {}
    for bindings, roots in _joined(site, rule.before, {}, ()):
        shared = bindings[rule.group]
        members = groups.setdefault(shared.key, {})
        members.setdefault(roots[0].key, Match(bindings, roots, opset))
    for members in groups.values():
        if len(members) > 1:
            first = next(iter(members.values()))
            yield Match(first.bindings, first.roots, opset, tuple(members.values()))


def _joined(site: Site, patterns: Sequence[Pattern], bindings: Bindings,
            roots: tuple[NodeView, ...]) -> Iterator[tuple[Bindings, tuple[NodeView, ...]]]:
    if not patterns:
        yield bindings, roots
        return
    seen: set[tuple[object, ...]] = set()
    for name in site.producers:
        if any(root.key == name for root in roots):
            continue
        for found in match_value(site, patterns[0], name, bindings):
            mark = (name, *sorted(f"{key}={_mark(value)}" for key, value in found.items()))
            view = site.view(name)
            if mark not in seen and view is not None:
                seen.add(mark)
                yield from _joined(site, patterns[1:], found, (*roots, view))


def _mark(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_mark, value))})"
    return str(value.key) if isinstance(value, (Operand, NodeView)) else repr(value)


def match_value(site: Site, pattern: Pattern | Variable, name: str, bindings: Bindings) -> Iterator[Bindings]:
    """Bindings that extend the given ones so that the pattern describes the value."""
    if isinstance(pattern, Variable):
        operand = site.operand(name)
        if operand is not None:
            yield from _bind_value(pattern, operand, bindings)
        return
    view = site.view(name)
    if view is None or (view.op, view.domain) != (pattern.op, pattern.domain) or view.output != (pattern.output or 0):
        return
    found = match_attributes(view, pattern, bindings)
    if found is None:
        return
    if pattern.label:
        if pattern.label in found and found[pattern.label].key != view.key:
            return
        found = {**found, pattern.label: view}
    for args in _orders(view, pattern):
        yield from _match_args(site, pattern.args, args, found)


def _bind_value(variable: Variable, operand: Operand, bindings: Bindings) -> Iterator[Bindings]:
    if variable.constant and not operand.is_constant:
        return
    bound = bindings.get(variable.name)
    if bound is None and variable.name not in bindings:
        yield {**bindings, variable.name: operand}
    elif isinstance(bound, Operand) and bound.key == operand.key:
        yield bindings


def _orders(view: NodeView, pattern: Pattern) -> Iterator[tuple[Operand | None, ...]]:
    yield view.args
    record = find(view.op, view.domain)
    plain = len(view.args) > 1 and len(pattern.args) > 1 and not _is_rest(pattern.args[0]) \
        and not _is_rest(pattern.args[1])
    if record is not None and record.commutative and plain:
        yield (view.args[1], view.args[0], *view.args[2:])


def _is_rest(arg: Pattern | Variable) -> bool:
    return isinstance(arg, Variable) and arg.rest


def _match_args(site: Site, wanted: Sequence[Pattern | Variable], args: Sequence[Operand | None],
                bindings: Bindings) -> Iterator[Bindings]:
    if not wanted:
        if all(arg is None for arg in args):
            yield bindings
        return
    first = wanted[0]
    if isinstance(first, Variable) and first.rest:
        if all(arg is not None and (arg.is_constant or not first.constant) for arg in args):
            bound = bindings.get(first.name)
            if bound is None or [each.key for each in bound] == [each.key for each in args if each is not None]:
                yield {**bindings, first.name: tuple(args)}
        return
    arg = args[0] if args else None
    if arg is None:
        if isinstance(first, Variable) and first.optional and bindings.get(first.name) is None:
            yield from _match_args(site, wanted[1:], args[1:], {**bindings, first.name: None})
        return
    for found in match_value(site, first, str(arg.key), bindings):
        yield from _match_args(site, wanted[1:], args[1:], found)


def match_attributes(view: NodeView, pattern: Pattern, bindings: Bindings) -> Bindings | None:
    """Bindings with the pattern's attribute variables; None where an attribute differs."""
    for name, wanted in pattern.attrs:
        if name not in view.attrs:
            return None
        found = _attribute(wanted, view.attrs[name], bindings)
        if found is None:
            return None
        bindings = found
    if not pattern.label and not _defaults(view, {name for name, _ in pattern.attrs}):
        return None
    return bindings


def _attribute(wanted: object, value: object, bindings: Bindings) -> Bindings | None:
    if isinstance(wanted, AttributeVariable):
        if wanted.name in bindings:
            return bindings if bindings[wanted.name] == value else None
        return {**bindings, wanted.name: value}
    if isinstance(wanted, tuple):
        if not isinstance(value, tuple) or len(value) != len(wanted):
            return None
        for one, other in zip(wanted, value, strict=True):
            found = _attribute(one, other, bindings)
            if found is None:
                return None
            bindings = found
        return bindings
    return bindings if wanted == value else None


def _defaults(view: NodeView, mentioned: set[str]) -> bool:
    """Attributes that the pattern does not mention have their default value (in search form)."""
    record = find(view.op, view.domain)
    if record is None:
        return False
    silent = [name for name in view.attrs if name not in mentioned and name in record.attrs]
    if any(record.attrs[name] is REQUIRED for name in silent):
        return False
    if all(view.attrs[name] == default_of(record, name) for name in silent):
        return True
    plain: Mapping[str, Any] = {**view.attrs, **{name: default_of(record, name) for name in silent}}
    inputs = [None if arg is None else arg.type for arg in view.args]
    form = to_form(view.op, view.domain, plain, inputs, view.type)
    return all(view.attrs[name] == form.attrs.get(name) for name in silent)
