"""One node between its ONNX form at a version and the canonical form (see `graphs.operators.record`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import onnx

from . import dtypes
from .canonical import VECTOR_INPUTS, complete, is_default, kind_number, settle_numbers, static_value, version_at
from .constants import Constant
from .ir import Graph, Node
from .operators import REQUIRED, RUNTIME, Operator, find, schema
from .types import RawAttribute, TensorType, Type

_log = logging.getLogger(__name__)
_KIND = onnx.defs.OpSchema.AttrType
_NEGATIVE_AXES = 11  # the opset that lets axes count from the back
_OPTION = onnx.defs.OpSchema.FormalParameterOption
TypeOf = Callable[[str], Type | None]


# Each question to a schema copies what it is asked for, so answers are kept.


@lru_cache(maxsize=4096)
def formal_attributes(found: onnx.defs.OpSchema) -> Mapping[str, onnx.defs.OpSchema.Attribute]:
    """The attributes that a schema states, by name."""
    return found.attributes


@lru_cache(maxsize=16384)
def input_types(found: onnx.defs.OpSchema, index: int) -> Collection[str]:
    """The types that a schema allows at an input position, which it has."""
    formal = formal_input(found, index)
    return () if formal is None else frozenset(formal.types)


@lru_cache(maxsize=16384)
def input_dtypes(found: onnx.defs.OpSchema, index: int) -> Sequence[str]:
    """The element types that a schema allows at an input position."""
    return tuple(name for name in dtypes.ONNX_NUMBER if dtypes.schema_type(name) in input_types(found, index))


@lru_cache(maxsize=16384)
def formal_input(found: onnx.defs.OpSchema, index: int) -> onnx.defs.OpSchema.FormalParameter | None:
    """The formal parameter of an input position, the last one again where that is variadic."""
    if index < len(found.inputs):
        return found.inputs[index]
    last = found.inputs[-1] if found.inputs else None
    return last if last is not None and last.option == _OPTION.Variadic else None


# Reading


def canonicalize(node: Node, opset: int, constant_of: Callable[[str], Constant | None]) -> None:
    """Turn a node as the file has it into canonical form, in place; leave it opaque where that is impossible."""
    version = version_at(node.op, node.domain, opset)
    record = find(node.op, node.domain) if version else None
    if record is None:
        return
    found = schema(node.op, opset, node.domain)
    attrs = _stated_attributes(node, found)
    if attrs is None:
        return
    try:
        if record.read is not None:
            converted = record.read(attrs, version)
            if converted is None:
                return
            attrs = dict(converted)
        inputs = _promote(record, node, attrs, found, constant_of)
        attrs = complete(record, attrs)
    except ValueError as error:
        _log.debug("%s stays opaque: %s", node.label, error)
        return
    except Exception:  # a defect in a record must not refuse the model
        _log.warning("the record of %s cannot read %s", node.op, node.label, exc_info=True)
        return
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = list(node.outputs)
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    node.inputs, node.outputs, node.attrs, node.version = tuple(inputs), tuple(outputs), attrs, version


def _stated_attributes(node: Node, found: onnx.defs.OpSchema | None) -> dict[str, object] | None:
    """Attributes of a node with the schema's defaults, None where the node does not fit its schema."""
    attrs = dict(node.attrs)
    if any(isinstance(value, RawAttribute) for value in attrs.values()):
        return None
    if found is None:
        return attrs
    if not found.min_input <= len(node.inputs) <= found.max_input or len(node.outputs) > found.max_output:
        return None
    for name, value in attrs.items():
        formal = formal_attributes(found).get(name)
        if formal is not None and not _fits(value, formal.type):
            return None
    for name, formal in formal_attributes(found).items():
        if name not in attrs and formal.default_value.type:
            attrs[name] = schema_default(formal)
    return attrs


def _fits(value: object, kind: onnx.defs.OpSchema.AttrType) -> bool:
    single = {_KIND.INT: int, _KIND.FLOAT: float, _KIND.STRING: str, _KIND.TENSOR: Constant}.get(kind)
    if single is not None:
        return isinstance(value, single)
    each = {_KIND.INTS: int, _KIND.FLOATS: float, _KIND.STRINGS: str}.get(kind)
    return each is None or (isinstance(value, tuple) and all(isinstance(item, each) for item in value))


def schema_default(formal: onnx.defs.OpSchema.Attribute) -> object:
    """The default value that a schema states, None if it states none."""
    if not formal.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(formal.default_value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple) or (hasattr(value, "__len__") and not isinstance(value, str)):
        return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
    return value


def _promote(record: Operator, node: Node, attrs: dict[str, object], found: onnx.defs.OpSchema | None,
             constant_of: Callable[[str], Constant | None]) -> list[str]:
    """Move constants at static inputs into attributes; the inputs that are left."""
    inputs = list(node.inputs)
    for name, index in record.static.items():
        if index >= len(inputs) or not inputs[index]:
            continue
        if found is not None and name in formal_attributes(found):
            continue  # at this version the input of that number is something else
        constant = constant_of(inputs[index])
        value = RUNTIME if constant is None else static_value(record, name, constant)
        attrs[name] = value
        if value is not RUNTIME:
            inputs[index] = ""
    return inputs


@dataclass
class Original:
    """A node as the file has it, for the case that its canonical form could not be written again."""

    node: Node
    inputs: tuple[str, ...]
    attrs: dict[str, object]

    def secure(self, opset: int, type_of: TypeOf) -> None:
        """Once types are known: what cannot be written back at its own opset is taken back.

        First the promotion of inputs whose element type is not known; if that does not help, the node is opaque.
        """
        node, record = self.node, find(self.node.op, self.node.domain)
        if node.is_opaque or record is None or not isinstance(write_node(node, opset, type_of), str):
            return
        found = schema(node.op, opset, node.domain)
        inputs = list(node.inputs)
        for name, index in record.static.items():
            if index >= len(self.inputs) or not self.inputs[index] or name in self.attrs:
                continue
            if found is not None and _static_dtype(node, found, index, node.attrs[name], type_of) is not None:
                continue
            inputs += [""] * (index + 1 - len(inputs))
            inputs[index] = self.inputs[index]
            node.attrs[name] = RUNTIME
        node.inputs = tuple(inputs)
        if isinstance(write_node(node, opset, type_of), str):
            node.inputs, node.attrs, node.version = self.inputs, self.attrs, 0


# Writing


@dataclass
class Written:
    """A node at a version: attributes with their ONNX types, inputs as names or constants to create."""

    attrs: list[tuple[str, object, int | None]] = field(default_factory=list)
    inputs: list[str | tuple[str, Constant]] = field(default_factory=list)


def write_node(node: Node, opset: int, type_of: TypeOf) -> Written | str:
    """The form of a node at an opset of its domain, or the reason why it has none."""
    record = None if node.is_opaque else find(node.op, node.domain)
    if record is None:
        return Written([(name, value, None) for name, value in node.attrs.items()], list(node.inputs))
    found = schema(node.op, opset, node.domain)
    version = version_at(node.op, node.domain, opset)
    if not version:
        return f"opset {opset} has no {node.op} of this form"
    attrs: dict[str, object] | None = dict(node.attrs)
    if record.write is not None:
        attrs = record.write(dict(node.attrs), version)
        if attrs is None:
            return f"{node.op} with these attributes cannot be written at opset {opset}"
    if found is None:
        return Written([(name, value, None) for name, value in attrs.items()  # type: ignore[union-attr]
                        if not is_default(record, name, value) and value is not None and value is not RUNTIME],
                       list(node.inputs))
    if not found.min_output <= len(node.outputs) <= found.max_output:
        return f"{node.op} at opset {opset} has not {len(node.outputs)} outputs"
    return _write_known(node, record, found, attrs or {}, opset, type_of)


def _write_known(node: Node, record: Operator, found: onnx.defs.OpSchema, attrs: Mapping[str, object], opset: int,
                 type_of: TypeOf) -> Written | str:
    done = Written(inputs=list(node.inputs))
    for name, value in attrs.items():
        formal = formal_attributes(found).get(name)
        if formal is not None:
            if value is RUNTIME:
                return f"{node.op} at opset {opset} needs a constant {name}"
            if _must_write(record, name, value, formal):
                value = _from_front(node, name, value, type_of) if opset < _NEGATIVE_AXES else value
                done.attrs.append((name, value, kind_number(formal.type)))
            continue
        index = record.static.get(name)
        if index is not None and formal_input(found, index) is not None:
            if value is RUNTIME:
                continue
            if not _write_static(node, record, found, name, index, value, done, type_of):
                return f"the element type of {name} of {node.label} is not known"
            continue
        if value is not None and not is_default(record, name, value):
            return f"{node.op} at opset {opset} has no {name}"
    return _input_problem(node, found, done, opset, type_of) or done


def _from_front(node: Node, name: str, value: object, type_of: TypeOf) -> object:
    """Axes counted from the front: before opset 11 only runtimes, not the standard, take negative ones."""
    type_ = type_of(node.inputs[0]) if name in ("axis", "axes") and node.inputs and not node.domain else None
    axes = value if isinstance(value, tuple) else (value,)
    if not isinstance(type_, TensorType) or type_.rank is None or not all(isinstance(axis, int) for axis in axes):
        return value
    rank = type_.rank + (len(axes) if node.op == "Unsqueeze" else 0)
    if any(not -rank <= axis for axis in axes):
        return value
    front = tuple(axis + rank if axis < 0 else axis for axis in axes)
    return front if isinstance(value, tuple) else front[0]


def _must_write(record: Operator, name: str, value: object, formal: onnx.defs.OpSchema.Attribute) -> bool:
    if value is None:
        return False
    if formal.required:
        return True
    stated = schema_default(formal)
    if stated is None:
        return not is_default(record, name, value)
    return not _same(stated, value)


def _same(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return np.float32(a).tobytes() == np.float32(b).tobytes()
    return type(a) is type(b) and a == b


def _write_static(node: Node, record: Operator, found: onnx.defs.OpSchema, name: str, index: int, value: object,
                  done: Written, type_of: TypeOf) -> bool:
    """Put a static attribute at its input. False where its element type is not known."""
    default = record.attrs.get(name)
    if value is None or (default is not REQUIRED and is_default(record, name, value)):
        return True
    dtype = _static_dtype(node, found, index, value, type_of)
    if dtype is None:
        return False
    array = np.asarray(value, dtypes.numpy_dtype(dtype))
    if array.ndim == 0 and (node.op, name) in VECTOR_INPUTS:
        array = array.reshape(1)
    done.inputs += [""] * (index + 1 - len(done.inputs))
    done.inputs[index] = (name, Constant.of(array, dtype))
    return True


def _static_dtype(node: Node, found: onnx.defs.OpSchema, index: int, value: object, type_of: TypeOf) -> str | None:
    """Element type of a static attribute as an input: fixed by the schema, tied to another input, or free."""
    formal = formal_input(found, index)
    if formal is None:
        return None
    allowed = input_dtypes(found, index)
    if len(allowed) == 1:
        return allowed[0]
    tied = False
    for position, name in enumerate(node.inputs):
        other = formal_input(found, position)
        if name and position != index and other is not None and other.type_str == formal.type_str:
            tied = True
            type_ = type_of(name)
            if isinstance(type_, TensorType):
                return type_.dtype
    first = value[0] if isinstance(value, tuple) and value else value
    free = "bool" if isinstance(first, bool) else "float32" if isinstance(first, float) else "int64"
    if value == () and free not in allowed:  # no elements: any type does
        free = "float32"
    return None if tied or free not in allowed else free


def settle_graph(graph: Graph, opsets: Mapping[str, int], outer: TypeOf | None = None) -> None:
    """`settle_node` for all nodes of a graph whose types are inferred, nested ones included."""

    def type_of(name: str) -> Type | None:
        known = graph.constants[name].type if name in graph.constants else graph.types.get(name)
        return known if known is not None or outer is None else outer(name)

    for node in graph.nodes:
        settle_node(node, opsets.get(node.domain, 0), type_of)
        for inner in node.graphs:
            settle_graph(inner, opsets, type_of)


def settle_node(node: Node, opset: int, type_of: TypeOf) -> None:
    """Turn integers of static attributes into floats where the node works on floats (`Clip(x, min=0)`)."""
    record = None if node.is_opaque else find(node.op, node.domain)
    found = schema(node.op, opset, node.domain) if record is not None and record.static else None
    if record is None or found is None:
        return
    known = found

    def dtype_of(name: str) -> str | None:
        formal = known.attributes.get(name)
        if formal is not None:
            return "float32" if formal.type in (_KIND.FLOAT, _KIND.FLOATS) else None
        return _static_dtype(node, known, record.static[name], node.attrs[name], type_of)

    settle_numbers(node.attrs, record, dtype_of)


def _settle_inputs(inputs: list, found: onnx.defs.OpSchema) -> None:
    """Drop absent inputs at the end, but the first two of Loop must stand there although they are optional."""
    while inputs and inputs[-1] == "":
        inputs.pop()
    while len(inputs) < found.min_input:
        formal = formal_input(found, len(inputs))
        if formal is None or formal.option != _OPTION.Optional:
            break
        inputs.append("")


def _input_problem(node: Node, found: onnx.defs.OpSchema, done: Written, opset: int, type_of: TypeOf) -> str | None:
    """Why the schema refuses the inputs: their number, or an element type that it lacks."""
    _settle_inputs(done.inputs, found)
    if not found.min_input <= len(done.inputs) <= found.max_input:
        return f"{node.op} at opset {opset} has not {len(done.inputs)} inputs"
    for index, given in enumerate(done.inputs):
        formal = formal_input(found, index)
        type_ = type_of(given) if isinstance(given, str) and given else None
        if formal is not None and isinstance(type_, TensorType) and dtypes.schema_type(type_.dtype) not in input_types(
                found, index):
            return f"{node.op} at opset {opset} takes no {type_.dtype}"
    return None


def verbatim_problem(node: Node, old: int, new: int) -> str | None:
    """Why an opaque node cannot move from one opset of its domain to another."""
    if old == new:
        return None
    before, after = schema(node.op, old, node.domain), schema(node.op, new, node.domain)
    if before is not None and after is not None and before.since_version == after.since_version:
        return None
    return f"{node.label} is kept verbatim and means something else, or nothing, at opset {new}"
