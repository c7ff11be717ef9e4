"""Where the values of fused nodes that run as one call lie, and what of the memory that came in is written over."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from graphs import zoo
from graphs.errors import ExecutionFailed
from graphs.text import parse_graph
from runtime import Session
from runtime.codegen.c import unavailable
from runtime.feeds import draw
from runtime.fusion import Group, fuse
from runtime.noted import Given
from runtime.order import memory_order
from scripts.bench_memory import in_largest_sets
from tests.runtime.test_joined import one_by_one, records, same

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def test_memory_that_came_in_is_used_only_where_nobody_else_refers_to_it() -> None:
    memory = np.zeros(64, np.float32)
    views = [memory[:8], memory[8:].reshape(7, 8).T]
    given = Given((0, 1), memory.nbytes, frozenset((0,)))

    def owner(*others: object) -> bool:
        env, data = list(views), [views[0]]
        views.clear()
        found = given.owner(env) is not None
        views.extend(env)
        return found and len(others) >= 0 and len(data) == 1

    assert not owner(), "this function has it too"
    kept = memory.ctypes.data
    del memory
    assert owner()
    assert views[0].ctypes.data == kept
    other = views[1][:2]
    assert not owner(), "a view of it is elsewhere"
    del other
    same_view = views[0]
    assert not owner(), "and so is what a slot holds"
    del same_view
    assert owner()
    views[0].base.flags.writeable = False
    assert not owner()
    foreign = np.frombuffer(bytes(256), np.float32)
    views[:] = [foreign[:8], foreign[8:]]
    del foreign
    assert not owner(), "memory of somebody else"


def test_arena_of_a_stretch_holds_what_is_live() -> None:
    dims = dict(zoo.describe("gpt-small").dims)
    graph = in_largest_sets(zoo.build("gpt-small"), dims)
    session = Session(graph, threads=1)
    for _ in range(4):
        session.run(draw(graph, 0, dims))
    most = max(record.arena + sum(record.made) for record in records(session))
    assert most <= 1.1 * memory_order(graph, dims).peak


def test_memory_of_a_result_is_a_little_larger_where_more_lies_in_it_then() -> None:
    """`a` and `b` are needed at once, and need a little more together than `y`."""
    graph = parse_graph("""graph "grown" opset 18 (x: float32[8, 1024], w: float32[2000]) -> (y) {
      a = Exp(x)
      b = Sin(a)
      c = ReduceMax(b, axes=[1])
      y = Mul(c, w)
    }""")
    fused = fuse(graph, [Group((place,), node.outputs[0]) for place, node in enumerate(graph.nodes)])
    session, feeds = Session(fused, threads=1), draw(graph, 0)
    for _ in range(4):
        same(session.run(feeds), one_by_one(fused, feeds))
    (record,) = records(session)
    assert record.made == [65536] and record.arena < 4096, "both lie in what is y later"
    y = session.run(feeds)["y"]
    assert y.base is not None and y.base.nbytes < 1.07 * y.nbytes, "as the engine made it, no copy"


def test_what_comes_in_is_given_up_where_it_is_not_needed_any_more() -> None:
    """A stretch holds what it was given until it is done: where that weighs, it is parted."""
    graph = parse_graph("""graph "given" opset 18 (x: float32[256, 1024], w: float32[1024, 4096],
        v: float32[4096, 1024]) -> (y) {
      zero = constant int64[] 0
      a = CumSum(x, zero)
      b = Exp(a)
      c = MatMul(b, w)
      d = MatMul(c, v)
      e = MatMul(d, w)
      y = ReduceMax(e, axes=[1])
    }""")
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes) if node.op != "CumSum"]
    fused = fuse(graph, groups)
    session = Session(fused, threads=1)
    draw_ = np.random.default_rng(0)
    feeds = {name: draw_.standard_normal(type_.shape, np.float32) / 64 for name, type_ in
             ((name, graph.types[name]) for name in graph.inputs)}
    for _ in range(4):
        session.run(feeds)
    assert records(session)
    tracemalloc.start()
    try:
        got = session.run(feeds)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.1 * memory_order(fused, {}).peak
    same(got, one_by_one(fused, feeds))


def test_memory_that_came_in_is_not_overwritten_before_all_indices_are_read() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 300], i: int64[64]) -> (y) {
      zero = constant int64[] 0
      a = CumSum(x, zero)
      b = Exp(a)
      c = Neg(b)
      d = Gather(c, i, axis=0)
      e = Sin(d)
      f = Cos(d)
      g = Mul(e, f)
      y = ReduceMax(g, axes=[1])
    }""")
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes) if node.op != "CumSum"]
    fused = fuse(graph, groups)
    session, feeds = Session(fused, threads=1), {"x": draw(graph, 0, {})["x"], "i": np.arange(64)[::-1].copy()}
    for _ in range(4):
        same(session.run(feeds), one_by_one(fused, feeds))
    assert any(record.given for record in records(session))
    for run in (session.run, lambda feeds: one_by_one(fused, feeds)):
        with pytest.raises(ExecutionFailed, match=r"Gather.*(index|bounds)"):
            run({**feeds, "i": feeds["i"] + 1})
    same(session.run(feeds), one_by_one(fused, feeds))


def test_memory_of_strings_is_never_written_over() -> None:
    """It holds references."""
    graph = parse_graph("""graph "g" opset 20 (s: string[n], x: float32[n], i: int64[n]) -> (y, c) {
      t = StringConcat(s, s)
      r = Reshape(t, shape=[-1, 1])
      c = Shape(r)
      a = Gather(x, i)
      b = Cos(a)
      d = Mul(a, b)
      e = Exp(d)
      y = ReduceMax(e, axes=[0])
    }""")
    fused = fuse(graph, [Group((k,), node.outputs[0], ()) for k, node in enumerate(graph.nodes) if k > 2])
    session = Session(fused, threads=1)
    strings = np.array([f"a{k}" for k in range(5000)], object)
    feeds = {"s": strings, "x": np.ones(5000, np.float32), "i": np.arange(5000)}
    for _ in range(5):
        same(session.run(feeds), one_by_one(fused, feeds))
    assert records(session) and not any(record.given for record in records(session))
