"""The order of nodes: little memory at a time, nothing before its operands, random numbers as they were; and the bytes
that runs of fused models really take, workspaces included."""

import multiprocessing
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import zoo
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session
from runtime.codegen.c import unavailable
from runtime.feeds import draw
from runtime.order import in_order, memory_order
from scripts.bench_memory import in_largest_sets


def branches(count: int, late: bool) -> Graph:
    """Large values that become small ones, all large ones first if `late`."""
    large = [f"a{i} = Expand(x, shape=[1000, {i + 8}])\nc{i} = Exp(a{i})" for i in range(count)]
    small = [f"b{i} = ReduceSum(c{i})" for i in range(count)]
    lines = [*large, *small] if late else [line for pair in zip(large, small) for line in pair]
    total = f"y = Sum({', '.join(f'b{i}' for i in range(count))})"
    return parse_graph('graph "g" opset 18 (x: float32[1, 1]) -> (y) {\n' + "\n".join([*lines, total]) + "\n}")


def test_large_values_are_used_up_one_by_one() -> None:
    graph = branches(6, late=True)
    order = memory_order(graph, {})
    assert order.input_peak > 5 * 4 * 1000 * 8 and order.peak < 2 * 4 * 1000 * 13
    x = {"x": np.float32([[0.5]])}
    np.testing.assert_allclose(Session(in_order(graph, order)).run(x)["y"], Session(graph).run(x)["y"])
    report = Session(graph).report
    assert (report.input_order_bytes, report.ordered_bytes) == (order.input_peak, order.peak)


def test_an_order_that_is_good_stays() -> None:
    graph = branches(6, late=False)
    assert in_order(graph, memory_order(graph, {})) is graph


@given(st.integers(0, 10**6))
def test_nothing_comes_before_what_it_reads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, names = [], ["x"]
    for number in range(int(rng.integers(1, 12))):
        a, b = rng.choice(names, 2)
        lines.append(f"v{number} = " + str(rng.choice([f"Add({a}, {b})", f"Neg({a})", f"Transpose({b})",
                                                       f"RandomNormalLike({a})"])))
        names.append(f"v{number}")
    graph = parse_graph(f'graph "g" opset 18 (x: float32[3, 3]) -> (v{len(lines) - 1}) {{\n' + "\n".join(lines) + "\n}")
    order = memory_order(graph, {})
    assert sorted(order.places) == list(range(len(graph.nodes))) and order.peak <= order.input_peak
    known = {"x"}
    for node in in_order(graph, order).nodes:
        assert set(node.uses) <= known
        known.update(node.outputs)
    random = [place for place in order.places if graph.nodes[place].op == "RandomNormalLike"]
    assert random == sorted(random)


def taken_by_a_run(name: str, sizes: dict[str, int]) -> tuple[int, int]:
    """(traced bytes of a second run, live bytes)."""
    dims = dict(zoo.describe(name).dims)
    graph = in_largest_sets(zoo.build(name, **sizes), dims)
    session, feeds = Session(graph, threads=1), draw(graph, 0, dims)
    order = memory_order(graph, dims)
    session.run(feeds)
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        session.run(feeds)
        taken = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    return taken, order.peak


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize(("name", "sizes"), [("bert-2", {"layers": 1}), ("resnet18", {}), ("gpt-small", {})])
def test_a_run_takes_what_its_live_values_take(name: str, sizes: dict[str, int]) -> None:
    """In a process of its own: other tests allocate too."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        taken, peak = pool.apply(taken_by_a_run, (name, sizes))
    assert taken <= 1.1 * peak
