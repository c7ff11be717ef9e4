"""Kernels that read tensors across their memory: rows that are turned around before, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.inference import infer
from graphs.text import parse_graph
from runtime.codegen.c import FusedKernel, native, unavailable
from runtime.codegen.c.check import fault
from search.fusions.measure import small_sizes

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def softmax(x: np.ndarray) -> np.ndarray:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


FAMILIES = {  # nodes, and what they compute of x turned around and z, which is added
    "alone": ("y = Transpose(x, perm=[0, 2, 1])", lambda x, z: x),
    "elementwise": ("t = Transpose(x, perm=[0, 2, 1])\n a = Mul(t, t)\n y = Sub(a, t)", lambda x, z: x * x - x),
    "bias": ("t = Transpose(x, perm=[0, 2, 1])\n y = Add(t, z)", lambda x, z: x + z),
    "rows": ("t = Transpose(x, perm=[0, 2, 1])\n y = Softmax(t, axis=-1)", lambda x, z: softmax(x)),
    "norm": ("t = Transpose(x, perm=[0, 2, 1])\n y = LayerNormalization(t, z, axis=-1)",
             lambda x, z: normalized(x) * z),
    "mean": ("t = Transpose(x, perm=[0, 2, 1])\n y = ReduceMean(t, axes=[2])", lambda x, z: x.mean(-1, keepdims=True)),
    "twice": ("t = Transpose(x, perm=[0, 2, 1])\n e = Exp(x)\n f = Transpose(e, perm=[0, 2, 1])\n y = Add(t, f)",
              lambda x, z: x + np.exp(x)),
}


def kernel_of(nodes: str, batch: int, rows: int, columns: int, dtype: str = "float32") -> FusedKernel:
    graph = parse_graph(f"""graph "g" opset 18 (x: {dtype}[{batch}, {columns}, {rows}], z: {dtype}[{columns}]) -> (y) {{
      {nodes}
    }}""")
    infer(graph)
    return FusedKernel(graph)


def turned(kernel: FusedKernel, *arrays: np.ndarray) -> int:
    return sum(len(each.turned) for each in kernel.plan(*arrays).launches)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("batch", "rows", "columns"), [(1, 16, 8), (2, 17, 9), (3, 100, 31), (1, 33, 130),
                                                        (2, 515, 64), (1, 49, 700), (5, 16, 1024)])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_read_across_memory(family: str, batch: int, rows: int, columns: int, threads: int,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.codegen.c.fused.SHARE_BYTES", 1)
    nodes, function = FAMILIES[family]
    kernel, rng = kernel_of(nodes, batch, rows, columns), np.random.default_rng(0)
    x, z = (rng.standard_normal(shape).astype(np.float32) for shape in ((batch, columns, rows), (columns,)))
    assert turned(kernel, x, z)
    (found,) = kernel(x, z, threads=threads)
    np.testing.assert_allclose(found, function(x.transpose(0, 2, 1).astype(float), z), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "uses"), [("float32", True), ("int32", True), ("float64", False), ("int16", False)])
def test_elements_of_any_size(dtype: str, uses: bool) -> None:
    kernel = kernel_of("t = Transpose(x, perm=[0, 2, 1])\n y = Add(t, z)", 2, 40, 20, dtype)
    x, z = np.arange(1600).reshape(2, 20, 40).astype(dtype), np.arange(20).astype(dtype)
    assert bool(turned(kernel, x, z)) == uses
    np.testing.assert_array_equal(kernel(x, z)[0], x.transpose(0, 2, 1) + z)


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2), (2, 1, 3, 0)])
def test_arrays_that_lie_otherwise(perm: tuple[int, ...]) -> None:
    """The same without a Transpose in the graph: of a view; also a part of one."""
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((18, 20, 22, 24)).astype(np.float32)
    for x in (whole.transpose(perm), whole[1:17, 2:, 3:, 1:].transpose(perm)):
        graph = parse_graph(f'graph "g" opset 18 (x: float32{list(x.shape)}) -> (y) {{\n y = Softmax(x, axis=-1)\n}}')
        np.testing.assert_allclose(FusedKernel(graph)(x)[0], softmax(x.astype(float)), rtol=1e-5)


def test_neighbours_beside_what_is_turned_around() -> None:
    """One operand lies in rows, one across, one is the same for all batches."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[3, 24, 50], r: float32[3, 50, 24],
        b: float32[50, 24]) -> (y) {
      t = Transpose(x, perm=[0, 2, 1])
      a = Add(t, r)
      y = Mul(a, b)
    }""")
    rng = np.random.default_rng(2)
    x, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 24, 50), (3, 50, 24), (50, 24)))
    (found,) = FusedKernel(graph)(x, r, b)
    np.testing.assert_array_equal(found, (x.transpose(0, 2, 1) + r) * b)


BATCH = "row / first->rows * each->batch"
PLANTED = [("elementwise", BATCH, f"1 + {BATCH}"), ("norm", BATCH, f"1 + {BATCH}"),
           ("elementwise", "sizes[launch->split] = count * first->trips", "sizes[launch->split] = first->trips"),
           ("norm", "sizes[launch->split] = count * first->trips", "sizes[launch->split] = first->trips"),
           ("elementwise", "row * first->trips * launch->steps[p]", "row * launch->steps[p]")]


@pytest.mark.parametrize(("family", "right", "wrong"), PLANTED)
def test_the_check_finds_a_planted_fault(family: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the small sizes that large tensors are checked at."""
    written = native.source()
    assert right in written
    monkeypatch.setattr(native, "source", lambda: written.replace(right, wrong))
    faulty = native.engine.__wrapped__()
    monkeypatch.setattr("runtime.codegen.c.fused.engine", lambda: faulty)
    kernel = kernel_of(FAMILIES[family][0], 2, 4000, 60)
    assert fault(kernel, small_sizes(kernel.graph, {"x": (2, 60, 4000), "z": (60,)})) is not None


def test_few_rows_are_read_as_they_lie() -> None:
    kernel = kernel_of("y = Transpose(x, perm=[0, 2, 1])", 2, 15, 100)
    assert not turned(kernel, np.zeros((2, 100, 15), np.float32), np.zeros(100, np.float32))


def test_names_like_those_of_what_is_turned_around() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[30, 40], x0: float32[40, 30]) -> (y) {
      t = Transpose(x, perm=[1, 0])
      y = Add(t, x0)
    }""")
    x, other = np.random.default_rng(3).standard_normal((2, 1200)).astype(np.float32)
    (found,) = FusedKernel(graph)(x.reshape(30, 40), other.reshape(40, 30))
    np.testing.assert_array_equal(found, x.reshape(30, 40).T + other.reshape(40, 30))


@pytest.mark.parametrize(("first", "end"), [(19, 40), (0, 21), (19, 21), (39, 40)])
def test_a_single_row_of_what_is_joined(first: int, end: int) -> None:
    """Loops of one trip are none."""
    graph = parse_graph(f"""graph "g" opset 18 (a: float32[32, 20], b: float32[32, 20]) -> (y) {{
      s = Transpose(a, perm=[1, 0])
      t = Transpose(b, perm=[1, 0])
      c = Concat(s, t, axis=0)
      y = Slice(c, starts=[{first}], ends=[{end}], axes=[0])
    }}""")
    a, b = np.random.default_rng(4).standard_normal((2, 32, 20)).astype(np.float32)
    (found,) = FusedKernel(graph)(a, b)
    np.testing.assert_array_equal(found, np.concatenate([a.T, b.T])[first:end])
