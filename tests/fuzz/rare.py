"""Random operators with seeds, sequences and optionals, and functions of the model itself."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from graphs.builder import Value
from graphs.dtypes import ONNX_NUMBER
from graphs.types import OtherType, TensorType

from .maker import FLOAT, INTEGER, Maker, Refused, rank_of, size_of
from .operators import Recipe

LOCAL = "local"

# ---------------------------------------------------------------- random operators


def drawn(op: str) -> Recipe:
    """Numbers of a given shape. Two nodes alike are two draws, even of one seed."""
    def make(m: Maker) -> Value:
        shape = [m.number(1, 4) for _ in range(m.number(1, 3))]
        seed = float(m.number(0, 3))
        made = m.op(op, shape=shape, seed=seed)
        if m.chance(0.4):
            return m.op(m.one_of(["Sub", "Add"]), made, m.op(op, shape=shape, seed=seed + m.number(0, 1)))
        return made
    return make


def drawn_like(op: str) -> Recipe:
    """Numbers of the shape of another value; without a seed where only their shape is read."""
    def make(m: Maker) -> Value:
        value = m.pick(("float32", "float64"))
        if m.chance(0.2):
            count = len(m.values)
            made = m.op(op, value)
            del m.values[count:]  # nobody else reads it
            return m.op("Shape", made)
        more = {"dtype": ONNX_NUMBER[m.one_of(["float32", "float64"])]} if m.chance(0.3) else {}
        return m.op(op, value, seed=float(m.number(0, 3)), **more)
    return make


def bernoulli(m: Maker) -> Value:
    value = m.constant("float32", [m.number(1, 4), m.number(1, 4)])
    return m.op("Bernoulli", m.op("Sigmoid", value), seed=float(m.number(0, 3)))


def multinomial(m: Maker) -> Value:
    value = m.pick(("float32",), low=2, high=2, sure=True, where=lambda each: (each.shape or (0, 0))[1] not in (0, 1))
    return m.op("Multinomial", value, sample_size=m.number(1, 4), seed=float(m.number(0, 3)))


def training_dropout(m: Maker) -> object:
    value = m.pick(("float32", "float64"))
    yes = m.b.constant(np.array(True)) if m.chance(0.7) else m.input("bool", ())
    return m.ops("Dropout", value, m.b.constant(np.array(m.one_of([0.5, 0.0, 0.3]), np.float32)), yes,
                 seed=m.number(0, 3), outputs=m.number(1, 2))


RANDOM: dict[str, Recipe] = {
    **{op: drawn(op) for op in ("RandomNormal", "RandomUniform")},
    **{op: drawn_like(op) for op in ("RandomNormalLike", "RandomUniformLike")},
    "Bernoulli": bernoulli, "Multinomial": multinomial, "Dropout in training": training_dropout,
}

# ---------------------------------------------------------------- sequences and optionals


def _other(kind: str, dtype: str) -> OtherType:
    tensor = helper.make_tensor_type_proto(ONNX_NUMBER[dtype], None)
    made = helper.make_sequence_type_proto(tensor) if kind == "sequence" else helper.make_optional_type_proto(tensor)
    return OtherType(made.SerializeToString(), kind)


def _foreign(m: Maker, op: str, *inputs: Value, kind: str = "", dtype: str = "", **attrs: object) -> Value:
    """A node without a record; `kind` says what comes out where it is no tensor, `dtype` what is in it."""
    if m.opset < 15:
        raise Refused
    made = m.b.value(op, *inputs, types=[_other(kind, dtype) if kind else TensorType(dtype)], **attrs)
    if not kind or any(each.name in m.rough for each in inputs):
        m.rough.add(made.name)
    return made


def _shaped(m: Maker, value: Value, like: Value | None) -> Value:
    """What comes out of the unknown has a shape again."""
    if like is None:
        value = m.b.value(m.one_of(["ReduceMax", "ReduceSum"]), value, axes=None, keepdims=0)
        return m.op("Reshape", value, shape=[1])
    return m.op("Reshape", value, shape=m.op("Shape", like))


def _members(m: Maker) -> list[Value]:
    first = m.pick(("float32", "int64"), low=1)
    fit = [each for each in m.values if each.dtype == first.dtype and each.shape and each.shape == first.shape]
    return [first, *[m.one_of(fit) for _ in range(m.number(0, 2))]]


def _at(m: Maker, number: int) -> Value:
    return m.b.constant(np.array(number, np.int64))


def sequence(m: Maker) -> object:
    """Built of values, changed, and read at a place, in length, or joined."""
    members = _members(m)
    dtype = str(members[0].dtype)
    made = _foreign(m, "SequenceConstruct", *members, kind="sequence", dtype=dtype)
    count = len(members)
    if m.chance(0.5):
        place = [_at(m, m.number(-1, count))] if m.chance(0.5) else []
        made = _foreign(m, "SequenceInsert", made, members[-1], *place, kind="sequence", dtype=dtype)
        count += 1
    if count > 1 and m.chance(0.4):
        made, count = _foreign(m, "SequenceErase", made, _at(m, m.number(-1, count - 1)), kind="sequence",
                               dtype=dtype), count - 1
    if m.chance(0.3):
        return m.op("Reshape", _foreign(m, "SequenceLength", made, dtype="int64"), shape=[1])
    if m.chance(0.4):
        return _shaped(m, _foreign(m, "ConcatFromSequence", made, dtype=dtype, axis=m.axis(members[0])), None)
    return _shaped(m, _foreign(m, "SequenceAt", made, _at(m, m.number(-count, count - 1)), dtype=dtype), members[0])


def split_sequence(m: Maker) -> Value:
    """Cut into a sequence and joined again."""
    value = m.pick(("float32", "int64"), low=1)
    axis = m.number(0, rank_of(value) - 1)
    if size_of(value, axis) == 0:
        raise Refused
    made = _foreign(m, "SplitToSequence", value, *([_at(m, m.number(1, 3))] if m.chance(0.6) else []),
                    kind="sequence", dtype=str(value.dtype), axis=axis)
    if m.chance(0.5):
        return _shaped(m, _foreign(m, "ConcatFromSequence", made, dtype=str(value.dtype), axis=axis), value)
    return _shaped(m, _foreign(m, "SequenceAt", made, _at(m, m.one_of([0, -1])), dtype=str(value.dtype)), None)


def optional(m: Maker) -> Value:
    """An optional, and what is in it."""
    value = m.pick(("float32", "int64"), low=1)
    made = _foreign(m, "Optional", value, kind="optional", dtype=str(value.dtype))
    if m.chance(0.3):
        return m.op("Reshape", _foreign(m, "OptionalHasElement", made, dtype="bool"), shape=[1])
    return _shaped(m, _foreign(m, "OptionalGetElement", made, dtype=str(value.dtype)), value)


SEQUENCES: dict[str, Recipe] = {"sequence": sequence, "split sequence": split_sequence, "optional": optional}

# ---------------------------------------------------------------- functions of the model

BODIES: dict[str, tuple[list[str], list[tuple[str, list[str], list[str]]]]] = {
    # name: attributes; nodes, each (operator, inputs, outputs); `x` comes in, `y` goes out
    "Twice": ([], [("Add", ["x", "x"], ["y"])]),
    "Turned": ([], [("Neg", ["x"], ["t"]), ("Neg", ["t"], ["u"]), ("Abs", ["u"], ["y"])]),
    "Leaky": (["alpha"], [("LeakyRelu", ["x"], ["t"]), ("Identity", ["t"], ["y"])]),
    "Nested": ([], [("local.Twice", ["x"], ["t"]), ("local.Turned", ["t"], ["u"]), ("Sub", ["u", "x"], ["y"])]),
    "Idle": ([], [("Sigmoid", ["x"], ["unused"]), ("Relu", ["x"], ["t"]), ("Relu", ["t"], ["y"])]),
    "Shaped": ([], [("Shape", ["x"], ["s"]), ("Neg", ["x"], ["t"]), ("Reshape", ["t", "s"], ["y"])]),
}


def _function(m: Maker, name: str) -> None:
    """The function and those that it calls."""
    attributes, rows = BODIES[name]
    nodes = []
    for op, inputs, outputs in rows:
        domain, _, op = op.rpartition(".")
        nodes.append(helper.make_node(op, inputs, outputs, domain=domain))
        if domain:
            _function(m, op)
    for key in attributes:
        attribute = nodes[0].attribute.add(name=key, ref_attr_name=key, type=onnx.AttributeProto.FLOAT)
        assert attribute.ref_attr_name
    imports = [helper.make_opsetid("", m.opset), helper.make_opsetid(LOCAL, 1)]
    functions = _root(m).b._graph.functions
    functions[LOCAL, name, ""] = helper.make_function(LOCAL, name, ["x"], ["y"], nodes, imports, attributes)


def _root(m: Maker) -> Maker:
    return _root(m.outer) if hasattr(m, "outer") else m


def call(m: Maker) -> Value:
    """A call of a function of the model; two calls in a row now and then."""
    value = m.pick((*FLOAT[:1], *FLOAT[2:], *INTEGER), low=1)
    shape = m.op("Shape", value)
    for _ in range(m.number(1, 2)):
        name = m.one_of(sorted(BODIES))
        if name in ("Leaky", "Idle") and value.dtype not in FLOAT:
            raise Refused
        _function(m, name)
        more = {"alpha": m.one_of([0.1, 0.5])} if name == "Leaky" else {}
        value = m.b.value(name, value, domain=LOCAL, types=[value.type], **more)
        m.rough.add(value.name)
    return m.op("Reshape", value, shape=shape)


FUNCTIONS: dict[str, Recipe] = {"call": call}
