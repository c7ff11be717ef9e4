"""Kernels that move elements without computing."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter

WIDE = 1 << 31


@lru_cache(maxsize=4096)
def copy_kernel(dtype: str, shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> Kernel:
    """y[index] = x[index] for strided x and y of one shape."""
    sizes, (from_, to) = address.collapse(shape, [source, target])
    count = prod(shape)
    got = f"EG_GET(x, {address.offset('i', sizes, from_)})"
    body = f"EG_PARALLEL(i, {count})\n  EG_PUT(y, {address.offset('i', sizes, to)}, {got});\nEG_END"
    reach = max(address.extent(shape, source)[1], address.extent(shape, target)[1], count)
    return Kernel("eg_copy", (Parameter("x", dtype), Parameter("y", dtype, True)), body, count, wide=reach >= WIDE)


