"""Reductions in fused kernels."""

from __future__ import annotations

from typing import Any

from graphs.ir import Node
from graphs.operators import RUNTIME

from ..scalar import Scalar
from .lowering import Lower, Lowering, is_floating
from .views import NotFusable, View

_ROOT = 10  # about what a square root or a division takes


def axes_of(node: Node, rank: int) -> tuple[int, ...]:
    """The axes that a reduction runs over."""
    axes: Any = node.attrs["axes"]
    if axes is RUNTIME:
        raise NotFusable("a reduction whose axes only the run gives")
    if not axes:
        return () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in (axes if isinstance(axes, tuple) else (axes,))))


def function(name: str, dtype: str) -> str:
    """A function of C's library for an element type."""
    return f"{name}{'' if dtype == 'float64' else 'f'}"


def _operand(lowering: Lowering, node: Node, view: View) -> int:
    shape = lowering.shape(node.inputs[0])
    axes = axes_of(node, len(shape))
    if not axes:
        raise NotFusable("a reduction over no axis")
    inside = lowering.reduced(view, shape, axes, bool(node.attrs["keepdims"]))
    found = lowering.value(node.inputs[0], inside)
    dtype = lowering.items[found].dtype
    if is_floating(dtype):
        lowering.needs_rounding(node.op)
    elif Scalar.of(dtype).bits < 32:
        raise NotFusable(f"{node.op} of {dtype}")
    return found


def mean(lowering: Lowering, item: int) -> int:
    """The mean of the columns of an item."""
    dtype = lowering.items[item].dtype
    return lowering.op("a0 / a1", dtype, lowering.fold("sum", item), lowering.count(dtype), cost=_ROOT)


def square(lowering: Lowering, item: int) -> int:
    """The square of an item."""
    return lowering.op("a0 * a0", lowering.items[item].dtype, item)


def _folding(how: str) -> Lower:
    def lower(lowering: Lowering, node: Node, output: int, view: View) -> int:
        return lowering.fold(how, _operand(lowering, node, view))

    return lower


def _floats(lowering: Lowering, node: Node, view: View) -> tuple[int, str]:
    found = _operand(lowering, node, view)
    dtype = lowering.items[found].dtype
    if not is_floating(dtype):
        raise NotFusable(f"{node.op} of {dtype}")
    return found, dtype


def _mean(lowering: Lowering, node: Node, output: int, view: View) -> int:
    return mean(lowering, _floats(lowering, node, view)[0])


def _sum_square(lowering: Lowering, node: Node, output: int, view: View) -> int:
    return lowering.fold("sum", square(lowering, _floats(lowering, node, view)[0]))


def _l1(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found, dtype = _floats(lowering, node, view)
    return lowering.fold("sum", lowering.op(f"{function('fabs', dtype)}(a0)", dtype, found))


def _l2(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found, dtype = _floats(lowering, node, view)
    total = lowering.fold("sum", square(lowering, found))
    return lowering.op(f"{function('sqrt', dtype)}(a0)", dtype, total, cost=_ROOT)


def _log_sum(lowering: Lowering, node: Node, output: int, view: View) -> int:
    found, dtype = _floats(lowering, node, view)
    return lowering.op(f"{function('log', dtype)}(a0)", dtype, lowering.fold("sum", found), cost=2 * _ROOT)


def _log_sum_exp(lowering: Lowering, node: Node, output: int, view: View) -> int:
    """The greatest element is taken off where it is finite."""
    found, dtype = _floats(lowering, node, view)
    top = lowering.op("a0 - a0 == 0 ? a0 : 0", dtype, lowering.fold("larger", found))
    powers = lowering.op(f"{function('exp', dtype)}(a0 - a1)", dtype, found, top, cost=_ROOT)
    return lowering.op(f"{function('log', dtype)}(a0) + a1", dtype, lowering.fold("sum", powers), top, cost=2 * _ROOT)


LOWERINGS: dict[str, Lower] = {
    "ReduceSum": _folding("sum"), "ReduceProd": _folding("product"), "ReduceMax": _folding("larger"),
    "ReduceMin": _folding("smaller"), "ReduceMean": _mean, "ReduceSumSquare": _sum_square, "ReduceL1": _l1,
    "ReduceL2": _l2, "ReduceLogSum": _log_sum, "ReduceLogSumExp": _log_sum_exp,
}  # fmt: skip
