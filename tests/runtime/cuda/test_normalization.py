"""Softmax and normalizations on the emulated device against ONNX Runtime, and faults planted in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphs
from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype
from runtime.codegen import emulation, kernel, normalization, nvrtc
from runtime.codegen.emulation import Argument, Faults, Memory
from runtime.codegen.kernel import Kernel
from runtime.codegen.normalization import Normal, Parts
from runtime.codegen.reduction import FOLDS, arg_kernel, fold_kernel
from runtime.codegen.rowwise import Layout, Operand
from runtime.codegen.scalar import Scalar

from .harness import ON_GPU, check, expected, needs_compiler
from .oracle import agree

pytestmark = needs_compiler
RTOL = {"float32": 1e-4, "float64": 1e-10, "float16": 4e-3, "bfloat16": 4e-2}


class Cases:
    """Builds a graph with random inputs."""

    def __init__(self, dtype: str = "float32", opset: int = 23) -> None:
        self.b = Builder("cases", opset=opset, opsets={"com.microsoft": 1})
        self.random, self.dtype = np.random.default_rng(5), dtype
        self.feeds: dict[str, np.ndarray] = {}

    def put(self, array: np.ndarray) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.b.input(name, self.dtype, array.shape)

    def normal(self, *shape: int) -> Value:
        return self.put((2 * self.random.normal(size=shape)).astype(numpy_dtype(self.dtype)))

    def positive(self, *shape: int) -> Value:
        return self.put((0.1 + self.random.random(shape)).astype(numpy_dtype(self.dtype)))

    def keep(self, made: object) -> None:
        for value in made if isinstance(made, tuple) else (made,):
            self.b.output(value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_softmax_along_any_axis(dtype: str) -> None:
    c = Cases(dtype)
    x, turned = c.normal(3, 40, 33), c.b.Transpose(c.normal(33, 2, 34), perm=[1, 2, 0])
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in (0, 1, 2):
            c.keep(c.b.op(op, x, axis=axis))
            if dtype == "float32":
                c.keep(c.b.op(op, turned, axis=axis))
    agree(c.b.graph(), c.feeds, rtol=RTOL)


def test_softmax_of_long_rows_many_rows_and_old_versions(tmp_path: Path) -> None:
    c = Cases(opset=11)
    x, long, many = c.normal(2, 3, 5, 7), c.normal(2, 17000), c.normal(400, 9)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        c.keep(c.b.op(op, x, axis=2, flatten=1))
        c.keep(c.b.op(op, long, axis=1, flatten=1))
        c.keep(c.b.op(op, many, axis=1, flatten=1))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path), rtol=1e-4)


def test_softmax_of_special_rows() -> None:
    c = Cases()
    value = c.random.normal(size=(6, 50)).astype(np.float32)
    value[0] = -np.inf
    value[1, :40] = -np.inf
    value[2, 7] = np.nan
    value[3, 9] = np.inf
    value[4] *= 1e30
    x = c.put(value)
    for op in ("Softmax", "LogSoftmax"):
        c.keep(c.b.op(op, x, axis=1))
    agree(c.b.graph(), c.feeds, rtol=RTOL)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_layer_and_rms_normalization(dtype: str) -> None:
    c = Cases(dtype)
    for shape in ((5, 1), (5, 31), (3, 1000), (2, 3, 37)) if dtype == "float32" else ((5, 33),):
        x, vectors = c.normal(*shape), [c.normal(shape[-1]) for _ in range(2)]
        c.keep(c.b.LayerNormalization(x, *vectors, axis=-1))
        c.keep(c.b.LayerNormalization(x, vectors[0], axis=-1, epsilon=0.1))
        c.keep(c.b.RMSNormalization(x, vectors[0], axis=-1))
    whole = c.b.Transpose(c.normal(6, 4, 5), perm=[1, 0, 2])
    c.keep(c.b.LayerNormalization(whole, c.normal(6, 5), c.normal(6, 5), axis=1))
    c.keep(c.b.RMSNormalization(whole, c.normal(4, 6, 5), axis=0))
    if dtype == "float32":
        c.keep(c.b.LayerNormalization(whole, c.normal(5), axis=2, outputs=3))
    agree(c.b.graph(), c.feeds, rtol=RTOL)


def test_skip_layer_normalization() -> None:
    c = Cases()
    for rows, columns in ((3, 32), (2, 100)):
        x, skip, (g, b1, b2) = c.normal(2, rows, columns), c.normal(2, rows, columns), (
            c.normal(columns) for _ in range(3))  # fmt: skip
        for inputs in ((x, skip, g), (x, skip, g, b1), (x, skip, g, b1, b2), (x, skip, g, None, b2)):
            c.keep(_skip(c, "SkipLayerNormalization", inputs)[::3])
        for inputs in ((x, skip, g), (x, skip, g, b1)):
            c.keep(_skip(c, "SkipSimplifiedLayerNormalization", inputs)[::3])
    agree(c.b.graph(), c.feeds, rtol=RTOL)


def _skip(c: Cases, op: str, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
    number = len(c.b._graph.nodes)
    names = [f"y{number}", "", "", f"sum{number}"]
    type_ = inputs[0].type  # type: ignore[union-attr]
    made = c.b.op(op, *inputs, domain="com.microsoft", outputs=names, types=[type_, None, None, type_],  # type: ignore[list-item]
                  epsilon=1e-5)
    assert isinstance(made, tuple)
    return made


def test_simplified_layer_normalization(tmp_path: Path) -> None:
    """An operator that ONNX Runtime has put into ONNX's own domain."""
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-6)
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
             for name, shape in (("x", [3, 65]), ("s", [65]), ("y", [3, 65]))]
    model = helper.make_model(helper.make_graph([node], "simplified", types[:2], types[2:]),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    graph = graphs.load(model.SerializeToString())
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(3, 65)).astype(np.float32), "s": random.normal(size=65).astype(np.float32)}
    check(graph, feeds, expected(graph, feeds, tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalizations_of_images(dtype: str) -> None:
    c = Cases(dtype, opset=22)
    for sizes in ((7,), (5, 7), (33, 35)) if dtype == "float32" else ((5, 7),):
        x, vectors = c.normal(2, 6, *sizes), [c.normal(6), c.normal(6)]
        c.keep(c.b.BatchNormalization(x, *vectors, c.normal(6), c.positive(6), epsilon=1e-3))
        c.keep(c.b.InstanceNormalization(x, *vectors))
        if dtype == "float32":
            c.keep(c.b.GroupNormalization(x, *vectors, num_groups=3))
            for size in (1, 3, 5, 9) if len(sizes) == 2 else ():
                c.keep(c.b.LRN(x, size=size, alpha=0.1, bias=2.0))
        for axis in (0, 1, -1):
            c.keep(c.b.LpNormalization(x, axis=axis, p=1 + axis % 2))
    if dtype == "float32":
        x = c.b.Transpose(c.normal(4, 5, 3, 2), perm=[3, 2, 0, 1])
        c.keep(c.b.GroupNormalization(x, c.normal(3), c.normal(3), num_groups=1))
        c.keep(c.b.LRN(x, size=3))
        c.keep(c.b.MeanVarianceNormalization(x))
        c.keep(c.b.MeanVarianceNormalization(x, axes=[1]))
        c.keep(c.b.InstanceNormalization(x, c.normal(3), c.normal(3)))
    c.keep(c.b.BatchNormalization(c.normal(4, 3), *(c.normal(3) for _ in range(3)), c.positive(3)))
    agree(c.b.graph(), c.feeds, rtol={"float32": 3e-4, "float64": 1e-9})


# Faults planted in texts of kernels, or of the language: (name, what is replaced, by what, the emulation must see it).
PLANTED = [
    ("no barrier before partial results", "  EG_BARRIER();  // the last reduction's readers are done\n", "", True),
    ("no barrier after partial results", "  EG_BARRIER();\n  v = partial[base];", "  v = partial[base];", True),
    ("shuffles stop early", "for (int s = warp_threads / 2; s > 0; s >>= 1) v =",
     "for (int s = warp_threads / 2; s > 1; s >>= 1) v =", False),
    ("one warp is forgotten", "for (int w = 1; w < EG_BX / 32; ++w) v =",
     "for (int w = 1; w < EG_BX / 32 - 1; ++w) v =", False),
    ("the barrier of one warp", "  EG_BARRIER();\n  v = partial[",
     "  if (warp == 0) EG_BARRIER();\n  v = partial[", True),
    ("a row that is not there is written", "do { if (eg_live) EG_PUT(p, i, v); } while (0)", "EG_PUT(p, i, v)", True),
    ("a row that is not there is read", "(eg_index)threadIdx.y : (R) - 1;", "(eg_index)threadIdx.y : (R);", True),
    ("the column is off by one", "k * EG_BX + (eg_index)threadIdx.x;", "k * EG_BX + (eg_index)threadIdx.x + 1;", False),
    ("one column too many", "const bool eg_inside = j < (N);", "const bool eg_inside = j <= (N);", True),
    ("a sum in a condition", "const float variance = eg_row_sum(squares)",
     "float variance = 0; if (threadIdx.x < 64) variance = eg_row_sum(squares)", True),
    ("the mean is not shared", "const float mean = eg_row_sum(sum)", "const float mean = sum", False),
]  # fmt: skip


def _standardized(rows: int, columns: int) -> Kernel:
    layout = Layout((rows, columns), (1,))
    whole = layout.operand("float32", (columns, 1))
    return normalization.normal_kernel("standardize", layout, Normal("float32", 0.0), Parts(whole, whole), False)


def _run(made: Kernel, x: np.ndarray, seed: int, dtype: str = "float32") -> np.ndarray:
    """The one output of a kernel of one input."""
    shape = x.shape if made.name == "eg_standardize" else x.shape[:1]
    size = Scalar.of(dtype).bits // 8
    memory = Memory.of(2 * x.nbytes + 256)
    memory.data[: x.nbytes] = x.reshape(-1).view(np.uint8)
    memory.filled[: x.nbytes] = 1
    count = int(np.prod(shape))
    steps = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    emulation.launch(made, [Argument(memory, 0, "float32", x.shape, (x.shape[1], 1)),
                            Argument(memory, x.nbytes, dtype, shape, steps)], seed)
    found = memory.data[x.nbytes : x.nbytes + count * size]
    return found.view(numpy_dtype(dtype)).reshape(shape)


def _planted(monkeypatch: pytest.MonkeyPatch, made: Kernel, old: str, new: str) -> Kernel:
    text = kernel.language_text()
    if old in made.body:
        return replace(made, body=made.body.replace(old, new))
    assert text.count(old) == 1, text.count(old)
    monkeypatch.setattr(kernel, "_language", text.replace(old, new))
    return replace(made)


@pytest.mark.skipif(ON_GPU, reason="only the emulation may run faults")
@pytest.mark.parametrize("name, old, new, seen", PLANTED, ids=[each[0] for each in PLANTED])
def test_planted_faults_are_found(name: str, old: str, new: str, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    if "row that is not there" in name:
        x = x[:, :100].copy()  # rows share a block
    wanted = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    made = _standardized(*x.shape)
    np.testing.assert_allclose(_run(made, x, 1), wanted, rtol=1e-4, atol=1e-5)
    broken = _planted(monkeypatch, made, old, new)
    assert broken.key != made.key
    try:
        found = _run(broken, x, 1)
    except Faults:
        return
    assert not seen, name
    assert not np.allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(ON_GPU, reason="only the emulation may run faults")
@pytest.mark.parametrize("old, new", [
    ("if (lane == 0) values[base + warp] = v, places[base + warp] = at;", "values[base + warp] = v;"),
    ("const eg_index place = EG_SHUFFLE_XOR(at, s);", "const eg_index place = at;"),
    ("return better || (!worse && (last ? i > j : i < j));", "return better;"),
])  # fmt: skip
def test_faults_planted_in_places_are_found(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.round(np.random.default_rng(0).normal(size=(5, 300)), 1).astype(np.float32)
    layout = Layout(x.shape, (1,))
    made = arg_kernel("argmax", layout, layout.operand("float32", (300, 1)), Operand("int64", (1,), (0,)),
                      "eg_largest_first", False)  # fmt: skip
    np.testing.assert_array_equal(_run(made, x, 1, "int64"), x.argmax(1))
    broken = _planted(monkeypatch, made, old, new)
    try:
        assert (_run(broken, x, 1, "int64") != x.argmax(1)).any()
    except Faults:
        pass


def test_wide_rows_compile() -> None:
    """Sums and softmax of more elements than 32 bits count."""
    if nvrtc.unavailable():
        pytest.skip("NVRTC is not here")
    layout = Layout((1 << 20, 4096), (1,))
    whole = layout.operand("float32", (4096, 1))
    fold = FOLDS["ReduceSum"](Scalar.of("float32"), 4096)
    made = [normalization.softmax_kernel(layout, whole, whole, False, False),
            fold_kernel("reducesum", layout, whole, Operand("float32", (1,), (0,)), fold, False)]
    assert all(each.wide for each in made)
    nvrtc.check(made, "sm_90")
