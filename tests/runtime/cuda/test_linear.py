"""Matrix products: which calls and copies views and broadcasting lead to, and values against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import save
from graphs.builder import Builder, Value
from graphs.ir import Node
from runtime.codegen import Kernel
from runtime.cuda.cublas import cublas_call
from runtime.cuda.device import Gemm
from runtime.cuda.emitter import Emitter, Recorder
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import download, place
from runtime.cuda.lowering import _product
from runtime.cuda.lowering._product import emit_product
from runtime.cuda.lowering.linear import permuted
from runtime.cuda.tensor import Tensor

from .harness import check, expected, needs_compiler

pytestmark = needs_compiler


class Cases:
    """Builds a graph from many nodes with random inputs, each an output."""

    def __init__(self, opset: int = 21, seed: int = 0) -> None:
        self.b = Builder("cases", opset=opset, opsets={"com.microsoft": 1})
        self.random = np.random.default_rng(seed)
        self.feeds: dict[str, np.ndarray] = {}

    def input(self, *shape: int, dtype: Any = np.float32) -> Value:
        """A new input with random content: small integers for integer types."""
        name = f"x{len(self.feeds)}"
        if np.dtype(dtype).kind in "iu":
            self.feeds[name] = self.random.integers(0 if np.dtype(dtype).kind == "u" else -9, 9, shape).astype(dtype)
        else:
            self.feeds[name] = self.random.normal(size=shape).astype(dtype)
        return self.b.input(name, np.dtype(dtype).name, shape)

    def output(self, value: Any) -> None:
        """Name a result."""
        self.b.output(value)

    def turned(self, value: Value, *perm: int) -> Value:
        """A view with other strides."""
        return self.b.Transpose(value, perm=perm)


def test_a_dense_layer_read_through_a_view(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    b = Builder("dense", opset=21)
    x = b.input("x", "float32", ["n", 8])
    h = b.Add(b.MatMul(x, random.normal(size=(8, 5)).astype(np.float32)), random.normal(size=5).astype(np.float32))
    t = b.Transpose(h, perm=[1, 0])
    b.output(b.Mul(t, t), "y")
    graph = b.graph()
    feeds = {"x": random.normal(size=(3, 8)).astype(np.float32)}
    executor = check(graph, feeds, expected(graph, feeds, tmp_path))
    assert executor.device.launches == ["gemm", "eg_add", "eg_mul"]  # type: ignore[attr-defined]


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,)),
    ((2, 3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((1, 4), (2, 3, 4, 1)), ((2, 1, 3, 4), (3, 4, 5)),
    ((2, 3, 1, 4), (4, 5)), ((2, 1, 3, 4), (1, 3, 4, 2)), ((2, 3, 2, 4), (2, 1, 4, 3)), ((3, 1, 1, 2, 4), (1, 2, 4, 1)),
    ((1, 1), (1, 1)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((2, 3, 0), (2, 0, 1)), ((5, 1), (1, 6)), ((1, 7), (7, 1)),
]  # fmt: skip


def test_matmul_of_all_ranks(tmp_path: Path) -> None:
    c = Cases()
    for a, b in SHAPES:
        c.output(c.b.MatMul(c.input(*a), c.input(*b)))
    for dtype in (np.float64, np.int32, np.int64):
        for a, b in (((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (4,)), ((2, 0), (0, 3))):
            c.output(c.b.MatMul(c.input(*a, dtype=dtype), c.input(*b, dtype=dtype)))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))


def test_views_are_read_without_copies(tmp_path: Path) -> None:
    c = Cases()
    b = c.b
    c.output(b.MatMul(c.turned(c.input(4, 3), 1, 0), c.turned(c.input(5, 4), 1, 0)))
    heads = [c.turned(c.input(2, 5, 3, 4), 0, 2, 1, 3) for _ in range(3)]  # (batch, heads, length, size)
    c.output(b.MatMul(heads[0], c.turned(heads[1], 0, 1, 3, 2)))
    c.output(b.MatMul(c.input(2, 3, 5, 5), heads[2]))
    c.output(b.MatMul(c.turned(c.input(4, 2, 3), 1, 2, 0), c.input(4, 5)))  # columns, folded
    c.output(b.MatMul(c.input(3, 4), c.turned(c.input(2, 5, 4), 0, 2, 1)))
    graph = b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    assert executor.device.launches == ["gemm"] * 7  # type: ignore[attr-defined]


def test_general_strides_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product, "MOST_CALLS", 1)
    c = Cases()
    c.output(c.b.MatMul(c.turned(c.input(4, 3, 2), 2, 1, 0), c.input(4, 5)))
    c.output(c.b.MatMul(c.turned(c.input(4, 2, 3, 2), 1, 3, 2, 0), c.input(2, 1, 4, 5)))
    c.output(c.b.MatMul(c.input(2, 1, 3, 4), c.input(3, 4, 5)))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))


def test_gemm(tmp_path: Path) -> None:
    c = Cases()
    for alpha, beta, trans_a, trans_b, added in [
        (1.0, 1.0, 0, 0, (3, 5)), (0.5, 2.0, 1, 0, (5,)), (1.0, 1.0, 0, 1, (1, 5)), (2.0, -1.0, 1, 1, (3, 1)),
        (1.0, 0.5, 0, 0, ()), (1.0, 0.0, 0, 0, (5,)), (0.25, 1.0, 0, 1, None), (1.0, 1.0, 0, 0, (1, 1)),
    ]:
        inputs = [c.input(*((4, 3) if trans_a else (3, 4))), c.input(*((5, 4) if trans_b else (4, 5)))]
        inputs += [c.input(*added)] if added is not None else []
        c.output(c.b.Gemm(*inputs, alpha=alpha, beta=beta, transA=trans_a, transB=trans_b))
    c.output(c.b.Gemm(c.input(3, 4, dtype=np.float64), c.input(4, 2, dtype=np.float64), c.input(2, dtype=np.float64)))
    c.output(c.b.Gemm(c.turned(c.input(4, 3), 1, 0), c.turned(c.input(5, 4), 1, 0), transA=0, transB=0))
    for attrs in ({}, {"transA": 1}, {"transB": 1, "alpha": 0.5}, {"transA": 1, "transB": 1, "alpha": -2.0}):
        c.output(c.b.op("FusedMatMul", c.input(2, 4, 4), c.input(2, 4, 4), domain="com.microsoft", **attrs))
    c.output(c.b.op("FusedMatMul", c.input(3, 2, 4), c.input(2, 4, 5), domain="com.microsoft", transBatchA=1))
    c.output(c.b.op("FusedMatMul", c.input(2, 3, 4), c.input(5, 2, 4), domain="com.microsoft", transBatchB=1, transB=1))
    graph = c.b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    assert not executor.on_host


EQUATIONS = {
    "ij,jk->ik": [(3, 4), (4, 5)], "ij,jk->ki": [(3, 4), (4, 5)], "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bij,bkj->bki": [(2, 3, 4), (2, 5, 4)], "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 2, 5)],
    "bihd,bjhd->bhij": [(2, 4, 3, 5), (2, 2, 3, 5)], "bhij,bjhd->bihd": [(2, 3, 4, 2), (2, 2, 3, 5)],
    "i,i->": [(4,), (4,)], "i,j->ij": [(3,), (4,)], "bi,bi->bi": [(2, 3), (2, 3)],
    "bi,bi->b": [(2, 3), (2, 3)], "abc,cd,de->abe": [(2, 3, 4), (4, 5), (5, 2)],
    "...ij,...jk->...ik": [(2, 3, 4), (1, 4, 5)],
    "ijkl,jkm->ilm": [(2, 3, 4, 2), (3, 4, 5)], "ijkl,kjm->ilm": [(2, 3, 4, 2), (4, 3, 5)], "ij->ji": [(2, 3)],
    "ii->i": [(3, 3)], "ii,ij->ij": [(3, 3), (3, 4)], "bij,bjk->ikb": [(2, 3, 4), (2, 4, 5)],
    "bnd,bmd,bd->bnm": [(2, 3, 4), (2, 5, 4), (2, 4)], "ij,kl->ijkl": [(2, 3), (4, 2)], "abij,acjk->abcik": [
        (2, 3, 2, 4), (2, 2, 4, 3)],
    "ij,jk->k": [(2, 3), (3, 4)], "ij->i": [(2, 3)], "ijk->j": [(2, 3, 4)], "ij->": [(2, 3)], "ii->": [(3, 3)],
    "aij,jkb->k": [(2, 3, 4), (4, 5, 2)],
}  # fmt: skip


def test_einsum(tmp_path: Path) -> None:
    c = Cases()
    for equation, shapes in EQUATIONS.items():
        c.output(c.b.Einsum(*(c.input(*shape) for shape in shapes), equation=equation))
    c.output(c.b.Einsum(c.input(2, 3, dtype=np.int64), c.input(3, 4, dtype=np.int64), equation="ij,jk->ki"))
    graph = c.b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    heads = [entry for entry in executor.device.launches if entry != "gemm"]  # type: ignore[attr-defined]
    assert set(heads) <= {"eg_copy", "eg_outer", "eg_product"}


def test_quantized_products(tmp_path: Path) -> None:
    c, small = Cases(), np.uint8
    c.output(c.b.MatMulInteger(c.input(3, 4, dtype=small), c.input(4, 5, dtype=small)))
    c.output(c.b.MatMulInteger(c.input(2, 3, 4, dtype=small), c.input(4, 5, dtype=np.int8), c.input(dtype=small),
                               c.input(5, dtype=np.int8)))
    c.output(c.b.MatMulInteger(c.turned(c.input(4, 3, dtype=small), 1, 0), c.input(2, 4, 5, dtype=small),
                               c.input(1, dtype=small)))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    c = Cases()
    c.output(c.b.MatMulInteger(c.input(3, 4, dtype=small), c.input(4, 5, dtype=small), c.input(3, dtype=small)))
    x = list(c.feeds.values())
    wanted = (x[0].astype(np.int32) - x[2].astype(np.int32)[:, None]) @ x[1].astype(np.int32)
    check(c.b.graph(), c.feeds, [wanted.astype(np.int32)])


def half_cases(dtype: Any) -> Cases:
    c = Cases()
    c.output(c.b.MatMul(c.input(2, 3, 4, dtype=dtype), c.input(4, 5, dtype=dtype)))
    c.output(c.b.MatMul(c.input(2, 3, 4, dtype=dtype), c.turned(c.input(2, 5, 4, dtype=dtype), 0, 2, 1)))
    c.output(c.b.MatMul(c.input(2, 0, dtype=dtype), c.input(0, 3, dtype=dtype)))
    c.output(c.b.Gemm(c.input(3, 4, dtype=dtype), c.input(4, 5, dtype=dtype), c.input(5, dtype=dtype), alpha=0.5))
    return c


def test_float16(tmp_path: Path) -> None:
    c = half_cases(np.float16)
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path), rtol=2e-3, atol=2e-3)


def test_what_onnx_runtime_lacks(tmp_path: Path) -> None:
    c = half_cases(ml_dtypes.bfloat16)
    for dtype in (np.uint32, np.uint64):
        c.output(c.b.MatMul(c.input(2, 3, 4, dtype=dtype), c.input(4, 5, dtype=dtype)))
    graph = c.b.graph()
    save(graph, tmp_path / "bfloat16.onnx")
    wanted = onnx.reference.ReferenceEvaluator(str(tmp_path / "bfloat16.onnx")).run(None, c.feeds)
    check(graph, c.feeds, wanted, rtol=2e-2, atol=2e-2)


class Direct(Recorder):
    """Runs products in NumPy at once, and copies without compiling them."""

    def __init__(self) -> None:
        self.device = EmulatedDevice()
        self.copies = 0

    def on_device(self, tensor: Tensor) -> Tensor:
        assert tensor.storage is not None
        if tensor.storage.memory is None:
            tensor.storage.memory = self.device.allocate(max(tensor.storage.size, 1))
        return tensor

    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        assert kernel.name == "eg_copy"
        self.copies += 1
        source, target = (self.on_device(each) for each in tensors)
        self.of(target)[...] = self.of(source)
        target.storage.memory.filled[:] = 1  # type: ignore[union-attr]

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        cublas_call(gemm)  # which refuses what the library would
        self.device.gemm(gemm, *(place(self.on_device(each)) for each in (a, b, c)))

    def fetch(self, tensor: Tensor) -> np.ndarray:
        return download(self.device, tensor)

    def of(self, tensor: Tensor) -> np.ndarray:
        """The tensor's elements in memory."""
        data = tensor.storage.memory.data.view(tensor.dtype)[tensor.offset:]  # type: ignore[union-attr]
        return np.lib.stride_tricks.as_strided(data, tensor.shape, [each * data.itemsize for each in tensor.strides])


@st.composite
def strided(draw: Any, shape: tuple[int, ...], repeats: bool) -> tuple[tuple[int, ...], list[int], list[int]]:
    """Shape in memory, the order of axes, and which of them are repeated from size 1 (with stride 0)."""
    order = list(draw(st.permutations(range(len(shape)))))
    ones = [axis for axis in range(len(shape) - 2) if repeats and draw(st.booleans())]
    return tuple(1 if axis in ones else shape[axis] + draw(st.integers(0, 1)) for axis in order), order, ones


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_products_of_any_strides(data: st.DataObject) -> None:
    batch = tuple(data.draw(st.lists(st.integers(1, 3), max_size=3)))
    m, n, k = (data.draw(st.integers(1, 3)) for _ in range(3))
    _product.MOST_CALLS, before = data.draw(st.sampled_from([1, 64])), _product.MOST_CALLS
    recorder, random, made = Direct(), np.random.default_rng(0), []
    for shape, repeats in (((*batch, m, k), True), ((*batch, k, n), True), ((*batch, m, n), False)):
        stored, order, ones = data.draw(strided(shape, repeats))
        whole = recorder.on_device(Tensor.new("float64", stored))
        recorder.device.write(whole.storage.memory, 0, random.integers(-4, 5, stored).astype(np.float64))
        view = permuted(whole, [order.index(axis) for axis in range(len(shape))])
        view = view.viewed(tuple(1 if axis in ones else size for axis, size in enumerate(shape)), view.strides)
        made.append(view if not repeats else view.broadcast(shape))
    a, b, out = made
    alpha, beta = data.draw(st.sampled_from([1.0, -2.0])), data.draw(st.sampled_from([0.0, 1.0, 3.0]))
    wanted = alpha * np.matmul(recorder.of(a), recorder.of(b)) + beta * recorder.of(out)
    memory = recorder.of(whole.viewed((whole.size,), (1,)))
    around = memory.copy()
    try:
        emit_product(Emitter(Node("MatMul", (), ()), [], recorder), a, b, out, alpha, beta)
    finally:
        _product.MOST_CALLS = before
    np.testing.assert_array_equal(recorder.of(out), wanted)
    recorder.of(out)[...] = np.lib.stride_tricks.as_strided(around, out.shape, [each * 8 for each in out.strides])
    np.testing.assert_array_equal(memory, around)  # nothing else has changed
