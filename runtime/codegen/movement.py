"""Kernels that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from graphs import dtypes

from . import address
from .elementwise import as_stored
from .kernel import Kernel, Parameter

TILE = 32  # elements on each side of what a block transposes at once
TILE_ROWS = 8
LEAST_SIDE = 16


@lru_cache(maxsize=4096)
def copy_kernel(dtype: str, shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> Kernel:
    """y[index] = x[index] for strided x and y of one shape."""
    sizes, (from_, to) = address.collapse(shape, [source, target])
    fast = _fast_axes(sizes, from_, to)
    if fast is not None:
        return _transposing_kernel(dtype, sizes, from_, to, *fast)
    count = prod(shape)
    got = f"EG_GET(x, {address.offset('i', sizes, from_)})"
    body = f"EG_PARALLEL(i, {count})\n  EG_PUT(y, {address.offset('i', sizes, to)}, {got});\nEG_END"
    return Kernel("eg_copy", (Parameter("x", dtype), Parameter("y", dtype, True)), body, count,
                  wide=address.is_wide(shape, source, target))


def _fast_axes(sizes: Sequence[int], source: Sequence[int], target: Sequence[int]) -> tuple[int, int] | None:
    """The axes that lie densely in the source and in the target, where they are two and both long."""
    column, row = (next((axis for axis, stride in enumerate(strides) if abs(stride) == 1), None)
                   for strides in (source, target))
    if column is None or row is None or column == row or min(sizes[column], sizes[row]) < LEAST_SIDE:
        return None
    return column, row


def _transposing_kernel(dtype: str, sizes: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...],
                        column: int, row: int) -> Kernel:
    """A copy by tiles in shared memory, so that reads go along `column` and writes along `row`, both in order."""
    rest = [axis for axis in range(len(sizes)) if axis not in (column, row)]
    outer = tuple(sizes[axis] for axis in rest)
    across, down = -(-sizes[column] // TILE), -(-sizes[row] // TILE)
    tiles = prod(outer) * across * down
    bases = [address.offset("batch", outer, [strides[axis] for axis in rest]) for strides in (source, target)]
    body = f"""EG_SHARED({as_stored(dtype).storage}, tile, {TILE * (TILE + 1)});
for (eg_index t = blockIdx.x; t < {tiles}; t += gridDim.x) {{
  const eg_index left = t % {across} * {TILE}, top = t / {across} % {down} * {TILE}, batch = t / {across * down};
  const eg_index from = {bases[0]}, to = {bases[1]};
  for (int r = threadIdx.y; r < {TILE}; r += {TILE_ROWS})
    if (left + threadIdx.x < {sizes[column]} && top + r < {sizes[row]})
      tile[r * {TILE + 1} + threadIdx.x] =
          EG_GET(x, from + (left + threadIdx.x) * {source[column]} + (top + r) * {source[row]});
  EG_BARRIER();
  for (int c = threadIdx.y; c < {TILE}; c += {TILE_ROWS})
    if (left + c < {sizes[column]} && top + threadIdx.x < {sizes[row]})
      EG_PUT(y, to + (left + c) * {target[column]} + (top + threadIdx.x) * {target[row]},
             tile[threadIdx.x * {TILE + 1} + c]);
  EG_BARRIER();
}}"""
    body = body.replace("threadIdx.x", "(int)threadIdx.x").replace("threadIdx.y", "(int)threadIdx.y")
    return Kernel("eg_transpose", (Parameter("x", dtype), Parameter("y", dtype, True)), body,
                  tiles * TILE * TILE_ROWS, TILE, TILE_ROWS, waits=True,
                  wide=address.is_wide(sizes, source, target))


def stored_literal(dtype: str, value: object) -> str:
    """A number as kernels that only move elements write it."""
    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(dtypes.numpy_dtype(dtype)).reshape(-1)[0]
    scalar = as_stored(dtype)
    return scalar.literal(held.view(np.uint16).item() if scalar.dtype != dtype else held.item())


@lru_cache(maxsize=4096)
def pad_kernel(dtype: str, mode: str, inside: tuple[int, ...], strides: tuple[int, ...],
               begins: tuple[int, ...], shape: tuple[int, ...], fill: str) -> Kernel:
    """y, row-major of `shape`, is x of `inside` with `begins` elements before it along each axis.

    `fill` is what stands around it in mode `constant`: a literal, or empty where a tensor of one element says so.
    """
    lines, conditions, terms = [f"EG_PARALLEL(i, {prod(shape)})"], [], []
    for axis, (text, size) in enumerate(zip(address.coordinates("i", shape), inside)):
        if size == shape[axis] and not begins[axis]:
            terms.append(f"{text} * {strides[axis]}")
            continue
        lines.append(f"  eg_index c{axis} = {text} - {begins[axis]};")
        if mode == "constant":
            conditions.append(f"c{axis} >= 0 && c{axis} < {size}")
        else:
            lines.append(f"  {_folded(mode, f'c{axis}', size)}")
        terms.append(f"c{axis} * {strides[axis]}")
    got = f"EG_GET(x, {' + '.join(terms) or '0'})"
    parameters = [Parameter("x", dtype)]
    if mode == "constant" and not fill:
        parameters.append(Parameter("v", dtype))
    if conditions:
        got = f"{' && '.join(conditions)} ? {got} : ({as_stored(dtype).storage}){fill or 'EG_GET(v, 0)'}"
    lines += [f"  EG_PUT(y, i, {got});", "EG_END"]
    return Kernel("eg_pad", (*parameters, Parameter("y", dtype, True)), "\n".join(lines), prod(shape),
                  wide=address.is_wide(shape) or address.is_wide(inside, strides))


def _folded(mode: str, name: str, size: int) -> str:
    """The statement that brings a coordinate into the axis."""
    if mode == "edge":
        return f"{name} = {name} < 0 ? 0 : {name} < {size} ? {name} : {size - 1};"
    period = size if mode == "wrap" else max(2 * (size - 1), 1)
    folded = f"{name} = ({name} % {period} + {period}) % {period};"
    return folded if mode == "wrap" else f"{folded} {name} = {name} < {size} ? {name} : {period} - {name};"


@lru_cache(maxsize=4096)
def triangle_kernel(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], upper: bool,
                    diagonal: int | None) -> Kernel:
    """y, row-major, is x on one side of a diagonal and zero beyond. No `diagonal`: a tensor of one element says it."""
    sizes, (own,) = address.collapse(shape, [strides])
    row, column = address.coordinates("i", shape)[-2:]
    from_ = "EG_GET(k, 0)" if diagonal is None else str(diagonal)
    lines = [f"EG_PARALLEL(i, {prod(shape)})",
             f"  const long long d = (long long)({column}) - ({row}) - {from_};",
             f"  EG_PUT(y, i, d {'>=' if upper else '<='} 0 ? EG_GET(x, {address.offset('i', sizes, own)}) "
             f": ({as_stored(dtype).storage})0);",
             "EG_END"]
    late = (Parameter("k", "int64"),) if diagonal is None else ()
    return Kernel("eg_triangle", (Parameter("x", dtype), *late, Parameter("y", dtype, True)), "\n".join(lines),
                  prod(shape), wide=address.is_wide(shape, strides))


@lru_cache(maxsize=4096)
def eye_kernel(dtype: str, rows: int, columns: int, diagonal: int) -> Kernel:
    """Ones on a diagonal, zeros elsewhere."""
    one, zero = stored_literal(dtype, 1), stored_literal(dtype, 0)
    body = (f"EG_PARALLEL(i, {rows * columns})\n"
            f"  EG_PUT(y, i, (long long)(i % {columns}) - i / {columns} == {diagonal} ? {one} : {zero});\nEG_END")
    return Kernel("eg_eye", (Parameter("y", dtype, True),), body, rows * columns, wide=address.is_wide((rows, columns)))


@lru_cache(maxsize=4096)
def reverse_kernel(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], batch: int, time: int,
                   lengths: tuple[str, int]) -> Kernel:
    """y, row-major, is x with the first steps of each sequence in reverse order; `lengths`: dtype and stride.

    A length outside of the axis counts as its nearest end.
    """
    at = address.coordinates("i", shape)
    steps = shape[time]
    terms = [f"{text} * {stride}" for axis, (text, stride) in enumerate(zip(at, strides)) if axis != time]
    body = f"""EG_PARALLEL(i, {prod(shape)})
  long long count = EG_GET(n, {at[batch]} * {lengths[1]});
  count = count < {steps} ? count : {steps};
  const eg_index step = {at[time]}, from = step < count ? (eg_index)count - 1 - step : step;
  EG_PUT(y, i, EG_GET(x, {' + '.join([*terms, f'from * {strides[time]}'])}));
EG_END"""
    return Kernel("eg_reverse", (Parameter("x", dtype), Parameter("n", lengths[0]), Parameter("y", dtype, True)), body,
                  prod(shape), wide=address.is_wide(shape, strides))
