"""The parser of the text form; use `graphs.text.parse_graph`."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

import ml_dtypes
import numpy as np

from . import dtypes
from .canonical import DEFAULT_OPSET, complete, plain, round_float, version_at
from .constants import Constant
from .dims import parse_dim, unquote_name
from .errors import InvalidModel, ParseError
from .inference import infer
from .ir import FUSED_VERSION, Graph, Node, is_fused
from .operators import RUNTIME, find
from .structure import FLATTEN, MAX_NESTING, TOO_DEEP, structure_problems
from .types import OtherType, RawAttribute, TensorType, Type
from .versions import settle_graph

_TOKEN = re.compile(
    r"""(?:\s+|\#[^\n]*)*(?:
      (?P<arrow>->) | (?P<dots>\.\.\.)
    | (?P<number>[-+]?(?:inf\b|nan\b|0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))
    | (?P<bytes>b"[^"]*") | (?P<string>"(?:[^"\\]|\\.)*") | (?P<quoted>`[^`]*`)
    | (?P<sha>sha256:[0-9a-f]*) | (?P<name>[A-Za-z_]\w*) | (?P<mark>[-+*=(){}\[\],:;.]) | (?P<end>\Z))""",
    re.VERBOSE,
)
_FIX = "see docs/architecture.md for the text form"


class Parser:
    """Reads one graph; raises ParseError with line and column."""

    def __init__(self, text: str, constants: Mapping[str, Constant]) -> None:
        self.text, self.constants = text, constants
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.starts: list[int] = []
        self.at = self.depth = 0
        self.opsets: dict[str, int] = {"": DEFAULT_OPSET}
        self.uses: dict[str, int] = {}  # value name -> where it was last seen, for messages
        self._tokenize()

    def _tokenize(self) -> None:
        position = 0
        while True:
            match = _TOKEN.match(self.text, position)
            if match is None:
                rest = re.compile(r"(?:\s+|#[^\n]*)*").match(self.text, position)
                at = rest.end() if rest else position
                self.fail_at(at, f"unexpected {self.text[at : at + 1]!r}")
            kind = str(match.lastgroup)
            self.kinds.append(kind)
            self.texts.append(match[kind])
            self.starts.append(match.start(kind))
            if kind == "end":
                return
            position = match.end()

    # Errors and small steps

    def fail_at(self, position: int, found: str, fix: str = _FIX) -> NoReturn:
        """Raise at a place in the text."""
        before = self.text[:position]
        line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
        raise ParseError(f"line {line}, column {column}", found, fix)

    def fail(self, wanted: str) -> NoReturn:
        """Raise at the next token."""
        found = "the end of the text" if self.kinds[self.at] == "end" else repr(self.texts[self.at])
        self.fail_at(self.starts[self.at], f"found {found} where {wanted} should stand")

    def is_mark(self, mark: str) -> bool:
        """The next token is this mark."""
        return self.texts[self.at] == mark and self.kinds[self.at] in ("mark", "arrow", "dots")

    def is_word(self, word: str) -> bool:
        """The next token is this bare word."""
        return self.texts[self.at] == word and self.kinds[self.at] == "name"

    def skip(self, mark: str) -> bool:
        """Take the mark if it is next."""
        if self.is_mark(mark):
            self.at += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        """Take the mark or fail."""
        if not self.skip(mark):
            self.fail(repr(mark))

    def take(self) -> str:
        """The next token's text."""
        self.at += 1
        return self.texts[self.at - 1]

    def is_name(self) -> bool:
        """The next token is a name."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        return kind in ("name", "quoted") or (kind == "number" and text in ("nan", "inf"))

    def name(self, what: str = "a name") -> str:
        """Take a name."""
        if not self.is_name():
            self.fail(what)
        text = self.take()
        return unquote_name(text[1:-1]) if text.startswith("`") else text

    def integer(self, what: str) -> int:
        """Take an integer."""
        text = self.texts[self.at]
        if self.kinds[self.at] != "number" or not re.fullmatch(r"[-+]?\d{1,1000}", text):
            self.fail(what)
        self.at += 1
        return int(text)

    def string(self) -> str:
        """Take a string in double quotes."""
        start = self.starts[self.at]
        if self.kinds[self.at] != "string":
            self.fail("a string")
        try:
            return str(json.loads(self.take(), strict=False))
        except ValueError as error:
            self.fail_at(start, f"the string does not parse ({error})")

    def binary(self) -> bytes:
        """Take base64 in double quotes, with or without the b before it."""
        start, text = self.starts[self.at], self.texts[self.at]
        if self.kinds[self.at] not in ("string", "bytes"):
            self.fail("base64 in double quotes")
        self.at += 1
        try:
            return base64.b64decode(text.removeprefix("b")[1:-1], validate=True)
        except binascii.Error as error:
            self.fail_at(start, f"the base64 does not parse ({error})")

    def items(self, close: str, item: Callable[[], object]) -> list[object]:
        """Items separated by commas up to the closing mark."""
        found: list[object] = []
        while not self.skip(close):
            found.append(item())
            if not self.is_mark(close):
                self.expect(",")
        return found

    # Graphs

    def document(self) -> Graph:
        """The whole text as one graph, checked and with inferred types."""
        try:
            graph = self.graph(outermost=True)
        except RecursionError:
            self.fail_at(self.starts[self.at], "brackets lie in one another hundreds deep", "nest less")
        if self.kinds[self.at] != "end":
            self.fail("the end of the text")
        for name, found, fix in structure_problems(graph):
            self.fail_at(self.uses.get(name, 0), found, fix)
        try:
            for each in graph.walk():
                each.sort()
        except InvalidModel as error:
            self.fail_at(0, error.found, error.fix)
        infer(graph)
        settle_graph(graph, graph.opsets)
        return graph

    def graph(self, outermost: bool = False) -> Graph:
        """`graph "name" opset 17 (inputs) -> (outputs) { statements }`."""
        if not self.is_word("graph"):
            self.fail("'graph'")
        if self.depth > MAX_NESTING:
            self.fail_at(self.starts[self.at], TOO_DEEP, FLATTEN)
        self.depth += 1
        self.at += 1
        graph = Graph(name=self.string() if self.kinds[self.at] == "string" else "graph")
        if self.is_word("opset"):
            self.at += 1
            opsets = self.opset_list()
            if not outermost:
                self.fail("'(' (only the outermost graph names an opset)")
            self.opsets = opsets
        if outermost:
            graph.opsets = dict(self.opsets)
        self.expect("(")
        self.items(")", lambda: self.graph_input(graph))
        self.expect("->")
        self.expect("(")
        self.items(")", lambda: self.graph_output(graph))
        self.expect("{")
        while not self.skip("}"):
            self.statement(graph)
            self.skip(";")
        self.depth -= 1
        return graph

    def opset_list(self) -> dict[str, int]:
        """`17, my.domain 1`."""
        found: dict[str, int] = {}
        while True:
            domain = ""
            if self.is_name():
                domain = self.name()
                while self.skip("."):
                    domain += "." + self.name("the rest of a domain")
            found["" if domain == "ai.onnx" else domain] = self.integer("an opset version")
            if not self.skip(","):
                return found

    def graph_input(self, graph: Graph) -> None:
        """`x: float32[batch, 3] = [default]`."""
        self.uses[self.peek_name()] = self.starts[self.at]
        name = self.name("the name of an input")
        graph.inputs.append(name)
        if self.skip(":"):
            graph.types[name] = graph.declared[name] = self.type()
        if self.skip("="):
            graph.defaults[name] = self.constant()

    def graph_output(self, graph: Graph) -> None:
        """A name, with a declared type if one likes."""
        self.uses.setdefault(self.peek_name(), self.starts[self.at])
        name = self.name("the name of an output")
        graph.outputs.append(name)
        if self.skip(":"):
            graph.declared[name] = self.type()

    def peek_name(self) -> str:
        """The next name, '' if there is none."""
        text = self.texts[self.at] if self.is_name() else ""
        return unquote_name(text[1:-1]) if text.startswith("`") else text

    def statement(self, graph: Graph) -> None:
        """`w = constant ...` or `a, b = Op(...)`."""
        outputs: list[str] = []
        if not self.is_mark("="):
            while True:
                self.uses[self.peek_name()] = self.starts[self.at]
                outputs.append(self.name() if self.is_name() else "")
                if not self.skip(","):
                    break
        if not self.is_mark("="):
            self.fail("',' or '='" if outputs != [""] else "a name or '}'")
        self.at += 1
        if self.is_word("constant") and self.texts[self.at + 1] not in ("(", ".", ":"):
            self.at += 1
            if len(outputs) != 1:
                self.fail("one name before '= constant'")
            if outputs[0] in graph.constants:
                self.fail_at(self.uses[outputs[0]], f"value {outputs[0]!r} is written twice",
                             "give each value a name of its own")
            graph.constants[outputs[0]] = self.constant()
            return
        graph.nodes.append(self.node(tuple(outputs)))

    def node(self, outputs: tuple[str, ...]) -> Node:
        """`domain.Op:overload(a, , b, attr=value)` after the '='."""
        opaque = self.is_word("opaque") and self.texts[self.at + 1] not in ("(", ".", ":")
        self.at += opaque
        start = self.starts[self.at]
        parts = [self.name("an operator")]
        while self.skip("."):
            parts.append(self.name("an operator"))
        overload = self.name("an overload") if self.skip(":") else ""
        domain, op = ".".join(parts[:-1]), parts[-1]
        domain = "" if domain == "ai.onnx" else domain
        self.expect("(")
        inputs: list[str] = []
        attrs: dict[str, object] = {}
        self.items(")", lambda: self.argument(inputs, attrs))
        version = 0 if opaque else version_at(op, domain, self.opsets.get(domain, 0))
        record = find(op, domain) if version else None
        if record is not None:
            for name, place in record.static.items():
                if inputs[place:place + 1] not in ([], [""]):
                    attrs.setdefault(name, RUNTIME)
            try:
                attrs = complete(record, attrs)
            except ValueError as error:
                self.fail_at(start, str(error), f"{op} has {', '.join(record.attrs) or 'no attributes'}")
        else:
            attrs = {name: plain(value) for name, value in attrs.items()}
        while record is not None and inputs and not inputs[-1]:
            inputs.pop()
        node = Node(op, tuple(inputs), outputs, attrs, domain, version=version, overload=overload)
        node.version = FUSED_VERSION if is_fused(node) else version
        return node

    def argument(self, inputs: list[str], attrs: dict[str, object]) -> None:
        """An input (nothing for an absent one) or `name=value`."""
        start = self.starts[self.at]
        if self.is_mark(","):
            if attrs:
                self.fail("an attribute")
            inputs.append("")
            return
        name = self.name("an input or an attribute")
        if self.skip("="):
            if name in attrs:
                self.fail_at(start, f"attribute {name!r} is given twice", "give it once")
            attrs[name] = self.attribute()
            return
        if attrs:
            self.fail_at(start, f"input {name!r} stands after an attribute", "write inputs first")
        self.uses.setdefault(name, start)
        inputs.append(name)

    # Types and values

    def type(self) -> Type:
        """`float32[batch, 3]`, `float32[...]` or `proto "base64"`."""
        start = self.starts[self.at]
        if self.is_word("proto"):
            self.at += 1
            return OtherType(self.binary())
        dtype = self.name("a type such as float32[2, 3]")
        if dtype not in dtypes.ONNX_NUMBER:
            self.fail_at(start, f"{dtype!r} is no element type", "use float32, int64, bool, string, ...")
        self.expect("[")
        if self.skip("..."):
            self.expect("]")
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(self.items("]", self.dimension)))  # type: ignore[arg-type]

    def dimension(self) -> object:
        """The text up to the next comma or bracket outside parentheses, read by `dims.parse_dim`."""
        start, depth = self.at, 0
        while depth or not (self.is_mark(",") or self.is_mark("]")):
            depth += self.is_mark("(") - self.is_mark(")")
            if depth < 0 or self.kinds[self.at] not in ("name", "quoted", "number", "mark"):
                self.fail("',' or ']'")
            self.at += 1
        if start == self.at:
            self.fail("a dimension")
        text = self.text[self.starts[start] : self.starts[self.at]].strip()
        try:
            return parse_dim(text)
        except ParseError as error:
            self.fail_at(self.starts[start], f"dimension {text!r}: {error.found}", error.fix)

    def constant(self) -> Constant:
        """`float32[2] [1, 2]`, `int64[] 3` or `float32[768] sha256:...`."""
        start = self.starts[self.at]
        type_ = self.type()
        if not isinstance(type_, TensorType) or not type_.is_static:
            self.fail_at(start, "a constant needs a static tensor type", "write for example float32[2] [1, 2]")
        if self.kinds[self.at] == "sha":
            return self.large_constant(type_)
        start = self.starts[self.at]
        raw: list[object] = []
        self.elements(raw)
        shape = tuple(int(dim) for dim in type_.shape or ())  # type: ignore[arg-type]
        count = int(np.prod(shape, dtype=np.int64))
        if len(raw) != count:
            self.fail_at(start, f"{len(raw)} elements for {type_}, which holds {count}", "write each element once")
        try:
            array = elements_to_array(raw, type_.dtype).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            self.fail_at(start, f"the elements are no {type_.dtype} ({error})", "correct the elements")
        return Constant(type_, lambda: array)

    def large_constant(self, type_: TensorType) -> Constant:
        """The constant of a digest, out of those handed to `parse_graph`."""
        start = self.starts[self.at]
        digest = self.take().removeprefix("sha256:")
        found = self.constants.get(digest)
        if found is None:
            found = next((each for each in self.constants.values() if each.digest == digest), None)
        if found is None:
            self.fail_at(start, f"the constant sha256:{digest[:12]}... is not at hand",
                         "the text form is for reading only: give the model as .onnx or .json (in Python hand its "
                         "constants to parse_graph(text, constants))")
        if found.type != type_:
            self.fail_at(start, f"the constant is {found.type}, not {type_}", "write its own type")
        return found

    def elements(self, found: list[object]) -> None:
        """Elements, in brackets (nested as one likes) or a single one."""
        if self.skip("["):
            self.items("]", lambda: self.elements(found))
        elif self.skip("("):
            real = self.number()
            self.expect(",")
            found.append(("complex", real, self.number()))
            self.expect(")")
        elif self.kinds[self.at] == "string":
            found.append(self.string())
        elif self.kinds[self.at] == "bytes":
            found.append(self.binary())
        elif self.is_word("true") or self.is_word("false"):
            found.append(self.take() == "true")
        else:
            found.append(self.number())

    def number(self) -> int | float | tuple[str, int]:
        """A number; `nan(0x7fc00001)` gives the bits."""
        if self.kinds[self.at] != "number" or len(self.texts[self.at]) > 1000:
            self.fail("a number")
        text = self.take()
        if text == "nan" and self.skip("("):
            if not re.fullmatch("0x[0-9a-fA-F]{1,16}", self.texts[self.at]):
                self.fail("the bits of a NaN in hexadecimal")
            bits = int(self.take(), 16)
            self.expect(")")
            return "bits", bits
        if re.fullmatch(r"[-+]?\d+", text) and text != "-0":
            return int(text)
        return float(int(text, 16)) if "0x" in text else float(text)

    def attribute(self) -> object:
        """An attribute value."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "number":
            return self.attribute_number()
        if kind == "string":
            return self.string()
        if kind == "bytes":
            return self.binary()
        if self.skip("["):
            return tuple(self.items("]", self.attribute))
        if kind == "name" and text in _WORDS:
            self.at += 1
            return _WORDS[text]
        if self.is_word("graph"):
            return self.graph()
        if self.is_word("proto"):
            self.at += 1
            return RawAttribute(self.binary())
        if kind == "name":
            return self.constant()
        self.fail("an attribute value")

    def attribute_number(self) -> int | float:
        """A number; floats are rounded to float32."""
        value = self.number()
        if isinstance(value, tuple):
            return round_float(float(np.uint32(value[1]).view(np.float32)))
        return round_float(value) if isinstance(value, float) else value


_WORDS: dict[str, object] = {"true": True, "false": False, "none": None, "runtime": RUNTIME}


def elements_to_array(raw: list[object], dtype: str) -> np.ndarray:
    """A flat array of parsed elements; ValueError where one is none of this type."""
    kind = dtypes.numpy_dtype(dtype)
    if dtype == "string":
        if not all(isinstance(item, str | bytes) for item in raw):
            raise ValueError("strings stand in double quotes")
        array = np.empty(len(raw), object)
        array[:] = raw
        return array
    if any(isinstance(item, str | bytes) for item in raw):
        raise ValueError("unexpected string")
    if dtype.startswith("complex"):
        part = "float32" if dtype == "complex64" else "float64"
        halves: list[object] = []
        for item in raw:
            halves += item[1:] if isinstance(item, tuple) and item[0] == "complex" else [item, 0]
        return elements_to_array(halves, part).view(kind)
    if kind.kind in "iu" or dtype.lstrip("u").startswith("int"):
        if any(isinstance(item, float | tuple) for item in raw):
            raise ValueError("integers only")
        limits = ml_dtypes.iinfo(kind)
        if any(not limits.min <= int(item) <= limits.max for item in raw):  # type: ignore[call-overload]
            raise ValueError(f"out of the range {limits.min} to {limits.max}")
        return np.array(raw, kind if kind.kind in "iu" else np.int8).astype(kind)
    if dtype == "bool":
        if any(item not in (0, 1) for item in raw):
            raise ValueError("true or false only")
        return np.array(raw, kind)
    bits = [item[1] if isinstance(item, tuple) else 0 for item in raw]
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.array([0.0 if isinstance(item, tuple) else item for item in raw], np.float64).astype(kind)
    for index, item in enumerate(raw):
        if isinstance(item, tuple):
            array[index] = np.asarray(bits[index], f"u{kind.itemsize}").view(kind)[()]
    return array
