"""Work of whole graphs, nested ones included, counted by hand: one operation for each element of Neg or Add, two for
each product of a MatMul."""

from __future__ import annotations

import pytest

from cost_model.peaks import Peaks
from cost_model.roofline import GraphRoofline, graph_roofline
from graphs.inference import infer
from graphs.text import parse_graph

PEAKS = Peaks(flops=1e9, cache_bytes=1e8, memory_bytes=1e8, threads=1)
LAUNCH = 1e-6
F = 4  # bytes of a float32


def roofline(text: str, **sizes: int) -> GraphRoofline:
    graph = parse_graph(text)
    infer(graph)
    return graph_roofline(graph, sizes, PEAKS, LAUNCH)


def test_bytes_operations_and_what_bounds_them() -> None:
    weights = ", ".join(["1"] * 32)
    found = roofline(f"""graph "g" opset 18 (x: float32[n, 8]) -> (y) {{
      w = constant float32[8, 4] [{weights}] y = MatMul(x, w) }}""", n=5)
    assert found.flops == 2 * 5 * 8 * 4
    assert found.unique_bytes == found.traffic_bytes == F * (5 * 8 + 8 * 4 + 5 * 4)
    assert found.intensity == found.flops / found.unique_bytes
    assert found.bound == "memory" and found.lower_bound == pytest.approx(found.unique_bytes / 1e8)
    assert found.kernels_bound == pytest.approx(found.lower_bound + LAUNCH)
    assert found.to_dict()["achieved"] is None
    assert found.to_dict(2 * found.lower_bound)["achieved"] == pytest.approx(0.5)


def test_fusion_raises_the_intensity_of_what_moves_and_nothing_else() -> None:
    chain = roofline('graph "g" opset 18 (x: float32[n]) -> (y) { a = Neg(x) y = Neg(a) }', n=1000)
    assert chain.unique_bytes == 2 * F * 1000 and chain.traffic_bytes == 4 * F * 1000
    assert chain.launches == 2
    assert chain.intensity == 2 * chain.traffic_intensity == pytest.approx(2 / (2 * F))


IF = """graph "g" opset 18 (x: float32[6], c: bool[]) -> (y) {
  w = constant float32[2] [1, 2]
  y = If(c, then_branch=graph "t" () -> (t) { t = Neg(x) },
            else_branch=graph "e" () -> (e) { a = Tile(w, repeats=[3]) b = Neg(x) d = Neg(b) e = Add(d, a) }) }"""


def test_of_an_if_the_cheaper_branch_counts() -> None:
    """Whichever a run takes, it takes no less."""
    found = roofline(IF)
    assert found.launches == 1 + 1  # the If and the Neg
    assert found.flops == 6
    assert found.unique_bytes == F * (6 + 6) + 1  # the input, the output, the condition
    assert found.unknown == found.loops_once == 0
    dearer = IF.replace("t = Neg(x)", "g = Neg(x) h = Neg(g) k = Neg(h) l = Neg(k) t = Neg(l)")
    found = roofline(dearer)
    assert found.launches == 1 + 3  # two Neg and the Add; the Tile of a constant is done on load
    assert found.flops == 3 * 6
    assert found.unique_bytes == F * (6 + 6 + 2) + 1


def test_what_may_lie_in_a_cache_is_not_read_from_memory() -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[n]) -> (y) { y = Neg(x) }')
    infer(graph)
    peaks = Peaks(flops=1e9, cache_bytes=1e9, memory_bytes=1e8, threads=1, cached=64 << 20)
    for size, rate in ((1 << 20, 1e9), (1 << 24, 1e8)):
        found = graph_roofline(graph, {"n": size}, peaks, LAUNCH)
        assert found.lower_bound == pytest.approx(max(2 * F * size / rate, size / 1e9))


LOOP = """graph "g" opset 18 (x: float32[3], trips: int64[]) -> (y) {
  m = constant int64[] 5
  go = constant bool[] true
  w = constant float32[3] [1, 2, 3]
  y = Loop(%s, go, x, body=graph "b" (i: int64[], c: bool[], s: float32[3]) -> (c, r) { r = Add(s, w) }) }"""


def test_a_loop_counts_as_often_as_it_runs() -> None:
    found = roofline(LOOP % "m")
    assert found.flops == 5 * 3 and found.launches == 1 + 5 and found.loops_once == 0
    assert found.traffic_bytes == 5 * 3 * F * 3
    assert found.unique_bytes == F * 3 * 3 + 8 + 8 + 1  # x, y, w; the trip count, that input, the condition
    unknown = roofline(LOOP % "trips")
    assert unknown.flops == 3 and unknown.launches == 2 and unknown.loops_once == 1


def test_a_scan_counts_for_each_element() -> None:
    found = roofline("""graph "g" opset 18 (s: float32[2], x: float32[n, 2]) -> (last, ys) {
      last, ys = Scan(s, x, num_scan_inputs=1, body=graph "b" (a: float32[2], e: float32[2]) -> (r, o) {
        r = Add(a, e) o = Neg(r) }) }""", n=7)
    assert found.flops == 7 * (2 + 2) and found.launches == 1 + 7 * 2


def test_constants_count_where_the_work_of_their_reader_does() -> None:
    """Else the unique bytes could exceed what moves."""
    found = roofline("""graph "g" opset 18 (x: float32[4], c: bool[]) -> (y, z, v) {
      w = constant float32[3] [1, 2, 3]
      y = my.domain.Foo(x, w)
      z = Neg(x)
      v = If(c, then_branch=graph "t" () -> (t) { t = my.domain.Foo(x, w) },
                else_branch=graph "e" () -> (e) { e = my.domain.Foo(x, w) }) }""")
    assert found.unknown == 2 and found.traffic_bytes == F * (4 + 4)
    assert found.unique_bytes == F * (4 + 4) + 1  # x, z, the condition


def test_of_what_is_computed_on_load_no_more_counts_than_its_reader_reads() -> None:
    found = roofline("""graph "g" opset 18 (x: float32[1]) -> (y) {
      w = constant float32[4] [1, 2, 3, 4]
      s = ReduceSum(w, axes=[0], keepdims=1) y = Add(x, s) }""")
    assert found.unique_bytes == found.traffic_bytes == F * 3


@pytest.mark.parametrize("body, table", [
    ("a = Gather(t, i, axis=0) r = Neg(a)", F * 2 * 2),  # the two rows
    ("a = Gather(t, i, axis=0) s = ReduceSum(t, axes=[0], keepdims=1) r = Add(a, s)", F * 4 * 2),  # all are read
])
def test_a_fused_look_up_reads_what_it_takes_of_the_table(body: str, table: int) -> None:
    found = roofline(f"""graph "g" opset 18 (ids: int64[2]) -> (y) {{
      w = constant float32[4, 2] [1, 2, 3, 4, 5, 6, 7, 8]
      y = egraft.Fused(w, ids, body=graph "b" (t: float32[4, 2], i: int64[2]) -> (r) {{ {body} }}) }}""")
    assert found.traffic_bytes == found.unique_bytes == table + 8 * 2 + F * 2 * 2  # indices, result
