"""Gradient rows of the operators that contract axes: products of matrices, Einsum, Det."""

from __future__ import annotations

import numpy as np

from graphs.builder import Builder, Value
from graphs.operators.linear import parse_equation

from .rows import Grads, Row, multilinear
from .shapes import expand_to, full_like, scalar, sum_to
from .site import Site

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def swap(b: Builder, value: Value) -> Value:
    """The last two axes exchanged."""
    if value.shape is None:
        return b.Einsum(value, equation="...ij->...ji")
    rank = len(value.shape)
    return b.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _matmul(s: Site, grads: Grads) -> Grads:
    b, g = s.b, grads[0]
    assert g is not None
    ranks = s.rank(0), s.rank(1)
    # As matrices: a vector on the left is a row, on the right a column, and the result lacks that axis.
    left = b.Unsqueeze(s[0], axes=[0]) if ranks[0] == 1 else s[0]
    right = b.Unsqueeze(s[1], axes=[1]) if ranks[1] == 1 else s[1]
    if ranks[1] == 1:
        g = b.Unsqueeze(g, axes=[-1])
    if ranks[0] == 1:
        g = b.Unsqueeze(g, axes=[-2])
    found: list[Value | None] = [None, None]
    if s.wants(0):
        part = g @ swap(b, right)
        found[0] = sum_to(b, b.Squeeze(part, axes=[-2]) if ranks[0] == 1 else part, s[0])
    if s.wants(1):
        if ranks[1] == 2 < ranks[0]:  # one matrix for all of a batch: sum over the batch inside of the product
            part = b.Transpose(b.Flatten(left, axis=-1), perm=[1, 0]) @ b.Flatten(g, axis=-1)
        else:
            part = swap(b, left) @ g
        found[1] = sum_to(b, b.Squeeze(part, axes=[-1]) if ranks[1] == 1 else part, s[1])
    return found


def _gemm(s: Site, grads: Grads) -> Grads:
    """Y = alpha A' B' + beta C, where A' and B' may be transposed."""
    b, g = s.b, grads[0]
    assert g is not None
    alpha, trans_a, trans_b = s.attrs["alpha"], int(s.attrs["transA"]), int(s.attrs["transB"])  # type: ignore[call-overload]
    found: list[Value | None] = [None, None, None]
    if s.wants(0):
        found[0] = (b.Gemm(s[1], g, alpha=alpha, transA=trans_b, transB=1) if trans_a
                    else b.Gemm(g, s[1], alpha=alpha, transB=1 - trans_b))
    if s.wants(1):
        found[1] = (b.Gemm(g, s[0], alpha=alpha, transA=1, transB=trans_a) if trans_b
                    else b.Gemm(s[0], g, alpha=alpha, transA=1 - trans_a))
    if s.wants(2):
        found[2] = sum_to(b, _times(g, float(s.attrs["beta"])), s[2])  # type: ignore[arg-type]
    return found


def _times(value: Value, factor: float) -> Value:
    return value if factor == 1.0 else value * factor


def _gemm_forward(s: Site, tangents: Grads) -> Grads:
    b, parts = s.b, list[Value]()
    attrs = {name: s.attrs[name] for name in ("alpha", "transA", "transB")}
    a, c, addend = (*tangents, None, None)[:3]
    if a is not None:
        parts.append(b.Gemm(a, s[1], **attrs))
    if c is not None:
        parts.append(b.Gemm(s[0], c, **attrs))
    if addend is not None:
        parts.append(_times(addend, float(s.attrs["beta"])))  # type: ignore[arg-type]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return [expand_to(b, whole, s.out)]


def _einsum(s: Site, grads: Grads) -> Grads:
    assert grads[0] is not None
    ranks = [s.rank(index) for index in range(len(s.node.inputs))]
    operands, result, _ = parse_equation(str(s.attrs["equation"]), ranks)
    letter: dict[str, str] = {}
    for label in (label for operand in operands for label in operand):
        letter.setdefault(label, _LETTERS[len(letter)])
    terms = ["".join(letter[label] for label in operand) for operand in operands]
    out = "".join(letter[label] for label in result)
    return [_einsum_part(s, index, grads[0], terms, out) if s.wants(index) else None for index in range(len(terms))]


def _einsum_part(s: Site, index: int, g: Value, terms: list[str], out: str) -> Value:
    """The product of g and the other operands, with the axes of operand `index`.

    A label twice in the operand is a diagonal: the cotangent is zero beside it. A label that nobody else has was
    summed over, and one that others have with size 1 was stretched there: the cotangent repeats along it.
    """
    b, x = s.b, s[index]
    spare = (letter for letter in _LETTERS if letter not in "".join([out, *terms]))
    others = [position for position in range(len(terms)) if position != index]
    inputs, names = [g, *(s[position] for position in others)], [out, *(terms[position] for position in others)]
    axes = ""
    for axis, label in enumerate(terms[index]):
        if label in axes:
            again = next(spare)
            inputs.append(_diagonal(b, x, terms[index].index(label), axis))
            names.append(label + again)
            label = again
        axes += label
    if not _sized(x, axes, inputs, names):
        inputs.append(full_like(b, x, 1.0))
        names.append(axes)
    return sum_to(b, b.Einsum(*inputs, equation=f"{','.join(names)}->{axes}"), x)


def _sized(x: Value, axes: str, inputs: list[Value], names: list[str]) -> bool:
    """Whether each axis of x certainly has its size in some operand (and not a size of 1 that is stretched)."""
    sizes = x.shape or ()
    found = {(label, size) for value, name in zip(inputs, names) for label, size in zip(name, value.shape or ())}
    return all((label, size) in found for label, size in zip(axes, sizes))


def _diagonal(b: Builder, x: Value, first: int, second: int) -> Value:
    """Ones on the diagonal of a matrix of the sizes of two axes of x, zeros beside."""
    zero, one = b.constant(0), b.constant(1)
    places = [b.Range(zero, b.Squeeze(b.Shape(x, start=axis, end=axis + 1), axes=[0]), one) for axis in (first, second)]
    same = b.Equal(b.Unsqueeze(places[0], axes=[1]), b.Unsqueeze(places[1], axes=[0]))
    return b.Where(same, scalar(b, 1.0, x), scalar(b, 0.0, x))


def _det(s: Site, grads: Grads) -> Grads:
    """g times the cofactors, which exist where the inverse does not: determinants without a row and a column."""
    b, x, g = s.b, s[0], grads[0]
    assert g is not None and x.shape is not None
    rank, size = len(x.shape), x.shape[-1]
    size = size if isinstance(size, int) else x.shape[-2]
    if not isinstance(size, int):
        raise s.fail(f"the size {size} of its matrices is not constant")
    wide = b.Unsqueeze(g, axes=[-2, -1])
    if size <= 1:
        return [expand_to(b, wide, x)]
    left = np.array([[row for row in range(size) if row != gone] for gone in range(size)], np.int64)
    minors = b.Gather(b.Gather(x, left, axis=rank - 1), left, axis=rank - 2)  # [..., i, row, j, column]
    batch = list(range(rank - 2))
    minors = b.Transpose(minors, perm=[*batch, rank - 2, rank, rank - 1, rank + 1])
    signs = np.array([[(-1.0) ** (i + j) for j in range(size)] for i in range(size)])
    return [wide * (b.Det(minors) * b.constant(signs, dtype=x.dtype))]


ROWS: dict[str, Row] = {
    "MatMul": multilinear(_matmul, data=(0, 1)),
    "Gemm": Row(_gemm, _gemm_forward),
    "Einsum": multilinear(_einsum, data=None),
    "Det": Row(_det),
}

ABSENT: dict[str, str] = {"MatMulInteger": "its output is an integer"}
