"""Our row-major matrix product in the terms of cuBLAS, which thinks in columns.

A row-major matrix read by columns is its transpose, so `C = A B` by rows is `C^T = B^T A^T` by columns: B goes
first, m and n change places, and the transposition flags stay with their factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from .device import Gemm

# cublas_api.h and library_types.h; cupy_backends spells them the same way but cannot be imported without cuBLAS.
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77
CUBLAS_GEMM_DEFAULT = -1

_TYPES = {"float32": CUDA_R_32F, "float64": CUDA_R_64F, "float16": CUDA_R_16F, "bfloat16": CUDA_R_16BF}
DTYPES = frozenset(_TYPES)
LARGEST = (1 << 31) - 1  # sizes, leading dimensions and the number of products are C ints


@dataclass(frozen=True, slots=True)
class CublasCall:
    """What `cupy_backends.cuda.libs.cublas.gemmStridedBatchedEx` is told, by its own (column-major) names.

    Its A is our B and its B is our A: `arguments` puts the pointers in place. `alpha` and `beta` are passed as
    pointers to host numbers of the NumPy type `scale`.
    """

    transa: int
    transb: int
    m: int
    n: int
    k: int
    lda: int
    stride_a: int
    ldb: int
    stride_b: int
    ldc: int
    stride_c: int
    batch: int
    data_type: int
    compute_type: int
    scale: str
    alpha: float
    beta: float
    algorithm: int = CUBLAS_GEMM_DEFAULT

    def arguments(self, handle: int, a: int, b: int, c: int, alpha: int, beta: int) -> tuple[int, ...]:
        """All arguments in order, from addresses of *our* A, B and C and of the two numbers."""
        type_ = self.data_type
        return (handle, self.transa, self.transb, self.m, self.n, self.k, alpha,
                b, type_, self.lda, self.stride_a, a, type_, self.ldb, self.stride_b, beta,
                c, type_, self.ldc, self.stride_c, self.batch, self.compute_type, self.algorithm)


def cublas_call(gemm: Gemm, *, tf32: bool = False) -> CublasCall:
    """The call for a product. `tf32` lets float32 factors be rounded to 10 bits of fraction, for speed."""
    compute = {"float64": CUBLAS_COMPUTE_64F}.get(gemm.dtype, CUBLAS_COMPUTE_32F)
    if tf32 and gemm.dtype == "float32":
        compute = CUBLAS_COMPUTE_32F_FAST_TF32
    a = (gemm.k, gemm.m) if gemm.transpose_a else (gemm.m, gemm.k)
    b = (gemm.n, gemm.k) if gemm.transpose_b else (gemm.k, gemm.n)
    call = CublasCall(
        transa=CUBLAS_OP_T if gemm.transpose_b else CUBLAS_OP_N,
        transb=CUBLAS_OP_T if gemm.transpose_a else CUBLAS_OP_N,
        m=gemm.n, n=gemm.m, k=gemm.k,
        lda=_leading(gemm.ldb, *b), stride_a=gemm.stride_b,
        ldb=_leading(gemm.lda, *a), stride_b=gemm.stride_a,
        ldc=_leading(gemm.ldc, gemm.m, gemm.n), stride_c=gemm.stride_c,
        batch=gemm.batch, data_type=_TYPES[gemm.dtype], compute_type=compute,
        scale="float64" if gemm.dtype == "float64" else "float32", alpha=gemm.alpha, beta=gemm.beta)  # fmt: skip
    largest = max(call.m, call.n, call.k, call.lda, call.ldb, call.ldc, call.batch)
    if largest > LARGEST:
        raise ValueError(f"a matrix product with a size of {largest}: cuBLAS takes at most {LARGEST}")
    return call


def _leading(own: int, rows: int, columns: int) -> int:
    """A leading dimension that cuBLAS takes: it wants at least a row's length even where there is only one row."""
    if rows > 1 and own < columns:
        raise ValueError(f"rows of {columns} elements that begin {own} apart")
    return max(own, columns, 1) if rows <= 1 else own
