"""Operators that pick and place by index on the emulated device, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.dtypes import numpy_dtype
from runtime.codegen.emulation import Faults
from runtime.codegen.indexing import Axis, Indices, gather_kernel
from runtime.codegen.scalar import DTYPES
from runtime.cuda.device import Place
from runtime.cuda.emulated import EmulatedDevice

from .harness import emulate, needs_compiler
from .oracle import node_by_node
from .test_movement import FAR, Graph, ramp

pytestmark = needs_compiler


def test_gathers() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(3, 4, 5))
    turned = b.Transpose(x, perm=[2, 0, 1])
    for dtype in ("int32", "int64"):
        where = g.input(np.array([[2, -1, 0], [1, 1, -3]], dtype))
        g.out(b.Gather(x, where), b.Gather(turned, where, axis=1), b.Gather(turned, b.Transpose(where), axis=-1))
    g.out(b.Gather(x, g.input(np.array(-2)), axis=1), b.Gather(x, g.input(np.zeros((2, 0), np.int64)), axis=2))
    g.out(b.Gather(x, np.array([[0, 2], [2, 0]]), axis=1), b.Gather(x, np.array([0, 1, 3]), axis=1))
    along = g.input(np.array([[[0, -1], [2, 1]], [[1, 1], [0, 0]]]))
    g.out(b.GatherElements(x, along), b.GatherElements(x, along, axis=1), b.GatherElements(turned, along, axis=-1))
    pairs = g.input(np.array([[1, 2], [-1, 0], [0, -3]]))
    g.out(b.GatherND(x, pairs), b.GatherND(turned, b.Slice(pairs, starts=[-1], ends=[-FAR], axes=[0], steps=[-1])))
    g.out(b.GatherND(x, g.input(np.array([[2], [-1]]))), b.GatherND(x, g.input(np.array([1, 2, 3]))))
    g.out(b.GatherND(x, g.input(np.array([[[1], [0]], [[3], [-1]], [[2], [2]]])), batch_dims=1))
    launches = g.launches()
    assert set(launches) == {"eg_gather"}


def test_indices_that_are_known_and_lie_evenly_are_views() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(3, 4, 5))
    for where in (np.array(-1), np.array([2]), np.array([0, 2]), np.array([3, 2, 1, 0]), np.array([1, 1, 1]),
                  np.array([-1, -2]), np.zeros(0, np.int64)):  # fmt: skip
        g.out(b.Gather(x, where, axis=1))
    assert g.launches() == []


def test_every_element_type_is_picked_and_placed() -> None:
    g = Graph()
    b = g.builder
    where = g.input(np.array([2, 0]))
    for dtype in sorted(DTYPES):
        x = g.input(ramp(3, 2, dtype=dtype))
        g.out(b.Gather(x, where))
        g.out(b.ScatterElements(x, g.input(np.array([[1, 0]])), g.input(ramp(1, 2, dtype=dtype)), axis=0))
    g.check()


def test_scatters_keep_the_last_update() -> None:
    g = Graph()
    b, x = g.builder, g.input(ramp(3, 4, 5))
    turned = b.Transpose(x, perm=[2, 0, 1])
    random = np.random.default_rng(1)
    along = g.input(random.integers(-3, 3, (2, 4, 5)))
    updates = g.input(random.normal(size=(2, 4, 5)).astype(np.float32))
    g.out(b.ScatterElements(x, along, updates, axis=0))
    few = g.input(np.array([[[0, -1]], [[3, 3]]]))
    g.out(b.ScatterElements(turned, few, g.input(ramp(2, 1, 2)), axis=2))
    pairs = g.input(np.array([[1, 2], [-1, 0], [0, -4], [1, -2]]))
    g.out(b.ScatterND(x, pairs, g.input(ramp(4, 5))))
    firsts = b.Slice(pairs, starts=[0], ends=[1], axes=[1])
    g.out(b.ScatterND(turned, firsts, b.Transpose(g.input(ramp(4, 4, 3)), perm=[0, 2, 1])))
    g.out(b.ScatterND(x, g.input(np.array([[0, 1, 2], [2, 3, -1], [0, 1, 2]])), g.input(ramp(3))))
    g.out(b.ScatterND(x, g.input(np.zeros((0, 2), np.int64)), g.input(np.zeros((0, 5), np.float32))))
    assert set(g.launches()) == {"eg_claim", "eg_settle", "eg_fill", "eg_copy"}


def test_scatters_that_accumulate() -> None:
    g = Graph()
    b = g.builder
    random = np.random.default_rng(2)
    for dtype, reductions in (("float32", ("add", "mul", "min", "max")), ("int64", ("add", "mul")),
                              ("float16", ("add", "max")), ("int32", ("add",))):  # fmt: skip
        x = g.input(ramp(3, 4, dtype=dtype))
        turned = b.Transpose(x)
        along, pairs = g.input(random.integers(-3, 3, (5, 2))), g.input(random.integers(-3, 3, (6, 1)))
        some = random.integers(-3, 4, (5, 2)).astype(dtype)
        for reduction in reductions:
            g.out(b.ScatterElements(x, along, g.input(some), axis=0, reduction=reduction))
            g.out(b.ScatterND(turned, pairs, g.input(ramp(6, 3, dtype=dtype)), reduction=reduction))
    g.check()


def test_many_updates_are_added_atomically() -> None:
    b = Builder("many", opset=21)
    for dtype in ("float32", "int32", "uint64"):
        x, updates = b.input(f"x{dtype}", dtype, [3]), b.input(f"u{dtype}", dtype, [2000])
        b.output(b.ScatterElements(x, b.input(f"i{dtype}", "int64", [2000]), updates, reduction="add"), f"y{dtype}")
    x, updates, where = b.input("x", "float32", [3]), b.input("u", "float32", [2000]), b.input("i", "int64", [2000])
    b.output(b.ScatterElements(x, where, updates, reduction="mul"), "left")
    random = np.random.default_rng(3)
    feeds = {}
    for name in b._graph.inputs:
        dtype = b._graph.types[name].dtype
        feeds[name] = random.integers(0, 3, 2000 if name[0] in "ui" else 3).astype(dtype)
    graph = b.graph()
    found, executor = emulate(graph, feeds)
    for mine, wanted in zip(found, node_by_node(graph, feeds)):
        np.testing.assert_array_equal(mine, wanted)  # sums of small integers are exact in any order
    assert [entry.split()[0] for entry in executor.on_host] == ["ScatterElements"]


def test_one_hot() -> None:
    g = Graph()
    b = g.builder
    values = g.input(np.array([-1, 4], np.float32))
    for dtype in ("int64", "int32", "float32"):
        where = g.input(np.array([[0, -1, 2], [3, 1, -4]], dtype))
        for axis in (-1, 0, 1):
            if dtype == "int64" or axis == -1:
                g.out(b.OneHot(where, np.array(4), values, axis=axis))
    g.out(b.OneHot(g.input(np.array([1])), np.array([3]), g.input(np.array([9, 2]))))
    g.check()


def test_an_index_outside_reads_nothing_and_writes_nothing() -> None:
    b = Builder("outside", opset=21)
    x, where = b.input("x", "float32", [3, 2]), b.input("i", "int64", [4])
    updates = b.input("u", "float32", [4, 2])
    b.output(b.Gather(x, where), "gathered")
    b.output(b.ScatterND(x, b.Reshape(where, [4, 1]), updates), "scattered")
    b.output(b.ScatterND(x, b.Reshape(where, [4, 1]), updates, reduction="add"), "added")
    b.output(b.GatherND(x, b.Reshape(where, [4, 1])), "picked")
    feeds = {"x": ramp(3, 2), "i": np.array([3, -4, 2**40, 1]), "u": 10 + ramp(4, 2)}
    (gathered, scattered, added, picked), executor = emulate(b.graph(), feeds)
    assert gathered.tolist() == picked.tolist() == [[0, 0], [0, 0], [0, 0], [2, 3]]
    assert scattered.tolist() == [[0, 1], [16, 17], [4, 5]] and added.tolist() == [[0, 1], [18, 20], [4, 5]]
    assert not executor.on_host


def test_a_known_index_outside_is_the_error_of_numpy() -> None:
    b = Builder("error", opset=21)
    b.output(b.Gather(b.input("x", "float32", [3]), np.array([[0, 3]])), "y")
    with pytest.raises(Exception, match="out of bounds"):
        emulate(b.graph(), {"x": ramp(3)})


def test_sizes_that_depend_on_data_are_left_to_numpy() -> None:
    g = Graph()
    b, x = g.builder, g.input(np.array([[0, 2, 0], [1, 0, 3]], np.float32))
    g.out(b.Mul(b.NonZero(x), np.array(2)), b.Compress(x, g.input(np.array([True, False, True])), axis=1))
    g.out(b.op("Unique", x, outputs=1))
    executor = g.check(on_host=("NonZero", "Compress", "Unique"))
    assert executor.unplannable


@pytest.mark.parametrize(("old", "new", "said"), [
    ("k < 5", "k < 6", "read outside of the tensor"), ("k < 0 ? 5 : 0", "0", None), ("k >= 0 && ", "", "outside"),
    ("inside ? EG_GET(x, at)", "true ? EG_GET(x, at + 3 * !inside)", None),
])  # fmt: skip
def test_planted_faults_are_found(old: str, new: str, said: str | None) -> None:
    """Those without a text stay inside of tensors: values show them."""
    kernel = gather_kernel("float32", (4,), Indices("int64", (1,), (0,), (Axis(5, 1),)), False)
    assert old in kernel.body
    device = EmulatedDevice()
    x, where, y = (device.allocate(size) for size in (20, 32, 16))
    device.write(x, 0, ramp(5))
    device.write(where, 0, np.array([4, -1, 5, -6]))
    places = [Place(memory, 0, dtype, (size,), (1,))
              for memory, dtype, size in ((x, "float32", 5), (where, "int64", 4), (y, "float32", 4))]
    device.launch(kernel, places)
    wanted = device.read(y, 0, numpy_dtype("float32"), (4,)).tolist()
    assert wanted == [4, 4, 0, 0]
    broken = replace(kernel, body=kernel.body.replace(old, new))
    if said:
        with pytest.raises(Faults, match=said):
            device.launch(broken, places)
        return
    device.launch(broken, places)
    assert device.read(y, 0, numpy_dtype("float32"), (4,)).tolist() != wanted
