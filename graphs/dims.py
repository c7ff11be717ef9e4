"""Dimensions: integers, or polynomials with integer coefficients over symbols and opaque functions of them.

A `Dim` is an `int` or an `Expr` in normal form, so that two dimensions are equal for every size exactly when
`==` says so, as far as polynomial arithmetic can tell: `batch*seq == seq*batch`. Whatever is no polynomial (floor
division that is not exact, the larger of two sizes, a broadcast of two different symbols, a size that depends on
data) is an opaque atom: equal only to itself. Symbols stand for sizes >= 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from .errors import ParseError

Monomial = tuple["Atom", ...]  # sorted; () is the constant term


@lru_cache(maxsize=65536)
def quote_name(name: str) -> str:
    """A name as texts show it: itself if it is an identifier, else in backquotes with the escapes of JSON."""
    if re.fullmatch(r"[A-Za-z_]\w*", name):
        return name
    inner = json.dumps(name, ensure_ascii=False)[1:-1].replace("`", "\\u0060")
    return f"`{inner}`"


def unquote_name(inner: str) -> str:
    """The name that stands between backquotes."""
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError:
        return inner


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named size, `batch`. Any text is a name; other than identifiers it prints in backquotes."""

    name: str

    def __str__(self) -> str:
        return quote_name(self.name)


@dataclass(frozen=True, slots=True)
class Call:
    """An opaque function of dimensions: floordiv, mod, max, min, broadcast, or `data` (a name's data decides)."""

    function: str
    args: tuple[DimLike, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


Atom = Symbol | Call


class Expr:
    """A polynomial in normal form: sorted (monomial, coefficient) pairs, no zero coefficient, not a constant."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        # Parts are shared, so that written out one may be far larger than in memory: hashes tell most of them apart.
        return self is other or (isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Expr], tuple[tuple[tuple[Monomial, int], ...]]]:
        return Expr, (self.terms,)

    def __str__(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            part = "*".join(map(str, monomial))
            size = abs(factor)
            part = str(size) if not part else part if size == 1 else f"{size}*{part}"
            text += (" - " if factor < 0 else " + ") + part if text else ("-" if factor < 0 else "") + part
        return text

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __add__(self, other: DimLike) -> DimLike:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: DimLike) -> DimLike:
        return sub(self, other)

    def __rsub__(self, other: DimLike) -> DimLike:
        return sub(other, self)

    def __mul__(self, other: DimLike) -> DimLike:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> DimLike:
        return mul(-1, self)

    def __floordiv__(self, other: DimLike) -> DimLike:
        return floordiv(self, other)


DimLike = int | Expr


@lru_cache(maxsize=65536)
def _atom_key(atom: Atom) -> tuple[int, str]:
    return (isinstance(atom, Call), str(atom))


def _monomial_key(monomial: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return (-len(monomial), tuple(map(_atom_key, monomial)))


def _terms(dim: DimLike) -> dict[Monomial, int]:
    if isinstance(dim, Expr):
        return dict(dim.terms)
    return {(): int(dim)} if dim else {}


def _make(terms: dict[Monomial, int]) -> DimLike:
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    if list(kept) == [()]:
        return kept[()]
    return Expr(tuple(sorted(kept.items(), key=lambda item: _monomial_key(item[0]))))


def symbol(name: str) -> Expr:
    """The dimension that a name stands for."""
    return Expr((((Symbol(name),), 1),))


def call(function: str, *args: DimLike) -> Expr:
    """An opaque dimension; use the named functions below where they exist."""
    return Expr((((Call(function, args),), 1),))


def data_dim(value: str, index: int = 0) -> Expr:
    """A size that only the data of the value named `value` decides (NonZero, a runtime Reshape target)."""
    return Expr((((Call("data", (symbol(value), index)),), 1),))


def is_static(dim: DimLike) -> bool:
    """True for a plain integer."""
    return not isinstance(dim, Expr)


def add(a: DimLike, b: DimLike) -> DimLike:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    terms = _terms(a)
    for monomial, factor in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + factor
    return _make(terms)


def sub(a: DimLike, b: DimLike) -> DimLike:
    """a - b."""
    return add(a, mul(-1, b))


def mul(a: DimLike, b: DimLike) -> DimLike:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    terms: dict[Monomial, int] = {}
    for left, f in _terms(a).items():
        for right, g in _terms(b).items():
            monomial = tuple(sorted(left + right, key=_atom_key))
            terms[monomial] = terms.get(monomial, 0) + f * g
    return _make(terms)


def product(dims: tuple[DimLike, ...] | list[DimLike]) -> DimLike:
    """The product of some dimensions (1 for none)."""
    total: DimLike = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def exact_quotient(a: DimLike, b: DimLike) -> DimLike | None:
    """q with q * b == a for every size where b is not zero, or None. `b` must be a single monomial."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return 1 if a == b and a != 0 else None
    (needed, factor), *_ = divisor.items()
    quotient: dict[Monomial, int] = {}
    for monomial, f in _terms(a).items():
        rest = list(monomial)
        for atom in needed:
            if atom not in rest:
                return None
            rest.remove(atom)
        if f % factor:
            return None
        quotient[tuple(rest)] = f // factor
    return _make(quotient)


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """floor(a / b), exact where a polynomial divides, else opaque. An integer `b` must not be 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    exact = exact_quotient(a, b)
    if exact is not None and (isinstance(b, int) or exact == 0):
        return exact
    if isinstance(b, int) and b > 0:  # take out the multiples of b: (8*n + 3)//4 = 2*n + 3//4
        whole = {m: f // b for m, f in _terms(a).items()}
        rest = {m: f % b for m, f in _terms(a).items()}
        remainder = _make(rest)
        if isinstance(remainder, int):
            return add(_make(whole), remainder // b)
        return add(_make(whole), call("floordiv", remainder, b))
    return call("floordiv", a, b)


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """ceil(a / b)."""
    return mul(-1, floordiv(mul(-1, a), b)) if isinstance(a, int) else floordiv(add(a, sub(b, 1)), b)


def mod(a: DimLike, b: DimLike) -> DimLike:
    """a - b * floor(a / b)."""
    return sub(a, mul(b, floordiv(a, b)))


def largest(a: DimLike, b: DimLike) -> DimLike:
    """max(a, b); decided where the difference is an integer."""
    difference = sub(a, b)
    if isinstance(difference, int):
        return a if difference >= 0 else b
    if at_least(a, b):
        return a
    if at_least(b, a):
        return b
    return call("max", *sorted((a, b), key=str))


def smallest(a: DimLike, b: DimLike) -> DimLike:
    """min(a, b); decided where the difference is an integer or its sign is clear."""
    if at_least(a, b):
        return b
    if at_least(b, a):
        return a
    return call("min", *sorted((a, b), key=str))


def at_least(a: DimLike, b: DimLike) -> bool:
    """True where a >= b is certain for all sizes (sufficient, not necessary). Symbols are sizes, so >= 0."""
    difference = sub(a, b)
    if isinstance(difference, int):
        return difference >= 0
    return all(f >= 0 and all(map(_is_natural, monomial)) for monomial, f in difference.terms)


def _is_natural(atom: Atom) -> bool:
    """Never negative: floor((n - 5)/2) and min(n - 5, 2) may be."""
    if isinstance(atom, Symbol):
        return True
    if atom.function == "max":
        return any(at_least(arg, 0) for arg in atom.args)
    if atom.function == "min":
        return all(at_least(arg, 0) for arg in atom.args)
    if atom.function in ("floordiv", "mod"):
        return at_least(atom.args[0], 0) and at_least(atom.args[1], 1)
    return atom.function in ("data", "broadcast")


def broadcast(a: DimLike, b: DimLike) -> DimLike | None:
    """The common size of two aligned dimensions under ONNX broadcasting, None where they cannot agree."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        return None
    if isinstance(a, int):  # not 1, so the other one is 1 or the same
        return a
    if isinstance(b, int):
        return b
    if _is_cut_of(a, b):
        return b
    if _is_cut_of(b, a):
        return a
    # A size that is in it already adds nothing: else each layer of a network would stand twice in the next one.
    parts, others = _broadcast_parts(a), _broadcast_parts(b)
    if parts >= others:
        return a
    if parts <= others:
        return b
    first, *rest = sorted(parts | others, key=str)
    return reduce(lambda one, other: call("broadcast", one, other), rest, first)


def _broadcast_parts(dim: DimLike) -> set[DimLike]:
    """The sizes of which a dimension is the common one, in whatever order they came together; itself of any other."""
    match dim.terms if isinstance(dim, Expr) else ():
        case (((Call(function="broadcast", args=args),), 1),):
            return set().union(*map(_broadcast_parts, args))
    return {dim}


def _is_cut_of(a: DimLike, b: DimLike) -> bool:
    """a is min(n, b) with n >= 1: where the two broadcast at all, the result is b (n positions cut to length b)."""
    (monomial, factor), *more = a.terms if isinstance(a, Expr) else (((), 0),)
    if more or factor != 1 or len(monomial) != 1:
        return False
    atom = monomial[0]
    if not isinstance(atom, Call) or atom.function != "min" or b not in atom.args:
        return False
    return all(each == b or (isinstance(each, int) and each >= 1) for each in atom.args)


def symbols(dim: DimLike) -> set[str]:
    """Names of all symbols inside."""
    names: set[str] = set()
    for monomial, _ in dim.terms if isinstance(dim, Expr) else ():
        for atom in monomial:
            if isinstance(atom, Symbol):
                names.add(atom.name)
            else:
                for arg in atom.args:
                    names |= symbols(arg)
    return names


def depends_on_data(dim: DimLike) -> bool:
    """True where only running the graph tells the size."""
    for monomial, _ in dim.terms if isinstance(dim, Expr) else ():
        for atom in monomial:
            if isinstance(atom, Call) and (atom.function == "data" or any(map(depends_on_data, atom.args))):
                return True
    return False


def evaluate(dim: DimLike, sizes: Mapping[str, int]) -> int | None:
    """The integer for given sizes of the symbols, None where a symbol is missing or data decides."""
    return _walk(dim, {name: int(size) for name, size in sizes.items()}, integers=True)  # type: ignore[return-value]


def substitute(dim: DimLike, sizes: Mapping[str, DimLike]) -> DimLike | None:
    """Replace symbols by dimensions; None where two sizes come together that do not broadcast."""
    return _walk(dim, sizes, integers=False)


_FUNCTIONS = {"floordiv": floordiv, "max": largest, "min": smallest, "broadcast": broadcast}


def _walk(dim: DimLike, sizes: Mapping[str, DimLike], integers: bool) -> DimLike | None:
    if not isinstance(dim, Expr):
        return dim
    total: DimLike = 0
    for monomial, factor in dim.terms:
        term: DimLike = factor
        for atom in monomial:
            value: DimLike | None
            if isinstance(atom, Symbol):
                value = sizes.get(atom.name, None if integers else symbol(atom.name))
            elif atom.function == "data":
                value = None if integers else call("data", *atom.args)
            else:
                args = [_walk(arg, sizes, integers) for arg in atom.args]
                known = [arg for arg in args if arg is not None]
                value = _FUNCTIONS[atom.function](*known) if len(known) == len(args) else None
            if value is None:
                return None
            term = mul(term, value)
        total = add(total, term)
    return total


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|`([^`]*)`|([-+*(),]))")


@lru_cache(maxsize=4096)
def parse_dim(text: str) -> DimLike:
    """Read what `str` of a dimension prints: integers, symbols, + - *, floordiv(a, b), max, min, broadcast, data."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"dimension {text!r}, column {position + 1}", f"unexpected {text[position]!r}",
                             "write integers, symbols, + - * and floordiv(a, b)")
        kind = "int" if match[1] else "name" if match[2] else "quoted" if match[3] is not None else "mark"
        tokens.append((kind, match[1] or match[2] or (match[3] if match[3] is not None else match[4])))
        position = match.end()
    parser = _DimParser(text, tokens)
    dim = parser.total()
    if parser.at < len(tokens):
        parser.fail()
    return dim


class _DimParser:
    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def fail(self) -> None:
        found = self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"
        raise ParseError(f"dimension {self.text!r}", f"unexpected {found!r}", "write for example batch*(seq + 1)")

    def peek(self) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        return text if kind == "mark" else kind

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def total(self) -> DimLike:
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        dim = mul(sign, self.term())
        while self.peek() in ("+", "-"):
            dim = add(dim, self.term()) if self.take() == "+" else sub(dim, self.term())
        return dim

    def term(self) -> DimLike:
        dim = self.factor()
        while self.peek() == "*":
            self.take()
            dim = mul(dim, self.factor())
        return dim

    def factor(self) -> DimLike:
        kind = self.peek()
        if kind == "int":
            return int(self.take())
        if kind == "quoted":
            return symbol(unquote_name(self.take()))
        if kind == "(":
            self.take()
            dim = self.total()
            self.expect(")")
            return dim
        if kind != "name":
            self.fail()
        name = self.take()
        if self.peek() != "(":
            return symbol(name)
        self.take()
        args = [self.total()]
        while self.peek() == ",":
            self.take()
            args.append(self.total())
        self.expect(")")
        if name == "data":
            return call("data", *args)
        function = _FUNCTIONS.get(name)
        if function is None or len(args) != 2:
            self.fail()
            raise AssertionError
        made = function(*args)
        assert made is not None
        return made

    def expect(self, mark: str) -> None:
        if self.peek() != mark:
            self.fail()
        self.take()
