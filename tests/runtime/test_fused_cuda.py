"""The CUDA reading of fused kernels: run by the checking emulation, taken by NVRTC, with the values of the graph."""

import math
from functools import cache

import numpy as np
import pytest

from graphs import dtypes
from graphs.text import parse_graph
from runtime.codegen import emulation, nvrtc
from runtime.codegen.c.check import draws
from runtime.codegen.c.cuda import Reading, reading_of
from runtime.codegen.c.fused import Plan, plan_of
from runtime.codegen.c.text import FAULT
from runtime.codegen.emulation import Argument, Memory
from runtime.codegen.kernel import Kernel
from runtime.execute import Context
from runtime.program import Program
from tests.runtime.test_fused_indexing import COMPUTED, EMBEDDING, MIDDLE, shapes
from tests.runtime.test_fused_kernels import FAMILIES, graph_of
from tests.search.test_several import ADAM, GATED, RESIDUAL, ROWS, SIDES

needs_emulation = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
needs_nvrtc = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

LOSS = """graph "g" opset 18 (x: float32[4, 7, 3], i: int64[4, 3], w: float32[7]) -> (y) {
  y = SoftmaxCrossEntropyLoss(x, i, w, reduction="mean", ignore_index=-1)
}"""
WHOLE = """graph "g" opset 18 (x: float32[3, 300]) -> (y) {
  e = Exp(x)
  y = ReduceSum(e, keepdims=0)
}"""
TEXTS = {"embedding": EMBEDDING, "gather in the middle": MIDDLE, "gathers of a softmax": COMPUTED, "loss": LOSS,
         "adam": ADAM, "gates": GATED, "row and columns": ROWS, "side by side": SIDES, "sum of everything": WHOLE,
         "residual sum": RESIDUAL.replace("-> (y, a)", "-> (y, s)").replace("  a = MatMul(s, k)\n", "")}
GRAPHS = {**{name: parse_graph(text) for name, text in TEXTS.items()},
          **{name: graph_of(name)[0] for name in FAMILIES}}


@cache
def plan(name: str) -> Plan:
    return plan_of(GRAPHS[name], shapes(GRAPHS[name]))


def readings(name: str) -> list[Reading]:
    """Of the kernels of a graph, in the order in which they run."""
    known = {*GRAPHS[name].inputs, *GRAPHS[name].constants}
    return [reading_of(each.written, known, False) for each in (*plan(name).before, *plan(name).launches)]


def run(name: str, arrays: list[np.ndarray], seed: int) -> tuple[list[np.ndarray], int]:
    """The outputs of the emulated kernels, and what they said of indices."""
    graph = GRAPHS[name]
    memories: dict[str, tuple[Memory, np.dtype, tuple[int, ...]]] = {}

    def hold(tensor: str, array: np.ndarray, filled: bool) -> None:
        memory = Memory.of(array.nbytes)
        if filled:
            memory.data[:] = array.reshape(-1).view(np.uint8)
            memory.filled[:] = 1
        memories[tensor] = memory, array.dtype, array.shape

    for tensor, array in zip(graph.inputs, arrays):
        hold(tensor, np.ascontiguousarray(array).reshape(array.shape), True)
    for tensor, (shape, dtype) in zip(graph.outputs, plan(name).outputs):
        hold(tensor, np.empty(shape, dtype), False)
    hold(FAULT, np.zeros(1, np.int64), True)
    for reading in readings(name):
        arguments = []
        for tensor, parameter in zip(reading.tensors, reading.kernel.parameters):
            if tensor not in memories:  # what one kernel leaves to the next: a number for each label
                hold(tensor, np.zeros(shapes(graph)["i"], dtypes.numpy_dtype(parameter.dtype)), False)
            memory, _, shape = memories[tensor]
            arguments.append(Argument(memory, 0, parameter.dtype, (math.prod(shape),), (1,)))
        emulation.launch(reading.kernel, arguments, seed)
    found = [memories[tensor] for tensor in graph.outputs]
    assert all(memory.filled.all() for memory, _, _ in found), "an element that nothing wrote"
    values = [memory.data.view(kind).reshape(size) for memory, kind, size in found]
    return values, int(memories[FAULT][0].data.view(np.int64)[0])


def every_kernel() -> list[Kernel]:
    return [reading.kernel for name in GRAPHS for reading in readings(name)]


@pytest.fixture(scope="module")
def compiled_together() -> None:
    emulation.prepare(every_kernel())


@needs_emulation
@pytest.mark.parametrize("name", GRAPHS)
def test_the_emulated_kernel_computes_what_the_graph_computes(name: str, compiled_together: None) -> None:
    graph = GRAPHS[name]
    plain = Program(graph, Context.of(graph))
    for seed, (title, arrays) in enumerate(draws(graph, shapes(graph))):
        if title == "special values":  # those are for the C reading, whose check knows what may differ
            continue
        with np.errstate(all="ignore"):
            want = plain.run(arrays)
        got, fault = run(name, arrays, seed)
        assert fault == 0
        for mine, unfused in zip(got, want):
            if mine.dtype.kind != "f":
                np.testing.assert_array_equal(mine, unfused)
            else:
                np.testing.assert_allclose(mine, unfused, rtol=2e-5, atol=2e-5 * max(1, np.abs(unfused).max()))


@needs_emulation
def test_an_index_outside_is_told_and_nothing_is_read_there(compiled_together: None) -> None:
    name = "gather in the middle"
    graph = GRAPHS[name]
    arrays = next(iter(draws(graph, shapes(graph))))[1]
    for wrong in (7, -8):
        arrays[1][1, 2] = wrong
        assert run(name, arrays, 0)[1] == 1


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_nvrtc_takes_every_kernel(architecture: str) -> None:
    nvrtc.check(every_kernel(), architecture)
