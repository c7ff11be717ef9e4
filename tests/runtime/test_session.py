"""Sessions: results, checks of feeds, liveness, writing in place, control flow, fallback."""

from typing import Any

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.errors import ExecutionFailed, InvalidInput, InvalidOption, NotExecutable, TargetUnavailable
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, kernels, run
from runtime.program import IN_PLACE, IN_PLACE_BYTES

CHAIN = """graph "g" opset 17 (x: float32[n, m]) -> (y) {
  one = constant float32[] 1.5
  a = Add(x, one)
  b = Mul(a, a)
  c = Neg(b)
  d = Sub(c, one)
  y = Tanh(d)
}"""


def test_values_of_a_chain() -> None:
    x = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    a = x + np.float32(1.5)
    got = run(parse_graph(CHAIN), {"x": x})
    assert list(got) == ["y"]
    np.testing.assert_array_equal(got["y"], np.tanh(-(a * a) - np.float32(1.5)))


def test_feeds_and_constants_are_never_written_to() -> None:
    session = Session(parse_graph(CHAIN))
    x = np.ones((300, 200), np.float32)
    first = session.run({"x": x})["y"]
    assert (x == 1).all()
    first[...] = 7
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.tanh(np.float32(-7.75)) + 0 * x)


@pytest.mark.parametrize("body", ["y = Identity(x)", "y = Reshape(x, shape=[-1])", "y = Transpose(x, perm=[1, 0])",
                                  "a = Add(x, x)\n y = Reshape(a, shape=[-1])",
                                  "a, y = Split(x, axis=0, num_outputs=2)"])
def test_results_share_no_memory_with_inputs_or_each_other(body: str) -> None:
    graph = parse_graph(f'graph "g" opset 18 (x: float32[n, m]) -> (y, z) {{ {body}\n z = Identity(y) }}')
    x = np.ones((200, 100), np.float32)
    session = Session(graph)
    got = session.run({"x": x})
    assert not np.shares_memory(got["y"], x) and not np.shares_memory(got["y"], got["z"])
    got["y"][...] = 5
    assert (x == 1).all() and (got["z"] != 5).all()
    assert (session.run({"x": x})["y"] != 5).all()


def test_a_view_that_is_still_needed_is_not_overwritten() -> None:
    graph = parse_graph("""graph "g" opset 17 (x: float32[n, m]) -> (y) {
      a = Exp(x)
      t = Transpose(a, perm=[1, 0])
      b = Neg(a)
      u = Transpose(b, perm=[1, 0])
      y = Add(t, u)
    }""")
    got = run(graph, {"x": np.ones((200, 100), np.float32)})["y"]
    assert (got == 0).all()


@pytest.mark.parametrize("op", sorted(IN_PLACE))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_writing_in_place_gives_the_bits_of_the_kernel(op: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    count = IN_PLACE_BYTES // np.dtype(dtype).itemsize + 3
    values = [rng.standard_normal(count).astype(dtype) for _ in range(IN_PLACE[op].nin)]
    for value in values:
        value[:5] = [np.nan, np.inf, -np.inf, -0.0, 0.0]
    kernel = kernels.find(op)
    assert kernel is not None
    with np.errstate(all="ignore"):
        expected = np.asarray(kernel({}, values)[0])
        np.testing.assert_array_equal(IN_PLACE[op](*values).view(f"u{expected.itemsize}"),
                                      expected.view(f"u{expected.itemsize}"))


def test_memory_of_a_chain_is_one_value() -> None:
    session = Session(parse_graph(CHAIN))
    session.run({"x": np.ones((300, 200), np.float32)})
    assert session.report.peak_bytes is not None and session.report.peak_bytes <= 2 * 300 * 200 * 4


@pytest.mark.parametrize(("feeds", "words"), [
    ({}, "missing"),
    ({"x": np.ones((2, 2), np.float32), "q": 1}, "no such input"),
    ({"x": np.ones((2, 2))}, "float64"),
    ({"x": np.ones(2, np.float32)}, "rank"),
])
def test_feeds_that_do_not_fit(feeds: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        run(parse_graph(CHAIN), feeds)


def test_symbols_agree_between_inputs() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[n, 3], z: float32[n, 1]) -> (y) { y = Add(x, z) }')
    with pytest.raises(InvalidInput, match="dimension 0 is 1"):
        run(graph, {"x": np.ones((2, 3), np.float32), "z": np.ones((1, 1), np.float32)})
    with pytest.raises(InvalidInput, match="wants 3"):
        run(graph, {"x": np.ones((2, 4), np.float32), "z": np.ones((2, 1), np.float32)})
    assert run(graph, {"x": [[1, 2, 3]], "z": [[1.5]]})["y"].tolist() == [[2.5, 3.5, 4.5]]


def test_targets_that_are_not_here() -> None:
    with pytest.raises(TargetUnavailable, match="egraft:cuda"):
        Session(parse_graph(CHAIN), "egraft:cuda")


def test_a_node_that_fails_is_named() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[n], s: int64[k]) -> (y) { y = Reshape(x, s, shape=runtime) }')
    with pytest.raises(ExecutionFailed, match="Reshape 'y'"):
        run(graph, {"x": np.ones(4, np.float32), "s": np.array([3])})


def test_run_time_attributes() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[n], s: int64[k]) -> (y) { y = Reshape(x, s, shape=runtime) }')
    assert run(graph, {"x": np.ones(4, np.float32), "s": np.array([2, -1])})["y"].shape == (2, 2)


def test_an_unknown_operator_is_not_executable_and_named() -> None:
    graph = parse_graph('graph "g" opset 17, my.domain 1 (x: float32[n]) -> (y) { y = my.domain.Foo(x) }')
    with pytest.raises(NotExecutable, match=r"my\.domain"):
        Session(graph)


def test_what_onnx_reference_runs_is_reported() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[n, n]) -> (y) { y = Det(x) }')
    session = Session(graph)
    assert session.run({"x": np.diag([2.0, 3.0]).astype(np.float32)})["y"] == pytest.approx(6)
    if kernels.find("Det") is None:
        assert session.report.by_reference == ["Det 'y'"]


def test_if_takes_values_from_around_it() -> None:
    graph = parse_graph("""graph "g" opset 17 (c: bool[], x: float32[n]) -> (y) {
      h = Neg(x)
      y = If(c, then_branch=graph () -> (u) { u = Abs(h) }, else_branch=graph () -> (h) { })
    }""")
    x = np.array([1, -2], np.float32)
    assert run(graph, {"c": np.array(True), "x": x})["y"].tolist() == [1, 2]
    assert run(graph, {"c": np.array(False), "x": x})["y"].tolist() == [-1, 2]


LOOP = """graph "g" opset 17 (m: int64[], x: float32[2]) -> (last, all) {{
  go = constant bool[] {go}
  last, all = Loop(m, go, x, body=graph (i: int64[], c: bool[], v: float32[2]) -> (c2, w, s) {{
    limit = constant float32[] 50
    w = Add(v, v)
    s = Add(w, x)
    top = ReduceMax(w, keepdims=0)
    c2 = Less(top, limit)
  }})
}}"""


def test_loop_stops_at_its_count_and_at_its_condition() -> None:
    x = np.array([1, 2], np.float32)
    graph = parse_graph(LOOP.format(go="true"))
    got = run(graph, {"m": np.array(3), "x": x})
    assert got["last"].tolist() == [8, 16] and got["all"].tolist() == [[3, 6], [5, 10], [9, 18]]
    assert run(graph, {"m": np.array(100), "x": x})["all"].shape == (5, 2)
    none = run(parse_graph(LOOP.format(go="false")), {"m": np.array(3), "x": x})
    assert none["last"].tolist() == [1, 2] and none["all"].shape == (0, 2)


def test_scan_runs_backwards_where_asked() -> None:
    graph = parse_graph("""graph "g" opset 17 (s: float32[], x: float32[n]) -> (total, sums) {
      total, sums = Scan(s, x, num_scan_inputs=1, scan_input_directions=[1],
                         body=graph (a: float32[], e: float32[]) -> (b, o) { b = Add(a, e) o = Identity(b) })
    }""")
    got = run(graph, {"s": np.float32(0), "x": np.array([1, 2, 4], np.float32)})
    assert got["total"] == 7 and got["sums"].tolist() == [4, 6, 7]


def test_random_operators_follow_the_seed() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[n]) -> (y) { y = RandomNormalLike(x) }')
    x = np.ones(5, np.float32)
    a, b = (Session(graph, seed=3).run({"x": x})["y"] for _ in range(2))
    np.testing.assert_array_equal(a, b)
    session = Session(graph, seed=3)
    assert (session.run({"x": x})["y"] != session.run({"x": x})["y"]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype: str) -> None:
    import ml_dtypes

    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    b = Builder("h", opset=17)
    x = b.input("x", dtype, ["n"])
    b.output(b.Add(b.Mul(x, x), x), "y")
    graph: Graph = b.graph()
    got = Session(graph).run({"x": np.arange(4).astype(kind)})["y"]
    assert got.dtype == kind and got.astype(np.float32).tolist() == [0, 2, 6, 12]


def test_feeds_of_sizes_that_were_seen_are_checked_as_others_are() -> None:
    session = Session(parse_graph('graph "g" opset 18 (x: float32[n, 2], z: float32[n]) -> (y) { y = Neg(x) }'))
    one = {"x": np.ones((3, 2), np.float32), "z": np.ones(3, np.float32)}
    for _ in range(2):
        np.testing.assert_array_equal(session.run(one)["y"], -one["x"])
        for wrong in ({"z": np.ones(4, np.float32)}, {"x": np.ones((3, 2))}, {"w": one["x"]}):
            with pytest.raises(InvalidInput):
                session.run({**one, **wrong})
        with pytest.raises(InvalidInput):
            session.run({"x": one["x"]})
        np.testing.assert_array_equal(session.run({"z": [1, 2, 3], "x": one["x"]})["y"], -one["x"])


@pytest.mark.parametrize("threads", [0, -1, "a", 1.5, True])
def test_threads_that_are_no_number_of_them(threads: Any) -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[2]) -> (y) { y = Neg(x) }')
    with pytest.raises(InvalidOption, match="threads"):
        Session(graph, threads=threads)
    assert Session(graph, threads=None).run({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]
