"""Lowerings of the reduction operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.codegen import address, reduction
from runtime.codegen.reduction import Fold
from runtime.codegen.rowwise import Layout, Operand, by_stride, is_own
from runtime.codegen.scalar import DTYPES, Scalar

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows

LOWERINGS, lowering = rows()
MOST_PASSES = 32  # of TopK over its rows
Maker = Callable[[Scalar, int], Fold]


def scalar_of(tensor: Tensor, *, floats: bool = False) -> Scalar:
    """The scalar of a tensor's elements. Raises NoKernel where kernels do not compute with them."""
    if tensor.dtype not in DTYPES or (floats and not Scalar.of(tensor.dtype).is_float):
        raise NoKernel(f"element type {tensor.dtype}")
    return Scalar.of(tensor.dtype)


def reduced(shape: Sequence[int], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    """The shape without the axes, or with 1 there."""
    if keep:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def emit_fold(emitter: Emitter, name: str, make: Maker, x: Tensor, axes: Sequence[int], made: Tensor,
              beside: Tensor | None = None) -> None:
    """Fold x over axes into `made` (row-major, one element for each of the others); in two steps where rows are few
    and long. `beside` has the shape of `made`."""
    order = by_stride(axes, x.shape, x.strides)
    layout = Layout(x.shape, order)
    fold = make(scalar_of(x), layout.length)
    read, steps = layout.operand(x.dtype, x.strides), address.contiguous(layout.rows)
    nothing = (0,) * len(order)
    result = Operand(made.dtype, steps, nothing)
    more = None if beside is None else Operand(beside.dtype, steps, nothing)
    extra = [] if beside is None else [beside]
    own = layout.side_by_side(x.strides)
    parts = reduction.parts_of(layout, own)
    if parts == 1:
        kernel = reduction.fold_kernel(name, layout, read, result, fold, own, more)
        emitter.launch(kernel, x, *extra, made)
        return
    shape = (parts, layout.count) if own else (layout.count, parts)
    partial = emitter.temporary(shape, fold.total)
    kernel = reduction.part_kernel(name, layout, read, fold.unfinished(), own, parts, more)
    emitter.launch(kernel, x, *extra, partial)
    last = Layout(shape, (0,) if own else (1,))
    flat = None if more is None else Operand(more.dtype, (1,), (0,))
    kernel = reduction.fold_kernel(name, last, last.operand(fold.total, partial.strides),
                                   Operand(made.dtype, (1,), (0,)), fold.merged(), is_own(last, partial.strides), flat)
    emitter.launch(kernel, partial, *extra, made)


def _axes(emitter: Emitter, rank: int) -> tuple[int, ...]:
    axes = emitter.attrs["axes"]
    if axes is None or axes == ():
        return () if emitter.attrs["noop_with_empty_axes"] else tuple(range(rank))
    given = axes if isinstance(axes, tuple) else (axes,)
    return tuple(sorted({int(axis) % rank for axis in given})) if rank else ()


@lowering(*reduction.FOLDS)
def _reduce(emitter: Emitter) -> None:
    x, op = emitter.tensor(0), emitter.node.op
    axes = _axes(emitter, x.rank)
    scalar = scalar_of(x)
    if scalar.dtype == "bool" and op not in ("ReduceMax", "ReduceMin"):
        raise NoKernel(f"{op} of bool")
    made = emitter.output(0, reduced(x.shape, axes, bool(emitter.attrs["keepdims"])))
    make, beside = reduction.FOLDS[op], None
    if op == "ReduceLogSumExp":
        real = "float64" if scalar.compute == "double" or not scalar.is_float else "float32"
        beside = emitter.temporary(made.shape, real)
        emit_fold(emitter, "reducemax", reduction.FOLDS["ReduceMax"] if scalar.is_float else _real_maximum, x, axes,
                  beside)
    emit_fold(emitter, op.lower(), make, x, axes, made, beside)


def _real_maximum(scalar: Scalar, length: int) -> Fold:
    return Fold("float64", "eg_larger", "-(double)EG_INFINITY", "(double)v", "a")


@lowering("ArgMax", "ArgMin")
def _arg(emitter: Emitter) -> None:
    x, attrs = emitter.tensor(0), emitter.attrs
    scalar_of(x)
    if x.rank == 0:
        x = x.viewed((1,), (1,))
        axis, shape = 0, reduced((1,), (0,), False)
    else:
        axis = int(attrs["axis"]) % x.rank
        shape = reduced(x.shape, (axis,), bool(attrs["keepdims"]))
    if not x.shape[axis] and x.size == 0:
        raise NoKernel("the place of the largest of nothing")
    made = emitter.output(0, shape, "int64")
    layout = Layout(x.shape, (axis,))
    order = reduction.ORDERS[emitter.node.op, bool(attrs["select_last_index"])]
    kernel = reduction.arg_kernel(emitter.node.op.lower(), layout, layout.operand(x.dtype, x.strides),
                                  Operand("int64", address.contiguous(layout.rows), (0,)), order,
                                  is_own(layout, x.strides))
    emitter.launch(kernel, x, made)


@lowering("CumSum", "CumProd")
def _scan(emitter: Emitter) -> None:
    x, attrs = emitter.tensor(0), emitter.attrs
    if scalar_of(x).dtype == "bool" or not x.rank:
        raise NoKernel(f"{emitter.node.op} of {x.dtype} of rank {x.rank}")
    given = attrs["axis"]
    axis = int(given[0] if isinstance(given, tuple) else given) % x.rank
    made = emitter.output(0, x.shape)
    layout = Layout(x.shape, (axis,))
    of = "eg_plus" if emitter.node.op == "CumSum" else "eg_times"
    kernel = reduction.scan_kernel(emitter.node.op.lower(), layout, layout.operand(x.dtype, x.strides),
                                   layout.operand(x.dtype, made.strides), of, bool(attrs["exclusive"]),
                                   bool(attrs["reverse"]), is_own(layout, x.strides))
    emitter.launch(kernel, x, made)


@lowering("TopK")
def _top_k(emitter: Emitter) -> None:
    x, attrs = emitter.tensor(0), emitter.attrs
    given = attrs["k"]
    k = int(given[0] if isinstance(given, tuple) else given)
    if scalar_of(x).dtype == "bool" or not x.rank or k > MOST_PASSES:
        raise NoKernel(f"the first {k} of {x.dtype}: more than {MOST_PASSES} passes over its rows")
    axis = int(attrs["axis"]) % x.rank
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    values, places = emitter.output(0, shape), emitter.output(1, shape, "int64")
    layout = Layout(x.shape, (axis,))
    kernel = reduction.top_kernel(layout, layout.operand(x.dtype, x.strides),
                                  layout.operand(x.dtype, values.strides), layout.operand("int64", places.strides), k,
                                  bool(attrs["largest"]), is_own(layout, x.strides))
    emitter.launch(kernel, x, values, places)
