"""Runs of nodes that rules look for, so that most graphs are really rewritten. Every rule of the catalogue lends its
example as well: what is added there is fuzzed together with everything else from the same day on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from graphs.builder import Value
from graphs.ir import Graph
from graphs.text import parse_graph
from graphs.types import TensorType
from rules.catalogue import all_rules
from rules.check.mutate import mutated
from rules.declare import Rule

from .maker import ANY, FLOAT, NUMBER, Maker, Refused, rank_of, size_of
from .operators import OTHERS, POINTWISE, RECIPES, Recipe, conv, nested_if, over_channels

NEUTRAL = [("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1), ("Pow", 1), ("Mul", -1), ("Pow", 2), ("Mul", 0)]
TWICE = ["Transpose", "Reshape", "Slice", "Cast", "Clip", "Pad", "Unsqueeze", "Gather", "Neg", "Abs", "Relu", "Not",
         "Tile", "Expand", "Concat", "Floor", "Identity", "ReduceSum", "ReduceMax", "Squeeze", "Flatten"]


def neutral(m: Maker) -> Value:
    """An operand that changes nothing, or nearly nothing."""
    value = m.pick(FLOAT)
    op, number = m.one_of(NEUTRAL)
    shape = m.part_of(value.shape or ())
    array = np.full([dim if isinstance(dim, int) else 1 for dim in shape], number).astype(str(value.dtype))
    constant = m.b.constant(array)
    return m.op(op, constant, value) if op in ("Add", "Mul") and m.chance(0.4) else m.op(op, value, constant)


def chain_of_constants(m: Maker) -> Value:
    """Additions and multiplications by constants in a row."""
    value = m.pick(NUMBER)
    for _ in range(m.number(2, 4)):
        op = m.one_of(["Add", "Sub", "Mul", "Mul", "Add", "Max", "Min"])
        other = m.constant(str(value.dtype), m.part_of(value.shape or ()))
        value = m.op(op, other, value) if m.chance(0.4) else m.op(op, value, other)
    return value


def twice(m: Maker) -> object:
    """The same operator on its own result."""
    op = m.one_of(TWICE)
    RECIPES[op](m)
    return RECIPES[op](m)


def there_and_back(m: Maker) -> Value:
    """A permutation, something pointwise, and the permutation back."""
    value = m.pick(ANY, low=2)
    order = m.permutation(rank_of(value))
    turned = m.op("Transpose", value, perm=order)
    if value.dtype in FLOAT and m.chance(0.7):
        turned = m.op(m.one_of(["Relu", "Sigmoid", "Neg", "Exp", "Abs", "Tanh"]), turned)
    back = [order.index(axis) for axis in range(len(order))]
    return m.op("Transpose", turned, perm=back)


def shape_and_back(m: Maker) -> Value:
    """Another shape and the old one, with the sizes read by Shape."""
    value = m.pick(ANY, low=1)
    flat = m.op("Reshape", value, shape=[-1])
    if value.dtype in NUMBER and m.chance(0.5):
        flat = m.op("Neg", flat)
    return m.op("Reshape", flat, shape=m.op("Shape", value))


def shape_chain(m: Maker) -> Value:
    """Reshape to a target that Shape, Gather and Concat compute."""
    value = m.pick(ANY, low=2, high=4)
    sizes = m.op("Shape", value)
    first = m.op("Gather", sizes, np.array([0], np.int64), axis=0)
    rest = m.op("Concat", first, m.b.constant(np.array([-1], np.int64)), axis=0)
    if m.chance(0.3):
        count = m.op("ReduceProd", m.op("Slice", sizes, starts=[1], ends=[9], axes=[0]), axes=[0], keepdims=1)
        rest = m.op("Concat", first, count, axis=0)
    return m.op("Reshape", value, shape=rest)


def cut_and_join(m: Maker) -> Value:
    """Concat of what Split gave, or a slice of a Concat."""
    value = m.pick(ANY, low=1)
    axis = m.axis(value)
    size = size_of(value, axis)
    if m.chance(0.5):
        first = m.number(1, size - 1)
        parts = list(m.ops("Split", value, axis=axis, split=[first, size - first], outputs=2))
        if m.chance(0.4) and value.dtype in NUMBER:
            parts = [m.op("Neg", part) for part in parts]
        return m.op("Concat", *(parts if m.chance(0.8) else parts[::-1]), axis=axis)
    fit = [each for each in m.values if each.dtype == value.dtype and each.shape == value.shape]
    joined = m.op("Concat", value, m.one_of(fit), axis=axis)
    start = m.one_of([0, 0, size, 1])
    return m.op("Slice", joined, starts=[start], ends=[start + size], axes=[axis])


def shared_product(m: Maker) -> Value:
    """Products with one operand in common, then used together."""
    value = m.pick(FLOAT, low=2)
    inner, out = size_of(value, -1), m.number(1, 4)
    results = []
    for _ in range(m.number(2, 3)):
        result = m.op("MatMul", value, m.weights(str(value.dtype), (inner, out)))
        results.append(m.op("Add", result, m.weights(str(value.dtype), (out,))) if m.chance(0.5) else result)
    if m.chance(0.4):
        return m.op("Concat", *results, axis=-1)
    return m.op(m.one_of(["Add", "Sub", "Mul"]), results[0], results[1])


def product_chain(m: Maker) -> Value:
    """Products by constants in a row, with scales and shifts between them."""
    value = m.pick(FLOAT, low=1, high=3)
    for _ in range(m.number(1, 2)):
        inner, out = size_of(value, -1), m.number(1, 4)
        if m.chance(0.3):
            value = m.op("Mul", value, m.weights(str(value.dtype), m.one_of([(inner,), (1,), ()])))
        value = m.op("MatMul", value, m.weights(str(value.dtype), (inner, out)))
        if m.chance(0.5):
            value = m.op("Add", value, m.weights(str(value.dtype), m.one_of([(out,), (1,), ()])))
    return value


def conv_block(m: Maker) -> Value:
    """Convolution with what can be folded into it before and after."""
    made = conv(m)
    kind = m.number(0, 3)
    channels = size_of(made, 1)
    spatial = [1] * (rank_of(made) - 2)
    if kind == 0:
        return m.op("Mul", made, m.weights("float32", (channels, *spatial)))
    if kind == 1:
        return m.op("Add", made, m.weights("float32", (1, channels, *spatial)))
    made = over_channels("BatchNormalization", 4)(m)  # type: ignore[assignment]
    return m.op("Relu", made) if m.chance(0.6) else made


def common_factor(m: Maker) -> Value:
    """a * b + a * c."""
    value = m.pick(FLOAT)
    left, right = m.beside(value), m.beside(value)
    return m.op(m.one_of(["Add", "Sub"]), m.op("Mul", value, left), m.op("Mul", value, right))


def written_twice(m: Maker) -> Value:
    """The same node two times, used together."""
    value = m.pick(FLOAT)
    op = m.one_of(["Exp", "Sigmoid", "Neg", "Sqrt", "Tanh"])
    return m.op(m.one_of(["Add", "Mul", "Sub", "Div"]), m.op(op, value), m.op(op, value))


def constants_alone(m: Maker) -> Value:
    """What can be computed now, and something that reads it."""
    value = m.pick(("float32", "int64", "float64"))
    other = m.constant(str(value.dtype), m.part_of(value.shape or ()))
    for _ in range(m.number(1, 3)):
        other = m.op(m.one_of(["Neg", "Abs"]), other) if m.chance(0.5) else m.op(
            m.one_of(["Add", "Mul", "Sub"]), other, m.constant(str(value.dtype), m.part_of(other.shape or ())))
    return m.op(m.one_of(["Add", "Mul"]), value, other)


# ---------------------------------------------------------------- examples of rules


@lru_cache(maxsize=1)
def _by_family() -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in all_rules():
        found.setdefault(rule.family, []).append(rule)
    return found


@lru_cache(maxsize=1024)
def _example(text: str) -> Graph:
    return parse_graph(text)


def example_of_a_rule(m: Maker) -> object:
    """The example of a rule, varied half of the time, on values that are there where they fit."""
    families = _by_family()
    rule = m.one_of(families[m.one_of(sorted(families))])
    graph = _example(rule.near_miss if m.chance(0.12) else rule.example)
    if m.chance(0.5):
        varied = mutated(graph, m.rng)
        if varied is None:
            raise Refused
        graph = varied
    if m.smooth and any(_jumps(node.op) for node in graph.nodes):
        raise Refused
    return _insert(m, graph)


def _jumps(op: str) -> bool:
    return op in {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Ceil", "Floor", "Round", "Sign",
                  "ArgMax", "ArgMin", "TopK", "Hardmax", "Mod", "QuantizeLinear", "Cast", "IsNaN", "IsInf",
                  "ThresholdedRelu", "Shrink", "NonZero", "BitShift", "CastLike"}


def _insert(m: Maker, graph: Graph) -> object:
    """The nodes of a graph on values of this one."""
    here: dict[str, Value] = {}
    for name in graph.inputs:
        type_ = graph.types[name]
        if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in ANY:
            raise Refused
        fit = [each for each in m.values if each.dtype == type_.dtype and each.shape == type_.shape]
        alike = fit or [each for each in m.values if each.dtype == type_.dtype and len(each.shape or ()) == len(
            type_.shape)]
        here[name] = m.one_of(alike) if alike and m.chance(0.8 if fit else 0.3) else m.input(type_.dtype, type_.shape)
    for name, constant in graph.constants.items():
        if constant.dtype not in ANY:
            raise Refused
        here[name] = m.b.constant(constant)
    for node in graph.nodes:
        if any(not out for out in node.outputs) or any(True for _ in node.graphs):
            raise Refused
        inputs = [here[name] if name else None for name in node.inputs]
        made = m.ops(node.op, *inputs, outputs=len(node.outputs), domain=node.domain, **node.attrs)
        here.update(zip(node.outputs, made if isinstance(made, tuple) else (made,)))
    return here


MOTIFS: tuple[tuple[Recipe, float], ...] = (
    (example_of_a_rule, 4), (neutral, 1.5), (chain_of_constants, 1.5), (twice, 2), (there_and_back, 1),
    (shape_and_back, 0.7), (shape_chain, 0.5), (cut_and_join, 1), (shared_product, 0.8), (product_chain, 0.8),
    (lambda m: nested_if(m), 0.8), (conv_block, 0.8), (common_factor, 0.7), (written_twice, 0.5),
    (constants_alone, 0.7),
)  # fmt: skip
_WEIGHTS = np.array([weight for _, weight in MOTIFS])
_SHARES = _WEIGHTS / _WEIGHTS.sum()


def step(m: Maker) -> None:
    """A motif, or a single node."""
    kind = m.rng.random()
    if kind < 0.55:
        MOTIFS[int(m.rng.choice(len(MOTIFS), p=_SHARES))][0](m)
    elif kind < 0.75:
        m.one_of(list(POINTWISE.values()))(m)
    else:
        m.one_of(list(OTHERS.values()))(m)
