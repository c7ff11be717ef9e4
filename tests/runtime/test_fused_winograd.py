"""Convolutions of 3 x 3 in fewer products (`native/winograd.h`): each element against the definition in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.ir import Graph
from graphs.text import parse_graph
from runtime.codegen.c import FusedKernel, Packs, native, plan_of, tiles, unavailable, winograd
from runtime.codegen.c.check import fault
from tests.runtime.test_fused_products import plant

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

RELATIVE = 2.0 ** -18  # of the sum of sizes that an element is made of


@pytest.fixture(autouse=True)
def every_convolution_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of so few channels that it does not pay, and of too little work for two threads."""
    monkeypatch.setattr(winograd, "_LEAST_GAIN", 0.0)
    monkeypatch.setattr(tiles, "THREAD_WORK", 1 << 6)


def graph_of(x: tuple[int, ...], w: tuple[int, ...], nodes: str, *more: str) -> Graph:
    inputs = ", ".join([f"x: float32{list(x)}", f"w0: float32{list(w)}", *more])
    return parse_graph(f'graph "g" opset 23 ({inputs}) -> (y) {{\n' + nodes.replace("; ", "\n") + "\n}")


def defined(x: np.ndarray, w: np.ndarray, pads: list[int]) -> np.ndarray:
    """The sum over channels and windows of x[n, c, h, w] * w[m, c, i, j], in float64."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    with np.errstate(all="ignore"):
        return np.einsum("bchwij,mcij->bmhw", windows, w.astype(float))


def held(graph: Graph, x: np.ndarray, w: np.ndarray, pads: list[int], threads: int = 1) -> np.ndarray:
    """The result, element by element within rounding of what it is the sum of."""
    plan = plan_of(graph, {"x": x.shape, "w0": w.shape})
    assert plan.product is not None and plan.product.transformed is not None
    (got,) = FusedKernel(graph)(x, w, threads=threads, packs=Packs(frozenset({1})))
    largest = np.broadcast_to(np.abs(w).max((1, 2, 3), keepdims=True), w.shape)  # weights of a map are added up too
    want, sizes = defined(x, w, pads), defined(np.abs(x), largest, pads)
    with np.errstate(all="ignore"):
        want = np.where(np.abs(want) > np.finfo(np.float32).max, np.copysign(np.inf, want), want)
        fine = np.isfinite(want)
        assert (np.abs(got - want)[fine] <= RELATIVE * sizes[fine] + 1e-44).all()
    np.testing.assert_array_equal(got[~fine], want[~fine].astype(np.float32))
    return got


sides = st.integers(0, 2)


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(2, 19), st.integers(2, 19)), st.integers(1, 70),
       st.tuples(sides, sides, sides, sides), st.integers(1, 3), st.integers(0, 1 << 32))
def test_images_of_any_shape(shape: tuple[int, ...], maps: int, pads: tuple[int, ...], threads: int, seed: int) -> None:
    pads = tuple(max(pad, 1) if size < 4 else pad for pad, size in zip(pads, shape[2:] * 2))
    graph = graph_of(shape, (maps, shape[1], 3, 3), f"y = Conv(x, w0, pads={list(pads)})")
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(each).astype(np.float32) for each in (shape, (maps, shape[1], 3, 3)))
    held(graph, x, w, list(pads), threads)
    for special in (np.nan, np.inf, -np.inf, 3e38, 1e6):
        x.flat[rng.integers(x.size)] = special
    held(graph, x, w, list(pads), threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_several_tiles(threads: int) -> None:
    shapes = (1, 70, 61, 67), (100, 70, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    held(graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])"), x, w, [1, 1, 1, 1], threads)


def test_few_squares_and_many_maps_are_shared_by_maps() -> None:
    shapes = (1, 40, 3, 3), (200, 40, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    graph = graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])")
    one, three = (held(graph, x, w, [1, 1, 1, 1], threads) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_windows_of_nothing_but_zeros_are_zero() -> None:
    shapes = (1, 20, 16, 16), (24, 20, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    x[:, :, 5:, :] = 0
    x[:, :, :, 7:9] = 0
    got = held(graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])"), x, w, [1, 1, 1, 1])
    assert (got[:, :, 6:] == 0).all() and not np.signbit(got[:, :, 6:]).any()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("high", "wide"), [(113, 2), (57, 3), (61, 5)])
def test_the_last_tile_has_fewer_lines_but_larger_panels(high: int, wide: int, threads: int) -> None:
    shapes = (1, 48, high, wide), (128, 48, 3, 3)
    graph = graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])")
    plan = plan_of(graph, {"x": shapes[0], "w0": shapes[1]})
    assert plan.product is not None and plan.product.transformed is not None
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    packs = Packs(frozenset({1}))
    job = plan.product.step([x.ctypes.data, w.ctypes.data], threads, packs)
    room = np.full(job.room + 4096, 0x5A, np.uint8)  # what lies behind it stays as it was
    start = -room.ctypes.data % 64
    out = np.empty((1, 128, high, wide), np.float32)
    fault = np.zeros(1, np.int64)
    arguments = np.array([x.ctypes.data, w.ctypes.data, out.ctypes.data, room.ctypes.data + start, fault.ctypes.data],
                         np.int64)
    words = job.with_memory(3).words
    native.engine().eg_follow(words.buffer_info()[0], 1, arguments.ctypes.data, 4)
    np.testing.assert_allclose(out, defined(x, w, [1, 1, 1, 1]), atol=1e-4)
    assert (room[start + job.room:] == 0x5A).all()


def test_weights_that_do_not_lie_in_rows() -> None:
    shapes = (1, 20, 8, 8), (24, 20, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    x[0, 3, 4, 4] = np.inf
    kernel, packs = FusedKernel(graph_of(*shapes, "y = Conv(x, w0)")), Packs(frozenset({1}))
    want = kernel(x, w, packs=Packs(frozenset({1})))[0]
    strange = np.asfortranarray(w)
    for _ in range(3):
        np.testing.assert_array_equal(kernel(x, strange, packs=packs)[0], want)
        np.full(w.shape, 7.0, np.float32)  # what was given up is used again


@pytest.mark.parametrize("pads", [[1, 1, -1, -1], [1, 1, 1, -3], [0, 0, 0, -2], [0, 0, -2, 0]])
def test_negative_padding_behind(pads: list[int]) -> None:
    shapes = (1, 20, 20, 20), (24, 20, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    (got,) = FusedKernel(graph_of(*shapes, f"y = Conv(x, w0, pads={pads})"))(x, w, packs=Packs(frozenset({1})))
    ends = [20 + min(each, 0) for each in pads[2:]]
    inside = np.ascontiguousarray(x[:, :, :ends[0], :ends[1]])
    np.testing.assert_allclose(got, defined(inside, w, [*pads[:2], *(max(each, 0) for each in pads[2:])]), atol=1e-4)


@pytest.mark.parametrize("factor", [1e-3, 1e-8, 1e-30])
def test_small_numbers_beside_large_ones_are_not_lost(factor: float) -> None:
    """No element is worse for a neighbour that it is not made of."""
    shapes = (1, 20, 16, 16), (24, 20, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    x[:, :, :, 5:] *= np.float32(factor)
    held(graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])"), x, w, [1, 1, 1, 1])


def test_sums_that_overflow_where_results_do_not() -> None:
    shapes = (1, 20, 8, 8), (24, 20, 3, 3)
    x = np.full(shapes[0], 1e19, np.float32)
    w = np.full(shapes[1], 2e18, np.float32)
    w[:, ::2] *= -1
    w[:, :2] *= 0.5  # the sum is 0 but for rounding; that of all sizes overflows in none of both
    held(graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])"), x, w * np.float32(0.01), [1, 1, 1, 1])


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e-41])
def test_weights_that_are_not_plain_are_multiplied_as_they_are(special: float) -> None:
    shapes = (1, 20, 8, 8), (24, 20, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    w[3, 4, 1, 1] = special
    packs = Packs(frozenset({1}))
    (got,) = FusedKernel(graph_of(*shapes, "y = Conv(x, w0)"))(x, w, packs=packs)
    want = defined(x, w, [0, 0, 0, 0])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("nodes", "more"), [
    ("q = Conv(x, w0, w1, pads=[1, 1, 1, 1]); z = Add(q, r); y = Relu(z)",
     ["w1: float32[24]", "r: float32[2, 24, 9, 8]"]),
    ("q = Conv(x, w0, pads=[1, 1, 1, 1]); t = Transpose(q, perm=[1, 0, 2, 3]); y = Reshape(t, shape=[24, 144])", []),
    ('q = Conv(x, w0, auto_pad="SAME_UPPER"); s = Sigmoid(q); y = Mul(q, s)', []),
])
def test_what_follows_runs_on_each_tile(nodes: str, more: list[str]) -> None:
    graph = graph_of((2, 20, 9, 8), (24, 20, 3, 3), nodes, *more)
    shapes = {name: graph.type_of(name).shape for name in graph.inputs}  # type: ignore[union-attr]
    plan = plan_of(graph, shapes)  # type: ignore[arg-type]
    assert plan.product is not None and plan.product.transformed is not None
    assert fault(FusedKernel(graph), shapes) is None  # type: ignore[arg-type]


def test_convolutions_of_another_kind_are_left_alone() -> None:
    for nodes, w in (("y = Conv(x, w0, strides=[2, 1])", (24, 20, 3, 3)),
                     ("y = Conv(x, w0, dilations=[1, 2])", (24, 20, 3, 3)),
                     ("y = Conv(x, w0, group=2)", (24, 10, 3, 3)), ("y = Conv(x, w0)", (24, 20, 3, 5))):
        plan = plan_of(graph_of((1, 20, 9, 8), w, nodes), {"x": (1, 20, 9, 8), "w0": w})
        assert plan.product is not None and plan.product.transformed is None


PLANTED = {
    "a sum of the image": ("half[2][x] = d[2] - d[1];", "half[2][x] = d[2] + d[1];"),
    "a sum of results": ("half[y][1] - half[y][2] - half[y][3]", "half[y][1] - half[y][2] + half[y][3]"),
    "infinities in squares": ("fine &= bad[lane] == 0.0f", "fine &= 1"),
    "a line one off": ("2 * first - job->begins[0]", "2 * first - job->begins[0] + 1"),
    "the last column": ("if (right) *(eg_vector*)(to + EG_VL)", "*(eg_vector*)(to + EG_VL)"),
    "sums of weights": ("{0.5, -0.5, 0.5}", "{0.5, -0.5, 0.25}"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_check_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = PLANTED[name]
    plant(right, wrong, monkeypatch)
    shapes = {"x": (2, 20, 9, 7), "w0": (24, 20, 3, 3)}
    assert fault(FusedKernel(graph_of(*shapes.values(), "y = Conv(x, w0, pads=[1, 1, 1, 1])")), shapes) is not None


def test_errors_of_many_channels_do_not_add_up() -> None:
    """512 products one after the other are off by 5.6 units of 2^-23 of what they come to, those of BLAS by 2.9."""
    shapes = (1, 512, 7, 7), (64, 512, 3, 3)
    x, w = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in shapes)
    got = held(graph_of(*shapes, "y = Conv(x, w0, pads=[1, 1, 1, 1])"), x, w, [1, 1, 1, 1])
    truth = defined(x, w, [1, 1, 1, 1])
    assert np.sqrt(np.mean((got - truth) ** 2)) < 4 * 2.0 ** -23 * np.sqrt(np.mean(truth ** 2))
