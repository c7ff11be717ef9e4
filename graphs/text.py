"""The text form of graphs: what prints here parses back (`parse_graph`). `docs/architecture.md` shows the form."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from . import dtypes
from .canonical import float_bits, float_of, is_default
from .constants import Constant
from .dims import quote_name
from .ir import Graph, Node
from .operators import RUNTIME, find
from .types import OtherType, RawAttribute, Type

INLINE_ELEMENTS = 64  # larger constants print as their digest
_SHORT_LINE = 100
_EXACT_INTEGERS = 2**24  # integers below print exactly, though 65500 were shorter than 65504


def print_graph(graph: Graph, header: bool = True) -> str:
    """The text of a graph. `header=False` leaves out name and opset, as nested graphs print."""
    return _graph(graph, header, "")


def print_node(node: Node) -> str:
    """The text of one node, on one line where its nested graphs are short."""
    return _node(node, "")


def parse_graph(text: str, constants: Mapping[str, Constant] | None = None) -> Graph:
    """Read a graph back. `constants` gives the large ones by digest (or by name). Types are inferred.

    Raises ParseError with line and column, InferenceError where the graph is ill-typed.
    """
    from .text_parser import Parser

    return Parser(text, constants or {}).document()


def quote(name: str) -> str:
    """A value, attribute or operator name as it prints."""
    return quote_name(name)


def print_type(type_: Type | None) -> str:
    """A type as the header shows it, '' where nothing is known."""
    if type_ is None:
        return ""
    if isinstance(type_, OtherType):
        return f"proto {_quoted_bytes(type_.proto)}"
    return str(type_)


def print_constant(constant: Constant) -> str:
    """Type and elements, or type and digest where there are more than 64 elements."""
    if constant.size > INLINE_ELEMENTS:
        return f"{constant.type} sha256:{constant.digest}"
    return _small_constant(constant)


@lru_cache(4096)  # a trace prints the same few constants again and again
def _small_constant(constant: Constant) -> str:
    items = _elements(constant)
    if not constant.shape:
        return f"{constant.type} {items[0]}"
    return f"{constant.type} [{', '.join(items)}]"


def _elements(constant: Constant) -> list[str]:
    flat, dtype = np.ascontiguousarray(constant.array).reshape(-1), constant.dtype
    if dtype in dtypes.FLOATS:
        return [float_text(bits, dtype).removesuffix(".0") for bits in flat.view(f"u{flat.itemsize}").tolist()]
    return [_element(item, dtype) for item in flat]


def _quoted_bytes(raw: bytes) -> str:
    return '"' + base64.b64encode(raw).decode() + '"'


def _string(value: object) -> str:
    return "b" + _quoted_bytes(value) if isinstance(value, bytes) else json.dumps(str(value), ensure_ascii=False)


def _element(item: object, dtype: str) -> str:
    if dtype == "string":
        return _string(item)
    if dtype == "bool":
        return "true" if item else "false"
    if dtype.startswith("complex"):
        number = np.asarray(item)
        part = "float32" if dtype == "complex64" else "float64"
        parts = [float_text(value.view(f"u{value.itemsize}").item(), part)
                 for value in (number.real, number.imag)]
        return f"({', '.join(parts)})"
    if dtype in dtypes.INTEGERS or dtype.lstrip("u").startswith("int"):
        return str(int(item))  # type: ignore[call-overload]
    number = np.asarray(item)
    return float_text(number.view(f"u{number.itemsize}").item(), dtype).removesuffix(".0")


@lru_cache(maxsize=65536)
def float_text(bits: int, dtype: str) -> str:
    """The shortest text that parses back to these bits of a float type; a point, an exponent or a word is in it."""
    wide = float_of(bits, dtype)
    if math.isnan(wide):
        kind = dtypes.numpy_dtype(dtype)
        usual = np.asarray(np.nan, kind).view(f"u{kind.itemsize}").item()
        return "nan" if bits == usual else f"nan(0x{bits:x})"
    if math.isinf(wide):
        return "inf" if wide > 0 else "-inf"
    if dtype == "float64" or (wide.is_integer() and abs(wide) < _EXACT_INTEGERS):
        return _pointed(repr(wide))
    for digits in range(_first_digits(wide, bits, dtype), 18):
        near = float(f"{wide:.{digits}g}")
        if float_bits(near, dtype) == bits:
            return _pointed(repr(near))
    return _pointed(repr(wide))


def _first_digits(value: float, bits: int, dtype: str) -> int:
    """How many digits are to be tried first: numbers as weights have them need more than six.

    Fewer digits are never nearer, so where six are too few, five are. At a power of two the numbers below lie nearer
    than those above, which is the exception.
    """
    if dtype != "float32" or not bits & 0x7FFFFF or float_bits(float(f"{value:.6g}"), dtype) == bits:
        return 1
    return 7


def _pointed(text: str) -> str:
    return text if any(mark in text for mark in ".en") else text + ".0"


def _attribute(value: object, indent: str) -> str:
    if value is RUNTIME:
        return "runtime"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(float_bits(value, "float32"), "float32")
    if isinstance(value, str | bytes):
        return _string(value)
    if isinstance(value, Constant):
        return print_constant(value)
    if isinstance(value, RawAttribute):
        return f"proto {_quoted_bytes(value.proto)}"
    if isinstance(value, Graph):
        return _graph(value, False, indent)
    if isinstance(value, tuple):
        return f"[{', '.join(_attribute(item, indent) for item in value)}]"
    raise TypeError(f"an attribute cannot be a {type(value).__name__}")


def print_attribute(value: object) -> str:
    """An attribute value as it prints in a node."""
    return _attribute(value, "")


def _name_list(names: tuple[str, ...] | list[str]) -> str:
    return "``" if list(names) == [""] else ", ".join(quote(name) if name else "" for name in names)


def _operator_name(node: Node) -> str:
    text = "".join(quote(part) + "." for part in node.domain.split(".")) if node.domain else ""
    text += quote(node.op)
    return f"{text}:{quote(node.overload)}" if node.overload else text


def _node(node: Node, indent: str) -> str:
    record = None if node.is_opaque else find(node.op, node.domain)
    marked = "opaque " if node.is_opaque and find(node.op, node.domain) is not None else ""
    items = [quote(name) if name else "" for name in node.inputs]
    items += [f"{quote(name)}={_attribute(value, indent)}" for name, value in node.attrs.items()
              if not is_default(record, name, value)]
    arguments = "``" if items == [""] else ", ".join(items)
    return f"{_name_list(node.outputs)} = {marked}{_operator_name(node)}({arguments})"


def _header(graph: Graph, header: bool) -> str:
    text = "graph"
    if graph.name and (header or graph.name != "graph"):
        text += " " + json.dumps(graph.name, ensure_ascii=False)
    if header and graph.opsets:
        text += " opset " + ", ".join(
            f"{'.'.join(map(quote, domain.split('.')))} {version}" if domain else str(version)
            for domain, version in sorted(graph.opsets.items()))
    return text


def _input(graph: Graph, name: str) -> str:
    type_ = print_type(graph.types.get(name) or graph.declared.get(name))
    text = f"{quote(name)}: {type_}" if type_ else quote(name)
    default = graph.defaults.get(name)
    return f"{text} = {print_constant(default)}" if default is not None else text


def _graph(graph: Graph, header: bool, indent: str) -> str:
    inputs = ", ".join(_input(graph, name) for name in graph.inputs)
    start = f"{_header(graph, header)} ({inputs}) -> ({', '.join(map(quote, graph.outputs))}) {{"
    inner = indent + "  "
    lines = [f"{quote(name)} = constant {print_constant(value)}" for name, value in graph.constants.items()]
    lines += [_node(node, inner) for node in graph.nodes]
    if not header:
        short = " ".join([start, *lines, "}"])
        if len(lines) <= 3 and "\n" not in short and len(short) <= _SHORT_LINE:
            return short
    return "\n".join([start, *(inner + line for line in lines), indent + "}"])
