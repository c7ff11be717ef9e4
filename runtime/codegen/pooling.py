"""Kernels of pools: one thread for each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial axis: sizes of the input and of the output, and where windows lie."""

    size: int
    count: int
    length: int
    stride: int
    dilation: int
    begin: int
    end: int  # padding as declared


@dataclass(frozen=True, slots=True)
class Pool:
    """What is done to windows: `max`, `average` (over `padding` too) or the norm `p`. `places`: MaxPool's second
    output, column-major within a plane if `transposed`."""

    kind: str
    padding: bool = False
    p: int = 2
    places: bool = False
    transposed: bool = False


@lru_cache(maxsize=4096)
def pool_kernel(dtype: str, lead: tuple[int, int], strides: tuple[int, ...], axes: tuple[Axis, ...],
                pool: Pool) -> Kernel:
    """y[n, c, window] of x[n, c, spatial...]; the output is row-major."""
    scalar, shape = Scalar.of(dtype), (*lead, *(axis.count for axis in axes))
    where = address.coordinates("i", shape)
    planes = (*strides[:2], *(0 for _ in axes))
    body = [f"EG_PARALLEL(i, {prod(shape)})", f"  const eg_index plane = {address.offset('i', shape, planes)};"]
    body += [f"  const eg_index s{index} = {text} * {axis.stride} - {axis.begin};"
             for index, (text, axis) in enumerate(zip(where[2:], axes))]
    start, step, finish = _parts(scalar, axes, pool)
    counted = [_counted(index, axis, pool) for index, axis in enumerate(axes)] if pool.kind == "average" else []
    body += [f"  {line}" for line in (*start, *counted)]
    for index, axis in enumerate(axes):
        body += [f"  for (int k{index} = 0; k{index} < {axis.length}; ++k{index}) {{",
                 f"  const eg_index p{index} = s{index} + k{index} * {axis.dilation};",
                 f"  if (p{index} < 0 || p{index} >= {axis.size}) continue;"]
    place = " + ".join(["plane", *(f"p{index} * {stride}" for index, stride in enumerate(strides[2:]))])
    body += [f"    const {scalar.compute} v = {scalar.load('x', place)};", *(f"    {line}" for line in step)]
    body += ["  }" for _ in axes]
    body += [f"  {line}" for line in finish] + ["EG_END"]
    made = [Parameter("y", dtype, True), *([Parameter("z", "int64", True)] if pool.places else [])]
    whole = (*lead, *(axis.size for axis in axes))
    return Kernel(f"eg_{pool.kind}_pool", (Parameter("x", dtype), *made), "\n".join(body), prod(shape),
                  wide=address.is_wide(shape, address.contiguous(shape)) or address.is_wide(whole, strides))


def _counted(index: int, axis: Axis, pool: Pool) -> str:
    """Elements of a window along an axis that its mean is over."""
    low, high = (-axis.begin, axis.size + axis.end) if pool.padding else (0, axis.size)
    return (f"int n{index} = 0; for (int k = 0; k < {axis.length}; ++k) n{index} += "
            f"s{index} + k * {axis.dilation} >= {low} && s{index} + k * {axis.dilation} < {high};")


def _parts(scalar: Scalar, axes: Sequence[Axis], pool: Pool) -> tuple[list[str], list[str], list[str]]:
    """Statements before the windows' elements, for each, and after them."""
    kind, f = scalar.compute, "f" if scalar.compute == "float" else ""
    if pool.kind == "max":
        low = float("-inf") if scalar.is_float else -(1 << (scalar.bits - 1)) if scalar.is_signed else 0
        start, finish = [f"{kind} best = {scalar.literal(low)};"], [scalar.store("y", "i", "best")]
        if not pool.places:
            return start, ["best = eg_max(best, v);"], finish
        order = range(len(axes)) if not pool.transposed else range(len(axes) - 1, -1, -1)
        plane = "0"
        for index in order:
            plane = f"({plane}) * {axes[index].size} + p{index}"
        size = prod(axis.size for axis in axes)
        image = f"(long long)(i / {prod(axis.count for axis in axes)}) * {size}"
        step = [f"const eg_index at = {plane};",
                "if (eg_ahead<" + kind + ">(v > best, best > v, v, 1, best, where < 0 ? -1 : 0, true, false)) "
                "best = v, where = at;"]
        return [*start, "eg_index where = -1;"], step, [*finish, f"EG_PUT(z, i, {image} + where);"]
    if pool.kind == "average":
        count = " * ".join(f"({kind})n{index}" for index in range(len(axes)))
        return [f"{kind} sum = 0;"], ["sum += v;"], [scalar.store("y", "i", f"sum / ({count})")]
    power = {1: f"fabs{f}(v)", 2: "v * v"}.get(pool.p, f"pow{f}(fabs{f}(v), {scalar.literal(float(pool.p))})")
    root = {1: "sum", 2: f"sqrt{f}(sum)"}.get(pool.p, f"pow{f}(sum, {scalar.literal(1 / pool.p)})")
    return [f"{kind} sum = 0;"], [f"sum += {power};"], [scalar.store("y", "i", root)]
