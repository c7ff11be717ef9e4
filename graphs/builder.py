"""Build graphs in Python.

    b = Builder("mlp", opset=21)
    x = b.input("x", "float32", ["batch", 3])
    h = b.Relu(x @ weights + bias)          # NumPy arrays become constants
    b.output(b.Softmax(h, axis=-1), "y")
    graph = b.graph()                        # checked, with inferred types

Every ONNX operator is a method (`b.Conv(x, w, strides=[1, 1])`); `b.op("Foo", x, domain="my.domain")` takes any. An
attribute may be a value too where ONNX has an input for it: `b.Reshape(x, shape=target)`, `b.Reshape(x, target)`
and `b.Reshape(x, [0, -1])` are the same kind of thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from . import dtypes
from .canonical import DEFAULT_OPSET, complete, plain, static_value, version_at
from .constants import Constant
from .dims import DimLike, parse_dim, symbol
from .errors import InferenceError, InvalidModel
from .inference import Inferred, Scope, contents, infer, infer_nested_of, infer_node, opaque_types
from .ir import Graph, NameSupply, Node
from .operators import RUNTIME, Operator, find, schema
from .structure import check_structure, drop_unused_constants
from .types import Shape, TensorType, Type
from .versions import settle_node


class Value:
    """A value of a graph under construction. Arithmetic on it adds nodes."""

    __slots__ = ("builder", "name")
    __array_priority__ = 1000.0
    __array_ufunc__ = None  # so that `array + value` reaches __radd__

    def __init__(self, builder: Builder, name: str) -> None:
        self.builder, self.name = builder, name

    @property
    def type(self) -> Type | None:
        """The inferred type, None where unknown."""
        return self.builder.scope.lookup(self.name)[0]

    @property
    def dtype(self) -> str | None:
        """Element type."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """Dimensions."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    def __repr__(self) -> str:
        return f"Value({self.name}: {self.type})"

    def __add__(self, other: Operand) -> Value:
        return self.builder.value("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.builder.value("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.builder.value("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.builder.value("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.value("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.builder.value("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.value("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.builder.value("Div", other, self)

    def __matmul__(self, other: Operand) -> Value:
        return self.builder.value("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> Value:
        return self.builder.value("MatMul", other, self)

    def __pow__(self, other: Operand) -> Value:
        return self.builder.value("Pow", self, other)

    def __neg__(self) -> Value:
        return self.builder.value("Neg", self)


Operand = Value | Constant | np.ndarray | float | int | bool | str | Sequence | None


class Builder:
    """Builds one graph, node by node; types are inferred at once, so a mistake shows where it is made.

    `builder.nested(name)` begins a graph for a control-flow attribute; it may use values of this one.
    """

    def __init__(self, name: str = "graph", opset: int = DEFAULT_OPSET, opsets: Mapping[str, int] | None = None,
                 ir_version: int = 0, parent: Builder | None = None, lenient: bool = False) -> None:
        opsets = {"": opset, **(opsets or {})}
        self._graph = Graph(name=name, opsets={} if parent else opsets, ir_version=ir_version)
        self._opsets: dict[str, int] = opsets if parent is None else parent._opsets
        self._parent, self._lenient = parent, lenient
        self._names: NameSupply = NameSupply(set()) if parent is None else parent._names
        self.scope: Scope = Scope(self._graph.types, self._graph.constants, {}, parent.scope if parent else None,
                           f"{name}/" if parent else "", self._opsets)

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_") or not op[:1].isupper():
            raise AttributeError(f"Builder has no attribute {op!r}")
        return lambda *inputs, **attrs: self.op(op, *inputs, **attrs)

    @classmethod
    def continuing(cls, graph: Graph) -> Builder:
        """A builder that adds to a graph (to it, not to a copy), at the opset of the graph."""
        b = cls(graph.name, graph.opset or DEFAULT_OPSET, graph.opsets)
        known = contents(graph)
        b._graph, b._names = graph, NameSupply(graph.names())
        b.scope = Scope(graph.types, graph.constants, known, None, "", b._opsets)
        return b

    def nested(self, name: str = "body", lenient: bool = False) -> Builder:
        """A builder for a nested graph. `lenient`: a node may be ill-typed, as in a branch that is never taken."""
        return Builder(name, parent=self, lenient=lenient or self._lenient)

    @property
    def unfinished(self) -> Graph:
        """The graph under construction, as it is now."""
        return self._graph

    def fresh(self, stem: str) -> str:
        """A name that no value has, and that none gets from now on."""
        return self._names.fresh(stem)

    # Values

    def input(self, name: str, dtype: str = "float32", shape: Sequence[DimLike | str] | None = None,
              default: np.ndarray | None = None) -> Value:
        """A graph input. Dimensions are integers, names, or texts such as `seq + 1`; None is an unknown rank."""
        if name in self._graph.inputs:
            raise InvalidModel(f"input {name!r}", "it is there already", "name each input once")
        dims = None if shape is None else tuple(parse_dim(d) if isinstance(d, str) else d for d in shape)
        type_ = TensorType(dtype, dims)
        self._graph.inputs.append(self._names.fresh(name))
        self._graph.types[name] = self._graph.declared[name] = type_
        if default is not None:
            self._graph.defaults[name] = Constant.of(default, dtype)
        return Value(self, name)

    def constant(self, array: np.ndarray | float | int | bool | Sequence | Constant, name: str = "",
                 dtype: str | None = None) -> Value:
        """A constant; `name` is a wish. Python floats are float32 unless `dtype` says otherwise."""
        made = array if isinstance(array, Constant) else _constant_of(array, dtype)
        found = self._names.fresh(name or "constant")
        self._graph.constants[found] = made
        return Value(self, found)

    def output(self, value: Value, name: str = "", type: Type | None = None) -> Value:
        """Make a value an output of the graph, under this name."""
        self.outputs({name or value.name: value})
        if type is not None:
            self._graph.declared[value.name] = type
        return Value(self, self._graph.outputs[-1])

    def outputs(self, named: Mapping[str, Value]) -> None:
        """Make values outputs of the graph, each under its name, in this order."""
        graph, renaming = self._graph, dict[str, str]()
        made = {out for node in graph.nodes for out in node.outputs}
        for wanted, value in named.items():
            if wanted in graph.outputs:
                raise InvalidModel(f"output {wanted!r}", "it is there already", "name each output once")
            if wanted != value.name:
                if value.name not in made or value.name in graph.outputs or value.name in renaming:
                    self.value("Identity", value, outputs=[wanted])
                elif wanted in self._names.taken:
                    raise InvalidModel(f"output {wanted!r}", "another value has this name", "choose another name")
                else:
                    self._names.taken.add(wanted)
                    renaming[value.name] = wanted
            graph.outputs.append(wanted)
        self._rename(renaming)
        for value in named.values():
            value.name = renaming.get(value.name, value.name)

    def _rename(self, renaming: Mapping[str, str]) -> None:
        graph = self._graph
        if not renaming:
            return
        for node in graph.nodes:
            if not renaming.keys().isdisjoint(node.outputs):
                node.outputs = tuple(renaming.get(out, out) for out in node.outputs)
        graph.rename_uses(renaming, outputs=True)
        for table in (graph.types, graph.declared, self.scope.contents):
            for old in renaming.keys() & table.keys():
                table[renaming[old]] = table.pop(old)  # type: ignore[index, assignment]

    # Nodes

    def value(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """A node with one output."""
        made = self.op(op, *inputs, **attrs)
        assert isinstance(made, Value)
        return made

    def op(self, op: str, *inputs: Operand, outputs: int | Sequence[str] = 1, domain: str = "", name: str = "",
           types: Sequence[Type] = (), **attrs: object) -> Value | tuple[Value, ...]:  # type: ignore[return]
        """A node. `outputs` is their number or their names; `types` states types where egraft cannot infer them."""
        opset = self._opsets.setdefault(domain, 1)
        version = version_at(op, domain, opset)
        found = schema(op, opset, domain)
        if domain == "" and found is None:
            raise InvalidModel(f"{op} {name!r}", f"opset {opset} has no operator {op}",
                               "check the name, or build at another opset")
        record = find(op, domain) if version else None
        node = Node(op, (), (), domain=domain, name=name, version=version)
        operands = self._positional(record, list(inputs), attrs)
        node.inputs = self._input_names(operands, found)
        if record is not None:
            try:
                node.attrs = complete(record, attrs)
            except ValueError as error:
                raise InvalidModel(f"{op} {name!r}", str(error), "correct the call") from error
        else:
            node.attrs = {key: plain(value) for key, value in attrs.items()}
        stem = name or op.lower()
        names = [self._names.fresh(stem) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self._take_names(names, outputs)
        node.outputs = tuple(names)
        self._graph.declared.update(zip(names, types))
        self._add(node)
        values = tuple(Value(self, each) for each in names)
        return values[0] if len(values) == 1 else values

    def place(self, node: Node) -> None:
        """Add a node that is complete: in canonical form, with output names from `fresh`."""
        self._opsets.setdefault(node.domain, 1)
        self._add(node)

    def _take_names(self, names: list[str], outputs: int | Sequence[str]) -> None:
        if isinstance(outputs, int):
            return
        for each in names:
            if each and each in self._names.taken:
                raise InvalidModel(f"value {each!r}", "another value has this name", "choose another name")
            self._names.taken.add(each)

    def _positional(self, record: Operator | None, operands: list[Operand], attrs: dict[str, object]) -> list[Operand]:
        """Move constants at static inputs to attributes, and values at static attributes to inputs."""
        for key, index in (record.static if record else {}).items():
            given = attrs.get(key)
            if isinstance(given, Value):
                operands += [None] * (index + 1 - len(operands))
                operands[index] = given
                attrs[key] = RUNTIME
                continue
            operand = operands[index] if index < len(operands) else None
            if operand is None:
                continue
            constant = self._as_constant(operand)
            value = static_value(record, key, constant) if constant is not None else RUNTIME  # type: ignore[arg-type]
            attrs[key] = value
            if value is not RUNTIME:
                operands[index] = None
        while operands and operands[-1] is None:
            operands.pop()
        return operands

    def _as_constant(self, operand: Operand) -> Constant | None:
        if isinstance(operand, Value):
            return operand.builder.scope.lookup(operand.name)[2]
        return operand if isinstance(operand, Constant) else _constant_of(operand)

    def _input_names(self, operands: list[Operand], found: onnx.defs.OpSchema | None) -> tuple[str, ...]:
        """Names of inputs; plain numbers take the element type of their neighbours where the schema ties them."""
        def kind(index: int) -> str:
            if found is None or not found.inputs:
                return "T"
            return found.inputs[min(index, len(found.inputs) - 1)].type_str

        dtype_of: dict[str, str] = {}
        for index, operand in enumerate(operands):
            known = operand.dtype if isinstance(operand, Value | Constant | np.ndarray) else None
            if known is not None:
                dtype_of.setdefault(kind(index), dtypes.name_of(known) if isinstance(known, np.dtype) else known)
        names = []
        for index, operand in enumerate(operands):
            if operand is None:
                names.append("")
            elif isinstance(operand, Value):
                names.append(operand.name)
            else:
                bare = not isinstance(operand, Constant | np.ndarray | np.generic)
                names.append(self.constant(operand, dtype=dtype_of.get(kind(index)) if bare else None).name)
        return tuple(names)

    def _add(self, node: Node) -> None:
        label = self.scope.path + node.outputs[0]
        settle_node(node, self._opsets[node.domain], lambda each: self.scope.lookup(each)[0])
        looked_up = [self.scope.lookup(each) if each else (None, None, None) for each in node.inputs]
        types = [each[0] for each in looked_up]
        infer_nested_of(node, types, self.scope, label)
        try:
            found = infer_node(node, types, [each[1] for each in looked_up], [each[2] for each in looked_up], label)
        except InferenceError:
            if not self._lenient:
                raise
            found = Inferred([None] * len(node.outputs))
        if node.is_opaque:
            found.types = opaque_types(node, types, found.types, self._graph.declared, self._opsets)
        self._graph.nodes.append(node)
        for each, type_ in zip(node.outputs, found.types):
            if each and type_ is not None:
                self._graph.types[each] = type_
        if found.contents is not None:
            self.scope.contents[node.outputs[0]] = found.contents

    # The result

    def graph(self) -> Graph:
        """The finished graph: checked, without unused constants, types inferred anew."""
        graph = self._graph
        if self._parent is not None:
            return graph
        drop_unused_constants(graph)
        check_structure(graph)
        infer(graph)
        return graph


def _constant_of(value: object, dtype: str | None = None) -> Constant:
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        dtype = "float32"
    return Constant.of(value, dtype)  # type: ignore[arg-type]


def dimension(name: str) -> DimLike:
    """A symbolic dimension, for shapes that are computed."""
    return symbol(name)
