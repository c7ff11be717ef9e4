"""Matrix products that the library does not do: integers, and sums of nothing."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar


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
