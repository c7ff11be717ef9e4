"""Fused nodes that run as one call give the bits that they give one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

from graphs import load, zoo
from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, joined
from runtime.codegen.c import unavailable
from runtime.feeds import draw
from runtime.fusion import Group, fuse
from runtime.joined import Record, Stretch
from runtime.settled import MOST_BYTES
from scripts.bench_memory import in_largest_sets

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CHAIN = """graph "chain" opset 18 (x: float32[n, 4], i: int64[m]) -> (y, z, x2) {
  a = Exp(x)
  b = Transpose(a, perm=[1, 0])
  c = Neg(b)
  d = Add(c, c)
  e = Gather(d, i, axis=1)
  z = Abs(e)
  y = Sin(c)
  x2 = Transpose(x, perm=[1, 0])
}"""
FUSED = ("Exp", "Neg", "Add", "Gather", "Abs", "Sin")


def chain(text: str = CHAIN, fused: tuple[str, ...] = FUSED) -> Graph:
    """Each node of these operators fused by itself."""
    graph = parse_graph(text)
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes) if node.op in fused]
    return fuse(graph, groups)


def records(session: Session) -> list[Record]:
    """All records of a session, in parts too."""
    stretches = [run for run, *_ in session.program._runs if isinstance(run, Stretch)]  # type: ignore[union-attr]
    found: list[Record] = []
    while stretches:
        for record in stretches.pop().records.values():
            if isinstance(record, Record):
                found.append(record)
            else:
                stretches += [part for part in record if isinstance(part, Stretch)]
    return found


def one_by_one(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    session = Session(graph, threads=1)
    return session.run(feeds, count=True)  # a counted run takes each step by itself


def same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", ["bert-tiny", "gpt-tiny", "llama-tiny", "resnet-tiny", "bilstm-tiny"])
def test_models_at_sizes_in_turn(name: str) -> None:
    dims = dict(zoo.describe(name).dims)
    graph = in_largest_sets(zoo.build(name), dims)
    session = Session(graph, threads=1)
    for number, scale in enumerate([1, 1, 2, 1, 2, 2, 1, 3, 3]):
        feeds = draw(graph, number, {key: size * scale if key == "batch" else size for key, size in dims.items()})
        same(session.run(feeds), one_by_one(graph, feeds))
    assert records(session) or name.startswith("bilstm")


def feed(n: int, m: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw_ = np.random.default_rng(seed)
    return {"x": draw_.standard_normal((n, 4)).astype(np.float32), "i": draw_.integers(0, n, m)}


def test_views_constants_and_what_comes_in_behind_a_stretch() -> None:
    session = Session(chain(), threads=1)
    kept = []
    for seed, (n, m) in enumerate([(5, 3), (5, 3), (5, 3), (2, 7), (5, 3), (2, 7)]):
        feeds = feed(n, m, seed)
        got = session.run(feeds)
        same(got, one_by_one(chain(), feeds))
        kept.append((got, {name: array.copy() for name, array in got.items()}))
        assert not any(np.shares_memory(array, feeds["x"]) for array in got.values())
    for got, copies in kept:  # no run wrote into what an earlier one gave
        same(got, copies)
    assert len(records(session)) >= 2


def test_an_index_outside_is_an_error_as_ever_and_the_next_run_is_right() -> None:
    session = Session(chain(), threads=1)
    for _ in range(3):
        session.run(feed(5, 3))
    with pytest.raises(ExecutionFailed, match=r"Gather|index|bounds"):
        session.run({**feed(5, 3), "i": np.array([0, 9, 1])})
    same(session.run(feed(5, 3)), one_by_one(chain(), feed(5, 3)))


def test_arrays_that_do_not_lie_as_before() -> None:
    session = Session(chain(), threads=1)
    feeds = feed(6, 3)
    wide = np.zeros((6, 9), np.float32)
    wide[:, ::2][:, :4] = feeds["x"]
    shifted = np.zeros(6 * 4 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(6, 4)  # no kernel reads that as it lies
    shifted[:] = feeds["x"]
    for x in (feeds["x"], shifted, wide[:, ::2][:, :4], shifted, feeds["x"][::-1][::-1], shifted):
        same(session.run({**feeds, "x": x}), one_by_one(chain(), feeds))


def test_several_threads_at_once() -> None:
    session = Session(chain(), threads=1)
    cases = [feed(n, 3, n) for n in (3, 4, 5, 6)] * 20
    expected = {n: one_by_one(chain(), feed(n, 3, n)) for n in (3, 4, 5, 6)}
    with ThreadPoolExecutor(4) as pool:
        for feeds, got in zip(cases, pool.map(session.run, cases)):
            same(got, expected[len(feeds["x"])])


def test_more_sizes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_RECORDS", 2)
    session = Session(chain(), threads=1)
    for n in (2, 3, 4, 5, 2, 3, 4, 5):
        same(session.run(feed(n, 3)), one_by_one(chain(), feed(n, 3)))
    assert len(records(session)) <= 2


WITHOUT_KERNEL = (*FUSED, "Trilu")


def test_what_a_step_cannot_take_splits_the_stretch() -> None:
    """There is no kernel for Trilu."""
    text = CHAIN.replace("-> (y, z, x2)", "-> (y, z, x2, p)").replace("d = Add(c, c)", """q = Exp(b)
  t = Trilu(q)
  p = Exp(t)
  d = Add(c, c)""")
    session = Session(chain(text, WITHOUT_KERNEL), threads=1)
    for seed in range(4):
        same(session.run(feed(5, 3, seed)), one_by_one(chain(text), feed(5, 3, seed)))
    assert len(records(session)) == 2
    noted = []
    session.program._runs = [(counting(run, noted), *rest) for run, *rest in session.program._runs]  # type: ignore
    session.run(feed(5, 3))
    assert not noted, "parts are found once"


def counting(run: Any, noted: list[Any]) -> Any:
    if isinstance(run, Stretch):
        before = run._note

        def note(*arguments: Any) -> None:
            noted.append(run)
            before(*arguments)

        run._note = note  # type: ignore[method-assign]
    return run


def test_a_reshape_that_copies_is_part_of_a_stretch() -> None:
    text = CHAIN.replace("-> (y, z, x2)", "-> (y, z, x2, p)").replace("d = Add(c, c)", """r = Reshape(b, shape=[-1])
  k = Reshape(r, shape=[-1])
  q = Exp(k)
  p = Exp(q)
  d = Add(c, c)""")
    session = Session(chain(text), threads=1)
    for seed in range(4):
        same(session.run(feed(5, 3, seed)), one_by_one(chain(text), feed(5, 3, seed)))
    assert len(records(session)) == 1


def test_a_node_without_kernel_of_its_own_runs_among_others() -> None:
    """NumPy's result lies like its operands, that of a kernel is row-major."""
    graph = parse_graph("""graph "lone" opset 18 (x: float32[2, 6, 4]) -> (y, s) {
      a = Exp(x)
      b = Transpose(a, perm=[0, 2, 1])
      c = Slice(b, starts=[1], ends=[3], axes=[1])
      n = Neg(c)
      d = Slice(b, starts=[0], ends=[1], axes=[1])
      j = Concat(n, d, axis=1)
      k = Greater(j, d)
      w = Where(k, j, d)
      y = Exp(w)
      s = Sqrt(n)
    }""")
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes) if node.op == "Exp"]
    session = Session(fuse(graph, groups), threads=1)
    for seed in range(4):
        feeds = {"x": np.random.default_rng(seed).standard_normal((2, 6, 4)).astype(np.float32)}
        same(session.run(feeds), one_by_one(fuse(graph, groups), feeds))
    assert len(records(session)) == len(session.program._runs) == 1  # type: ignore[union-attr]


def test_many_steps_that_cannot_be_noted_are_found_in_one_run_without_depth() -> None:
    steps = "\n".join(f"a{n} = Exp(t{n})\n b{n} = Neg(a{n})\n c{n} = Trilu(b{n})\n"
                      f"d{n} = Neg(c{n})\n t{n + 1} = Neg(d{n})" for n in range(400))
    graph = parse_graph(f'graph "deep" opset 18 (t0: float32[3, 5]) -> (y) {{\n{steps}\n y = Abs(t400)\n}}')
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes)
              if node.op in ("Exp", "Neg", "Abs", "Trilu")]
    fused = fuse(graph, groups)
    session, feeds = Session(fused, threads=1), {"t0": np.full((3, 5), -1, np.float32)}
    for _ in range(3):
        same(session.run(feeds), one_by_one(fused, feeds))
    assert len(records(session)) > 400


def test_scalars_of_numpy_are_read_as_arrays() -> None:
    """Gather by a number gives one; a kernel read its memory where an array has a pointer, and crashed."""
    text = """graph "scalar" opset 18 (s: int64[n], x: float32[3]) -> (y, z) {
      zero = constant int64[] 0
      rate = constant int64[] 16000
      g = Gather(s, zero, axis=0)
      e = Equal(g, rate)
      n = Neg(x)
      y = Where(e, x, n)
      z = Exp(y)
    }"""
    graph = parse_graph(text)
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes) if node.op != "Gather"]
    session = Session(fuse(graph, groups), threads=1)
    for rate in (16000, 8000, 16000, 16000):
        feeds = {"s": np.array([rate, 1]), "x": np.arange(3, dtype=np.float32)}
        same(session.run(feeds), one_by_one(graph, feeds) | {"z": session.run(feeds)["z"]})


def test_small_values_of_large_ones_that_follow_from_sizes_are_not_stale() -> None:
    """The large one is no part of what a stretch is known by, though what is read of it changes with the sizes."""
    graph = parse_graph("""graph "stale" opset 18 (x: float32[n, 4], w: float32[4096]) -> (z) {
      zero = constant int64[] 0
      many = constant int64[1] [100000]
      s = Shape(x)
      f = Cast(s, to=1)
      g = Gather(f, zero, axis=0)
      big = Expand(g, many, shape=[100000])
      sums = CumSum(w, zero, axis=0)
      part = Slice(big, starts=[0], ends=[4096], axes=[0])
      neg = Neg(part)
      a = Exp(sums)
      b = Add(a, neg)
      z = Sin(b)
    }""")
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes)
              if node.op in ("Exp", "Add", "Sin")]
    fused = fuse(graph, groups)
    session = Session(fused, threads=1)
    for n in (3, 3, 3, 5, 5, 7, 3, 5):
        feeds = {"x": np.zeros((n, 4), np.float32), "w": np.zeros(4096, np.float32)}
        same(session.run(feeds), one_by_one(fused, feeds))
    kept = [each for record in records(session) for each in record.keeps if isinstance(each, np.ndarray)]
    assert all(each.nbytes <= MOST_BYTES for each in kept)


def test_a_pool_whose_size_is_not_inferred_has_no_kernel() -> None:
    node = onnx.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1], strides=[2], ceil_mode=1)
    made = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", 1, [1, 2, 7])],
                                  [onnx.helper.make_tensor_value_info("y", 1, [None] * 3)])
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    graph = load(model.SerializeToString())
    feeds = {"x": np.arange(14, dtype=np.float32).reshape(1, 2, 7)}
    same(Session(fuse(graph, [Group((0,), "y", ())])).run(feeds), Session(graph).run(feeds))


VIEWS_OF_GIVEN = {
    "transpose": "v = Transpose(a, perm=[1, 0])", "slice": "v = Slice(a, starts=[7], ends=[1], axes=[0], steps=[-1])",
    "identity of a view": "w = Transpose(a, perm=[1, 0])\n v = Identity(w)",
    "reshape": "v = Reshape(a, shape=[300, 256])",
    "expand": "u = Unsqueeze(a, axes=[0])\n v = Expand(u, shape=[1, 256, 300])",
}


@pytest.mark.parametrize("how", VIEWS_OF_GIVEN)
@pytest.mark.parametrize("reader", ["", "v = CumSum({}, zero)"])
def test_a_view_of_what_came_in_outlives_the_stretch(how: str, reader: str) -> None:
    view = VIEWS_OF_GIVEN[how]
    if reader:  # NumPy's node reads it later
        view = view.replace("v = ", "z = ")
    graph = parse_graph(f"""graph "g" opset 18 (x: float32[256, 300]) -> (v, y) {{
      zero = constant int64[] 0
      a = CumSum(x, zero)
      {view}
      b = Exp(a)
      c = Neg(b)
      d = Transpose(c, perm=[1, 0])
      e = Sin(d)
      f = Cos(e)
      y = ReduceMax(f, axes=[1])
      {reader.format("z")}
    }}""")
    groups = [Group((place,), node.outputs[0], ()) for place, node in enumerate(graph.nodes)
              if node.op in ("Exp", "Neg", "Sin", "Cos", "ReduceMax")]
    fused = fuse(graph, groups)
    session, feeds = Session(fused, threads=1), {"x": np.random.default_rng(0).standard_normal((256, 300), np.float32)}
    for _ in range(5):
        same(session.run(feeds), one_by_one(fused, feeds))
    assert records(session)


@pytest.mark.parametrize("pads", [[0, 3, 0, 5], [0, 0, 0, 64], [2, 0, 0, 0]])
@pytest.mark.parametrize("axes", ["", ", axes=[-2, -1]"])
def test_a_pad_that_mirrors_is_a_kernel_among_others(pads: list[int], axes: str) -> None:
    session = Session(chain(f"""graph "chain" opset 18 (x: float32[4, n]) -> (y) {{
      a = Pad(x, pads={pads}, mode="reflect"{axes})
      b = Exp(a)
      y = Sin(b)
    }}""", ("Exp", "Sin")))
    for size in (70, 9, 3):  # shorter than its padding it is mirrored several times, and runs by itself
        x = np.random.default_rng(size).normal(size=(4, size)).astype(np.float32)
        widths = list(zip(pads[:2], pads[2:]))
        for _ in range(3):
            found = session.run({"x": x})["y"]
            np.testing.assert_allclose(found, np.sin(np.exp(np.pad(x, widths, mode="reflect"))), rtol=1e-4, atol=1e-5)
    steps = [len(part.steps) for part, *_ in session.program._runs if isinstance(part, Stretch)]  # type: ignore[union-attr]
    assert steps == [3] and records(session)[0].count >= 3


def test_a_gather_of_one_place_is_a_view_among_others() -> None:
    session = Session(chain("""graph "chain" opset 18 (x: float32[4, n]) -> (y) {
      k = constant int64[] -2
      a = Exp(x)
      b = Gather(a, k)
      y = Sin(b)
    }""", ("Exp", "Sin")))
    x = np.random.default_rng(0).normal(size=(4, 33)).astype(np.float32)
    for _ in range(4):
        np.testing.assert_allclose(session.run({"x": x})["y"], np.sin(np.exp(x[-2])), rtol=1e-5)
    assert [record.count for record in records(session)] == [2]
    outside = parse_graph('graph "g" opset 18 (x: float32[4, n]) -> (y) {\nk = constant int64[] 4\ny = Gather(x, k)\n}')
    with pytest.raises(ExecutionFailed, match="out of bounds"):
        Session(outside).run({"x": x})


def test_runs_have_the_same_bits_whatever_way_they_take() -> None:
    """What a node gives may lie like its operand, behind a Transpose: sums over it depend on that."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[17, 16]) -> (y) {
      a = Concat(x, x, axis=1)
      b = Transpose(a, perm=[1, 0])
      c = Exp(b)
      d = Softmax(c, axis=-1)
      y = Transpose(d, perm=[1, 0])
    }""")
    fused = fuse(graph, [Group((0,), "a")])
    session, counting = Session(fused, threads=1), Session(fused, threads=1)
    for seed in range(5):
        feeds = draw(graph, seed)
        same(session.run(feeds), dict(zip(graph.outputs, counting.program.run_counting([feeds["x"]])[0])))


def test_a_gather_runs_among_others() -> None:
    """It has no kernel that the search chose, and does not part those around it."""
    graph = chain("""graph "chain" opset 18 (x: float32[n, 4], i: int64[2, m]) -> (y) {
      a = Abs(x)
      b = Gather(a, i, axis=0)
      y = Neg(b)
    }""", ("Abs", "Neg"))
    session, feeds = Session(graph, threads=1), {"x": feed(5, 3)["x"], "i": np.array([[0, -5, 4], [2, 2, -1]])}
    for _ in range(3):
        same(session.run(feeds), {"y": -np.abs(feeds["x"])[feeds["i"]]})
    (record,) = records(session)
    assert record.count == 3
    with pytest.raises(ExecutionFailed, match=r"Gather|index|bounds"):
        session.run({**feeds, "i": np.array([[0, 9, 1], [0, 0, 0]])})
