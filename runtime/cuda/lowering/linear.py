"""Lowerings of the linear operators to the library's matrix product."""

from __future__ import annotations

from ..device import Gemm
from ..emitter import Emitter, NoKernel
from . import rows

LOWERINGS, lowering = rows()
DTYPES = frozenset({"float32", "float64", "float16", "bfloat16"})


@lowering("MatMul")
def _matmul(emitter: Emitter) -> None:
    a, b = emitter.dense(0), emitter.dense(1)
    if a.dtype not in DTYPES or a.rank != 2 or b.rank != 2:
        raise NoKernel(f"MatMul of {a.dtype}, ranks {a.rank} and {b.rank}")
    (m, k), n = a.shape, b.shape[1]
    made = emitter.output(0, (m, n))
    emitter.gemm(Gemm(m, n, k, a.dtype, k, n, n), a, b, made)
