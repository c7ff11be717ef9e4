"""Fused nodes on the emulated device beside NumPy running their nodes, and how many kernels they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest

from cost_model.sizes import default_measure_sizes
from graphs import load, save
from graphs.constants import Constant
from graphs.ir import Graph, Node, is_fused
from graphs.text import parse_graph
from runtime import Session
from runtime.codegen import nvrtc
from runtime.codegen.c.check import draws
from runtime.codegen.c.cuda import Variant, variants_of
from runtime.codegen.c.readings import readings_of
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.lower import Values
from runtime.cuda.plan import Launch, OnHost, Plan, Product, plan_graph
from runtime.execute import Context
from runtime.feeds import draw
from runtime.fusion import Group, as_functions, fuse, with_sizes
from runtime.program import Program
from search.fusions.enumerate import enumerate_groups
from tests.fuzz.generator import generate
from tests.runtime import test_fused_kernels as kernels
from tests.runtime import test_fused_products as products
from tests.runtime import test_fused_windows as windows
from tests.runtime.cuda.harness import ON_GPU, SEEDS, make_device, needs_compiler
from tests.runtime.test_fused_indexing import CASES as INDEXED
from tests.runtime.test_fused_indexing import MIDDLE, shapes
from tests.runtime.test_fused_losses import loss
from tests.search.test_several import ADAM, GATED, RESIDUAL, ROWS, SIDES

needs_nvrtc = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
LARGE = ("many lines",)  # what takes the emulation long and shows nothing else
PLANES = {
    "depthwise planes": (["x: float32[1, 9, 6, 7]", "w: float32[9, 1, 3, 2]", "b: float32[9]"],
                         "p = Conv(x, w, b, group=9, strides=[2, 1], pads=[1, 0, 1, 1]); y = Relu(p)"),
    "planes turned around": (["x: float32[1, 5, 4, 9]", "w: float32[9, 1, 3, 3]"],
                             "t = Transpose(x, perm=[0, 3, 1, 2]); p = Conv(t, w, group=9); y = Tanh(p)"),
    "largest of planes": (["x: float32[1, 9, 6, 7]"],
                          "p = MaxPool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1); y = Neg(p)"),
    "means of planes": (["x: float32[1, 9, 6, 7]", "r: float32[1, 9, 6, 7]"],
                        "p = AveragePool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]); s = Sub(x, p); y = Mul(s, r)"),
    "planes resized": (["x: float32[1, 9, 4, 5]"],
                       'p = Resize(x, scales=[1.0, 1.0, 2.0, 2.0], mode="linear"); y = Neg(p)'),
}
LOSSES = {"loss of each": ("none", None, False), "loss, ignored": ("none", -100, True), "summed loss": ("sum", 2, True),
          "mean loss": ("mean", 2, True), "mean of all losses": ("mean", None, False)}
THREE = """graph "g" opset 18 (x: float32[3, 2, 4]) -> (y) {
  a = Softmax(x, axis=2)
  b = Softmax(a, axis=1)
  y = Softmax(b, axis=0)
}"""
VECTOR = """graph "g" opset 18 (a: float32[5, 7], b: float32[7]) -> (y) {
  e = Exp(a)
  t = Tanh(e)
  p = MatMul(t, b)
  y = Neg(p)
}"""
GATES = """graph "g" opset 18 (x: float32[4, 6], u: float32[6, 5], w: float32[6, 5]) -> (y) {
  p = MatMul(x, u)
  q = MatMul(x, w)
  s = Sigmoid(p)
  y = Mul(s, q)
}"""
SCORES = """graph "g" opset 18 (q: float32[2, 3, 4, 5], k: float32[2, 3, 4, 5], m: float32[2, 1, 1, 4],
    v: float32[2, 3, 4, 5]) -> (y) {
  c = constant float32[] 0.4472136
  t = Transpose(k, perm=[0, 1, 3, 2])
  p = MatMul(q, t)
  s = Mul(p, c)
  a = Add(s, m)
  w = Softmax(a)
  o = MatMul(w, v)
  r = Transpose(o, perm=[0, 2, 1, 3])
  y = Reshape(r, shape=[2, 4, 15])
}"""
PIECES = """graph "g" opset 18 (a: float32[3], b: float32[5], c: float32[8]) -> (y) {
  j = Concat(a, b, axis=0)
  e = Exp(j)
  y = Mul(e, c)
}"""
BLOCKS = """graph "g" opset 18 (a: float32[2, 3], b: float32[4, 3]) -> (y) {
  j = Concat(a, b, a, b, a, b, a, b, a, b, a, axis=0)
  y = Neg(j)
}"""
NUMPY = """graph "g" opset 18 (x: float32[3, 3]) -> (y) {
  e = Exp(x)
  d = Det(e)
  y = Neg(d)
}"""


def every_graph() -> dict[str, Graph]:
    found = {name: kernels.graph_of(name)[0] for name in kernels.FAMILIES}
    found |= {f"product: {name}": products.graph_of(*products.FAMILIES[name][:2]) for name in products.FAMILIES
              if name not in LARGE}
    found |= {name: windows.graph_of(*each) for name, each in PLANES.items()}
    found |= {f"index: {name}": parse_graph(text) for name, text in INDEXED.items()}
    found |= {name: loss(*each) for name, each in LOSSES.items()}
    found["loss of float64"] = loss("mean", 1, True, dtype="float64")
    several = {"adam": ADAM, "gates": GATED, "side by side": SIDES, "row and columns": ROWS}
    more = {"softmaxes of three axes": THREE, "product with a vector": VECTOR, "two products": GATES,
            "attention": SCORES, "pieces of a row": PIECES, "pieces of rows": BLOCKS,
            "residual sum": RESIDUAL.replace("  a = MatMul(s, k)\n", "").replace("(y, a)", "(y, s)")}
    return found | {name: parse_graph(text) for name, text in (several | more).items()}


GRAPHS = every_graph()
KERNELS = {"softmax": 1, "gelu": 1, "residual and layer norm": 1, "rotary": 1, "adam": 1, "gates": 1,
           "row and columns": 1, "mean loss": 2, "index: embedding": 1, "loss of each": 1, "group norm": 1,
           "batch norm": 1, "product: bias and activation": 1, "product: residual and layer norm": 1,
           "product: gemm": 1, "product: heads": 1, "depthwise planes": 2, "largest of planes": 2, "planes resized": 2,
           "softmaxes of three axes": 3, "product with a vector": 2, "two products": 1, "pieces of a row": 1,
           "product: attention": 1,
           "product: pointwise convolution": 1, "product: batch norm": 2}  # with the image as columns


def whole(graph: Graph, exact: bool = False, variant: str = "") -> Graph:
    """All nodes of a graph as one."""
    output, *others = graph.outputs
    return fuse(graph, [Group(tuple(range(len(graph.nodes))), output, tuple(others), variant)], exact)


@cache
def arrays_of(name: str) -> list[np.ndarray]:
    """Values at which the graph has numbers everywhere."""
    graph = GRAPHS[name]
    return next(arrays for _, arrays in draws(graph, shapes(graph))
                if all(np.isfinite(np.asarray(each, np.float64)).all() for each in by_nodes(graph, arrays)))


def by_nodes(graph: Graph, arrays: Sequence[np.ndarray]) -> list[Any]:
    """What NumPy computes, node by node."""
    with np.errstate(all="ignore"):
        return Program(graph, Context.of(graph)).run(list(arrays))


def planned(graph: Graph) -> Plan:
    inputs = {name: (graph.types[name].dtype, shape) for name, shape in shapes(graph).items()}  # type: ignore[union-attr]
    return plan_graph(graph, inputs, Values(graph, {}, Context.of(graph)))


def close(got: Any, want: Any, what: str = "", rtol: float = 2e-5) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, got.shape, want.shape)
    wide = want.astype(np.float64)
    scale = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
    np.testing.assert_allclose(got.astype(np.float64), wide, rtol=rtol, atol=rtol * scale, err_msg=what)


def joined(graphs: dict[str, Graph]) -> Graph:
    """Many graphs as one, whose values have a number before their names: one call of the compiler for all."""
    made = Graph("all", opsets={"": 23})
    for number, graph in enumerate(graphs.values()):
        def called(name: str, number: int = number) -> str:
            return f"{number}.{name}" if name else ""

        made.inputs += map(called, graph.inputs)
        made.outputs += map(called, graph.outputs)
        made.constants |= {called(name): each for name, each in graph.constants.items()}
        made.types |= {called(name): each for name, each in graph.types.items()}
        made.nodes += [Node(node.op, tuple(map(called, node.inputs)), tuple(map(called, node.outputs)),
                            dict(node.attrs), node.domain, node.name, node.version) for node in graph.nodes]
    return made


@pytest.fixture(scope="module")
def results() -> dict[str, list[np.ndarray]]:
    """What the device computes of all graphs."""
    graph = joined({name: whole(each) for name, each in GRAPHS.items()})
    feeds = dict(zip(graph.inputs, [array for name in GRAPHS for array in arrays_of(name)], strict=True))
    session = Session(graph, target="egraft:cuda", device=make_device(SEEDS[-1]))
    first = session.run(feeds)
    assert session.report.on_numpy == []  # type: ignore[attr-defined]
    for _ in range(2 if ON_GPU else 0):  # recorded, then replayed
        for name, again in session.run(feeds).items():
            np.testing.assert_array_equal(first[name], again)
    found = iter(first.values())
    return {name: [next(found) for _ in each.outputs] for name, each in GRAPHS.items()}


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_a_fused_node_computes_what_its_nodes_do(name: str, results: dict[str, list[np.ndarray]]) -> None:
    wanted = by_nodes(GRAPHS[name], arrays_of(name))
    for output, got, want in zip(GRAPHS[name].outputs, results[name], wanted, strict=True):
        close(got, want, output)


@pytest.mark.parametrize("name", KERNELS)
def test_how_many_kernels_a_fused_node_is(name: str) -> None:
    plan = planned(whole(GRAPHS[name]))
    assert sum(isinstance(each, Launch) for each in plan.instructions) == KERNELS[name]
    assert not any(isinstance(each, OnHost) for each in plan.instructions)
    if name in ("product: gemm", "product: bias and activation", "product: batch norm"):
        assert sum(isinstance(each, Product) for each in plan.instructions) == 1


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_nvrtc_takes_every_kernel(architecture: str) -> None:
    plan = planned(joined({name: whole(each) for name, each in GRAPHS.items()}))
    nvrtc.check([each.kernel for each in plan.instructions if isinstance(each, Launch)], architecture)


def run_fused(graph: Graph, arrays: Sequence[np.ndarray], exact: bool = False, variant: str = "",
              on_numpy: Sequence[str] = ()) -> list[np.ndarray]:
    """All nodes of a graph as one, on the device."""
    session = Session(whole(graph, exact, variant), target="egraft:cuda", device=make_device(SEEDS[-1]))
    found = list(session.run(dict(zip(graph.inputs, arrays))).values())
    assert [each.split()[0] for each in session.report.on_numpy] == list(on_numpy)  # type: ignore[attr-defined]
    return found


@needs_compiler
def test_sizes_change_from_run_to_run() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[n, k], w: float32[k, m], b: float32[m],
        r: float32[n, m]) -> (y) {
      p = MatMul(x, w)
      q = Add(p, b)
      s = Add(q, r)
      y = Softmax(s)
    }""")
    device = make_device() if ON_GPU else EmulatedDevice(captures=True)
    session, rng = Session(whole(graph), target="egraft:cuda", device=device), np.random.default_rng(0)
    for n, k, m in ((3, 5, 7), (2, 4, 40), (3, 5, 7), (3, 5, 7), (1, 1, 1), (0, 5, 7)):
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((n, k), (k, m), (m,), (n, m))]
        (got,) = session.run(dict(zip(graph.inputs, arrays))).values()
        close(got, by_nodes(graph, arrays)[0])
        report: Any = session.report
        if n > 1:
            assert (report.kernels, report.products, report.on_numpy) == (1, 1, [])
    assert session.run(dict(zip(graph.inputs, [np.zeros(each, np.float32) for each in ((3, 5), (5, 7), (7,), (3, 7))])))
    assert report.captured and report.peak_bytes is not None


@needs_compiler
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats(dtype: str) -> None:
    rtol = {"float64": 1e-12, "float16": 3e-3, "bfloat16": 3e-2}[dtype]
    for name in ("softmax", "residual and layer norm", "swiglu"):
        graph, sizes = kernels.graph_of(name, dtype)
        arrays = next(iter(draws(graph, sizes)))[1]
        close(run_fused(graph, arrays)[0], by_nodes(graph, arrays)[0], name, rtol)
    graph = parse_graph(f"""graph "g" opset 20 (a: {dtype}[4, 6], b: {dtype}[6, 5], c: {dtype}[5]) -> (y) {{
      p = Gemm(a, b, c, beta=0.5)
      y = Gelu(p)
    }}""")
    arrays = next(iter(draws(graph, shapes(graph))))[1]
    close(run_fused(graph, arrays)[0], by_nodes(graph, arrays)[0], "gemm", rtol)
    plan = planned(whole(graph))
    assert [type(each) for each in plan.instructions] == [Product, Launch]


@needs_compiler
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_integers_and_bools_have_the_bits_of_numpy(dtype: str) -> None:
    graph = kernels.integers_and_bools(dtype)
    for _, arrays in draws(graph, shapes(graph)):
        np.testing.assert_array_equal(run_fused(graph, arrays, exact=True)[0], by_nodes(graph, arrays)[0])


@needs_compiler
@pytest.mark.parametrize("name", kernels.EXACT)
def test_exact_kernels_have_the_bits_of_numpy(name: str) -> None:
    graph, sizes = kernels.graph_of(name)
    arrays = next(iter(draws(graph, sizes)))[1]
    plan = planned(whole(graph, exact=True))
    assert all(each.kernel.exact for each in plan.instructions if isinstance(each, Launch))
    np.testing.assert_array_equal(run_fused(graph, arrays, exact=True)[0], by_nodes(graph, arrays)[0])


def test_an_exact_product_keeps_what_its_operator_adds() -> None:
    graph = products.graph_of({"a": (4, 6), "b": (6, 5), "c": (5,)}, "p = Gemm(a, b, c); y = Relu(p)")
    plan = planned(whole(graph, exact=True))
    assert [each.gemm.beta for each in plan.instructions if isinstance(each, Product)] == [1.0]
    assert [each.gemm.beta for each in planned(whole(graph)).instructions if isinstance(each, Product)] == [0.0]


@needs_compiler
def test_an_index_outside_reads_zero() -> None:
    graph = parse_graph(MIDDLE)
    table, scale = np.ones((4, 7, 6), np.float32), np.full(6, 2, np.float32)
    indices = np.array([[-7, 7, 0], [6, -8, 2**31 - 1]], np.int32)
    plain = Session(graph, target="egraft:cuda", device=make_device())
    (want,) = plain.run(dict(zip(graph.inputs, (table, indices, scale)))).values()
    (got,) = run_fused(graph, (table, indices, scale))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got[0, :, :, 0], [[2, 0, 2], [2, 0, 0]])


@needs_compiler
def test_a_label_outside_counts_nothing() -> None:
    graph = loss("sum", -1, True)
    labels = np.zeros((4, 3), np.int64)
    labels[1, 2] = 7
    arrays = [np.zeros((4, 7, 3), np.float32), labels, np.ones(7, np.float32)]
    close(run_fused(graph, arrays)[0], np.asarray(11 * np.log(7), np.float32))


@needs_compiler
def test_views_of_the_graph_are_read_where_they_lie() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[5, 6, 3], r: float32[6, 1]) -> (y) {
      t = Transpose(x, perm=[2, 1, 0])
      s = Slice(t, starts=[-1], ends=[-99], axes=[2], steps=[-2])
      e = Expand(r, shape=[3, 6, 3])
      a = Add(s, e)
      y = Softmax(a)
    }""")
    made = fuse(graph, [Group((3, 4), "y")])
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 6, 3)).astype(np.float32),
             "r": np.random.default_rng(1).standard_normal((6, 1)).astype(np.float32)}
    session = Session(made, target="egraft:cuda", device=make_device(SEEDS[-1]))
    (got,) = session.run(feeds).values()
    close(got, by_nodes(graph, list(feeds.values()))[0])
    assert (session.report.kernels, session.report.views) == (1, 3)  # type: ignore[attr-defined]


@needs_compiler
def test_only_a_node_without_a_kernel_runs_on_numpy() -> None:
    graph = parse_graph(NUMPY)
    arrays = [np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)]
    close(run_fused(graph, arrays, on_numpy=["Det"])[0], by_nodes(graph, arrays)[0])


@needs_compiler
def test_sizes_that_depend_on_data_leave_kernels_as_they_are() -> None:
    """Nodes run one by one then, and a fused one is still a kernel."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[9, 4], i: bool[9]) -> (y) {
      n = Compress(x, i, axis=0)
      e = Exp(n)
      y = Softmax(e)
    }""")
    made = fuse(graph, [Group((1, 2), "y")])
    session = Session(made, target="egraft:cuda", device=make_device(SEEDS[-1]))
    x = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    for kept in (4, 7):
        arrays = [x, np.arange(9) < kept]
        (got,) = session.run(dict(zip(graph.inputs, arrays))).values()
        close(got, by_nodes(graph, arrays)[0])
        report: Any = session.report
        assert report.kernels == 1 and [each.split()[0] for each in report.on_numpy] == ["Compress"]


@needs_compiler
def test_what_depends_on_constants_alone_is_computed_once() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4, 6], w: float32[5, 6]) -> (y) {
      t = Transpose(w, perm=[1, 0])
      p = MatMul(x, t)
      y = Relu(p)
    }""")
    x, w = arrays = [np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in ((4, 6), (5, 6))]
    made = whole(graph)
    made.constants["w"] = Constant.of(w)
    made.inputs.remove("w")
    session = Session(made, target="egraft:cuda", device=make_device())
    for _ in range(2):
        close(session.run({"x": x})["y"], by_nodes(graph, arrays)[0])
    assert session.report.constant_bytes == w.nbytes  # type: ignore[attr-defined]


@needs_compiler
def test_functions_of_a_file_run_as_fused_nodes(tmp_path: Any) -> None:
    graph = kernels.graph_of("softmax")[0]
    for exact, variant in ((False, ""), (False, "c32r4"), (True, "")):
        source = GRAPHS["rotary"] if exact else graph
        save(as_functions(whole(source, exact, variant)), tmp_path / "fused.onnx")
        again = load(tmp_path / "fused.onnx")
        assert not any(map(is_fused, again.nodes)) and again.functions
        session = Session(again, target="egraft:cuda", device=make_device())
        (node,) = session.graph.nodes
        assert is_fused(node) and node.attrs["exact"] == exact and node.attrs.get("variant", "") == variant
        arrays = arrays_of("rotary" if exact else "softmax")
        (got,) = session.run(dict(zip(session.graph.inputs, arrays))).values()
        close(got, by_nodes(source, arrays)[0])
        assert session.report.kernels == 1  # type: ignore[attr-defined]
        (on_cpu,) = Session(again).run(dict(zip(session.graph.inputs, arrays))).values()
        close(on_cpu, got)


VARIED = ("softmax", "residual and layer norm", "softmax of channels", "row and columns", "mean loss", "gelu")


@needs_compiler
def test_variants_compute_the_same() -> None:
    """Rows that do not fill the last block, threads without a column, nothing kept; and the usual way is none of
    them."""
    seen = set()
    for name in VARIED:
        graph = GRAPHS[name]
        usual = readings_of(graph, shapes(graph))
        others = variants_of([each.kernel for each in usual.kernels])
        for each in others if ON_GPU else others[:3]:
            assert each == Variant.of(str(each))
            own = [reading.kernel.block for reading in readings_of(graph, shapes(graph), variant=each).kernels]
            assert own != [reading.kernel.block for reading in usual.kernels] or not each.keeps
            seen.add(each)
            for got, want in zip(run_fused(graph, arrays_of(name), variant=str(each)),
                                 by_nodes(graph, arrays_of(name)), strict=True):
                close(got, want, f"{name} {each}")
    assert len(seen) > 3
    graph = GRAPHS["softmax"]
    plain = readings_of(graph, shapes(graph), variant=Variant(32, 4, keeps=False))
    assert "EG_KEPT(" not in plain.kernels[0].kernel.body
    close(run_fused(graph, arrays_of("softmax"), variant="c32r4n")[0], by_nodes(graph, arrays_of("softmax"))[0])
    assert [Variant.of(text) for text in ("", "c3", "c1024r2", "x", "c0")] == [None] * 5


@needs_nvrtc
def test_nvrtc_takes_every_way_to_launch() -> None:
    for name in ("softmax", "mean loss", "gelu"):
        usual = [each.kernel for each in readings_of(GRAPHS[name], shapes(GRAPHS[name])).kernels]
        found = [each.kernel for variant in variants_of(usual)
                 for each in readings_of(GRAPHS[name], shapes(GRAPHS[name]), variant=variant).kernels]
        assert len(found) > len(usual)
        nvrtc.check(found, nvrtc.ARCHITECTURES[-1])


@needs_nvrtc
def test_places_beyond_32_bits() -> None:
    graph = GRAPHS["softmax"]
    sizes = {"x": (2, 3, 1 << 19, 1 << 10), "m": (2, 1, 1, 1 << 10)}
    found = readings_of(graph, sizes)
    assert prod(sizes["x"]) >= 1 << 31 and all(each.kernel.wide for each in found.kernels)
    nvrtc.check([each.kernel for each in found.kernels], nvrtc.ARCHITECTURES[0])
    assert not any(each.kernel.wide for each in readings_of(graph, shapes(graph)).kernels)


@needs_nvrtc
def test_a_long_row_is_computed_again_rather_than_kept() -> None:
    graph, sizes = GRAPHS["residual and layer norm"], {"x": (2, 3, 90_000), "r": (2, 3, 90_000), "g": (90_000,),
                                                       "b": (90_000,)}
    (each,) = readings_of(graph, sizes).kernels
    assert "EG_KEPT(" not in each.kernel.body and each.kernel.block == (1024, 1)
    nvrtc.check([each.kernel], nvrtc.ARCHITECTURES[0])


@needs_compiler
@pytest.mark.parametrize("seed", [3, 5, 1136, 1242, 1280, 1495])
def test_sets_of_random_graphs(seed: int) -> None:
    """The largest sets that have nothing in common, each as a fused node."""
    graph = generate(seed, kind="")
    sizes = default_measure_sizes(graph)
    taken: list[Group] = []
    groups = enumerate_groups(graph, with_sizes(graph, sizes), 40, 24).groups
    for group in sorted(groups, key=lambda each: -len(each.nodes)):
        if not group.others and all(set(each.nodes).isdisjoint(group.nodes) for each in taken):
            taken.append(group)
    feeds = draw(graph, seed, sizes)
    session = Session(fuse(graph, taken), target="egraft:cuda", device=make_device(seed))
    found = session.run(feeds)
    for name, want in Session(graph).run(feeds).items():
        close(found[name], want, name, 1e-3)
