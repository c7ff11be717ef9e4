"""Lowerings of the operators that contract axes, to the library's matrix product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from graphs import dtypes
from graphs.operators.linear import parse_equation
from runtime.codegen import address, elementwise
from runtime.codegen.elementwise import Operand
from runtime.codegen.linear import Factor, quantized_product_kernel
from runtime.codegen.scalar import DTYPES, Scalar

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from ._product import LIBRARY, emit_product

LOWERINGS, lowering = rows()


@lowering("MatMul")
def _matmul(emitter: Emitter) -> None:
    _emit_matmul(emitter, emitter.tensor(0), emitter.tensor(1), 1.0)


def _emit_matmul(emitter: Emitter, a: Tensor, b: Tensor, alpha: float) -> None:
    a, b, made = _matrices(emitter, a, b, a.dtype)
    emit_product(emitter, a, b, made, alpha)


def _matrices(emitter: Emitter, a: Tensor, b: Tensor, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """The factors and output 0 as matrices. NumPy's rule: a vector is a row on the left, a column on the right, and
    the result lacks that axis."""
    vector_a, vector_b = a.rank == 1, b.rank == 1
    a = a.viewed((1, *a.shape), (0, *a.strides)) if vector_a else a
    b = b.viewed((*b.shape, 1), (*b.strides, 0)) if vector_b else b
    batch = _batch(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    made = emitter.output(0, (*batch, *([] if vector_a else [shape[-2]]), *([] if vector_b else [shape[-1]])), dtype)
    return a, b, made.viewed(shape, address.contiguous(shape))


@lowering("MatMulInteger")
def _matmul_integer(emitter: Emitter) -> None:
    zeros = [emitter.tensor(index) if emitter.has(index) else None for index in (2, 3)]
    a, b, made = _matrices(emitter, emitter.tensor(0), emitter.tensor(1), "int32")
    *batch, m, n = made.shape
    k = a.shape[-1]
    factors = [Factor(each.dtype, each.broadcast(shape).strides)
               for each, shape in ((a, (*batch, m, k)), (b, (*batch, k, n)))]
    shifts: list[Factor | None] = []
    for side, zero in enumerate(zeros):
        if zero is not None and side == 0 and zero.rank == 1:  # one for each row
            zero = zero.viewed((*zero.shape, 1), (*zero.strides, 0))
        shifts.append(None if zero is None else Factor(zero.dtype, zero.broadcast(made.shape).strides))
    kernel = quantized_product_kernel(made.shape, k, factors[0], factors[1], shifts[0], shifts[1])
    emitter.launch(kernel, a, b, *(zero for zero in zeros if zero is not None), made)


def _batch(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    left, right = (1,) * (width - len(a)) + tuple(a), (1,) * (width - len(b)) + tuple(b)
    return tuple(y if x == 1 else x for x, y in zip(left, right))


def swapped(tensor: Tensor, first: int, second: int) -> Tensor:
    """A view with two axes in each other's place."""
    order = list(range(tensor.rank))
    order[first], order[second] = order[second], order[first]
    return permuted(tensor, order)


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A view with the axes in another order."""
    return tensor.viewed(tuple(tensor.shape[axis] for axis in order), tuple(tensor.strides[axis] for axis in order))


@lowering("Gemm")
def _gemm(emitter: Emitter) -> None:
    attrs = emitter.attrs
    a, b = emitter.tensor(0), emitter.tensor(1)
    a = swapped(a, 0, 1) if attrs["transA"] else a
    b = swapped(b, 0, 1) if attrs["transB"] else b
    alpha, beta = float(attrs["alpha"]), float(attrs["beta"])
    added = emitter.has(2) and beta != 0.0
    if (a.shape[1] == 0 and added and beta != 1.0) or (a.dtype not in LIBRARY and (added or alpha != 1.0)):
        raise NoKernel(f"Gemm of {a.dtype} over {a.shape[1]} elements, with alpha {alpha} and beta {beta}")
    made = emitter.output(0, (a.shape[0], b.shape[1]))
    if added:
        emitter.copy(emitter.tensor(2).broadcast(made.shape), made)
    emit_product(emitter, a, b, made, alpha, beta if added else 0.0)


@lowering("com.microsoft.FusedMatMul")
def _fused_matmul(emitter: Emitter) -> None:
    """ONNX Runtime's: factors read transposed, the product scaled."""
    attrs, factors = emitter.attrs, [emitter.tensor(0), emitter.tensor(1)]
    for side, name in enumerate("AB"):
        factor = factors[side]
        if factor.rank < 2:
            continue
        if attrs.get(f"transBatch{name}", 0):  # the first axis is the matrix's
            factor = permuted(factor, [*range(1, factor.rank - 1), 0, factor.rank - 1])
        factors[side] = swapped(factor, -1, -2) if attrs.get(f"trans{name}", 0) else factor
    _emit_matmul(emitter, factors[0], factors[1], float(attrs.get("alpha", 1.0)))


@lowering("Einsum")
def _einsum(emitter: Emitter) -> None:
    """Sums of one operand first, then operands are contracted from the left, two at a time."""
    tensors = [emitter.tensor(index) for index in range(len(emitter.inputs))]
    if tensors[0].dtype not in DTYPES - {"bool"}:
        raise NoKernel(f"Einsum of {tensors[0].dtype}")
    terms, result, _ = parse_equation(str(emitter.attrs["equation"]), [each.rank for each in tensors])
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors):
        for label, size in zip(term, tensor.shape):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    operands = [_labelled(term, tensor, sizes) for term, tensor in zip(terms, tensors)]
    operands = [_summed(emitter, operand, [label for label in operand[0] if label not in result and
                                           sum(label in term for term in terms) == 1], sizes) for operand in operands]
    if len(operands) == 1:
        tensor = _arranged(operands[0], result, sizes)
        emitter.view(0, tensor)
        return
    total = operands[0]
    for position, other in enumerate(operands[1:], start=1):
        later = {label for term in terms[position + 1:] for label in term}
        last = position == len(operands) - 1
        kept = result if last else sorted({*total[0], *other[0]} & {*result, *later})
        shape = tuple(sizes[label] for label in kept)
        made = emitter.output(0, shape) if last else emitter.temporary(shape, tensors[0].dtype)
        _contract(emitter, total, other, (kept, made), sizes)
        total = (kept, made)


Labelled = tuple[list[str], Tensor]


def _summed(emitter: Emitter, operand: Labelled, labels: list[str], sizes: Mapping[str, int]) -> Labelled:
    """The operand without labels that nothing else has: its product with ones."""
    if not labels:
        return operand
    dtype = operand[1].dtype
    ones = emitter.constant(np.ones([sizes[label] for label in labels], dtypes.numpy_dtype(dtype)))
    kept = [label for label in operand[0] if label not in labels]
    made = emitter.temporary([sizes[label] for label in kept], dtype)
    _contract(emitter, operand, (labels, ones), (kept, made), sizes)
    return kept, made


def _labelled(term: Sequence[str], tensor: Tensor, sizes: Mapping[str, int]) -> Labelled:
    """An operand with each label once: an axis of size 1 is repeated, a label that comes twice is a diagonal."""
    strides: dict[str, int] = {}
    for label, size, stride in zip(term, tensor.shape, tensor.strides):
        strides[label] = strides.get(label, 0) + (stride if size == sizes[label] else 0)
    return list(strides), tensor.viewed(tuple(sizes[label] for label in strides), tuple(strides.values()))


def _arranged(operand: Labelled, order: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """The operand with an axis for each label in order, repeated where it has none."""
    own = dict(zip(operand[0], operand[1].strides))
    return operand[1].viewed(tuple(sizes[label] for label in order), tuple(own.get(label, 0) for label in order))


def _contract(emitter: Emitter, a: Labelled, b: Labelled, out: Labelled, sizes: Mapping[str, int]) -> None:
    """out = the sum of products over all labels that it does not have."""
    summed = [label for label in a[0] if label in b[0] and label not in out[0]]
    if not summed:
        _multiply(emitter, _arranged(a, out[0], sizes), _arranged(b, out[0], sizes), out[1])
        return
    only_a = [label for label in out[0] if label not in b[0]]
    only_b = [label for label in out[0] if label not in a[0]]
    both = [label for label in out[0] if label in a[0] and label in b[0]]
    whole_a, whole_b = [*both, *only_a, *summed], [*both, *only_b, *summed]
    k = _merged(emitter, [_arranged(a, whole_a, sizes), _arranged(b, whole_b, sizes)], len(summed))
    # One label on each side is the matrix's, the others walk over matrices: products fold what strides allow.
    left, right = only_a[-1:], only_b[-1:]
    lead = [*both, *only_a[:-1], *only_b[:-1]]
    depth = prod(sizes[label] for label in summed)
    sizes = {**sizes, "sum": depth}
    first = _arranged(([*both, *only_a, "sum"], k[0]), [*lead, *left, "sum"], sizes)
    second = _arranged(([*both, *only_b, "sum"], k[1]), [*lead, "sum", *right], sizes)
    target = _arranged(out, [*lead, *left, *right], sizes)
    first = first if left else _with_axis(first, -2)
    second = second if right else _with_axis(second, -1)
    target = target if right else _with_axis(target, -1)
    target = target if left else _with_axis(target, -2)
    emit_product(emitter, first, second, target)


def _with_axis(tensor: Tensor, at: int) -> Tensor:
    """A view with an axis of size 1 so far from the end, counted in the result."""
    place = tensor.rank + 1 + at
    return tensor.viewed((*tensor.shape[:place], 1, *tensor.shape[place:]),
                         (*tensor.strides[:place], 0, *tensor.strides[place:]))


def _merged(emitter: Emitter, tensors: list[Tensor], count: int) -> list[Tensor]:
    """The tensors with their last `count` axes as one, copied where their strides do not say so."""
    found = []
    for tensor in tensors:
        lead = tensor.rank - count
        last = tensor.shape[lead:]
        sizes, (steps,) = address.collapse(last, [tensor.strides[lead:]])
        if len(sizes) > 1:
            tensor = emitter.as_dense(tensor)
            steps = (1,)
        found.append(tensor.viewed((*tensor.shape[:lead], prod(last)),
                                   (*tensor.strides[:lead], steps[0] if steps else 1)))
    return found


def _multiply(emitter: Emitter, a: Tensor, b: Tensor, out: Tensor) -> None:
    scalar = Scalar.of(a.dtype)
    wide = scalar.compute if scalar.is_float else "unsigned long long" if scalar.bits == 64 else "unsigned int"
    operands = [Operand(each.dtype, each.strides) for each in (a, b)]
    kernel = elementwise.pointwise("outer", out.shape, operands, out.dtype, f"({wide})a0 * ({wide})a1")
    emitter.launch(kernel, a, b, out)
