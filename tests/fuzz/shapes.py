"""Chains of shape arithmetic, as exporters write them: sizes read by Shape, computed with, and used as a target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.builder import Value
from graphs.dtypes import ONNX_NUMBER

from .maker import ANY, NUMBER, Maker, Refused, rank_of
from .operators import Recipe


def whole(m: Maker, *numbers: int) -> Value:
    """A vector of integers."""
    return m.b.constant(np.array(numbers, np.int64))


def subject(m: Maker, low: int = 1, dtypes: tuple[str, ...] = ANY) -> Value:
    """A value to read sizes of; with a symbol among them where there is one."""
    fit = [each for each in m.values if each.dtype in dtypes and each.shape is not None and low <= rank_of(each) <= 4
           and not all(isinstance(dim, int) for dim in each.shape)]
    return m.one_of(fit) if fit and m.chance(0.7) else m.pick(dtypes, low=low, high=4)


def without_zero(m: Maker, op: str, value: Value, number: int) -> Value:
    """Div and Mod of integers, by a number that is not 0."""
    made = m.b.value(op, value, m.b.constant(np.full((1,) if rank_of(value) else (), number, np.int64)))
    m.values.append(made)
    if value.name in m.rough:
        m.rough.add(made.name)
    return made


def size(m: Maker, value: Value, axis: int) -> Value:
    """One size as a vector of one element, in one of the ways of reading it."""
    kind = m.number(0, 5)
    if kind == 0 and m.opset >= 15:
        return m.op("Shape", value, start=axis, end=axis + 1)
    sizes = m.op("Shape", value)
    if kind == 1:
        return m.op("Slice", sizes, starts=[axis], ends=[axis + 1], axes=[0])
    if kind == 2:
        return m.op("Gather", sizes, whole(m, axis), axis=0)
    if kind == 3 and rank_of(value) > 1:
        return m.ops("Split", sizes, axis=0, split=[1] * rank_of(value), outputs=rank_of(value))[axis]  # type: ignore[no-any-return]
    index = axis - rank_of(value) if m.chance(0.3) else axis
    one = m.op("Gather", sizes, m.b.constant(np.array(index, np.int64)), axis=0)
    if m.chance(0.3):
        one = m.op("Cast", m.op("Cast", one, to=ONNX_NUMBER["int32"]), to=ONNX_NUMBER["int64"])
    return m.op("Unsqueeze", one, axes=[0])


def computed(m: Maker, value: Value, axis: int) -> Value:
    """A size, or something near it, never less than 0."""
    made = size(m, value, axis)
    kind = m.number(0, 5)
    if kind == 0:
        return without_zero(m, "Div", m.op("Mul", made, whole(m, 2)), 2)
    if kind == 1:
        return m.op("Sub", m.op("Add", made, whole(m, 3)), whole(m, m.number(1, 3)))
    if kind == 2:
        return without_zero(m, "Div", m.op("Add", made, whole(m, 1)), 2)
    return m.op("Max", made, whole(m, m.number(0, 2))) if kind == 3 else made


def _product(m: Maker, parts: list[Value]) -> Value:
    made = parts[0]
    if len(parts) > 1 and m.chance(0.4):
        return m.op("ReduceProd", m.op("Concat", *parts, axis=0), axes=[0], keepdims=1)
    for part in parts[1:]:
        made = m.op("Mul", made, part)
    return made


def merged(m: Maker) -> Value:
    """Reshape that merges neighbouring axes; and perhaps back."""
    value = subject(m, low=2)
    rank = rank_of(value)
    first = m.number(0, rank - 2)
    last = m.number(first + 1, rank - 1)
    sizes = [size(m, value, axis) for axis in range(rank)]
    middle = whole(m, -1) if m.chance(0.5) else _product(m, sizes[first:last + 1])
    made = m.op("Reshape", value, shape=m.op("Concat", *sizes[:first], middle, *sizes[last + 1:], axis=0))
    if m.chance(0.5):
        if made.dtype in NUMBER:
            made = m.op("Neg", made)
        again = [size(m, value, axis) for axis in range(rank)]
        made = m.op("Reshape", made, shape=m.op("Concat", *again, axis=0))
    return made


def parted(m: Maker) -> Value:
    """The last axis in two: heads and features."""
    value = subject(m)
    rank = rank_of(value)
    heads = m.one_of([1, 2, 2, 4])
    last = (value.shape or ())[-1]
    if not isinstance(last, int) or last % heads:
        raise Refused
    sizes = [size(m, value, axis) for axis in range(rank)]
    tail = [whole(m, heads), without_zero(m, "Div", sizes[-1], heads) if m.chance(0.6) else whole(m, -1)]
    made = m.op("Reshape", value, shape=m.op("Concat", *sizes[:-1], *tail, axis=0))
    order = [*range(rank - 1), rank, rank - 1]
    return m.op("Transpose", made, perm=order) if m.chance(0.5) else made


def expanded(m: Maker) -> Value:
    """A constant or a part of a value, stretched to sizes that are computed."""
    value = subject(m, dtypes=NUMBER)
    sizes = [size(m, value, axis) for axis in range(rank_of(value))]
    if m.chance(0.3):
        sizes = [computed(m, value, 0), *sizes]
    target = m.op("Concat", *sizes, axis=0)
    if m.chance(0.3):
        ones = m.op("ConstantOfShape", m.op("Shape", target), value=np.array([1], np.int64))
        target = m.op("Where", m.op("Equal", target, whole(m, -1)), ones, target)
    small = m.constant(str(value.dtype), m.part_of(value.shape or ())) if m.chance(0.5) else value
    made = m.op("Expand", small, target)
    return m.op(m.one_of(["Add", "Mul"]), value, made) if m.chance(0.6) else made


def ranged(m: Maker) -> Value:
    """Positions along an axis: taken by them, masked by them, or added."""
    value = subject(m, dtypes=NUMBER)
    axis = m.number(0, rank_of(value) - 1)
    count = m.op("Squeeze", size(m, value, axis), axes=[0])
    numbers = m.op("Range", m.b.constant(np.array(0, np.int64)), count, m.b.constant(np.array(1, np.int64)))
    kind = m.number(0, 2)
    if kind == 0:
        return m.op("Gather", value, numbers, axis=axis)
    if kind == 1 and axis == rank_of(value) - 1:
        rows, columns = m.op("Unsqueeze", numbers, axes=[1]), m.op("Unsqueeze", numbers, axes=[0])
        mask = m.op(m.one_of(["Less", "Greater", "Equal"]), columns, rows)
        return m.op("Cast", mask, to=ONNX_NUMBER[str(value.dtype)])
    real = m.op("Cast", numbers, to=ONNX_NUMBER[str(value.dtype)])
    return m.op("Add", value, real) if axis == rank_of(value) - 1 else real


def cut(m: Maker) -> Value:
    """A Slice whose ends are computed; one that keeps all, or a part."""
    value = subject(m)
    axis = m.number(0, rank_of(value) - 1)
    end = computed(m, value, axis)
    start = whole(m, m.number(0, 1)) if m.chance(0.7) else m.op("Sub", end, whole(m, m.number(0, 2)))
    return m.op("Slice", value, start, end, whole(m, axis), *([whole(m, 1)] if m.chance(0.4) else []))


def filled(m: Maker) -> Value:
    """ConstantOfShape of computed sizes, and something that reads it."""
    value = subject(m, dtypes=("float32", "int64"))
    sizes = [size(m, value, axis) for axis in range(rank_of(value))]
    filling = np.array([m.one_of([0, 1, 1, 2])]).astype(str(value.dtype))
    made = m.op("ConstantOfShape", m.op("Concat", *sizes, axis=0), value=filling)
    return m.op(m.one_of(["Add", "Mul", "Sub"]), value, made) if m.chance(0.7) else made


def repeated(m: Maker) -> Value:
    """Tile by a size."""
    value = subject(m)
    rest = [whole(m, 1)] * (rank_of(value) - 1)
    return m.op("Tile", value, repeats=m.op("Concat", computed(m, value, 0), *rest, axis=0))


def padded(m: Maker) -> Value:
    """Pad by what two sizes differ."""
    value = subject(m, dtypes=("float32", "int64"))
    rank = rank_of(value)
    more = m.op("Sub", m.op("Add", size(m, value, 0), whole(m, m.number(0, 2))), size(m, value, 0))
    zeros = whole(m, *[0] * (2 * rank - 1))
    return m.op("Pad", value, pads=m.op("Concat", more, zeros, axis=0))


ALL: tuple[Callable[[Maker], Value], ...] = (merged, parted, expanded, ranged, cut, filled, repeated, padded)
RECIPES: dict[str, Recipe] = {recipe.__name__: recipe for recipe in ALL}
