"""Batched matrix products of strided tensors, in as few calls of the library and copies as strides allow."""

from __future__ import annotations

from itertools import product
from math import prod

from runtime.codegen import address
from runtime.codegen.linear import product_kernel
from runtime.codegen.scalar import DTYPES

from ..device import Gemm
from ..emitter import Emitter, NoKernel
from ..tensor import Tensor

LIBRARY = frozenset({"float32", "float64", "float16", "bfloat16"})
MOST_CALLS = 64  # for one product; factors are copied rather than making more
_LARGEST = (1 << 31) - 1  # what the library takes as a size


def emit_product(emitter: Emitter, a: Tensor, b: Tensor, out: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    """out = alpha * a @ b + beta * out, all over the last two axes.

    `a` and `b` broadcast to the leading axes of `out`. All three may be views with any strides.
    """
    if a.dtype not in DTYPES:
        raise NoKernel(f"a product of {a.dtype}")
    batch, (m, n), k = out.shape[:-2], out.shape[-2:], a.shape[-1]
    a, b = a.broadcast((*batch, m, k)), b.broadcast((*batch, k, n))
    if not out.size or (k == 0 and beta == 1.0):
        return
    if k == 0 or a.dtype not in LIBRARY:
        if beta or (k and alpha != 1.0):
            raise NoKernel(f"a scaled product of {a.dtype} over {k} elements")
        kernel = product_kernel(a.dtype, out.shape, k, a.strides, b.strides, out.strides)
        emitter.launch(kernel, a, b, out)
        return
    _emit(emitter, *_folded(a, b, out), alpha, beta)


def _emit(emitter: Emitter, a: Tensor, b: Tensor, out: Tensor, alpha: float, beta: float) -> None:
    result = _layout(out)
    if result is None:
        whole = emitter.temporary(out.shape, out.dtype)
        if beta:
            emitter.copy(out, whole)
        _emit(emitter, a, b, whole, alpha, beta)
        emitter.copy(whole, out)
        return
    if result[0]:  # by columns: C^T = B^T A^T
        _emit(emitter, _transposed(b), _transposed(a), _transposed(out), alpha, beta)
        return
    a, b = _readable(emitter, a), _readable(emitter, b)
    sizes, (of_a, of_b, of_out) = address.collapse(out.shape[:-2], [each.strides[:-2] for each in (a, b, out)])
    if prod(sizes) > max(sizes, default=1) * MOST_CALLS:
        uneven = [len(address.collapse(sizes, [own, of_out])[0]) > 1 for own in (of_a, of_b)]
        a, b = (_copied(emitter, each) if copies else each for each, copies in zip((a, b), uneven))
        sizes, (of_a, of_b, of_out) = address.collapse(out.shape[:-2], [each.strides[:-2] for each in (a, b, out)])
    axis = max(range(len(sizes)), key=lambda i: sizes[i]) if sizes else None
    layouts = [_layout(each) for each in (a, b, out)]
    (turned_a, lda), (turned_b, ldb), (_, ldc) = (each for each in layouts if each is not None)
    steps = (0, 0, 0) if axis is None else (of_a[axis], of_b[axis], of_out[axis])
    m, n = out.shape[-2:]
    gemm = Gemm(m, n, a.shape[-1], a.dtype, lda, ldb, ldc, turned_a, turned_b,
                1 if axis is None else sizes[axis], *steps, alpha, beta)
    for index in product(*(range(1 if i == axis else size) for i, size in enumerate(sizes))):
        emitter.gemm(gemm, *(_within(tensor, strides, index, axis, sizes)
                             for tensor, strides in ((a, of_a), (b, of_b), (out, of_out))))


def _within(tensor: Tensor, strides: tuple[int, ...], index: tuple[int, ...], axis: int | None,
            sizes: tuple[int, ...]) -> Tensor:
    """The matrices of one call, `axis` being the one that the library walks over."""
    lead = () if axis is None else ((sizes[axis], strides[axis]),)
    return tensor.viewed((*(size for size, _ in lead), *tensor.shape[-2:]),
                         (*(stride for _, stride in lead), *tensor.strides[-2:]),
                         sum(at * stride for at, stride in zip(index, strides)))


def _folded(a: Tensor, b: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same product with batch axes laid into m (where b is shared) or n (where a is) as far as strides allow."""
    sizes, strides = address.collapse(out.shape[:-2], [each.strides[:-2] for each in (a, b, out)])
    parts = [([*sizes, *each.shape[-2:]], [*own, *each.strides[-2:]]) for each, own in zip((a, b, out), strides)]
    for axis in range(len(sizes) - 1, -1, -1):
        for grown, shared, at in ((0, 1, -2), (1, 0, -1)):
            size, rows = parts[2][0][axis], parts[2][0][at]
            if parts[shared][1][axis] or rows * size > _LARGEST:
                continue
            steps = [parts[which][1][axis] for which in (grown, 2)]
            if rows > 1 and any(step != parts[which][1][at] * rows for which, step in zip((grown, 2), steps)):
                continue
            for which, step in zip((grown, 2), steps):
                parts[which][0][at] = rows * size
                if rows == 1:
                    parts[which][1][at] = step
            for shape, own in parts:
                del shape[axis], own[axis]
            break
    return tuple(each.viewed(tuple(shape), tuple(own))  # type: ignore[return-value]
                 for each, (shape, own) in zip((a, b, out), parts))


def _layout(tensor: Tensor) -> tuple[bool, int] | None:
    """Whether the matrices are stored by columns, and how far rows (or columns) lie apart; None if elements of both
    do, or if rows overlap."""
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.strides[-2:]
    if any(stride < 0 for size, stride in zip(tensor.shape, tensor.strides) if size > 1):
        return None
    if (columns == 1 or across == 1) and (rows == 1 or down >= columns):
        return False, down if rows > 1 else columns
    if (rows == 1 or down == 1) and (columns == 1 or across >= rows):
        return True, across if columns > 1 else rows
    return None


def _readable(emitter: Emitter, tensor: Tensor) -> Tensor:
    return tensor if _layout(tensor) is not None else _copied(emitter, tensor, repeated=True)


def _copied(emitter: Emitter, tensor: Tensor, repeated: bool = False) -> Tensor:
    """A row-major copy; with `repeated`, axes of the batch that repeat one matrix still do."""
    lead = [1 if repeated and stride == 0 else size for size, stride in zip(tensor.shape[:-2], tensor.strides)]
    once = tensor.viewed((*lead, *tensor.shape[-2:]), tensor.strides)
    copied = emitter.temporary(once.shape, once.dtype)
    emitter.copy(once, copied)
    return copied.broadcast(tensor.shape)


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.viewed((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]),
                         (*tensor.strides[:-2], tensor.strides[-1], tensor.strides[-2]))
