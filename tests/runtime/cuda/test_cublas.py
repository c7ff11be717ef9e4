"""Row-major products as cuBLAS is told, read back by a column-major model of its documentation."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.cuda import cublas
from runtime.cuda.cublas import cublas_call
from runtime.cuda.device import Gemm, Place
from runtime.cuda.emulated import EmulatedDevice

# cupy_backends/cuda/libs/cublas.pyx of CuPy 14
SIGNATURE = ["handle", "transa", "transb", "m", "n", "k", "alpha", "A", "Atype", "lda", "strideA", "B", "Btype", "ldb",
             "strideB", "beta", "C", "Ctype", "ldc", "strideC", "batchCount", "computeType", "algo"]


def columns(memory: np.ndarray, start: int, rows: int, width: int, ld: int) -> np.ndarray:
    """The matrix whose element (i, j) is at start + i + j * ld, as the BLAS stores it."""
    return np.array([[memory[start + i + j * ld] for j in range(width)] for i in range(rows)]).reshape(rows, width)


def gemm_strided_batched_ex(memories: dict[int, np.ndarray], told: tuple[int, ...], numbers: dict[int, float]) -> None:
    """C_i = alpha op(A_i) op(B_i) + beta C_i by columns, with the checks of parameters that cuBLAS documents."""
    t = dict(zip(SIGNATURE, told, strict=True))
    m, n, k = t["m"], t["n"], t["k"]
    rows_a, cols_a = (m, k) if t["transa"] == 0 else (k, m)
    rows_b, cols_b = (k, n) if t["transb"] == 0 else (n, k)
    assert min(m, n, k, t["batchCount"]) >= 0 and {t["transa"], t["transb"]} <= {0, 1}
    assert t["lda"] >= max(1, rows_a) and t["ldb"] >= max(1, rows_b) and t["ldc"] >= max(1, m)
    assert t["Atype"] == t["Btype"] == t["Ctype"]
    for i in range(t["batchCount"]):
        a = columns(memories[t["A"]], i * t["strideA"], rows_a, cols_a, t["lda"])
        b = columns(memories[t["B"]], i * t["strideB"], rows_b, cols_b, t["ldb"])
        result = numbers[t["alpha"]] * ((a.T if t["transa"] else a) @ (b.T if t["transb"] else b))
        c, start = memories[t["C"]], i * t["strideC"]
        if numbers[t["beta"]]:
            result = result + numbers[t["beta"]] * columns(c, start, m, n, t["ldc"])
        for row in range(m):
            for column in range(n):
                c[start + row + column * t["ldc"]] = result[row, column]


@st.composite
def gemms(draw: Any) -> Gemm:
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    transpose_a, transpose_b, batch = draw(st.booleans()), draw(st.booleans()), draw(st.integers(1, 3))
    rows = {"a": k if transpose_a else m, "b": n if transpose_b else k, "c": m}
    wide = {"a": m if transpose_a else k, "b": k if transpose_b else n, "c": n}
    lds = {name: wide[name] + draw(st.integers(0, 3)) for name in "abc"}
    strides = {name: rows[name] * lds[name] + draw(st.integers(0, 2)) for name in "abc"}
    for name in "ab":
        if draw(st.booleans()):
            strides[name] = 0
        if rows[name] == 1 and draw(st.booleans()):
            lds[name] = draw(st.integers(0, 1))  # nothing begins there
    return Gemm(m, n, k, "float64", lds["a"], lds["b"], lds["c"], transpose_a, transpose_b, batch, strides["a"],
                strides["b"], strides["c"], draw(st.sampled_from([1.0, -0.5])), draw(st.sampled_from([0.0, 1.0, 2.0])))


@settings(max_examples=100, deadline=None)
@given(gemms(), st.integers(0, 1000))
def test_the_call_means_the_row_major_product(gemm: Gemm, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [random.integers(-4, 5, 200).astype(np.float64) for _ in range(3)]
    device = EmulatedDevice()
    places = []
    for array in arrays:
        memory = device.allocate(array.nbytes)
        device.write(memory, 0, array)
        places.append(Place(memory, 0, "float64", array.shape, (1,)))
    device.gemm(gemm, *places)
    wanted = device.read(places[2].memory, 0, np.dtype(np.float64), (200,))
    call = cublas_call(gemm)
    told = call.arguments(7, 1001, 1002, 1003, 2001, 2002)
    gemm_strided_batched_ex(dict(zip((1001, 1002, 1003), arrays)), told, {2001: call.alpha, 2002: call.beta})
    np.testing.assert_array_equal(arrays[2], wanted)


def test_types_and_how_sums_are_kept() -> None:
    made = {dtype: cublas_call(Gemm(2, 3, 4, dtype, 4, 3, 3)) for dtype in cublas.DTYPES}
    assert {dtype: (call.data_type, call.compute_type, call.scale) for dtype, call in made.items()} == {
        "float32": (0, 68, "float32"), "float64": (1, 70, "float64"), "float16": (2, 68, "float32"),
        "bfloat16": (14, 68, "float32")}
    assert cublas_call(Gemm(2, 3, 4, "float32", 4, 3, 3), tf32=True).compute_type == 77
    assert cublas_call(Gemm(2, 3, 4, "float16", 4, 3, 3), tf32=True).compute_type == 68


def test_what_cublas_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="begin 3 apart"):
        cublas_call(Gemm(2, 3, 4, "float32", 3, 3, 3))
    with pytest.raises(ValueError, match="at most"):
        cublas_call(Gemm(1 << 31, 3, 4, "float32", 4, 3, 3))


def test_the_signature_is_that_of_this_cupy() -> None:
    library = pytest.importorskip("cupy_backends.cuda.libs.cublas", exc_type=ImportError)
    assert list(inspect.signature(library.gemmStridedBatchedEx).parameters) == SIGNATURE
    for name in ("CUBLAS_OP_N", "CUBLAS_OP_T", "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_64F",
                 "CUBLAS_COMPUTE_32F_FAST_TF32", "CUBLAS_GEMM_DEFAULT"):
        assert getattr(library, name) == getattr(cublas, name)
