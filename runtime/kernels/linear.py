"""Kernels of the operators that contract axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import Arrays, rows
from ._numeric import given, integer, narrow, number, optional, wide

KERNELS, kernel = rows()


@kernel("MatMul")
def _matmul(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    a, b = given(inputs, 0), given(inputs, 1)
    return [narrow(np.matmul(_regular(wide(a)), _regular(wide(b))), a.dtype)]


def _regular(array: np.ndarray) -> np.ndarray:
    """Without gaps by rows or by columns: the last bits of what BLAS gives depend on how an operand lies, and NumPy
    multiplies some views (Expand, Slice with steps) in slow loops of its own. A copy in the graph changes nothing."""
    if array.ndim < 2 or array.size == 0:
        return array if array.size < 2 else np.ascontiguousarray(array)
    inner, outer = array.strides[-1], array.strides[-2]
    rows, columns, item = *array.shape[-2:], array.itemsize
    if rows == 1 or columns == 1:  # a vector
        lies_well = max(rows, columns) == 1 or (inner if rows == 1 else outer) == item
    else:
        lies_well = (inner, outer) in ((item, columns * item), (rows * item, item))
    return array if lies_well else np.ascontiguousarray(array)


@kernel("Gemm")
def _gemm(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    a, b, c = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    left = wide(a).T if integer(attrs, "transA") else wide(a)
    right = wide(b).T if integer(attrs, "transB") else wide(b)
    product = np.matmul(_regular(left), _regular(right))
    alpha, beta = number(attrs, "alpha"), number(attrs, "beta")
    if alpha != 1.0:
        product = product * alpha
    if c is not None and beta != 0.0:  # as in BLAS: beta = 0 leaves C unread
        product = product + (wide(c) if beta == 1.0 else wide(c) * beta)
    return [narrow(product, a.dtype)]


@kernel("Einsum")
def _einsum(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    operands = [wide(given(inputs, position)) for position in range(len(inputs))]
    result = np.einsum(str(attrs["equation"]), *operands, optimize=len(operands) > 1)
    return [narrow(result, given(inputs, 0).dtype)]


@kernel("MatMulInteger")
def _matmul_integer(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    a, b = given(inputs, 0).astype(np.int32), given(inputs, 1).astype(np.int32)
    zero_a, zero_b = optional(inputs, 2), optional(inputs, 3)
    if zero_a is not None:
        shift = zero_a.astype(np.int32)
        a = a - (shift[:, None] if shift.ndim == 1 and shift.size > 1 else shift)  # one for each row
    if zero_b is not None:
        b = b - zero_b.astype(np.int32)  # one for each column
    return [np.asarray(np.matmul(a, b), np.int32)]


@kernel("Det")
def _det(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    return [narrow(np.linalg.det(wide(x)), x.dtype)]
