"""Kernels that pick or place elements by index.

An index outside of its axis is an error in ONNX, which a GPU cannot raise: what it would have read is 0, and what it
would have written is left out, as in ONNX Runtime's CUDA kernels. Nothing outside of a tensor is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .elementwise import as_stored
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that an index chooses a place of: its size and stride, and where the index lies behind others."""

    size: int
    stride: int
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Indices:
    """How a kernel finds a place: the dtype of the indices, their strides over what the kernel walks over, the
    strides of the axes that are walked through alike, and the axes that indices choose from."""

    dtype: str
    strides: tuple[int, ...]
    base: tuple[int, ...]
    axes: tuple[Axis, ...]

    def lines(self, shape: tuple[int, ...], step: str = "") -> list[str]:
        """Statements that find `at`, and whether it is `inside`; `step` is added to where indices are read."""
        found = [f"  eg_index at = {_offset(shape, self.base)};", "  bool inside = true;",
                 f"  const eg_index from = {_offset(shape, self.strides)}{step};"]
        for axis in self.axes:
            found += [f"  {{ long long k = EG_GET(n, from + {axis.behind});",
                      f"    k += k < 0 ? {axis.size} : 0;",
                      f"    inside = inside && k >= 0 && k < {axis.size};",
                      f"    at += inside ? (eg_index)k * {axis.stride} : 0; }}"]
        return found


def _offset(shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    return address.offset("i", shape, strides)


@lru_cache(maxsize=4096)
def gather_kernel(dtype: str, shape: tuple[int, ...], indices: Indices, wide: bool) -> Kernel:
    """y, row-major of `shape`, is what the indices pick of x."""
    lines = [f"EG_PARALLEL(i, {prod(shape)})", *indices.lines(shape),
             f"  EG_PUT(y, i, inside ? EG_GET(x, at) : ({as_stored(dtype).storage})0);", "EG_END"]
    return Kernel("eg_gather", (Parameter("x", dtype), Parameter("n", indices.dtype), Parameter("y", dtype, True)),
                  "\n".join(lines), prod(shape), wide=wide)


@lru_cache(maxsize=4096)
def claim_kernel(shape: tuple[int, ...], indices: Indices, wide: bool) -> Kernel:
    """Each update, of which there are `shape`, claims its place: w holds the number of the last one, or -1."""
    lines = [f"EG_PARALLEL(i, {prod(shape)})", *indices.lines(shape),
             "  if (inside) EG_ATOMIC_MAX(w, at, (int)i);", "EG_END"]
    return Kernel("eg_claim", (Parameter("n", indices.dtype), Parameter("w", "int32", True)), "\n".join(lines),
                  prod(shape), wide=wide)


@lru_cache(maxsize=4096)
def settle_kernel(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], tail: int) -> Kernel:
    """y, row-major, is x but where a claim says which update it is; updates are `tail` elements long each."""
    within = f" * {tail} + i % {tail}" if tail > 1 else ""
    place = f"i / {tail}" if tail > 1 else "i"
    body = f"""EG_PARALLEL(i, {prod(shape)})
  const eg_index won = EG_GET(w, {place});
  EG_PUT(y, i, won >= 0 ? EG_GET(u, won{within}) : EG_GET(x, {address.offset('i', shape, strides)}));
EG_END"""
    return Kernel("eg_settle", (Parameter("x", dtype), Parameter("w", "int32"), Parameter("u", dtype),
                                Parameter("y", dtype, True)), body, prod(shape), wide=address.is_wide(shape, strides))


@lru_cache(maxsize=4096)
def accumulate_kernel(dtype: str, updates: str, shape: tuple[int, ...], indices: Indices, steps: tuple[int, int, int],
                      strides: tuple[int, ...], expression: str, wide: bool) -> Kernel:
    """y[place] = expression of y[place] (`a0`) and an update (`a1`), one after another.

    A thread walks over the updates of its own places: their number, and how far indices and updates (of `strides`)
    lie apart, are `steps`. So there are no races, and the order is that of NumPy.
    """
    count, index_step, update_step = steps
    scalar = Scalar.of(dtype)
    found = indices.lines(shape, f" + s * {index_step}")
    value = Scalar.of(updates).load("u", f"{address.offset('i', shape, strides)} + s * {update_step}")
    lines = [f"EG_PARALLEL(i, {prod(shape)})", f"  for (eg_index s = 0; s < {count}; ++s) {{", *found,
             "  if (inside) {", f"    const {scalar.compute} a0 = {scalar.load('y', 'at')}, a1 = {value};",
             f"    {scalar.store('y', 'at', expression)}", "  } }", "EG_END"]
    parameters = (Parameter("n", indices.dtype), Parameter("u", updates), Parameter("y", dtype, True))
    return Kernel("eg_accumulate", parameters, "\n".join(lines), prod(shape), wide=wide)


@lru_cache(maxsize=4096)
def add_kernel(dtype: str, shape: tuple[int, ...], indices: Indices, strides: tuple[int, ...], wide: bool) -> Kernel:
    """y[place] += update, in any order; for the element types that GPUs add atomically."""
    lines = [f"EG_PARALLEL(i, {prod(shape)})", *indices.lines(shape),
             f"  if (inside) EG_ATOMIC_ADD(y, at, EG_GET(u, {address.offset('i', shape, strides)}));", "EG_END"]
    return Kernel("eg_scatter_add", (Parameter("n", indices.dtype), Parameter("u", dtype), Parameter("y", dtype, True)),
                  "\n".join(lines), prod(shape), wide=wide)


ATOMIC = frozenset({"float32", "float64", "int32", "uint32", "uint64"})


@lru_cache(maxsize=4096)
def one_hot_kernel(dtype: str, shape: tuple[int, ...], axis: int, index: str, strides: tuple[int, ...],
                   step: int) -> Kernel:
    """y, row-major, is the second of two values (`step` apart) where an index is its coordinate on `axis`, else the
    first."""
    got = Scalar.of(index).load("n", address.offset("i", shape, strides))
    body = f"""EG_PARALLEL(i, {prod(shape)})
  long long k = (long long){got};
  k += k < 0 ? {shape[axis]} : 0;
  EG_PUT(y, i, EG_GET(v, (k == {address.coordinates('i', shape)[axis]} ? {step} : 0)));
EG_END"""
    return Kernel("eg_one_hot", (Parameter("n", index), Parameter("v", dtype), Parameter("y", dtype, True)), body,
                  prod(shape), wide=address.is_wide(shape, strides))


def needs_wide(*places: tuple[Sequence[int], Sequence[int]]) -> bool:
    """Any of these shapes with strides needs indices of 64 bits."""
    return any(address.is_wide(shape, strides) for shape, strides in places)
