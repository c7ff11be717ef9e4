"""Operators that move elements on the emulated device: views, copies and padding against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype
from runtime.codegen import address, emulation, nvrtc
from runtime.codegen.elementwise import Operand, pointwise
from runtime.codegen.emulation import Argument, Faults, Memory
from runtime.codegen.indexing import settle_kernel
from runtime.codegen.kernel import Kernel
from runtime.codegen.movement import copy_kernel, eye_kernel, pad_kernel, reverse_kernel, triangle_kernel
from runtime.codegen.scalar import DTYPES
from runtime.cuda.executor import Executor

from .harness import emulate, needs_compiler
from .oracle import agree

pytestmark = needs_compiler
FAR = 2**62


def ramp(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(numpy_dtype(dtype))


class Graph:
    """A graph whose nodes are all outputs, and copies of what is not computed on."""

    def __init__(self, opset: int = 23) -> None:
        self.builder = Builder("moves", opset=opset)
        self.feeds: dict[str, np.ndarray] = {}

    def input(self, array: np.ndarray) -> Value:
        name = f"i{len(self.feeds)}"
        self.feeds[name] = array
        return self.builder.input(name, array.dtype.name, array.shape)

    def out(self, *values: Value) -> Value:
        for value in values:
            self.builder.output(value, f"y{len(self.builder._graph.outputs)}")
        return values[0]

    def check(self, on_host: tuple[str, ...] = ()) -> Executor:
        graph = self.builder.graph()
        return agree(graph, self.feeds, rtol={}, exact=graph.outputs, on_host=on_host)

    def launches(self, on_host: tuple[str, ...] = ()) -> list[str]:
        device: Any = self.check(on_host).device
        return device.launches


def test_what_strides_can_say_launches_nothing() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(2, 3, 4, 5))
    t = g.out(b.Transpose(x, perm=[2, 0, 3, 1]))
    g.out(b.Transpose(x))
    s = g.out(b.Slice(t, starts=[3, -1], ends=[-FAR, 0], axes=[0, 2], steps=[-2, -1]))
    g.out(b.Slice(x, starts=[1, -100, 2], ends=[100, 2, -1], axes=[0, 1, -1], steps=[1, 1, 2]))
    g.out(b.Expand(b.Slice(x, starts=[0], ends=[1], axes=[1]), [3, 2, 7, 4, 5]))
    u = g.out(b.Unsqueeze(s, [0, -1]))
    g.out(b.Squeeze(u, [0]), b.Squeeze(u), b.Squeeze(u, [-1]))
    g.out(b.Reshape(x, [6, -1]), b.Reshape(x, [0, 0, 2, 2, 5]), b.Flatten(x, axis=2), b.Flatten(x, axis=-1))
    g.out(b.Reshape(b.Transpose(x, perm=[2, 3, 0, 1]), [4, 5, 6]), b.Flatten(b.Transpose(x, perm=[2, 3, 0, 1]), axis=2))
    g.out(*b.op("Split", x, outputs=3, axis=-1, split=[2, 0, 3]))
    g.out(*b.op("Split", x, outputs=3, axis=3, num_outputs=3))
    g.out(b.Identity(t), b.Shape(t), b.Shape(t, start=1, end=-1), b.Size(s))
    g.out(b.Reshape(x, b.Concat(b.Shape(x, end=1), np.array([-1]), axis=0)))
    g.out(b.Pad(x, [0, 0, -1, 0, 0, -1, 0, 0]), b.CenterCropPad(x, [3, 3], axes=[2, 3]))
    assert g.launches() == []


def test_reshapes_that_move_elements_copy_once() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(2, 3, 4))
    g.out(b.Reshape(b.Transpose(x, perm=[2, 0, 1]), [4, 6]))  # the last two lie evenly: no copy
    g.out(b.Reshape(b.Transpose(x, perm=[0, 2, 1]), [2, 12]))
    g.out(b.Flatten(b.Slice(x, starts=[-1], ends=[-FAR], axes=[1], steps=[-1]), axis=0))
    g.out(b.Reshape(b.Expand(b.Unsqueeze(x, [1]), [2, 3, 3, 4]), [6, 3, 4]))
    assert g.launches() == ["eg_copy"] * 3


def test_large_transposes_go_through_shared_memory() -> None:
    g = Graph()
    b = g.builder
    for dtype, shape, perm in (("float32", (2, 40, 33), (0, 2, 1)), ("float16", (35, 3, 20), (2, 1, 0)),
                               ("int64", (17, 70), (1, 0)), ("bool", (16, 2, 2, 33), (3, 1, 2, 0))):
        x = g.input(ramp(*shape, dtype=dtype))
        g.out(b.Reshape(b.Transpose(x, perm=list(perm)), [-1]))
    x = g.input(ramp(40, 36))
    g.out(b.Reshape(b.Transpose(b.Slice(x, starts=[-1], ends=[-FAR], axes=[1], steps=[-1]), perm=[1, 0]), [-1]))
    assert g.launches() == ["eg_transpose"] * 5


def test_every_element_type_is_moved() -> None:
    g = Graph()
    b = g.builder
    for dtype in sorted(DTYPES):
        x = g.input(ramp(2, 3, dtype=dtype))
        g.out(b.Concat(b.Transpose(x), b.Transpose(x), axis=1))
        if dtype in ("float64", "bfloat16", "int8", "uint64"):
            g.out(b.Pad(x, [1, 0, 0, 2], np.array(7).astype(numpy_dtype(dtype))), b.Trilu(x, upper=0))
    g.check()


def test_concatenations_and_repetitions() -> None:
    g = Graph()
    b, x, y = g.builder, g.input(ramp(2, 3, 4)), g.input(ramp(2, 4, 2))
    turned = b.Transpose(y, perm=[0, 2, 1])
    g.out(b.Concat(x, turned, x, axis=1), b.Concat(x, axis=0), b.Concat(turned, turned, axis=-2))
    g.out(b.Concat(x, b.Slice(x, starts=[0], ends=[0], axes=[2]), axis=2))
    g.out(b.Tile(x, [1, 2, 3]), b.Tile(turned, [3, 1, 1]), b.Tile(x, [0, 1, 1]), b.Tile(x, [1, 1, 1]))
    z = g.input(ramp(2, 8, 2, 3))
    for mode in ("DCR", "CRD"):
        g.out(b.DepthToSpace(z, blocksize=2, mode=mode))
    g.out(b.SpaceToDepth(g.input(ramp(2, 3, 4, 6)), blocksize=2))
    g.check()


def test_padding() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(3, 4, 5))
    turned = b.Transpose(x, perm=[2, 0, 1])
    for mode in ("constant", "reflect", "edge", "wrap"):
        g.out(b.Pad(turned, [1, 0, 2, 2, 1, 1], mode=mode))
        g.out(b.Pad(x, [2, -1, 0, 1], axes=[-1, 0], mode=mode))
        g.out(b.Pad(g.input(ramp(1, 3)), [0, 2, 0, 1], mode=mode))
    g.out(b.Pad(x, [-1, 2, 0, 0, -2, 1], np.array(-3.5, np.float32)))
    g.out(b.Pad(x, [1] * 6, g.input(np.array(np.nan, np.float32))))
    g.out(b.CenterCropPad(x, [6, 3, 5]), b.CenterCropPad(x, [2, 8], axes=[0, 2]))
    assert not g.check().unplannable


def test_triangles_diagonals_and_fillings() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(2, 4, 5))
    for upper in (0, 1):
        for k in (-2, 0, 1, 9):
            g.out(b.Trilu(b.Transpose(x, perm=[0, 2, 1]), np.array(k), upper=upper))
    g.out(b.Trilu(x, g.input(np.array(-1))))
    square = g.input(ramp(3, 5, dtype="int32"))
    g.out(b.EyeLike(square), b.EyeLike(square, k=1, dtype=1), b.EyeLike(square, k=-2, dtype=11))
    g.out(b.Add(b.ConstantOfShape(b.Shape(x), value=np.array([2.0], np.float32)), x))
    g.out(b.Add(b.Range(np.array(0), b.Squeeze(b.Shape(x, start=2)), np.array(1)), np.array(3)))
    g.out(b.ReverseSequence(x, g.input(np.array([1, 4])), batch_axis=0, time_axis=1))
    g.out(b.ReverseSequence(b.Transpose(x, perm=[1, 2, 0]), np.array([4, 1, 2, 3, 0]), batch_axis=1, time_axis=0))
    assert not g.check().unplannable


def test_sizes_that_depend_on_data() -> None:
    g = Graph()
    b = g.builder
    shape, limit = g.input(np.array([2, 3])), g.input(np.array(4))
    g.out(b.ConstantOfShape(shape, value=np.array([1.5], np.float32)))
    g.out(b.Mul(b.Range(np.array(0), limit, np.array(1)), np.array(2)))
    g.out(b.Expand(g.input(np.ones((1, 1), np.float32)), shape), b.Reshape(g.input(ramp(6)), shape))
    g.check(on_host=())


def test_ranks_and_sizes_at_the_edge() -> None:
    g = Graph()
    b = g.builder
    scalar, empty, one = g.input(np.array(3, np.float32)), g.input(np.zeros((2, 0, 3), np.float32)), g.input(ramp(1, 1))
    g.out(b.Transpose(scalar), b.Reshape(scalar, [1, 1]), b.Reshape(one, np.zeros(0, np.int64)))
    g.out(b.Flatten(scalar, axis=0))
    g.out(b.Squeeze(one), b.Unsqueeze(scalar, [0]), b.Expand(scalar, [2, 2]), b.Expand(one, [3, 1, 1]))
    g.out(b.Transpose(empty), b.Reshape(empty, [3, 0], allowzero=1), b.Concat(empty, empty, axis=1), b.Flatten(empty))
    g.out(b.Slice(empty, starts=[1], ends=[5], axes=[1]), b.Expand(b.Reshape(scalar, [1, 1]), [0, 4]))
    g.out(b.Pad(empty, [0, 1, 0, 0, 1, 0]), b.Tile(one, [1, 1]))
    g.out(b.Slice(one, starts=[0], ends=[1], axes=[1], steps=[7]))
    g.out(b.Shape(scalar), b.Size(scalar), b.Size(empty), b.Concat(b.Reshape(scalar, [1]), b.Reshape(one, [1]), axis=0))
    g.check()


def run(kernel: Kernel, x: np.ndarray, shape: tuple[int, ...]) -> None:
    source, target = Memory.of(x.nbytes), Memory.of(4 * int(np.prod(shape)))
    source.data[:], source.filled[:] = x.reshape(-1).view(np.uint8), 1
    emulation.launch(kernel, [Argument(source, 0, "float32", x.shape, address.contiguous(x.shape)),
                              Argument(target, 0, "float32", shape, address.contiguous(shape))], 3, 2)
    assert target.filled.all()


@pytest.mark.parametrize(("old", "new"), [
    ("EG_BARRIER();\n  for (int c", "for (int c"), ("EG_BARRIER();\n}", "}"), ("top + r < 40", "top + r < 64"),
    ("tile[(int)threadIdx.x * 33 + c]", "tile[(int)threadIdx.x * 33 + c + 1]"), ("tile, 1056", "tile, 1024"),
    ("(left + c) * 40", "(left + c) * 39"),
])  # fmt: skip
def test_planted_faults_of_a_transposition_are_found(old: str, new: str) -> None:
    kernel = copy_kernel("float32", (33, 40), (1, 33), (40, 1))
    x = ramp(40, 33)
    run(kernel, x, (33, 40))
    assert old in kernel.body
    with pytest.raises((Faults, AssertionError)):
        run(replace(kernel, body=kernel.body.replace(old, new)), x, (33, 40))


@pytest.mark.parametrize(("old", "new"), [("c1 >= 0 && ", ""), ("c0 < 3", "c0 < 4"), ("c1 * 1", "c1 * 2")])
def test_planted_faults_of_padding_are_found(old: str, new: str) -> None:
    kernel = pad_kernel("float32", "constant", (3, 4), (4, 1), (1, 2), (5, 7), "(0.0f)")
    run(kernel, ramp(3, 4), (5, 7))
    assert old in kernel.body
    with pytest.raises(Faults, match="read outside of the tensor"):
        run(replace(kernel, body=kernel.body.replace(old, new)), ramp(3, 4), (5, 7))


def test_kernels_of_more_elements_than_32_bits_count_compile() -> None:
    huge, turned = (70000, 40000), (1, 70000)
    dense = address.contiguous(huge)
    kernels = [copy_kernel("int8", huge, dense, turned), copy_kernel("int8", huge, (80000, 2), dense),
               pad_kernel("float16", "reflect", huge, dense, (1, 0), (70001, 40000), ""),
               triangle_kernel("int8", huge, turned, True, None), eye_kernel("float64", *huge, 3),
               pointwise("neg", huge, [Operand("float32", turned)], "float32", "-a0"),
               reverse_kernel("int8", huge, dense, 0, 1, ("int64", 1)), settle_kernel("int8", huge, turned, 4)]
    assert all(kernel.wide for kernel in kernels)
    emulation.prepare(kernels)
    for architecture in nvrtc.ARCHITECTURES:
        nvrtc.check(kernels, architecture)


def test_strings_stay_on_the_host() -> None:
    b = Builder("strings", opset=21)
    b.output(b.Identity(b.input("x", "string", [2])), "y")
    b.output(b.Neg(b.input("z", "float32", [2])), "w")
    found, _ = emulate(b.graph(), {"x": np.array(["a", "b"], object), "z": np.ones(2, np.float32)})
    assert found[0].tolist() == ["a", "b"]
