"""The pattern language of rules.

    MatMul(x, $w)                      $w matches constants only
    c:Conv(x, $w, ?b)                  ?b may be absent; `c` labels the node: `m.c.attrs`, and `Conv(x, w2, ?b, *c)`
    Transpose(Transpose(x, perm=p), perm=q)     attribute variables p, q
    ReduceMean(x, axes=a, keepdims=1)           an attribute literal must be equal
    Concat(*xs, axis=a)                *xs takes all inputs: `m.xs` is a tuple
    Split(x, axis=a)[0]                one output of a node with several
    Add(x, x)                          the same variable is the same value

Attributes that a pattern does not mention must have their default value, unless the node has a label: then the guard
answers for them. Commutative operators match in both orders. Operators are in *search form* (`rules.form`): axes are
not negative, and Reshape, Flatten, Squeeze and Unsqueeze are all `Reshape(x, shape=s)` with the exact result shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphs.errors import ParseError


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable for a value. `constant`: `$w`; `optional`: `?b`; `rest`: `*xs`."""

    name: str
    constant: bool = False
    optional: bool = False
    rest: bool = False

    def __str__(self) -> str:
        return ("$" if self.constant else "") + ("?" if self.optional else "*" if self.rest else "") + self.name


@dataclass(frozen=True, slots=True)
class AttributeVariable:
    """A variable for an attribute's value."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator applied to patterns. `copy_from` (right sides only) is the label whose attributes are taken over."""

    op: str
    args: tuple[Pattern | Variable, ...]
    attrs: tuple[tuple[str, object], ...] = ()
    domain: str = ""
    label: str = ""
    output: int | None = None
    copy_from: str = ""

    def variables(self) -> Iterator[Variable]:
        """All value variables, left to right, with repetitions."""
        for arg in self.args:
            if isinstance(arg, Variable):
                yield arg
            else:
                yield from arg.variables()

    def nodes(self) -> Iterator[Pattern]:
        """This node and all below, outermost first."""
        yield self
        for arg in self.args:
            if isinstance(arg, Pattern):
                yield from arg.nodes()

    def __str__(self) -> str:
        inside = [str(arg) for arg in self.args]
        inside += [f"{name}={_literal(value)}" for name, value in self.attrs]
        inside += [f"*{self.copy_from}"] if self.copy_from else []
        head = f"{self.label}:" if self.label else ""
        name = f"{self.domain}.{self.op}" if self.domain else self.op
        tail = "" if self.output is None else f"[{self.output}]"
        return f"{head}{name}({', '.join(inside)}){tail}"


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+\.\d*(?:e-?\d+)?|-?\d+)|(?P<string>\"[^\"]*\")|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<mark>[()\[\],=:*?$]))"
)


@dataclass
class _Parser:
    text: str
    at: int = 0
    labels: set[str] = field(default_factory=set)

    def peek(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            if self.text[self.at :].strip():
                raise ParseError(f"pattern {self.text!r}, column {self.at + 1}",
                                 f"unexpected {self.text[self.at:].strip()[0]!r}", "see rules/pattern.py")
            return "end", ""
        kind = match.lastgroup or ""
        return kind, match.group(kind)

    def take(self, wanted: str | None = None) -> str:
        kind, text = self.peek()
        if kind == "end" or (wanted is not None and text != wanted):
            raise ParseError(f"pattern {self.text!r}, column {self.at + 1}", f"found {text or 'the end'!r}",
                             f"write {wanted or 'more'!r} here")
        match = _TOKEN.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return text

    def value(self) -> Pattern | Variable:
        kind, text = self.peek()
        if text in ("$", "?", "*"):
            constant = optional = rest = False
            while self.peek()[1] in ("$", "?", "*"):
                mark = self.take()
                constant, optional, rest = constant or mark == "$", optional or mark == "?", rest or mark == "*"
            return Variable(self.take(), constant, optional, rest)
        if kind != "name":
            raise ParseError(f"pattern {self.text!r}, column {self.at + 1}", f"found {text!r}",
                             "write a variable or an operator")
        name = self.take()
        label = ""
        if self.peek()[1] == ":":
            self.take()
            label, name = name, self.take()
        if self.peek()[1] != "(":
            return Variable(name)
        return self.node(label, name)

    def node(self, label: str, name: str) -> Pattern:
        self.take("(")
        args: list[Pattern | Variable] = []
        attrs: list[tuple[str, object]] = []
        copy_from = ""
        while self.peek()[1] != ")":
            mark = self.at
            kind, text = self.peek()
            if kind == "name":
                self.take()
                if self.peek()[1] == "=":
                    self.take()
                    attrs.append((text, self.attribute()))
                    if self.peek()[1] == ",":
                        self.take()
                    continue
                self.at = mark
            found = self.value()
            if isinstance(found, Variable) and found.rest and found.name in self.labels:
                copy_from = found.name
            else:
                args.append(found)
            if self.peek()[1] == ",":
                self.take()
        self.take(")")
        output = None
        if self.peek()[1] == "[":
            self.take()
            output = int(self.take())
            self.take("]")
        domain, _, op = name.rpartition(".")
        return Pattern(op, tuple(args), tuple(attrs), domain, label, output, copy_from)

    def attribute(self) -> object:
        kind, text = self.peek()
        self.take()
        if kind == "number":
            return float(text) if "." in text or "e" in text else int(text)
        if kind == "string":
            return text[1:-1]
        if kind == "name":
            return AttributeVariable(text)
        if text != "[":
            raise ParseError(f"pattern {self.text!r}, column {self.at}", f"found {text!r}", "write an attribute value")
        items = []
        while self.peek()[1] != "]":
            items.append(self.attribute())
            if self.peek()[1] == ",":
                self.take()
        self.take("]")
        return tuple(items)


def parse_pattern(text: str, labels: frozenset[str] = frozenset()) -> Pattern | Variable:
    """Read a pattern. `labels` are those of the left side, which `*label` on a right side may copy."""
    parser = _Parser(text, labels=set(labels))
    found = parser.value()
    if parser.peek()[0] != "end":
        raise ParseError(f"pattern {text!r}, column {parser.at + 1}", f"found {parser.peek()[1]!r} after the end",
                         "remove it")
    return found
