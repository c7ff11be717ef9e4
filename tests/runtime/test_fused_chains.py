"""Chains (`native/chain.h`): a depthwise convolution and the one that makes its planes, as one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.ir import Graph
from graphs.text import parse_graph, print_graph
from runtime import Session
from runtime.codegen.c import FusedKernel, NotFusable, Packs, tiles, unavailable
from runtime.codegen.c.check import fault
from runtime.codegen.c.fused import plan_of
from runtime.fusion import Group, fuse
from search.fusions.enumerate import enumerate_groups
from tests.runtime.cuda.harness import check, needs_compiler
from tests.runtime.test_fused_products import plant

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

BETWEEN = {"nothing": "p = Identity(a)", "clip": "p = Clip(a, min=0.0, max=6.0)",
           "silu": "s = Sigmoid(a)\n p = Mul(a, s)"}
BEHIND = {"nothing": "y = Neg(d)", "clip": "y = Clip(d, min=-1.0, max=1.0)", "added": "y = Add(d, z)"}


@pytest.fixture(autouse=True)
def threads_share_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as small as those here are not worth a second thread."""
    monkeypatch.setattr(tiles, "THREAD_WORK", 1 << 6)


def chain(batch: int, channels: int, maps: int, sizes: tuple[int, int], window: tuple[int, int], stride: int,
          pads: tuple[int, int, int, int], between: str = "clip", behind: str = "clip") -> Graph:
    """A chain, and what is added to its result."""
    high, wide = ((size + pads[axis] + pads[axis + 2] - window[axis]) // stride + 1 for axis, size in enumerate(sizes))
    return parse_graph(f"""graph "chain" opset 18 (x: float32[{batch}, {channels}, {sizes[0]}, {sizes[1]}],
        w0: float32[{maps}, {channels}, 1, 1], w1: float32[{maps}], w2: float32[{maps}, 1, {window[0]}, {window[1]}],
        w3: float32[{maps}], z: float32[{batch}, {maps}, {high}, {wide}]) -> (y) {{
      a = Conv(x, w0, w1)
      {BETWEEN[between]}
      d = Conv(p, w2, w3, group={maps}, strides=[{stride}, {stride}], pads={list(pads)})
      {BEHIND[behind]}
    }}""")


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(str(dim)) for dim in graph.types[name].shape or ()) for name in graph.inputs}


def drawn(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes_of(graph).values()]


def by_definition(graph: Graph, arrays: list[np.ndarray], window: tuple[int, int], stride: int,
                  pads: tuple[int, int, int, int], between: str, behind: str) -> tuple[np.ndarray, float]:
    """In float64; and the largest sum, before it is clipped."""
    x, w0, w1, w2, w3, z = (each.astype(np.float64) for each in arrays)
    a = np.einsum("mc,bchw->bmhw", w0[:, :, 0, 0], x) + w1[:, None, None]
    p = {"nothing": a, "clip": np.clip(a, 0, 6), "silu": a / (1 + np.exp(-a))}[between]
    p = np.pad(p, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    taken = np.lib.stride_tricks.sliding_window_view(p, window, axis=(2, 3))[:, :, ::stride, ::stride]
    d = np.einsum("bmhwij,mij->bmhw", taken, w2[:, 0]) + w3[:, None, None]
    return {"nothing": -d, "clip": np.clip(d, -1, 1), "added": d + z}[behind], float(np.abs(d).max())


SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(8, 60),
                   st.tuples(st.integers(1, 40), st.integers(97, 135)), st.tuples(st.integers(1, 3), st.integers(1, 3)),
                   st.integers(1, 2), st.tuples(*[st.integers(0, 2)] * 4))


@settings(max_examples=80, deadline=None)
@given(SHAPES, st.sampled_from(sorted(BETWEEN)), st.sampled_from(sorted(BEHIND)), st.integers(1, 4), st.booleans(),
       st.integers(0, 1 << 16))
def test_chains_of_any_shape(shape: tuple, between: str, behind: str, threads: int, packed: bool, seed: int) -> None:
    batch, channels, maps, (high, length), window, stride, pads = shape
    sizes = max(high, window[0]), length
    graph = chain(batch, channels, maps, sizes, window, stride, pads, between, behind)
    arrays = drawn(graph, seed)
    kernel, packs = FusedKernel(graph), Packs(frozenset((1, 2, 3, 4) if packed else ()))
    try:
        plan = plan_of(graph, shapes_of(graph))
    except NotFusable:
        wide = (sizes[1] + pads[1] + pads[3] - window[1]) // stride + 1
        assert wide % 16 or sizes[0] * sizes[1] < maps  # a vector that would be nearly empty; a product turned around
        return
    assert plan.product is not None and plan.product.before is not None
    (got,) = kernel(*arrays, threads=threads, packs=packs)
    want, largest = by_definition(graph, arrays, window, stride, pads, between, behind)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * largest)
    assert kernel(*arrays, threads=1, packs=packs)[0].tobytes() == got.tobytes(), "threads change no bits"


WHOLE = (2, 12, 37, (19, 64), (3, 3), 1, (1, 1, 1, 1))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_check_takes_a_chain_and_no_faulty_one(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special values, rows of constants and padding too."""
    graph = chain(*WHOLE[:5], stride, WHOLE[6], "silu", "added")
    assert plan_of(graph, shapes_of(graph)).product.before is not None  # type: ignore[union-attr]
    assert fault(FusedKernel(graph), shapes_of(graph)) is None
    plant("first = begin > 0 ? begin : 0,", "first = begin > 0 ? begin + 1 : 0,", monkeypatch)
    tall = chain(1, 12, 37, (400, 64), (3, 3), stride, WHOLE[6])
    assert fault(FusedKernel(tall), shapes_of(tall)) is not None


def test_a_chain_has_the_bits_of_its_two_kernels_and_takes_less_memory() -> None:
    graph = chain(2, 16, 96, (112, 112), (3, 3), 2, (1, 1, 1, 1), behind="clip")
    graph.inputs.remove("z")
    two = fuse(graph, [Group((0, 1), "p", ()), Group((2, 3), "y", ())])
    one = fuse(graph, [Group((0, 1, 2, 3), "y", ())])
    feeds = dict(zip(graph.inputs, drawn(graph, 0)))
    sessions = [Session(each, threads=1) for each in (two, one)]
    assert sessions[0].run(feeds)["y"].tobytes() == sessions[1].run(feeds)["y"].tobytes()
    assert sessions[1].report.peak_bytes < sessions[0].report.peak_bytes / 3


def test_what_makes_planes_joins_where_nothing_else_reads_it() -> None:
    graph = chain(*WHOLE)
    nodes = frozenset(range(4))
    assert any(frozenset(each.nodes) == nodes for each in enumerate_groups(graph, graph.types, 100, 99).groups)
    assert not any(frozenset(each.nodes) == nodes
                   for each in enumerate_groups(graph, graph.types, 100, 99, library=True).groups)
    graph.outputs.append("p")
    assert not any({0, 2} <= set(each.nodes) for each in enumerate_groups(graph, graph.types, 100, 99).groups)


@pytest.mark.parametrize(("found", "other"), [
    ("w0: float32[37, 12, 1, 1]", "w0: float32[37, 12, 1, 3]"), ("strides=[1, 1], group", "dilations=[1, 2], group"),
    ("x: float32[2, 12, 19, 64]", "x: float32[2, 12, 19, 9]"), ("(x, w0, w1)", "(x, w0, w1, pads=[1, 1, 1, 1])"),
    ("x: float32[2, 12, 19, 64]", "x: float32[2, 12, 1, 32]")])
def test_what_is_no_chain_has_no_kernel(found: str, other: str) -> None:
    """Windows of several pixels, or with gaps, short lines, padding between, and a product that is turned around."""
    text = print_graph(chain(*WHOLE, behind="nothing"))
    assert found in text
    graph = parse_graph(text.replace(found, other))
    with pytest.raises(NotFusable):
        plan_of(graph, shapes_of(graph))


@needs_compiler
def test_a_chain_runs_on_a_device_as_its_parts() -> None:
    graph = chain(1, 12, 37, (9, 48), (3, 3), 1, (1, 1, 1, 1), behind="added")
    feeds = dict(zip(graph.inputs, drawn(graph, 0)))
    want, _ = by_definition(graph, list(feeds.values()), (3, 3), 1, (1, 1, 1, 1), "clip", "added")
    check(fuse(graph, [Group((0, 1, 2, 3), "y", ())]), feeds, [want.astype(np.float32)], rtol=1e-5, atol=1e-5)
