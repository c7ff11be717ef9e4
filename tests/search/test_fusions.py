"""Discovering fusions: enumeration against brute force, choosing, what is measured, what is never taken."""

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from cost_model.sizes import default_measure_sizes
from cost_model.timings import Timings
from graphs import zoo
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import run
from runtime.codegen.c import FusedKernel, NotFusable, text, unavailable
from runtime.codegen.c.check import fault
from runtime.codegen.c.fused import plan_of
from runtime.feeds import draw
from runtime.fusion import Group, body_of, constant_inputs, fuse, with_sizes
from search.fusions import FusionBudget, discover
from search.fusions.apart import Apart
from search.fusions.choose import best_packing, excluding
from search.fusions.discovery import _unique
from search.fusions.enumerate import enumerate_groups
from search.fusions.labels import label_of
from search.fusions.measure import MOST_CHECKED, Measured, measured_now, shapes_of, small_sizes
from tests.fuzz.generator import generate
from tests.norms import spelled_norm

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def random_graph(seed: int, nodes: int) -> Graph:
    chance = random.Random(seed)
    names, lines = ["x"], []
    for index in range(nodes):
        op = chance.choice(["Add", "Mul", "Exp"])
        reads = [chance.choice(names[-4:]) for _ in range(1 if op == "Exp" else 2)]
        lines.append(f"v{index} = {op}({', '.join(reads)})")
        names.append(f"v{index}")
    outputs = {f"v{nodes - 1}", chance.choice(names[1:])}
    return parse_graph(f'graph "g" opset 18 (x: float32[4]) -> ({", ".join(sorted(outputs))}) {{\n'
                       + "\n".join(lines) + "\n}")


def by_brute_force(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Connected, convex sets of at least two nodes of which only one value is needed outside."""
    count = len(graph.nodes)
    makers = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
    reads = [{makers[name] for name in node.inputs if name in makers} for node in graph.nodes]
    users = [{index for index in range(count) if place in reads[index]} for place in range(count)]
    for size in range(2, count + 1):
        for chosen in itertools.combinations(range(count), size):
            inside = set(chosen)
            needed = [index for index in inside
                      if users[index] - inside or graph.nodes[index].outputs[0] in graph.outputs or not users[index]]
            if needed == [max(inside)]:
                reached, waiting = {max(inside)}, [max(inside)]
                while waiting:
                    new = (reads[waiting.pop()] & inside) - reached
                    reached |= new
                    waiting += new
                if reached == inside:
                    yield chosen


@pytest.mark.parametrize("seed", range(12))
def test_every_set_is_found_once(seed: int) -> None:
    graph = random_graph(seed, 9)
    found = [group.nodes for group in enumerate_groups(graph, graph.types, 10_000, 99).groups
             if len(group.nodes) > 1 and not group.others]
    assert len(found) == len(set(found))
    assert set(found) == set(by_brute_force(graph))


def test_a_budget_keeps_the_largest_set_and_is_counted() -> None:
    lines = [f"a{index} = Exp(x{index})" for index in range(8)]
    lines += ["s1 = Add(a0, a1)", *(f"s{index} = Add(s{index - 1}, a{index})" for index in range(2, 8))]
    names = ", ".join(f"x{index}: float32[4]" for index in range(8))
    graph = parse_graph(f'graph "g" opset 18 ({names}) -> (s7) {{\n' + "\n".join(lines) + "\n}")
    found = enumerate_groups(graph, graph.types, 20, 99)
    assert found.cut >= 1 and max(len(group.nodes) for group in found.groups) == 15


def test_a_costly_function_is_not_repeated_for_every_copy() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[8, 4], z: float32[4]) -> (y) {
      e = Exp(z)
      m = Mul(x, e)
      y = Add(m, x)
    }""")
    found = enumerate_groups(graph, graph.types, 100, 99)
    assert {group.nodes for group in found.groups} == {(1, 2)}


def test_a_product_whose_parts_others_read_is_not_computed_for_one_of_them() -> None:
    """A Split is copied for free: what it splits is not, and would be computed for each of its readers."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[8, 6], w: float32[6, 12]) -> (y, z) {
      p = MatMul(x, w)
      q, k = Split(p, axis=1, num_outputs=2)
      y = Exp(q)
      t = Transpose(k, perm=[1, 0])
      z = Exp(t)
    }""")
    found = {group.nodes for group in enumerate_groups(graph, graph.types, 100, 99).groups}
    assert (0,) in found and not any(0 in nodes and len(nodes) > 1 for nodes in found)
    one = parse_graph("""graph "g" opset 18 (x: float32[8, 6], w: float32[6, 12]) -> (y) {
      p = MatMul(x, w)
      t = Transpose(p, perm=[1, 0])
      a = Exp(t)
      b = Neg(t)
      y = Add(a, b)
    }""")
    assert (0, 1, 2, 3, 4) in {group.nodes for group in enumerate_groups(one, one.types, 100, 99).groups}


def test_a_concat_joins_a_product_from_below_only() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[1, 8, 9, 9], r: float32[1, 3, 9, 9], w: float32[8, 11, 1, 1])
        -> (y) {
      c = Concat(x, r, axis=1)
      q = Conv(c, w)
      z = Relu(q)
      y = Concat(z, r, axis=1)
    }""")
    found = {group.nodes for group in enumerate_groups(graph, graph.types, 100, 99).groups}
    assert (1, 2, 3) in found and not any({0, 1} <= set(each) for each in found)


@pytest.mark.parametrize(("inputs", "nodes", "kept"), [
    ("x: float32[1, 256, 500], w: float32[256, 1, 31]", "y = Conv(x, w, group=256, pads=[15, 15])",
     {"w": (256, 1, 31)}),
    ("x: float32[2, 96, 56, 56], w: float32[400, 96, 1, 1]", "@ones\ny = Conv(x, w, c)",
     {"x": (2, 5, 56, 56), "w": (400, 5, 1, 1)}),
    ("x: float32[2, 256, 64, 64]", "y = MaxPool(x, kernel_shape=[3, 3])", {"x": (2, 19, 64, 64)}),
])
def test_what_is_checked_is_what_runs(inputs: str, nodes: str, kept: dict[str, tuple[int, ...]]) -> None:
    """Windows, sizes of constants, the innermost size and the engine's part for planes of many channels stay; other
    sizes get small."""
    nodes = nodes.replace("@ones", f"c = constant float32[400] [{', '.join(['1'] * 400)}]")
    graph = parse_graph(f'graph "g" opset 18 ({inputs}) -> (y) {{\n{nodes}\n}}')
    small = small_sizes(graph, shapes_of(graph))
    assert {name: small[name] for name in kept} == kept


@needs_compiler
@pytest.mark.parametrize(("m", "k", "n", "which"), [
    (128, 1024, 2816, "x0, w0"), (128, 1024, 1100, "x0, w0"), (512, 768, 3072, "x0, w0"), (512, 768, 3072, "w0, x0")])
def test_a_product_is_checked_where_the_engine_reads_operands_as_it_does(m: int, k: int, n: int, which: str) -> None:
    a, b = which.split(", ")
    graph = parse_graph(f"""graph "g" opset 18 ({a}: float32[{m}, {k}], {b}: float32[{k}, {n}]) -> (y) {{
      c = MatMul({which})
      y = Relu(c)
    }}""")

    def ways(shapes: dict[str, tuple[int, ...]]) -> tuple[bool, ...]:
        product = plan_of(graph, shapes).product
        assert product is not None
        return product.ways(constant_inputs(graph))

    small = small_sizes(graph, shapes_of(graph))
    assert small != shapes_of(graph) and ways(small) == ways(shapes_of(graph))


@needs_compiler
@pytest.mark.parametrize(("shapes", "nodes"), [
    ([(4096, 64), (64, 4096)], "c = MatMul(x0, x1); y = Relu(c)"),
    ([(12, 2048, 128), (12, 128, 2048)], "c = MatMul(x0, x1); y = Softmax(c)"),
    ([(8, 12, 4096, 64), (8, 12, 64, 4096)], "c = MatMul(x0, x1); y = Relu(c)")])
def test_no_way_to_read_operands_makes_a_check_large(shapes: list[tuple[int, ...]], nodes: str) -> None:
    inputs = ", ".join(f"x{place}: float32{list(shape)}" for place, shape in enumerate(shapes))
    graph = parse_graph(f'graph "g" opset 18 ({inputs}) -> (y) {{\n' + nodes.replace("; ", "\n") + "\n}")
    assert max(math.prod(shape) for shape in small_sizes(graph, shapes_of(graph)).values()) <= MOST_CHECKED


def test_the_packing_is_the_best_and_not_the_greedy_one() -> None:
    groups = [(Group((1, 2), "b"), 10.0e-6), (Group((0, 1), "a"), 7e-6), (Group((2, 3), "c"), 7e-6),
              (Group((4,), "d"), 0.0)]
    assert best_packing(groups, ()) == [1, 2]
    assert best_packing(groups, (1, 2)) == [0, 1, 2]  # shared nodes are in nobody's way


def test_a_copied_view_of_what_another_kernel_computes_inside_excludes_that() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4, 6]) -> (y, z) {
      a = Abs(x)
      b = Exp(a)
      r = Reshape(b, shape=[6, 4])
      n = Neg(r)
      y = Abs(n)
      z = Exp(r)
    }""")
    inside, reader, copier = Group((0, 1, 2), "r"), Group((3, 4), "y"), Group((2, 3, 4), "y")
    assert excluding(graph, [inside, reader, copier], {2}) == {(0, 2)}
    assert best_packing([(inside, 5e-6), (reader, 2e-6), (copier, 4e-6)], {2}, apart={(0, 2)}) == [0, 1]
    dead = fuse(graph, [inside, copier, Group((2, 5), "z")])
    assert {name for node in dead.nodes for name in node.outputs} == {"a", "b", "y", "z"}, "what nobody reads is gone"


def test_a_group_of_several_outputs_of_which_nobody_reads_the_last_stays() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4, 6]) -> (y) {
      a = Exp(x)
      y = Abs(a)
      b = Neg(a)
    }""")
    made = fuse(graph, [Group((0, 2), "a", ("b",))])
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_allclose(run(made, {"x": x})["y"], np.exp(x), rtol=1e-6)


BLOCK = """graph "g" opset 18 (x: float32[b, s, 64], r: float32[b, s, 64], q: float32[b, 4, s, s], m: float32[b, 1, 1, s]) -> (y, p) {
  two = constant float32[] 2.0
  k = constant float32[] 8.0
  one = constant float32[] 1.0
  half = constant float32[] 0.5
  u = Add(x, r)
  NORM
  e = Erf(n)
  f = Add(e, one)
  g = Mul(n, f)
  y = Mul(g, half)
  t = Div(q, k)
  c = Add(t, m)
  p = Softmax(c, axis=-1)
}""".replace("NORM", spelled_norm("u", "n", "one"))  # noqa: E501


@needs_compiler
def test_norms_gelu_and_softmax_are_found_in_a_block() -> None:
    graph, timings = parse_graph(BLOCK), Timings(":memory:")
    sizes = {"b": 2, "s": 32}
    found = discover(graph, sizes, timings)
    assert found.counts["measured"] + found.counts.get("known", 0) >= 2 and not found.faults
    assert {"Softmax", "Erf", "ReduceMean"} <= {op for each in found.fusions for op in each.operators}
    feeds = draw(graph, 0, sizes)
    want, got = run(graph, feeds), run(found.graph, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
    again = discover(graph, sizes, timings)
    assert "measured" not in again.counts and again.groups == found.groups


@needs_compiler
def test_a_faulty_kernel_is_reported_and_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    written = text.Writer._text
    monkeypatch.setattr(text.Writer, "_text", lambda self: written(self).replace("(0.5f)", "(0.25f)"))
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 64]) -> (y) {
      half = constant float32[] 0.5
      e = Erf(x)
      y = Mul(e, half)
    }""")
    found = discover(graph, {}, Timings(":memory:"), attempt=measured_now)  # in this process, which has the bug
    assert found.counts["faulty"] == 1 and "Erf Mul" in found.faults[0]
    assert all("Mul" not in each.operators for each in found.fusions)


def test_without_a_compiler_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.codegen.c.compiler._compiler", lambda: None)
    graph = parse_graph(BLOCK)
    found = discover(graph, {"b": 1, "s": 8}, Timings(":memory:"))
    assert found.graph is graph and "no C compiler" in found.lines()[0]


def test_equal_layers_share_their_candidates() -> None:
    graph = zoo.build("bert-tiny")
    types = with_sizes(graph, {"batch": 1, "sequence": 64})
    found = enumerate_groups(graph, types, 200, 48)
    unique = _unique(graph, found, types)
    assert len(unique) < len(found.groups) / 2
    assert sum(len(each.groups) for each in unique.values()) == len(found.groups)


@needs_compiler
def test_the_budget_of_candidates_is_kept_and_what_is_left_is_counted() -> None:
    found = discover(parse_graph(BLOCK), {"b": 1, "s": 8}, Timings(":memory:"), budget=FusionBudget(candidates=1))
    assert found.counts["measured"] == 1 and found.counts["left for want of budget"] > 0


@needs_compiler
def test_what_lies_in_a_set_that_is_not_taken_is_looked_at_in_the_end() -> None:
    """The two best sets overlap: what the worse one would have covered besides is tried by itself."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[4, 6]) -> (y) {
      a = Exp(x)
      b = Sin(a)
      c = Cos(b)
      d = Tan(c)
      y = Erf(d)
    }""")
    seconds = {("Exp", "Sin", "Cos"): 5.0, ("Cos", "Tan", "Erf"): 6.0, ("Exp", "Sin"): 1.0}

    def attempt(body: Graph, exact: bool, threads: int) -> tuple[Measured, list[float]]:
        gain = seconds.get(tuple(node.op for node in body.nodes), -1.0)
        return Measured(10.0 - gain, 10.0, "faster" if gain > 0 else "slower"), [10.0 - gain] * 5

    found = discover(graph, {}, Timings(":memory:"), attempt=attempt)
    assert sorted(each.operators for each in found.fusions) == [
        ("Cos", "Tan", "Erf"), ("Exp", "Sin")]


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_kernels_of_random_graphs_are_right(seed: int) -> None:
    graph = generate(seed, kind="")
    sizes = dict.fromkeys(default_measure_sizes(graph), 3)
    types = with_sizes(graph, sizes)
    groups = sorted(enumerate_groups(graph, types, 30, 20).groups, key=lambda group: -len(group.nodes))
    for group in groups[:2]:
        body, _ = body_of(graph, group, types)
        try:
            assert fault(FusedKernel(body), shapes_of(body)) is None, str(body)
        except NotFusable:  # the reason is of no interest here
            continue


@needs_compiler
def test_a_kernel_that_crashes_or_hangs_ends_its_own_process_and_is_not_tried_again() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 64]) -> (a, b, c) {
      one = constant float32[] 1.0
      e = Erf(x)
      a = Mul(e, x)
      t = Tanh(x)
      b = Add(t, x)
      u = Abs(x)
      c = Sub(u, one)
    }""")
    timings, trial = Timings(":memory:"), Apart("tests.search.samples_crash", seconds=0.5)
    found = discover(graph, {}, timings, attempt=trial)
    trial.close()
    assert found.counts["crashed"] >= 2 and {each.operators for each in found.fusions} == {("Abs", "Sub")}
    assert any("status -11" in each for each in found.faults) and any("no answer" in each for each in found.faults)

    def never(*_: object) -> None:
        raise AssertionError("it is known")

    again = discover(graph, {}, timings, attempt=never)
    assert again.groups == found.groups and again.faults == found.faults


def body(text: str, nodes: int | None = None) -> Graph:
    graph = parse_graph('graph "g" opset 22 ' + text)
    return body_of(graph, Group(tuple(range(nodes or len(graph.nodes))), graph.outputs[0]))[0]


@pytest.mark.parametrize(("label", "text"), [
    ("softmax with scale and mask", "(q: float32[2, 4, 8, 8], m: float32[2, 1, 1, 8]) -> (y) {"
     "k = constant float32[] 8.0 t = Div(q, k) c = Add(t, m) y = Softmax(c, axis=-1) }"),
    ("softmax with mask", "(q: float32[2, 4, 8, 8], m: bool[1, 1, 8, 8]) -> (y) { l = constant float32[] -1e9 "
     "c = Where(m, q, l) y = Softmax(c, axis=-1) }"),
    ("product + softmax with scale and mask", "(q: float32[2, 4, 8, 8], k: float32[2, 4, 8, 8], "
     "m: float32[2, 1, 1, 8]) -> (y) { h = constant float32[] 0.5 s = Mul(q, h) p = MatMul(s, k) c = Add(m, p) "
     "y = Softmax(c, axis=-1) }"),
    ("product + softmax + LayerNorm", "(x: float32[1, 8], w: float32[8, 8], b: float32[8], s: float32[8]) -> (y) "
     "{ p = MatMul(x, w) a = Add(p, b) n = LayerNormalization(a, s, , axis=-1) y = Softmax(n, axis=-1) }"),
    ("product + softmax", "(x: float32[4, 8], w: float32[8, 8], b: float32[8]) -> (y) "
     "{ p = MatMul(x, w) a = Add(p, b) y = Softmax(a, axis=-1) }"),
    ("product + residual + LayerNorm", "(x: float32[4, 8], w: float32[8, 8], b: float32[8], r: float32[4, 8], "
     "s: float32[8]) -> (y) { p = MatMul(x, w) a = Add(p, b) t = Add(r, a) y = LayerNormalization(t, s, , axis=-1) }"),
    ("product + LayerNorm", "(x: float32[4, 8], z: float32[4, 8], w: float32[8, 8], s: float32[8]) -> (y) "
     "{ a = Add(x, z) p = MatMul(a, w) y = LayerNormalization(p, s, , axis=-1) }"),
    ("embedding", "(t: float32[9, 8], i: int64[2, 4], p: float32[4, 8]) -> (y) { e = Gather(t, i) y = Add(e, p) }"),
    ("movement", "(s: int64[4], i: int64[1], j: int64[1], k: int64[1]) -> (y) { a = Gather(s, i) b = Gather(s, j) "
     "y = Concat(a, b, k, axis=0) }"),
    ("softmax", "(q: float32[4, 8]) -> (y) { m = ReduceMax(q, axes=[-1]) d = Sub(q, m) e = Exp(d) "
     "s = ReduceSum(e, axes=[-1]) y = Div(e, s) }"),
    ("residual + LayerNorm", "(a: float32[4, 8], b: float32[4, 8], s: float32[8]) -> (y) "
     "{ x = Add(a, b) y = LayerNormalization(x, s, , axis=-1) }"),
    ("LayerNorm", "(x: float32[4, 8]) -> (y) { two = constant float32[] 2.0 m = ReduceMean(x, axes=[-1]) d = Sub(x, m) "
     "p = Pow(d, two) v = ReduceMean(p, axes=[-1]) r = Sqrt(v) y = Div(d, r) }"),
    ("RMSNorm", "(x: float32[4, 8], w: float32[8]) -> (y) { p = Mul(x, x) v = ReduceMean(p, axes=[-1]) r = Sqrt(v) "
     "d = Div(x, r) y = Mul(d, w) }"),
    ("GELU", "(x: float32[4, 8]) -> (y) { h = constant float32[] 0.5 one = constant float32[] 1.0 e = Erf(x) "
     "f = Add(e, one) g = Mul(x, f) y = Mul(g, h) }"),
    ("GELU", "(x: float32[4, 8]) -> (y) { k = constant float32[] 0.0447 one = constant float32[] 1.0 s = Mul(x, x) "
     "c = Mul(s, x) d = Mul(c, k) e = Add(d, x) t = Tanh(e) f = Add(t, one) y = Mul(f, x) }"),
    ("SwiGLU", "(x: float32[4, 8], z: float32[4, 8]) -> (y) { s = Sigmoid(x) g = Mul(x, s) y = Mul(g, z) }"),
    ("SiLU", "(x: float32[4, 8]) -> (y) { s = Sigmoid(x) y = Mul(x, s) }"),
    ("rotary", "(x: float32[4, 8], c: float32[4, 8], s: float32[4, 8]) -> (y) { a = Slice(x, starts=[0], ends=[4], "
     "axes=[1]) b = Slice(x, starts=[4], ends=[8], axes=[1]) n = Neg(b) t = Concat(n, a, axis=1) p = Mul(x, c) "
     "q = Mul(t, s) y = Add(p, q) }"),
    ("BatchNorm-ReLU", "(x: float32[2, 3, 4, 4], s: float32[3, 1, 1], b: float32[3, 1, 1]) -> (y) { m = Mul(x, s) "
     "a = Add(m, b) y = Relu(a) }"),
    ("convolution + BatchNorm-ReLU", "(x: float32[2, 3, 4, 4], w: float32[3, 3, 1, 1], s: float32[3], b: float32[3], "
     "m: float32[3], v: float32[3]) -> (y) { c = Conv(x, w) n = BatchNormalization(c, s, b, m, v) y = Relu(n) }"),
    ("product + SwiGLU", "(x: float32[4, 8], w: float32[8, 8], g: float32[4, 8]) -> (y) { p = MatMul(x, w) "
     "s = Sigmoid(g) t = Mul(g, s) y = Mul(t, p) }"),
    ("pointwise chain", "(x: float32[4, 8]) -> (y) { a = Abs(x) y = Neg(a) }"),
    ("reduction", "(x: float32[4, 8]) -> (y) { a = Abs(x) y = ReduceSum(a, axes=[-1]) }"),
    ("pooling", "(x: float32[2, 3, 4, 4]) -> (y) { y = MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]) }"),
    ("pooling + reduction", "(x: float32[2, 3, 4, 4]) -> (y) { a = AveragePool(x, kernel_shape=[2, 2]) "
     "y = ReduceMax(a, axes=[2, 3]) }"),
    ("resize", "(x: float32[2, 3, 4, 4]) -> (y) { y = Resize(x, scales=[1.0, 1.0, 2.0, 2.0]) }"),
])
def test_what_people_call_it(label: str, text: str) -> None:
    assert label_of(body(text)) == label
