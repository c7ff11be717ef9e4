"""Matrix products that the library does not do: integers, and sums of nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Factor:
    """A tensor of a product: element type and strides."""

    dtype: str
    strides: tuple[int, ...]


@lru_cache(maxsize=1024)
def product_kernel(dtype: str, shape: tuple[int, ...], depth: int, a: tuple[int, ...], b: tuple[int, ...],
                   y: tuple[int, ...]) -> Kernel:
    """y = a @ b for y of shape (batch..., m, n): one thread an element, `depth` terms each.

    `a`, `b` and `y` are strides over (batch..., m, depth), (batch..., depth, n) and (batch..., m, n). Integers wrap
    around, in unsigned arithmetic since signed overflow is undefined in C.
    """
    scalar = Scalar.of(dtype)
    kind = scalar.compute if scalar.is_float else "unsigned long long" if scalar.bits == 64 else "unsigned int"
    first = address.offset("i", shape, (*a[:-1], 0))
    second = address.offset("i", shape, (*b[:-2], 0, b[-1]))
    left, right = scalar.load("a", f"first + t * {a[-1]}"), scalar.load("b", f"second + t * {b[-2]}")
    body = f"""\
EG_PARALLEL(i, {prod(shape)})
  const eg_index first = {first}, second = {second};
  {kind} total = 0;
  for (eg_index t = 0; t < {depth}; ++t) total += ({kind}){left} * ({kind}){right};
  {scalar.store("y", address.offset("i", shape, y), f"({scalar.compute})total")}
EG_END"""
    wide = (address.is_wide((*shape[:-1], depth), a) or address.is_wide((*shape[:-2], depth, shape[-1]), b)
            or address.is_wide(shape, y))
    return Kernel("eg_product", (Parameter("a", dtype), Parameter("b", dtype), Parameter("y", dtype, True)), body,
                  prod(shape), exact=False, wide=wide)


@lru_cache(maxsize=1024)
def quantized_product_kernel(shape: tuple[int, ...], depth: int, a: Factor, b: Factor, zero_a: Factor | None,
                             zero_b: Factor | None) -> Kernel:
    """y, row-major int32 of shape (batch..., m, n), is (a - zero_a) @ (b - zero_b), each term as int32.

    Factors are strided as in `product_kernel`, zero points over (batch..., m, n).
    """
    first = address.offset("i", shape, (*a.strides[:-1], 0))
    second = address.offset("i", shape, (*b.strides[:-2], 0, b.strides[-1]))
    lines = [f"EG_PARALLEL(i, {prod(shape)})", f"  const eg_index first = {first}, second = {second};",
             "  unsigned int total = 0;"]
    names, parameters = {}, []
    for name, zero in (("c", zero_a), ("d", zero_b)):
        if zero is not None:
            parameters.append(Parameter(name, zero.dtype))
            got = Scalar.of(zero.dtype).load(name, address.offset("i", shape, zero.strides))
            lines.append(f"  const int z{name} = {got};")
        names[name] = f" - z{name}" if zero is not None else ""
    left = f"((int){Scalar.of(a.dtype).load('a', f'first + t * {a.strides[-1]}')}{names['c']})"
    right = f"((int){Scalar.of(b.dtype).load('b', f'second + t * {b.strides[-2]}')}{names['d']})"
    lines += [f"  for (eg_index t = 0; t < {depth}; ++t) total += (unsigned int)({left} * {right});",
              "  EG_PUT(y, i, (int)total);", "EG_END"]
    wide = (address.is_wide((*shape[:-1], depth), a.strides) or address.is_wide(shape, address.contiguous(shape))
            or address.is_wide((*shape[:-2], depth, shape[-1]), b.strides))
    return Kernel("eg_quantized_product", (Parameter("a", a.dtype), Parameter("b", b.dtype), *parameters,
                                           Parameter("y", "int32", True)), "\n".join(lines), prod(shape), wide=wide)
