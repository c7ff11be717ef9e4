"""Einsum equations that are matrix products or transposes, and lookups written as products with one-hot rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphs.constants import Constant
from graphs.dims import DimLike, product
from graphs.dtypes import numpy_dtype

from .declare import Leaf, Match, Operand, Outcome, refuse, rule, term
from .values import finite_constant, is_float, number, scalar

FAMILY = "linear"


def _labels(equation: object, count: int) -> tuple[list[str], str] | None:
    """The labels of the operands and of the result, None for repeated labels, ellipses and implicit results."""
    text = str(equation).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow or "." in text or len(terms) != count or any(len(set(each)) < len(each) for each in (*terms, right)):
        return None
    return terms, right


def _arranged(value: Leaf, labels: str, wanted: str) -> Leaf:
    perm = tuple(labels.index(label) for label in wanted)
    return value if perm == tuple(range(len(perm))) else term("Transpose", value, perm=perm)


def _sizes_agree(x: Operand, y: Operand, first: str, second: str) -> bool:
    shapes = dict(zip(first, x.shape, strict=True))
    return all(shapes.get(label, dim) == dim for label, dim in zip(second, y.shape, strict=True))


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An Einsum over shared labels is a MatMul (with transposes and reshapes where the labels stand otherwise).",
    before="Einsum(x, y, equation=e)",
    example="graph opset 17 (x: float32[b, 3, 4], z: float32[b, 5, 4]) -> (y) "
            "{ y = Einsum(x, z, equation=\"bij,bkj->bik\") }",
    near_miss="graph opset 17 (x: float32[3, 3], z: float32[3, 3]) -> (y) { y = Einsum(x, z, equation=\"ij,jk->i\") }",
)
def einsum_matmul(m: Match) -> Outcome:
    found = _labels(m["e"], 2)
    if found is None or not is_float(m.x):
        return refuse("no plain equation of two float operands")
    (first, second), result = found
    if len(first) != m.x.rank or len(second) != m.y.rank or not _sizes_agree(m.x, m.y, first, second):
        return refuse("the labels do not fit, or a size of 1 is broadcast")
    summed = [label for label in first if label in second and label not in result]
    batch = sorted((label for label in first if label in second and label in result), key=result.find)
    rows = sorted((label for label in first if label not in second), key=result.find)
    columns = sorted((label for label in second if label not in first), key=result.find)
    if not summed or not rows or not columns or not set(rows + columns) <= set(result):
        return refuse("nothing is summed, or labels that only one operand has are summed")
    sizes = {**dict(zip(first, m.x.shape, strict=True)), **dict(zip(second, m.y.shape, strict=True))}
    many = (len(summed) > 1, len(rows) > 1 and bool(batch), len(columns) > 1)
    a = _arranged(m.x, first, "".join(batch + rows + summed))
    b = _arranged(m.y, second, "".join(batch + summed + columns))
    if many[0] or many[1]:
        a = term("Reshape", a, shape=(*_dims(sizes, batch), *_merged(sizes, rows, bool(batch)),
                                      product(_dims(sizes, summed))))
    if many[0] or many[2]:
        b = term("Reshape", b, shape=(*_dims(sizes, batch), product(_dims(sizes, summed)),
                                      product(_dims(sizes, columns))))
    value = term("MatMul", a, b)
    if many[1] or many[2]:
        value = term("Reshape", value, shape=_dims(sizes, batch + rows + columns))
    return _arranged(value, "".join(batch + rows + columns), result)


def _dims(sizes: Mapping[str, DimLike], labels: Sequence[str]) -> tuple[DimLike, ...]:
    return tuple(sizes[label] for label in labels)


def _merged(sizes: Mapping[str, DimLike], labels: Sequence[str], one: bool) -> tuple[DimLike, ...]:
    return (product(_dims(sizes, labels)),) if one else _dims(sizes, labels)


@rule(
    family=FAMILY, exactness="exact",
    meaning="An Einsum of one operand that keeps all labels is a Transpose.",
    before="Einsum(x, equation=e)",
    example="graph opset 17 (x: float32[2, 3, 4]) -> (y) { y = Einsum(x, equation=\"ijk->kij\") }",
    near_miss="graph opset 17 (x: float32[2, 3, 4]) -> (y) { y = Einsum(x, equation=\"ijk->ki\") }",
)
def einsum_transpose(m: Match) -> Outcome:
    found = _labels(m["e"], 1)
    if found is None or set(found[0][0]) != set(found[1]) or len(found[1]) != m.x.rank:
        return refuse("not all labels are kept")
    return _arranged(m.x, found[0][0], found[1])


def _in_range(m: Match, indices: Operand, depth: int) -> bool:
    """A node shows that the indices lie in 0 .. depth - 1."""
    for op in ("ArgMax", "ArgMin"):
        for view in indices.forms(op):
            source = view.args[0]
            if source is not None and source.rank and source.shape[view.attrs["axis"]] == depth:
                m.use(view)
                return True
    for view in indices.forms("Clip"):
        low, high = view.attrs["min"], view.attrs["max"]
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and 0 <= low <= high < depth:
            m.use(view)
            return True
    return False


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A product of one-hot rows and a finite constant table looks rows up.",
    before="MatMul(o:OneHot(i, $d, $v), $t)", after="Gather(t, i, axis=0)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { d = constant int64[] 3 v = constant float32[2] [0, 1] "
            "t = constant float32[3, 2] [1, 2, 3, 4, 5, 6] i = ArgMax(x, axis=1, keepdims=0) o = OneHot(i, d, v) "
            "y = MatMul(o, t) }",
    near_miss="graph opset 17 (i: int64[n]) -> (y) { d = constant int64[] 3 v = constant float32[2] [0, 1] "
              "t = constant float32[3, 2] [1, 2, 3, 4, 5, 6] o = OneHot(i, d, v) y = MatMul(o, t) }",
)
def one_hot_matmul(m: Match) -> Outcome:
    depth, values = number(m.d), m.v.array
    if depth is None or m.t.rank != 2 or m.t.shape[0] != depth or not finite_constant(m.t):
        return refuse("the table must be a finite matrix with one row for each position")
    if values is None or values.dtype != (m.t.array.dtype if m.t.array is not None else values.dtype) \
            or not np.array_equal(values.astype(np.float64), [0.0, 1.0]):
        return refuse("the rows do not hold one 1 among zeros")
    if m.o.attrs["axis"] not in (-1, m.i.rank):
        return refuse("the one-hot rows do not lie along the last axis")
    if m.i.dtype not in ("int32", "int64"):
        return refuse("Gather takes int32 and int64 positions")
    return None if _in_range(m, m.i, int(depth)) else refuse("nothing shows that the positions are in range")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A product of rows that compare an integer with 0, 1, 2, ... and a finite constant table looks rows up; "
            "rows of zeros before and after the table stand for what is out of range.",
    before="MatMul(Cast(Equal(x, $i), to=k), $t)", after="Gather(p, j, axis=0)",
    example="graph opset 17 (x: int32[n, 1]) -> (y) { i = constant int32[3] [0, 1, 2] "
            "t = constant float32[3, 2] [1, 2, 3, 4, 5, 6] e = Equal(x, i) c = Cast(e, to=1) y = MatMul(c, t) }",
    near_miss="graph opset 17 (x: int32[n, 1]) -> (y) { i = constant int32[3] [0, 2, 1] "
              "t = constant float32[3, 2] [1, 2, 3, 4, 5, 6] e = Equal(x, i) c = Cast(e, to=1) y = MatMul(c, t) }",
)
def equal_matmul(m: Match) -> Outcome:
    if m.t.rank != 2 or not finite_constant(m.t) or m.i.array is None:
        return refuse("the table must be a finite matrix")
    if m.x.dtype not in ("int32", "int64"):
        return refuse("Clip and Gather take int32 and int64 positions")
    rows, width = m.t.shape
    if not isinstance(rows, int) or m.i.shape != (*(1,) * (m.i.rank - 1), rows) or not np.array_equal(
            m.i.array.reshape(-1), np.arange(rows)):
        return refuse("the constant does not count 0, 1, 2, ... along the rows of the table")
    if not m.x.rank or m.x.shape[-1] != 1 or m.x.rank < m.i.rank:
        return refuse("not one position for each row of the product")
    zeros = Constant.of(np.zeros((1, width), numpy_dtype(m.t.dtype)), m.t.dtype)
    inside = term("Clip", term("Reshape", m.x, shape=m.x.shape[:-1]), min=-1, max=rows)
    one = scalar(m.x.dtype, 1)
    return {"p": term("Concat", zeros, m.t, zeros, axis=0), "j": term("Add", inside, one)}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An Einsum of one operand that leaves labels out is a ReduceSum.",
    before="Einsum(x, equation=e)",
    example="graph opset 17 (x: float32[n, 3, 4]) -> (y) { y = Einsum(x, equation=\"ijk->ki\") }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (y) { y = Einsum(x, equation=\"ii->i\") }",
)
def einsum_sum(m: Match) -> Outcome:
    found = _labels(m["e"], 1)
    if found is None or not is_float(m.x) or len(found[0][0]) != m.x.rank:
        return refuse("no plain equation of one float operand")
    labels, result = found[0][0], found[1]
    left = "".join(label for label in labels if label in result)
    if len(left) == len(labels) or set(left) != set(result):
        return refuse("no label is left out")
    axes = tuple(axis for axis, label in enumerate(labels) if label not in result)
    return _arranged(term("ReduceSum", m.x, axes=axes, keepdims=0), left, result)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An Einsum that sums nothing is a product of elements.",
    before="Einsum(x, y, equation=e)",
    example="graph opset 17 (x: float32[n, 3], z: float32[3]) -> (y) { y = Einsum(x, z, equation=\"ij,j->ji\") }",
    near_miss="graph opset 17 (x: float32[n, 3], z: float32[3]) -> (y) { y = Einsum(x, z, equation=\"ij,j->i\") }",
)
def einsum_product(m: Match) -> Outcome:
    found = _labels(m["e"], 2)
    if found is None or not is_float(m.x):
        return refuse("no plain equation of two float operands")
    (first, second), result = found
    if len(first) != m.x.rank or len(second) != m.y.rank or not _sizes_agree(m.x, m.y, first, second):
        return refuse("the labels do not fit, or a size of 1 is broadcast")
    if set(first + second) != set(result):
        return refuse("a label is summed")
    return term("Mul", _spread(m.x, first, result), _spread(m.y, second, result))


def _spread(operand: Operand, labels: str, result: str) -> Leaf:
    """The operand with its axes where the result has them, and sizes of 1 between them."""
    wanted = "".join(label for label in result if label in labels)
    value = _arranged(operand, labels, wanted)
    sizes = dict(zip(labels, operand.shape, strict=True))
    shape = tuple(sizes.get(label, 1) for label in result[result.find(wanted[0]) if wanted else 0 :])
    return value if len(shape) == len(wanted) else term("Reshape", value, shape=shape)
