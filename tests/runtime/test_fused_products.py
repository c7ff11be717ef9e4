"""Products and convolutions with what follows them, as one fused kernel: against NumPy, packed, shared by threads."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.ir import Graph
from graphs.text import parse_graph
from runtime.codegen.c import FusedKernel, NotFusable, Packs, fused, native, operands, plan_of, tiles, unavailable
from runtime.codegen.c.check import fault, widened
from runtime.execute import Context
from runtime.program import Program

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture(autouse=True)
def threads_share_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as small as those here are not worth a second thread."""
    monkeypatch.setattr(tiles, "THREAD_WORK", 1 << 6)

# Inputs with a shape each, the nodes, and whether all is done tile by tile.
ATTENTION = "k = constant float32[] 0.25; p = MatMul(a, b); s = Mul(p, k); t = Add(s, m); y = Softmax(t)"
FAMILIES = {
    "alone": ({"a": (5, 7), "b": (7, 40)}, "y = MatMul(a, b)", True),
    "bias and activation": ({"a": (50, 7), "b": (7, 40), "c": (40,)},
        "p = MatMul(a, b); q = Add(p, c); y = Gelu(q)", True),
    "residual": ({"a": (2, 50, 7), "b": (7, 40), "c": (40,), "r": (2, 50, 40)},
                 "p = MatMul(a, b); q = Add(p, c); y = Add(q, r)", True),
    "residual and layer norm": ({"a": (3, 20, 48), "w": (48, 70), "r": (3, 20, 70), "g": (70,), "b": (70,)},
                                "p = MatMul(a, w); q = Add(p, r); y = LayerNormalization(q, g, b)", True),
    "attention": ({"a": (2, 3, 20, 16), "b": (2, 3, 16, 37), "m": (2, 1, 1, 37)}, ATTENTION, True),
    "attention of views": ({"q": (2, 20, 3, 16), "v": (2, 37, 3, 16), "m": (2, 1, 1, 37)},
                           "a = Transpose(q, perm=[0, 2, 1, 3]); b = Transpose(v, perm=[0, 2, 3, 1]); " + ATTENTION,
                           True),
    "heads": ({"a": (2, 20, 48), "w": (48, 48), "c": (48,)}, "p = MatMul(a, w); q = Add(p, c); "
              "r = Reshape(q, shape=[2, 20, 3, 16]); y = Transpose(r, perm=[0, 2, 1, 3])", False),
    "gemm": ({"a": (20, 48), "w": (30, 48), "c": (30,)}, "y = Gemm(a, w, c, transB=1, alpha=0.5, beta=2.0)", True),
    "gemm of columns": ({"a": (48, 20), "w": (48, 30), "c": (20, 1)}, "q = Gemm(a, w, c, transA=1); y = Tanh(q)", True),
    "a row": ({"a": (1, 70), "w": (70, 33), "b": (33,)}, "p = MatMul(a, w); q = Add(p, b); y = Relu(q)", True),
    "rows of batches": ({"a": (4, 1, 70), "w": (4, 70, 33)}, "p = MatMul(a, w); y = Relu(p)", True),
    "pointwise convolution": ({"x": (2, 8, 9, 9), "w": (20, 8, 1, 1), "b": (20,)},
        "q = Conv(x, w, b); y = Relu(q)", True),
    "convolution": ({"x": (2, 8, 9, 9), "w": (20, 8, 3, 3), "b": (20,), "r": (2, 20, 9, 9)},
                    "q = Conv(x, w, b, pads=[1, 1, 1, 1]); z = Add(q, r); y = Relu(z)", True),
    "heads together": ({"a": (2, 4, 13, 20), "b": (2, 4, 20, 37)}, "p = MatMul(a, b); "
        "t = Transpose(p, perm=[0, 2, 1, 3]); y = Reshape(t, shape=[2, 13, 148])", True),
    "columns turned": ({"a": (5, 20), "b": (20, 37)}, "p = MatMul(a, b); y = Transpose(p, perm=[1, 0])", True),
    "columns turned behind a residual": ({"a": (2, 3, 7, 20), "b": (20, 37), "c": (37,), "r": (2, 37, 3, 7)},
        "p = MatMul(a, b); q = Add(p, c); t = Transpose(q, perm=[0, 3, 1, 2]); y = Add(t, r)", True),
    "rows of each batch apart": ({"a": (2, 3, 7, 20), "b": (20, 37)},
        "p = MatMul(a, b); q = Relu(p); y = Transpose(q, perm=[1, 0, 2, 3])", False),
    "rows of each batch apart, moved": ({"a": (2, 3, 7, 20), "b": (20, 37)},
        "p = MatMul(a, b); y = Transpose(p, perm=[1, 0, 2, 3])", True),
    "groups with a residual": ({"x": (2, 8, 9, 9), "w": (20, 2, 3, 3), "r": (2, 20, 9, 9), "b": (20,)},
        "q = Conv(x, w, b, group=4, pads=[1, 1, 1, 1]); z = Add(q, r); y = Relu(z)", True),
    "batches and heads joined": ({"q": (2, 9, 3, 16), "v": (2, 11, 3, 16)},
        "t = Transpose(q, perm=[0, 2, 1, 3]); a = Reshape(t, shape=[6, 9, 16]); u = Transpose(v, perm=[0, 2, 3, 1]); "
        "b = Reshape(u, shape=[6, 16, 11]); p = MatMul(a, b); y = Softmax(p)", True),
    "batches and heads joined on one side": ({"q": (2, 9, 3, 16), "b": (6, 16, 11)},
        "t = Transpose(q, perm=[0, 2, 1, 3]); a = Reshape(t, shape=[6, 9, 16]); p = MatMul(a, b); y = Relu(p)", True),
    "rows joined": ({"q": (3, 5, 4, 16), "b": (16, 37)},
        "t = Transpose(q, perm=[2, 0, 1, 3]); a = Reshape(t, shape=[4, 15, 16]); p = MatMul(a, b); y = Relu(p)", True),
    "joined in different ways": ({"q": (2, 9, 6, 16), "v": (4, 11, 3, 16)},
        "t = Transpose(q, perm=[0, 2, 1, 3]); a = Reshape(t, shape=[12, 9, 16]); u = Transpose(v, perm=[0, 2, 3, 1]); "
        "b = Reshape(u, shape=[12, 16, 11]); y = MatMul(a, b)", True),
    "few positions moved": ({"x": (2, 8, 5, 5), "w": (70, 8, 3, 3)}, "q = Conv(x, w, pads=[1, 1, 1, 1]); "
        "t = Transpose(q, perm=[1, 0, 2, 3]); y = Reshape(t, shape=[70, 50])", True),
    "batch norm": ({"x": (1, 8, 9, 9), "w": (20, 8, 3, 3), "g": (20,), "b": (20,), "e": (20,), "v": (20,)},
                   "q = Conv(x, w); n = BatchNormalization(q, g, b, e, v); y = Relu(n)", True),
    "strided": ({"x": (1, 3, 40, 37), "w": (20, 3, 3, 3)}, "y = Conv(x, w, strides=[2, 2], pads=[1, 1, 1, 1])", True),
    "few positions": ({"x": (2, 8, 5, 5), "w": (70, 8, 3, 3), "b": (70,), "r": (2, 70, 5, 5)},
                      "q = Conv(x, w, b, pads=[1, 1, 1, 1]); z = Add(q, r); y = Relu(z)", True),
    "few positions far apart": ({"x": (1, 40, 9, 9), "w": (50, 40, 1, 1), "b": (50,)},
                                "q = Conv(x, w, b, strides=[2, 2]); y = Tanh(q)", True),
    "groups": ({"x": (2, 8, 9, 9), "w": (20, 4, 3, 3)},
        "q = Conv(x, w, group=2, pads=[0, 1, 0, 1]); y = Relu(q)", True),
    "one dimension": ({"x": (2, 8, 70), "w": (20, 8, 5)},
        "q = Conv(x, w, dilations=[2], pads=[3, 1]); y = Tanh(q)", True),
    "depthwise": ({"x": (2, 5, 19, 23), "w": (5, 1, 3, 3), "b": (5,), "r": (2, 5, 19, 23)},
        "q = Conv(x, w, b, group=5, pads=[1, 1, 1, 1]); z = Add(q, r); y = Relu(z)", True),
    "depthwise, strided": ({"x": (1, 4, 31, 40), "w": (4, 1, 5, 5)},
        "q = Conv(x, w, group=4, strides=[2, 2], pads=[2, 2, 1, 2]); y = Relu(q)", True),
    "depthwise without padding": ({"x": (2, 3, 9, 8), "w": (3, 1, 3, 2)}, "y = Conv(x, w, group=3)", True),
    "depthwise, one dimension": ({"x": (2, 6, 150), "w": (6, 1, 4), "b": (6,)},
        "y = Conv(x, w, b, group=6, dilations=[3], pads=[9, 0])", True),
    "one map": ({"x": (2, 7, 12, 40), "w": (1, 7, 3, 3)}, "y = Conv(x, w, pads=[1, 1, 1, 1])", True),
    "many lines": ({"x": (1, 2, 300, 40), "w": (60, 2, 3, 3)},
        "y = Conv(x, w, pads=[1, 1, 1, 1], dilations=[2, 1], strides=[2, 1])", True),
    "an image turned around": ({"x": (2, 9, 8, 3), "w": (5, 3, 3, 3), "s": (1, 5, 1, 1)},
        "t = Transpose(x, perm=[0, 3, 2, 1]); q = Conv(t, w, pads=[1, 1, 1, 1]); y = PRelu(q, s)", True),
    "three dimensions": ({"x": (1, 3, 6, 7, 8), "w": (5, 3, 2, 3, 2)}, "y = Conv(x, w, pads=[1, 1, 0, 0, 1, 1])", True),
    "same padding": ({"x": (1, 3, 7, 8), "w": (5, 3, 4, 3)},
        'y = Conv(x, w, auto_pad="SAME_LOWER", strides=[2, 1])', True),
}  # fmt: skip


def graph_of(shapes: dict[str, tuple[int, ...]], nodes: str) -> Graph:
    texts = ", ".join(f"{name}: float32{list(shape)}" for name, shape in shapes.items())
    body = nodes.replace("; ", "\n")
    return parse_graph(f'graph "g" opset 20 ({texts}) -> (y) {{\n{body}\n}}')


def numbers(graph: Graph, shapes: dict[str, tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shapes[name]).astype(np.float32) for name in graph.inputs]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_the_graph_does(family: str) -> None:
    shapes, nodes, in_tiles = FAMILIES[family]
    graph = graph_of(shapes, nodes)
    assert fault(FusedKernel(graph), shapes) is None
    plan = plan_of(graph, shapes)
    assert plan.product is not None and (not plan.launches) == in_tiles


BESIDE = {  # a product that ends in a part of a Concat
    "maps": ({"x": (2, 8, 9, 9), "w": (20, 8, 3, 3), "b": (20,), "r": (2, 5, 9, 9), "s": (2, 3, 9, 9)},
             "q = Conv(x, w, b, pads=[1, 1, 1, 1]); z = Relu(q); y = Concat(r, z, s, axis=1)"),
    "few positions": ({"x": (2, 8, 5, 5), "w": (70, 8, 3, 3), "r": (2, 5, 5, 5)},
                      "q = Conv(x, w, pads=[1, 1, 1, 1]); z = Tanh(q); y = Concat(z, r, axis=1)"),
    "planes": ({"x": (2, 16, 9, 9), "w": (16, 1, 3, 3), "r": (2, 5, 9, 9)},
               "q = Conv(x, w, group=16, pads=[1, 1, 1, 1]); z = Relu(q); y = Concat(r, z, axis=1)"),
    "columns": ({"a": (2, 13, 20), "b": (20, 37), "c": (37,), "r": (2, 13, 7)},
                "p = MatMul(a, b); q = Add(p, c); y = Concat(r, q, axis=2)"),
    "rows": ({"a": (2, 13, 20), "b": (20, 37), "r": (2, 7, 37)}, "p = MatMul(a, b); y = Concat(p, r, axis=1)"),
    "batches": ({"a": (2, 13, 20), "b": (20, 37), "r": (1, 13, 37)}, "p = MatMul(a, b); y = Concat(r, p, axis=0)"),
}  # fmt: skip


@pytest.mark.parametrize("family", BESIDE)
def test_a_product_is_written_into_its_part_of_a_concat(family: str) -> None:
    shapes, nodes = BESIDE[family]
    graph = graph_of(shapes, nodes)
    assert fault(FusedKernel(graph), shapes) is None
    plan = plan_of(graph, shapes)
    assert plan.product is not None and not any(plan.rooms)
    kernel, arrays = FusedKernel(graph), numbers(graph, shapes)
    (one,), (three,) = kernel(*arrays), kernel(*arrays, threads=3)
    np.testing.assert_array_equal(one, three)
    (want,) = Program(graph, Context.of(graph)).run(arrays)
    np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["residual and layer norm", "attention", "convolution", "groups", "heads",
                                    "heads together"])
@pytest.mark.parametrize("threads", [1, 3])
def test_constants_are_packed_once_and_threads_share_tiles(family: str, threads: int) -> None:
    shapes, nodes, _ = FAMILIES[family]
    graph = graph_of(shapes, nodes)
    kernel, arrays = FusedKernel(graph), numbers(graph, shapes)
    (want,) = kernel(*arrays)
    packs = Packs(frozenset(range(len(arrays))))
    for _ in range(2):
        np.testing.assert_array_equal(kernel(*arrays, threads=threads, packs=packs)[0], want)
    made = dict(packs.made)
    kernel(*arrays, threads=threads, packs=packs)
    assert packs.made.keys() == made.keys() and all(packs.made[key] is each for key, each in made.items())


@pytest.mark.parametrize(("m", "k", "n"), [(300, 700, 333), (13, 321, 32), (15, 640, 65), (29, 1, 31),
                                       (30, 1024, 40), (20, 33, 1601), (6, 2048, 3)])
@pytest.mark.parametrize("threads", [1, 4])
def test_sizes_around_those_of_blocks(m: int, k: int, n: int, threads: int) -> None:
    shapes = {"a": (m, k), "b": (k, n), "c": (n,)}
    graph = graph_of(shapes, "p = MatMul(a, b); y = Add(p, c)")
    a, b, c = numbers(graph, shapes)
    (got,) = FusedKernel(graph)(a, b, c, threads=threads)
    np.testing.assert_allclose(got, a.astype(float) @ b + c, atol=2e-4)
    (turned,) = FusedKernel(graph)(np.asfortranarray(a), np.asfortranarray(b), c, threads=threads)
    np.testing.assert_array_equal(turned, got)


def convolution(x: np.ndarray, w: np.ndarray, attrs: dict[str, list[int]], group: int) -> np.ndarray:
    """The definition, in float64: x[n, c, h, w] * w[m, c / group, i, j]."""
    top, left, bottom, right = attrs["pads"]
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], attrs["dilations"])]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    windows = windows[:, :, ::attrs["strides"][0], ::attrs["strides"][1], ::attrs["dilations"][0],
                      ::attrs["dilations"][1]]
    parts = [np.einsum("bchwij,mcij->bmhw", part, weights)
             for part, weights in zip(np.split(windows, group, 1), np.split(w.astype(float), group))]
    return np.concatenate(parts, 1)


few = st.integers(1, 3)
SIDES = st.tuples(few, few, few, few)


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(7, 20), st.integers(7, 20)), st.tuples(few, st.integers(2, 4), st.integers(1, 40)),
       SIDES, SIDES, st.integers(1, 2), st.integers(1, 3), st.integers(0, 1 << 32))
def test_convolutions_of_any_shape(size: tuple[int, int], channels: tuple[int, int, int], steps: tuple[int, ...],
                                   edges: tuple[int, ...], group: int, threads: int, seed: int) -> None:
    batch, inner, maps = channels
    attrs = {"strides": [*steps[:2]], "dilations": [*steps[2:]], "pads": [each - 1 for each in edges]}
    shapes = {"x": (batch, inner * group, *size), "w": (maps * group, inner, 1 + seed % 3, 1 + seed // 3 % 3)}
    text = ", ".join(f"{name}={value}" for name, value in attrs.items())
    graph = graph_of(shapes, f"y = Conv(x, w, {text}, group={group})")
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shapes[name]).astype(np.float32) for name in "xw")
    x.flat[rng.integers(x.size, size=2)] = np.nan, np.inf
    want = convolution(x, w, attrs, group)
    packs = Packs(frozenset({1} if seed % 2 else ()))
    (got,) = FusedKernel(graph)(x, w, threads=threads, packs=packs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [4, 16, 32])
@pytest.mark.parametrize("windows", [(3, 14), (2, 16), (5, 33)])
@pytest.mark.parametrize("maps", [5, 70])
def test_patches(size: int, windows: tuple[int, int], maps: int) -> None:
    shapes = {"x": (2, 3, windows[0] * size, windows[1] * size), "w": (maps, 3, size, size)}
    graph = graph_of(shapes, f"y = Conv(x, w, strides=[{size}, {size}])")
    x, w = numbers(graph, shapes)
    attrs = {"strides": [size, size], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
    for threads in (1, 3):
        np.testing.assert_allclose(FusedKernel(graph)(x, w, threads=threads)[0], convolution(x, w, attrs, 1), atol=5e-4)


def test_a_convolution_of_several_tiles() -> None:
    shapes = {"x": (1, 40, 61, 67), "w": (70, 40, 3, 3)}
    graph = graph_of(shapes, "q = Conv(x, w, pads=[1, 1, 1, 1]); y = Relu(q)")
    x, w = numbers(graph, shapes)
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    want = np.maximum(np.einsum("bchwij,mcij->bmhw", windows, w, optimize=True), 0)
    for threads in (1, 3):
        np.testing.assert_allclose(FusedKernel(graph)(x, w, threads=threads)[0], want, atol=1e-4)


def test_callers_at_once_have_their_own_results() -> None:
    shapes, nodes, _ = FAMILIES["residual and layer norm"]
    shapes = {**shapes, "a": (3, 200, 48), "r": (3, 200, 70)}
    graph = graph_of(shapes, nodes)
    kernel, arrays = FusedKernel(graph), numbers(graph, shapes)
    (want,) = kernel(*arrays)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(kernel(*arrays, threads=3)[0], want):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


@pytest.mark.parametrize("nodes", ["y = MatMul(a, b)", "p = MatMul(a, b); y = Relu(p)"])
def test_products_are_not_exact(nodes: str) -> None:
    shapes = {"a": (2, 3), "b": (3, 4)}
    with pytest.raises(NotFusable, match="bits"):
        plan_of(graph_of(shapes, nodes), shapes, exact=True)


def test_a_place_in_the_image_that_is_one_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operands._offsets
    monkeypatch.setattr(operands, "_offsets", lambda sizes, steps: np.maximum(right(sizes, steps) - 1, 0))
    shapes, nodes, _ = FAMILIES["convolution"]
    assert fault(FusedKernel(graph_of(shapes, nodes)), shapes) is not None


PLANTED = {  # what is written for what in the engine, and the family whose check has to find it
    "a block of rows of B replaces the sum": ("block > 0, next,", "0, next,", "long"),
    "a row of A is read twice": ("row + thrice", "row + 2 * step", "bias and activation"),
    "padding is a column off": ("memcpy(to, from", "memcpy(to, 1 + from", "convolution"),
    "the kernel behind misses a row": ("sizes[job->row_size] = rows", "sizes[job->row_size] = rows - 1",
                                       "bias and activation"),
}


def plant(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels run in an engine with other text in one place."""
    written = native.source()
    assert right in written
    monkeypatch.setattr(native, "source", lambda: written.replace(right, wrong))
    faulty = native.engine.__wrapped__()
    for module in (tiles, fused):
        monkeypatch.setattr(module, "engine", lambda: faulty)


@pytest.mark.parametrize("name", PLANTED)
def test_the_check_finds_a_planted_fault_of_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, family = PLANTED[name]
    families = {**FAMILIES, "long": ({"a": (15, 650), "w": (650, 70)}, "p = MatMul(a, w); y = Relu(p)", True)}
    plant(right, wrong, monkeypatch)
    shapes, nodes, _ = families[family]
    kernel = FusedKernel(graph_of(shapes, nodes))
    assert fault(kernel, shapes) is not None


SUBNORMAL = {  # inputs and nodes; the first one is not constant
    "rows": ({"x": (90, 700), "w": (700, 70)}, "p = MatMul(x, w); y = Neg(p)"),
    "rows that columns share": ({"x": (40, 650), "w": (650, 700)}, "p = MatMul(x, w); y = Neg(p)"),
    "image": ({"x": (2, 30, 20, 21), "w": (50, 30, 3, 3)}, "p = Conv(x, w, pads=[1, 1, 1, 1]); y = Neg(p)"),
    "few positions": ({"x": (2, 60, 5, 5), "w": (90, 60, 3, 3)}, "p = Conv(x, w, pads=[1, 1, 1, 1]); y = Neg(p)"),
    "depthwise": ({"x": (2, 9, 20, 21), "w": (9, 1, 3, 3)}, "p = Conv(x, w, group=9); y = Neg(p)"),
}


@pytest.mark.parametrize("name", SUBNORMAL)
@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize(("threads", "fixed"), [(1, [1]), (3, [1]), (1, []), (3, [])])
def test_subnormal_numbers_count(name: str, share: float, threads: int, fixed: list[int]) -> None:
    """Also beside others of the second operand, or infinity there: times zero that would be NaN."""
    shapes, nodes = SUBNORMAL[name]
    graph = graph_of(shapes, nodes)
    rng = np.random.default_rng(0)
    x, w = numbers(graph, shapes)
    x[rng.random(x.shape) < share] *= np.float32(1e-39)
    (found,) = FusedKernel(graph)(x, w, threads=threads, packs=Packs(frozenset(fixed)))
    wide = Program(widened(graph), Context.of(graph))
    (truth,) = wide.run([x.astype(float), w.astype(float)])
    (sizes,) = wide.run([np.abs(x.astype(float)), np.abs(w.astype(float))])  # of what each element is the sum of
    assert (np.abs(found - truth) <= 1e-6 * np.abs(sizes) + 1e-44).all() and np.abs(truth).max() > 0
    for special in (np.inf, 1e-41):
        w.flat[3] = special
        with np.errstate(all="ignore"):
            (found,) = FusedKernel(graph)(x, w, threads=threads, packs=Packs(frozenset(fixed)))
            (want,) = Program(graph, Context.of(graph)).run([x, w])
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(want))


@pytest.mark.parametrize("fixed", [[], [0], [1]])
@pytest.mark.parametrize("nodes", ["y = MatMul(x, w)", "y = Conv(x, w, pads=[1, 1, 1, 1])"])
def test_sums_of_small_products_are_not_lost(nodes: str, fixed: list[int]) -> None:
    """No operand is subnormal, but the first sums are; more than one block deep."""
    shapes = {"x": (4, 1000), "w": (1000, 40)} if "MatMul" in nodes else {"x": (1, 100, 9, 9), "w": (20, 100, 3, 3)}
    x, w = (np.full(shape, 1e-20, np.float32) for shape in shapes.values())
    (found,) = FusedKernel(graph_of(shapes, nodes))(x, w, packs=Packs(frozenset(fixed)))
    depth = 1000 if "MatMul" in nodes else 900
    inside = found if "MatMul" in nodes else found[..., 1:-1, 1:-1]
    np.testing.assert_allclose(inside, np.float32(depth * 1e-40), rtol=1e-4)


def test_an_image_that_does_not_lie_in_rows_is_copied() -> None:
    graph = graph_of({"x": (1, 3, 9, 8), "w": (5, 3, 3, 3)}, "y = Conv(x, w)")
    x, w = numbers(graph, {"x": (1, 9, 8, 3), "w": (5, 3, 3, 3)})
    turned = x.transpose(0, 3, 1, 2)
    expected = FusedKernel(graph)(np.ascontiguousarray(turned), w)[0]
    np.testing.assert_array_equal(FusedKernel(graph)(turned, w)[0], expected)


@pytest.mark.parametrize("nodes", ["p = MatMul(w, x); y = Relu(p)", "p = Conv(x, w); y = Relu(p)"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 5, 33), (3, 1, 64), (16, 330, 31), (24, 40, 100), (64, 17, 1023)])
@pytest.mark.parametrize("value", [1.0, 1e-39, np.inf, np.nan])
def test_few_rows_of_weights_beside_what_is_read_as_it_lies(nodes: str, m: int, k: int, n: int, value: float) -> None:
    image = "Conv" in nodes
    shapes = {"x": (2, k, 1, n) if image else (2, k, n), "w": (m, k, 1, 1) if image else (m, k)}
    graph = graph_of(shapes, nodes)
    x, w = numbers(graph, shapes)
    x.flat[n // 2] *= np.float32(value)
    want = np.maximum(w.reshape(m, k).astype(float) @ x.reshape(2, k, n), 0)
    kernel = FusedKernel(graph)
    for threads in (1, 3):
        (found,) = kernel(x, w, threads=threads, packs=Packs(frozenset([1])))
        np.testing.assert_allclose(found.reshape(2, m, n), want, rtol=1e-5, atol=1e-5 if value == 1.0 else 1e-4)


@pytest.mark.parametrize(("size", "strides"), [((56, 7), [2, 1]), ((33, 65), [1, 1]), ((9, 5), [1, 2]),
                                               ((3, 3), [1, 1])])
def test_bits_of_one_map_do_not_depend_on_threads(size: tuple[int, int], strides: list[int]) -> None:
    shapes = {"x": (3, 32, *size), "w": (1, 32, 1, 1)}
    graph = graph_of(shapes, f"y = Conv(x, w, strides={strides})")
    x, w = numbers(graph, shapes)
    kernel = FusedKernel(graph)
    (alone,) = kernel(x, w)
    picked = x[:, :, ::strides[0], ::strides[1]].astype(float)
    np.testing.assert_allclose(alone[:, 0], np.einsum("nchw,c->nhw", picked, w[0, :, 0, 0]), rtol=1e-4, atol=1e-5)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(kernel(x, w, threads=threads)[0], alone)
