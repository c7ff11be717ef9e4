"""Planes of many channels in the engine (`runtime/codegen/c/lanes.py`) beside the formulas of ONNX."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import load_model_from_string
from onnx.reference import ReferenceEvaluator

from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from runtime.codegen.c import FusedKernel, NotFusable, Packs, tiles, unavailable
from runtime.codegen.c.check import fault
from search.fusions.enumerate import enumerate_groups
from tests.runtime.test_fused_products import plant

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture(autouse=True)
def threads_share_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows as few as those here are not worth a second thread."""
    monkeypatch.setattr(tiles, "THREAD_WORK", 1 << 6)


def windows(x: np.ndarray, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
            pads: tuple[int, ...], fill: float) -> np.ndarray:
    """[batch, channel, element of the window, position...], by the definition."""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])], constant_values=fill)
    counts = [(size - (k - 1) * d - 1) // s + 1
              for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations)]
    found = np.empty((*x.shape[:2], int(np.prod(kernel)), *counts), x.dtype)
    for number, place in enumerate(product(*map(range, kernel))):
        for at in product(*map(range, counts)):
            where = tuple(p * s + k * d for p, s, k, d in zip(at, strides, place, dilations))
            found[(slice(None), slice(None), number, *at)] = padded[(slice(None), slice(None), *where)]
    return found


def graph_of(inputs: list[str], nodes: str) -> Graph:
    body = nodes.replace("; ", "\n")
    return parse_graph(f'graph "g" opset 20 ({", ".join(inputs)}) -> (y) {{\n{body}\n}}')


def listed(numbers: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


SHAPES = st.integers(1, 3).flatmap(lambda rank: st.tuples(
    st.tuples(*[st.integers(5, 20 if rank < 3 else 7)] * rank), st.tuples(*[st.integers(2, 3)] * rank),
    st.tuples(*[st.integers(1, 3)] * rank), st.tuples(*[st.integers(1, 2)] * rank),
    st.tuples(*[st.integers(0, 1)] * (2 * rank))))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(8, 37), st.integers(1, 2), st.integers(1, 3), st.booleans(),
       st.sampled_from(["Conv", "MaxPool", "AveragePool", "AveragePool with padding"]), st.integers(0, 1 << 16))
def test_windows_of_any_shape(shapes: tuple[tuple[int, ...], ...], channels: int, batch: int, threads: int,
                              packed: bool, kind: str, seed: int) -> None:
    """Blocks of channels that are not full, planes of any size, windows that reach into the padding."""
    sizes, lengths, strides, dilations, pads = shapes
    assume(kind == "Conv" or any(length > step for length, step in zip(lengths, strides)))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, channels, *sizes)).astype(np.float32)
    own = f"strides={listed(strides)}, dilations={listed(dilations)}, pads={listed(pads)}"
    taken = windows(x.astype(np.float64), lengths, strides, dilations, pads, -np.inf if kind == "MaxPool" else 0)
    arrays, texts = [x], [f"x: float32{list(x.shape)}"]
    if kind == "Conv":
        weights = rng.standard_normal((channels, 1, *lengths)).astype(np.float32)
        added = rng.standard_normal(channels).astype(np.float32)
        arrays += [weights, added]
        texts += [f"w: float32{list(weights.shape)}", f"b: float32[{channels}]"]
        node = f"Conv(x, w, b, group={channels}, {own})"
        factors = weights.reshape(1, channels, -1, *[1] * len(sizes)).astype(np.float64)
        want = (taken * factors).sum(2) + added.reshape(1, channels, *[1] * len(sizes))
    elif kind == "MaxPool":
        node, want = f"MaxPool(x, kernel_shape={listed(lengths)}, {own})", taken.max(2)
    else:
        inside = windows(np.ones_like(x), lengths, strides, dilations, pads, float(kind != "AveragePool"))
        node = f"AveragePool(x, kernel_shape={listed(lengths)}, {own}, count_include_pad={int(kind != 'AveragePool')})"
        assume(inside.sum(2).all())  # the mean of nothing has no kernel
        want = taken.sum(2) / inside.sum(2)
    graph = graph_of(texts, f"p = {node}; y = Neg(p)")
    fixed = frozenset(range(1, len(arrays))) if packed else frozenset[int]()
    kernel = FusedKernel(graph)
    (found,) = kernel(*arrays, threads=threads, packs=Packs(fixed))
    np.testing.assert_allclose(found, -want, rtol=1e-5, atol=1e-5)
    assert kernel.plan(*arrays).product is not None


LINES = st.tuples(st.tuples(st.integers(1, 20), st.integers(17, 140)), st.tuples(st.integers(1, 5), st.integers(1, 5)),
                  st.tuples(st.integers(1, 2), st.integers(1, 2)), st.tuples(*[st.integers(0, 3)] * 4))


def convolved(shapes: tuple[tuple[int, ...], ...], channels: int, threads: int,
              seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel and float64 make of random planes."""
    sizes, lengths, strides, pads = shapes
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, channels, *sizes)).astype(np.float32)
    weights = rng.standard_normal((channels, 1, *lengths)).astype(np.float32)
    graph = graph_of([f"x: float32{list(x.shape)}", f"w: float32{list(weights.shape)}"],
                     f"p = Conv(x, w, group={channels}, strides={listed(strides)}, pads={listed(pads)}); y = Neg(p)")
    (found,) = FusedKernel(graph)(x, weights, threads=threads, packs=Packs(frozenset((1,))))
    taken = windows(x.astype(np.float64), lengths, strides, (1, 1), pads, 0)
    return found, -(taken * weights.reshape(1, channels, -1, 1, 1).astype(np.float64)).sum(2)


@settings(max_examples=150, deadline=None)
@given(LINES, st.integers(8, 19), st.integers(1, 3), st.integers(0, 1 << 16))
def test_long_lines_are_not_turned_around(shapes: tuple[tuple[int, ...], ...], channels: int, threads: int,
                                          seed: int) -> None:
    sizes, lengths, _, pads = shapes
    assume(all(size + pads[axis] + pads[axis + 2] >= lengths[axis] for axis, size in enumerate(sizes)))
    found, want = convolved(shapes, channels, threads, seed)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_long_lines_have_the_bits_of_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [((9, 40), (3, 3), (1, 1), (1, 1, 1, 1)), ((11, 130), (3, 3), (2, 2), (0, 1, 2, 0)),
             ((1, 70), (1, 3), (1, 2), (0, 0, 0, 3)), ((12, 64), (5, 5), (1, 1), (2, 2, 2, 2)),
             ((8, 48), (2, 1), (2, 1), (3, 3, 3, 3))]
    by_lines = [convolved(case, 19, 1, 0)[0] for case in cases]
    plant("return job->kind == EG_SUMS && job->window[0]", "return job->kind > EG_MIXED && job->window[0]", monkeypatch)
    for case, found in zip(cases, by_lines):
        assert found.tobytes() == convolved(case, 19, 1, 0)[0].tobytes()


BIG = {  # computed in several parts along an axis
    "lines": (["x: float32[1, 9, 300, 130]", "w: float32[9, 1, 5, 3]"],
              "p = Conv(x, w, group=9, strides=[2, 1], pads=[2, 1, 2, 1]); y = Relu(p)"),
    "planes": (["x: float32[1, 9, 40, 30, 32]"], "p = MaxPool(x, kernel_shape=[3, 3, 3], pads=[1, 1, 1, 1, 1, 1]); "
               "y = Relu(p)"),
    "as deep as the image": (["x: float32[1, 9, 3, 200, 60]", "w: float32[9, 1, 3, 3, 3]"], "y = Conv(x, w, group=9)"),
    "all lines at once": (["x: float32[1, 9, 200, 130]", "w: float32[9, 1, 3, 3]"],
                          "p = Conv(x, w, group=9); y = ReduceMax(p, axes=[2, 3])"),
    "turned around": (["x: float32[2, 30, 30, 20]", "w: float32[20, 1, 3, 3]"],
                      "t = Transpose(x, perm=[0, 3, 1, 2]); p = Conv(t, w, group=20); y = Relu(p)"),
    "ceil mode": (["x: float32[2, 9, 13, 14]"], "y = MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)"),
}


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_planes(name: str, threads: int) -> None:
    graph = graph_of(*BIG[name])
    shapes = {each: tuple(int(str(dim)) for dim in graph.types[each].shape or ()) for each in graph.inputs}
    plain = FusedKernel(graph)
    assert fault(plain, shapes) is None  # beside NumPy's operators, special values too
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shapes[each]).astype(np.float32) for each in graph.inputs]
    np.testing.assert_array_equal(plain(*arrays, threads=threads)[0], plain(*arrays)[0])


@pytest.mark.parametrize("lengths", [[1, 1], [1, 3], [3, 1], [2, 2]])
@pytest.mark.parametrize("width", [20, 45])
def test_sums_of_zeros_are_positive(lengths: list[int], width: int) -> None:
    """Windows that lie in the padding, and weights below zero, as well."""
    shapes = {"x": (1, 16, 20, width), "w": (16, 1, *lengths)}
    texts = [f"{name}: float32{list(shape)}" for name, shape in shapes.items()]
    graph = graph_of(texts, "y = Conv(x, w, group=16, pads=[3, 3, 3, 3])")
    assert [fault(FusedKernel(graph), shapes, seed) for seed in range(3)] == [None] * 3


def test_nan_wins_and_padding_never_does() -> None:
    x = np.full((1, 16, 5, 5), -np.inf, np.float32)
    x[0, 3, 2, 2], x[0, 4, 0, 0], x[0, 5, 4, 4] = np.nan, -3e38, np.inf
    graph = graph_of(["x: float32[1, 16, 5, 5]"], "y = MaxPool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])")
    (found,) = FusedKernel(graph)(x)
    assert np.isnan(found[0, 3, 1:4, 1:4]).all() and np.isnan(found).sum() == 9
    assert (found[0, 4, :2, :2] == np.float32(-3e38)).all() and (found[0, 5, 3:, 3:] == np.inf).all()
    assert np.isneginf(found).sum() == 16 * 25 - 9 - 4 - 4


PLANTED = {
    "a line of the padding is left out": ("+ top - low[1]) * job->room[2]", "+ top - low[1] + 1) * job->room[2]"),
    "a channel has its neighbour's weights": ("weights + row * k, k, to", "weights, k, to"),
    "the last channels are not written": ("const eg_index channels = eg_least(rows - row, EG_VL);",
                                          "const eg_index channels = rows - row < EG_VL ? rows - row - 1 : EG_VL;"),
    "the last places are written to the first": ("memcpy(to + i * step + p, &v[i]", "memcpy(to + i * step, &v[i]"),
    "lines: even places for odd ones": ("(tap % 2 ? odd : even)", "(tap % 2 ? even : odd)"),
    "lines: the second line is the first": ("const eg_index own = row - i * down;", "const eg_index own = row;"),
    "lines: what is behind the last whole vector": ("eg_put_some(to + (vectors - 1) * EG_VL, sums",
                                                    "if (vectors < 2) eg_put_some(to + (vectors - 1) * EG_VL, sums"),
    "lines: the padding below is a line": ("own < job->sizes[1])", "own <= job->sizes[1])"),
    "a line is mixed of the wrong places": ("deep[i] * high + lines[j] - low", "deep[i] * high + lines[0] - low"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_check_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = PLANTED[name]
    plant(right, wrong, monkeypatch)
    shapes = {"x": (1, 37, 9, 10), "w": (37, 1, 3, 3)}
    nodes = "p = Conv(x, w, group=37, pads=[1, 1, 1, 1]); y = Relu(p)"
    if "lines:" in name:
        shapes, nodes = {"x": (1, 37, 19, 99), "w": (37, 1, 3, 3)}, nodes.replace("pads", "strides=[2, 2], pads")
    if "mixed" in name:
        shapes, nodes = {"x": (1, 37, 9, 10)}, 'y = Resize(x, scales=[1.0, 1.0, 2.0, 2.0], mode="linear")'
    graph = graph_of([f"{each}: float32{list(shape)}" for each, shape in shapes.items()], nodes)
    assert fault(FusedKernel(graph), shapes) is not None


RESIZED = {
    "twice as large": ([2, 9, 12, 13], 'scales=[1.0, 1.0, 2.0, 2.0], mode="linear"'),
    "corners": ([1, 16, 8, 5], 'sizes=[1, 16, 20, 9], mode="linear", coordinate_transformation_mode="align_corners"'),
    "nearest": ([2, 17, 10, 7], 'scales=[1.0, 1.0, 2.0, 3.0], coordinate_transformation_mode="asymmetric", '
                                'nearest_mode="floor"'),
    "cubic": ([1, 9, 9, 11], 'scales=[1.0, 1.0, 2.5, 0.5], mode="cubic"'),
    "smaller": ([1, 9, 9, 11], 'sizes=[1, 9, 5, 20], mode="linear", antialias=1'),
    "one axis": ([1, 20, 200, 30], 'scales=[1.0, 1.0, 1.0, 1.7], mode="linear"'),
    "one dimension": ([1, 17, 50], 'scales=[1.0, 1.0, 3.0], mode="linear"'),
    "three dimensions": ([1, 9, 5, 9, 11], 'scales=[1.0, 1.0, 2.0, 2.0, 1.5], mode="linear"'),
    "to one plane": ([1, 9, 5, 9, 11], 'scales=[1.0, 1.0, 0.2, 1.0, 2.0], mode="linear"'),
    "in parts": ([1, 9, 300, 211], 'scales=[1.0, 1.0, 0.5, 1.0], mode="linear"'),
}


@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.parametrize("threads", [1, 3])
def test_planes_are_resized(name: str, threads: int) -> None:
    shape, attrs = RESIZED[name]
    graph = graph_of([f"x: float32{shape}"], f"p = Resize(x, {attrs}); y = Neg(p)")
    kernel = FusedKernel(graph)
    assert fault(kernel, {"x": tuple(shape)}) is None
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    (want,) = ReferenceEvaluator(load_model_from_string(proto_bytes(graph))).run(None, {"x": x})
    (found,) = kernel(x, threads=threads)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert kernel.plan(x).product is not None


@pytest.mark.parametrize("attrs", ['sizes=[1, 20, 9, 9], mode="linear"', 'scales=[1.0, 2.0, 1.0, 1.0], mode="linear"'])
def test_other_axes_than_those_of_planes_are_not_resized_here(attrs: str) -> None:
    graph = graph_of(["x: float32[1, 10, 9, 9]"], f"y = Resize(x, {attrs})")
    with pytest.raises(NotFusable, match="other axes"):
        FusedKernel(graph).plan(np.zeros((1, 10, 9, 9), np.float32))


def test_a_pool_of_overlapping_windows_is_the_only_product_of_its_set() -> None:
    graph = graph_of(["x: float32[1, 16, 9, 9]"], "r = Relu(x); p = MaxPool(r, kernel_shape=[3, 3]); "
                     "q = MaxPool(p, kernel_shape=[3, 3]); y = Relu(q)")
    found = {each.nodes for each in enumerate_groups(graph, graph.types, 50, 20).groups}
    assert {(1,), (2,), (2, 3)} <= found and not any({1, 2} <= set(each) or {0, 1} <= set(each) for each in found)
