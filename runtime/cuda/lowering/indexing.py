"""Lowerings of the operators that pick or place elements by index (`codegen.indexing` says what becomes of an index
outside of its axis). NonZero, Unique and Compress, whose sizes depend on data, have none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from runtime.codegen import address, indexing
from runtime.codegen.elementwise import ROWS
from runtime.codegen.indexing import Axis, Indices, needs_wide
from runtime.codegen.scalar import Scalar

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from .elementwise import compute_into, emit_pointwise, scalars_of

LOWERINGS, lowering = rows()
MOST_STEPS = 1024  # updates that one thread may walk over
_REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def _indices(emitter: Emitter, index: int) -> Tensor:
    found = emitter.tensor(index)
    if found.dtype not in ("int32", "int64"):
        raise NoKernel(f"indices of {found.dtype}")
    return found


def _check_known(emitter: Emitter, index: int, sizes: Sequence[int]) -> None:
    """Indices that are known must lie inside: NumPy raises its error for others."""
    value = emitter.inputs[index]
    if value is None or value.host is None or not value.host.size:
        return
    for component, size in zip(np.moveaxis(value.host.reshape(-1, len(sizes)), 1, 0), sizes):
        if component.min() < -size or component.max() >= size:
            raise NoKernel("an index outside of its axis")


@lowering("Gather")
def _gather(emitter: Emitter) -> None:
    value, axis = emitter.tensor(0), int(emitter.attrs["axis"])
    axis %= value.rank
    given = emitter.inputs[1]
    size, stride = value.shape[axis], value.strides[axis]
    _check_known(emitter, 1, [size])
    if given is not None and given.host is not None and given.rank < 2:
        steps = _even(np.where(given.host < 0, given.host + size, given.host).reshape(-1).tolist())
        if steps is not None:
            first, step = steps
            between = ((given.size, step * stride),) if given.rank else ()
            return emitter.view(0, value.viewed(
                (*value.shape[:axis], *(each for each, _ in between), *value.shape[axis + 1 :]),
                (*value.strides[:axis], *(each for _, each in between), *value.strides[axis + 1 :]), first * stride))
    scalars_of([value])
    where = _indices(emitter, 1)
    before, after, none = value.strides[:axis], value.strides[axis + 1 :], (0,) * where.rank
    shape = (*value.shape[:axis], *where.shape, *value.shape[axis + 1 :])
    indices = Indices(where.dtype, (*(0 for _ in before), *where.strides, *(0 for _ in after)),
                      (*before, *none, *after), (Axis(size, stride),))
    _emit_gather(emitter, value, where, shape, indices)


def _even(places: Sequence[int]) -> tuple[int, int] | None:
    """First and step of places that lie evenly."""
    if len(places) < 2:
        return (places[0] if places else 0), 1
    step = places[1] - places[0]
    return (places[0], step) if all(b - a == step for a, b in pairwise(places)) else None


def _emit_gather(emitter: Emitter, value: Tensor, where: Tensor, shape: tuple[int, ...], indices: Indices) -> None:
    made = emitter.output(0, shape, value.dtype)
    if not value.size and made.size:
        raise NoKernel("indices into an empty tensor")
    wide = needs_wide((shape, made.strides), (value.shape, value.strides), (where.shape, where.strides))
    emitter.launch(indexing.gather_kernel(value.dtype, shape, indices, wide), value, where, made)


@lowering("GatherElements")
def _gather_elements(emitter: Emitter) -> None:
    value, where = emitter.tensor(0), _indices(emitter, 1)
    scalars_of([value])
    axis = int(emitter.attrs["axis"]) % value.rank
    _check_elements(where.shape, value.shape, axis)
    _check_known(emitter, 1, [value.shape[axis]])
    _emit_gather(emitter, value, where, where.shape, _along(value, where, axis))


def _check_elements(shape: Sequence[int], whole: Sequence[int], axis: int) -> None:
    if len(shape) != len(whole) or any(a > b for at, (a, b) in enumerate(zip(shape, whole)) if at != axis):
        raise NoKernel(f"indices of shape {list(shape)} for {list(whole)}")


def _along(value: Tensor, where: Tensor, axis: int) -> Indices:
    """Indices that choose along one axis and stay in place along the others."""
    base = tuple(0 if at == axis else stride for at, stride in enumerate(value.strides))
    return Indices(where.dtype, where.strides, base, (Axis(value.shape[axis], value.strides[axis]),))


@lowering("GatherND")
def _gather_nd(emitter: Emitter) -> None:
    value, where, batch = emitter.tensor(0), _indices(emitter, 1), int(emitter.attrs["batch_dims"])
    scalars_of([value])
    width = where.shape[-1]
    if batch + width > value.rank or where.shape[:batch] != value.shape[:batch]:
        raise NoKernel(f"indices of shape {list(where.shape)} for {list(value.shape)}")
    chosen = range(batch, batch + width)
    _check_known(emitter, 1, [value.shape[axis] for axis in chosen])
    tail, none = value.strides[batch + width :], (0,) * (where.rank - 1 - batch)
    axes = tuple(Axis(value.shape[axis], value.strides[axis], at * where.strides[-1]) for at, axis in enumerate(chosen))
    indices = Indices(where.dtype, (*where.strides[:-1], *(0 for _ in tail)),
                      (*value.strides[:batch], *none, *tail), axes)
    _emit_gather(emitter, value, where, (*where.shape[:-1], *value.shape[batch + width :]), indices)


@lowering("ScatterElements", "Scatter")
def _scatter_elements(emitter: Emitter) -> None:
    value, where, updates = emitter.tensor(0), _indices(emitter, 1), emitter.tensor(2)
    axis = int(emitter.attrs["axis"]) % value.rank
    _check_elements(where.shape, value.shape, axis)
    if updates.shape != where.shape:
        raise NoKernel(f"updates of shape {list(updates.shape)} for indices of {list(where.shape)}")
    _check_known(emitter, 1, [value.shape[axis]])
    dense = Tensor.new(value.dtype, value.shape)  # the strides of what is written
    reduction = str(emitter.attrs["reduction"]) if emitter.node.op != "Scatter" else "none"
    if reduction == "none":
        return _emit_claims(emitter, value, where, updates, where.shape, _along(dense, where, axis), 1)

    def left_out(entries: tuple[int, ...]) -> tuple[int, ...]:
        return entries[:axis] + entries[axis + 1 :]

    every = _along(dense, where, axis)
    lines = Indices(where.dtype, left_out(where.strides), left_out(every.base), every.axes)
    _emit_reduction(emitter, reduction, value, where, updates, (where.shape, every, updates.strides),
                    (left_out(where.shape), lines, left_out(updates.strides)),
                    (where.shape[axis], where.strides[axis], updates.strides[axis]))


@lowering("ScatterND")
def _scatter_nd(emitter: Emitter) -> None:
    value, where, updates = emitter.tensor(0), _indices(emitter, 1), emitter.tensor(2)
    width = where.shape[-1] if where.rank else 0
    tail = value.shape[width:]
    if not width or width > value.rank or updates.shape != (*where.shape[:-1], *tail):
        raise NoKernel(f"indices of shape {list(where.shape)} and updates of {list(updates.shape)}")
    _check_known(emitter, 1, value.shape[:width])
    count, length = prod(where.shape[:-1]), prod(tail)
    where = emitter.as_dense(where)

    def axes(strides: Sequence[int]) -> tuple[Axis, ...]:
        return tuple(Axis(size, stride, at) for at, (size, stride) in enumerate(zip(value.shape, strides[:width])))

    reduction = str(emitter.attrs["reduction"])
    if reduction == "none":
        claims = Indices(where.dtype, (width,), (0,), axes(address.contiguous(value.shape[:width])))
        return _emit_claims(emitter, value, where, updates, (count,), claims, length)
    updates = emitter.as_dense(updates)
    own = axes(address.contiguous(value.shape))
    every = Indices(where.dtype, (width, 0), (0, 1), own)
    _emit_reduction(emitter, reduction, value, where, updates, ((count, length), every, (length, 1)),
                    ((length,), Indices(where.dtype, (0,), (1,), own), (1,)), (count, width, length))


def _emit_claims(emitter: Emitter, value: Tensor, where: Tensor, updates: Tensor, shape: tuple[int, ...],
                 indices: Indices, tail: int) -> None:
    """Updates claim their places, the last one wins, then every element of the output is read where it comes from."""
    scalars_of([value, updates])
    if updates.dtype != value.dtype or prod(shape) >= address.WIDE:
        raise NoKernel(f"{prod(shape)} updates of {updates.dtype}")
    claims = emitter.temporary((value.size // max(tail, 1),), "int32")
    compute_into(emitter, "fill", [], claims, "-1")
    wide = needs_wide((value.shape, address.contiguous(value.shape)), (where.shape, where.strides))
    emitter.launch(indexing.claim_kernel(shape, indices, wide), where, claims)
    dense = emitter.as_dense(updates)
    made = emitter.output(0, value.shape, value.dtype)
    emitter.launch(indexing.settle_kernel(value.dtype, value.shape, value.strides, tail), value, claims, dense, made)


Walk = tuple[tuple[int, ...], Indices, tuple[int, ...]]  # a shape, and the strides of indices and updates over it


def _emit_reduction(emitter: Emitter, reduction: str, value: Tensor, where: Tensor, updates: Tensor, every: Walk,
                    lines: Walk, steps: tuple[int, int, int]) -> None:
    """Updates are accumulated one after another, by a thread for each of `lines`, or atomically for `every` one."""
    (scalar, _) = scalars_of([value, updates])
    is_small = scalar.is_float and scalar.bits == 16
    kind = "float32" if is_small else value.dtype  # 16-bit floats are rounded once, as NumPy has it
    text = ROWS[_REDUCTIONS[reduction]].expression(Scalar.of(kind), {}, 2) if reduction in _REDUCTIONS else None
    is_long = steps[0] > MOST_STEPS
    if text is None or updates.dtype != value.dtype:
        raise NoKernel(f"reduction {reduction} of {value.dtype}")
    if is_long and (reduction != "add" or is_small or kind not in indexing.ATOMIC):
        raise NoKernel(f"{steps[0]} updates of one place by {reduction} of {value.dtype}")
    made = emitter.temporary(value.shape, kind) if is_small else emitter.output(0, value.shape)
    if is_small:
        compute_into(emitter, "cast_float32", [value], made, "a0")
    else:
        emitter.copy(value, made)
    wide = needs_wide((value.shape, made.strides), (where.shape, where.strides), (updates.shape, updates.strides))
    if is_long:
        emitter.launch(indexing.add_kernel(kind, *every, wide), where, updates, made)
    elif steps[0]:
        shape, indices, strides = lines
        emitter.launch(indexing.accumulate_kernel(kind, updates.dtype, shape, indices, steps, strides, text, wide),
                       where, updates, made)
    if is_small:
        emit_pointwise(emitter, f"cast_{value.dtype}", [made], value.dtype, "a0")


@lowering("OneHot")
def _one_hot(emitter: Emitter) -> None:
    where, values = emitter.tensor(0), emitter.tensor(2)
    scalars_of([where, values])
    depth = int(emitter.host(1).reshape(-1)[0])
    if values.shape != (2,) or where.dtype == "bool":
        raise NoKernel(f"values of shape {list(values.shape)}, indices of {where.dtype}")
    axis = int(emitter.attrs["axis"]) % (where.rank + 1)
    shape = (*where.shape[:axis], depth, *where.shape[axis:])
    made = emitter.output(0, shape, values.dtype)
    strides = (*where.strides[:axis], 0, *where.strides[axis:])
    kernel = indexing.one_hot_kernel(values.dtype, shape, axis, where.dtype, strides, values.strides[0])
    emitter.launch(kernel, where, values, made)


