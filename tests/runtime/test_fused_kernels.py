"""Fused kernels of the CPU: every family against NumPy in float64, special values, strides, sizes, planted faults."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime.codegen.c import FusedKernel, NotFusable, compiler, movement, plan_of, text, unavailable
from runtime.codegen.c.check import fault

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

GELU = ("r = constant float32[] 1.4142135; one = constant float32[] 1.0; half = constant float32[] 0.5; "
        "d = Div(x, r); e = Erf(d); f = Add(e, one); g = Mul(x, f); y = Mul(g, half)")
LAYER_NORM = ("two = constant float32[] 2.0; eps = constant float32[] 0.00001; u = Add(x, r); "
              "m = ReduceMean(u, axes=[-1]); d = Sub(u, m); p = Pow(d, two); v = ReduceMean(p, axes=[-1]); "
              "w = Add(v, eps); q = Sqrt(w); n = Div(d, q); a = Mul(n, g); y = Add(a, b)")
ROTARY = ("lo = Slice(x, starts=[0], ends=[4], axes=[3]); hi = Slice(x, starts=[4], ends=[99], axes=[3]); "
          "ng = Neg(hi); r = Concat(ng, lo, axis=-1); p = Mul(x, c); q = Mul(r, s); y = Add(p, q)")
FAMILIES = {  # inputs with a shape each, and the nodes
    "chain": ({"a": (5, 7), "b": (5, 7), "c": (7,), "d": ()}, "s = Add(a, b); p = Mul(s, c); t = Exp(p); "
        "y = Add(t, d)"),
    "gelu": ({"x": (3, 50)}, GELU),
    "gelu tanh": ({"x": (3, 50)}, 'y = Gelu(x, approximate="tanh")'),
    "swiglu": ({"a": (2, 9), "x": (2, 9)}, "s = Sigmoid(a); t = Mul(a, s); y = Mul(t, x)"),
    "activations": ({"x": (40,)}, "a = Relu(x); b = LeakyRelu(x); c = Softplus(x); "
        "d = Clip(x, min=-1.0, max=1.0); e = Abs(x); f = Max(a, b, c); g = Where(h, d, e); h = Greater(x, e); "
        "y = Add(f, g)"),
    "softmax": ({"x": (2, 3, 4, 33), "m": (2, 1, 1, 33)},
                "k = constant float32[] 0.125; u = Mul(x, k); v = Add(u, m); y = Softmax(v, axis=-1)"),
    "softmax of channels": ({"x": (2, 3, 4)}, "a = Neg(x); y = Softmax(a, axis=1)"),
    "log-softmax": ({"x": (3, 5000)}, "y = LogSoftmax(x, axis=1)"),
    "residual and layer norm": ({"x": (2, 3, 40), "r": (2, 3, 40), "g": (40,), "b": (40,)}, LAYER_NORM),
    "layer norm of two axes": ({"x": (2, 3, 4), "g": (3, 4)}, "y = LayerNormalization(x, g, axis=1)"),
    "rms norm": ({"x": (2, 3, 40), "g": (40,)}, "y = RMSNormalization(x, g, axis=-1)"),
    "instance norm": ({"x": (2, 3, 4, 5), "g": (3,), "b": (3,)}, "y = InstanceNormalization(x, g, b)"),
    "reductions": ({"x": (4, 30)}, "a = ReduceMax(x, axes=[1]); b = ReduceMin(x, axes=[1]); "
        "c = ReduceL2(x, axes=[1]); d = ReduceL1(x, axes=[1]); e = ReduceLogSumExp(x, axes=[1]); "
        "f = ReduceSumSquare(x, axes=[1]); y = Sum(a, b, c, d, e, f)"),
    "largest": ({"x": (4, 30)}, "a = Neg(x); y = ReduceMax(a, axes=[1])"),
    "pooled": ({"x": (2, 3, 5, 4)}, "r = Relu(x); y = ReduceMean(r, axes=[2, 3], keepdims=0)"),
    "rotary": ({"x": (2, 3, 5, 8), "c": (5, 8), "s": (5, 8)}, ROTARY),
    "heads": ({"x": (2, 3, 5, 4), "c": (12,)}, "t = Transpose(x, perm=[0, 2, 1, 3]); "
        "u = Reshape(t, shape=[0, 0, 12]); y = Mul(u, c)"),
    "split": ({"x": (2, 12)}, "a, b, c = Split(x, axis=1, num_outputs=3); s = Mul(a, b); y = Sub(s, c)"),
    "backwards": ({"x": (3, 9)}, "a = Slice(x, starts=[-1], ends=[-99], axes=[1], steps=[-2]); y = Exp(a)"),
    "expanded": ({"x": (3, 1), "z": (2, 3, 4)}, "a = Expand(x, shape=[2, 3, 4]); b = Unsqueeze(x, axes=[0]); "
        "c = Add(a, b); y = Mul(c, z)"),
    "group norm": ({"x": (2, 6, 5, 4), "g": (6,), "b": (6,)}, "n = GroupNormalization(x, g, b, num_groups=3); "
        "s = Sigmoid(n); y = Mul(n, s)"),
    "group norm of exporters": ({"x": (2, 6, 20), "g": (6, 1), "b": (6, 1), "one": (3,), "no": (3,)},
        "r = Reshape(x, shape=[0, 3, -1]); n = InstanceNormalization(r, one, no); s = Reshape(n, shape=[2, 6, 20]); "
        "t = Mul(s, g); y = Add(t, b)"),
    "batch norm": ({"x": (2, 3, 5, 4), "g": (3,), "b": (3,), "m": (3,), "v": (3,)},
                   "n = BatchNormalization(x, g, b, m, v); y = Relu(n)"),
    "largest of windows": ({"x": (2, 3, 9, 10), "c": (3, 1, 1)}, "t = Transpose(x, perm=[0, 1, 3, 2]); "
        "p = MaxPool(t, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]); y = Mul(p, c)"),
    "largest of windows apart": ({"x": (2, 3, 9, 8)}, "r = Abs(x); y = MaxPool(r, kernel_shape=[3, 2], "
        "strides=[3, 2])"),
    "windows of one side": ({"x": (1, 2, 8, 9)}, 'y = MaxPool(x, kernel_shape=[2, 3], dilations=[2, 1], '
        'strides=[3, 2], auto_pad="SAME_LOWER")'),
    "windows beyond the end": ({"x": (3, 2, 8)}, "y = MaxPool(x, kernel_shape=[3], strides=[2], ceil_mode=1)"),
    "mean of windows": ({"x": (2, 3, 6, 1), "z": (2, 3, 6, 1)}, "s = AveragePool(x, kernel_shape=[3, 3], "
        "pads=[1, 1, 1, 1]); y = Add(s, z)"),
    "mean of windows with padding": ({"x": (2, 3, 9)}, "y = AveragePool(x, kernel_shape=[4], strides=[2], pads=[1, 2], "
        "ceil_mode=1, count_include_pad=1)"),
    "mean of all": ({"x": (2, 3, 5, 4)}, "a = GlobalAveragePool(x); b = GlobalMaxPool(x); y = Sub(b, a)"),
    "scalar": ({"x": ()}, "a = Exp(x); y = Add(a, x)"),
}  # fmt: skip
EXACT = ("heads", "rotary", "batch norm", "split")


def graph_of(family: str, dtype: str = "float32", symbolic: bool = False) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """The graph of a family, and the shapes of its inputs."""
    shapes, nodes = FAMILIES[family]
    names = iter("abcdefghijklmnopqrstuvwxyz" * 2)
    texts = [f"{name}: {dtype}[{', '.join('n_' + next(names) if symbolic else str(size) for size in shape)}]"
             for name, shape in shapes.items()]
    body = nodes.replace("; ", "\n").replace("float32[]", f"{dtype}[]")
    graph = parse_graph(f'graph "g" opset 23 ({", ".join(texts)}) -> (y) {{\n{body}\n}}')
    graph.sort()
    return graph, shapes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_the_graph_does(family: str) -> None:
    graph, shapes = graph_of(family)
    assert fault(FusedKernel(graph), shapes) is None


@pytest.mark.parametrize("family", ["softmax", "residual and layer norm", "gelu"])
def test_float64(family: str) -> None:
    graph, shapes = graph_of(family, "float64")
    assert fault(FusedKernel(graph), shapes) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["softmax", "residual and layer norm", "gelu", "swiglu", "rms norm", "batch norm"])
def test_halves_are_rounded_after_each_operator(family: str, dtype: str) -> None:
    graph, shapes = graph_of(family, dtype)
    assert fault(FusedKernel(graph), shapes) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["heads", "rotary", "split"])
def test_exact_kernels_of_halves(family: str, dtype: str) -> None:
    graph, shapes = graph_of(family, dtype)
    assert fault(FusedKernel(graph, exact=True), shapes) is None


@pytest.mark.parametrize("family", EXACT)
def test_exact_kernels_have_the_bits_of_unfused_ones(family: str) -> None:
    graph, shapes = graph_of(family)
    assert fault(FusedKernel(graph, exact=True), shapes) is None


def integers_and_bools(dtype: str) -> Graph:
    """Arithmetic of integers, comparisons and conversions."""
    return parse_graph(f"""graph "g" opset 20 (x: {dtype}[70], z: {dtype}[70], k: bool[70]) -> (y) {{
      a = Mul(x, z)
      b = Sub(a, z)
      c = Greater(b, x)
      d = And(c, k)
      e = Cast(d, to=1)
      f = Cast(b, to=1)
      y = Add(e, f)
    }}""")


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integers_and_bools_are_exact(dtype: str) -> None:
    assert fault(FusedKernel(integers_and_bools(dtype), exact=True), {"x": (70,), "z": (70,), "k": (70,)}) is None


@pytest.mark.parametrize("family", ["chain", "softmax", "gelu"])
def test_functions_of_libraries_are_in_no_exact_kernel(family: str) -> None:
    graph, shapes = graph_of(family)
    with pytest.raises(NotFusable, match="bits"):
        plan_of(graph, shapes, exact=True)


@pytest.mark.parametrize("sizes", [(1, 64, 112, 112), (2, 3, 40, 41)])
def test_which_of_two_zeros_is_the_larger_is_open(sizes: tuple[int, ...]) -> None:
    """Integers of either sign, zeros among them, in many windows: NumPy's vectors and their rest differ too."""
    graph = parse_graph('graph "g" opset 20 (x: float32[n, c, h, w]) -> (y) {\n '
                        "y = MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])\n}")
    assert fault(FusedKernel(graph), {"x": sizes}) is None


def test_what_overlapping_windows_read_is_not_computed_again_for_each() -> None:
    graph = parse_graph('graph "g" opset 20 (x: float32[2, 3, 9]) -> (y) {\n r = Relu(x)\n '
                        "y = MaxPool(r, kernel_shape=[3])\n}")
    with pytest.raises(NotFusable, match="overlap"):
        plan_of(graph, {"x": (2, 3, 9)})


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_is_contracted(exact: bool) -> None:
    graph = parse_graph('graph "g" opset 20 (a: float32[n], b: float32[n], c: float32[n]) -> (y) {\n'
                        "p = Mul(a, b)\n y = Add(p, c)\n}")
    a = np.float32(1) + np.arange(1, 200, dtype=np.float32) * np.float32(2.0**-23)
    c = -(a * a)
    (got,) = FusedKernel(graph, exact)(a, a, c)
    np.testing.assert_array_equal(got, 0)  # fused multiply-adds would leave the rounding error
    assert not np.signbit(got).any()


def test_strides_of_any_kind() -> None:
    graph, _ = graph_of("residual and layer norm")
    kernel, rng = FusedKernel(graph), np.random.default_rng(0)
    base = rng.standard_normal((3, 5, 90)).astype(np.float32)
    x, r = base.transpose(1, 0, 2)[::2, ::-1, 1:81:2], np.broadcast_to(base[0, 0, :40], (3, 3, 40))
    g, b = base[0, 1, 40:0:-1], base[1, 1, ::2][:40]
    plain = [np.ascontiguousarray(each) for each in (x, r, g, b)]
    np.testing.assert_allclose(kernel(x, r, g, b)[0], kernel(*plain)[0], rtol=1e-6, atol=1e-6)
    unaligned = np.frombuffer(b"\0" + plain[0].tobytes(), np.uint8)[1:].view(np.float32).reshape(plain[0].shape)
    np.testing.assert_array_equal(kernel(unaligned, *plain[1:])[0], kernel(*plain)[0])


def test_one_text_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = graph_of("softmax", symbolic=True)
    kernel, texts = FusedKernel(graph), set()
    for b, h, s, t in ((2, 3, 4, 33), (2, 5, 3, 7), (3, 2, 2, 1), (7, 4, 9, 128)):
        x = np.random.default_rng(0).standard_normal((b, h, s, t)).astype(np.float32)
        m = np.zeros((b, 1, 1, t), np.float32)
        (got,) = kernel(x, m)
        power = np.exp(x.astype(float) / 8 - (x / 8).max(-1, keepdims=True))
        np.testing.assert_allclose(got, power / power.sum(-1, keepdims=True), rtol=1e-6)
        texts.add(kernel.plan(x, m).text if t > 1 else "")
    assert len(texts - {""}) == 1


@pytest.mark.parametrize(("nodes", "reason"), [
    ("a = Reshape(x, shape=[3, 4]); y = Add(a, z)", "unevenly"),
    ("a = ReduceSum(x, axes=[0]); b = ReduceSum(x, axes=[1]); y = Add(a, b)", "columns"),
    ("a = Softmax(x, axis=1); y = Softmax(a, axis=0)", "columns"),
    ("a = MatMul(x, z); b = Gemm(x, z); y = Add(a, b)", "two products"),
    ("a = Exp(x); y = MatMul(a, z)", "an operand that is computed"),
    ('y = Einsum(x, z, equation="ij,jk->ik")', "operator Einsum"),
    ("a = Cast(x, to=7); y = Neg(a)", "from floats to integers"),
    ("a = Shrink(x, bias=0.5); y = BitwiseOr(a, x)", "Shrink of integers"),
])  # fmt: skip
def test_what_has_no_kernel_says_why(nodes: str, reason: str) -> None:
    z = "float32[4]" if "Reshape" in nodes else "float32[3, 2]"
    body = nodes.replace("; ", "\n")
    x = "float32[2, 6]" if "Reshape" in nodes else "uint64[4, 3]" if "Shrink" in nodes else "float32[4, 3]"
    graph = parse_graph(f'graph "g" opset 20 (x: {x}, z: {z}) -> (y) {{\n{body}\n}}')
    with pytest.raises(NotFusable, match=reason):
        plan_of(graph, {name: graph.type_of(name).shape for name in graph.inputs})  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("length", [1, 5, 16, 19, 31, 47])
def test_rows_of_any_length(length: int) -> None:
    graph = parse_graph(f'graph "g" opset 23 (x: float32[6, {length}], m: float32[{length}]) -> (y) {{\n'
                        "s = Add(x, m)\ny = Softmax(s)\n}")
    x, m = (np.random.default_rng(length).standard_normal(shape).astype(np.float32) for shape in ((6, length), length))
    x[1, -1], x[2, :], x[2, -1], x[4, -1] = np.nan, -np.inf, 0.0, 80.0
    s = x.astype(float) + m
    want = np.exp(s - s.max(-1, keepdims=True))
    room = np.full((8, length), 7.0, np.float32)
    (got,) = FusedKernel(graph)(x, m, out=[room[1:7]])
    np.testing.assert_allclose(got, want / want.sum(-1, keepdims=True), rtol=1e-5, atol=1e-12)
    assert np.shares_memory(got, room) and (room[[0, 7]] == 7).all()


def test_no_kernel_goes_outside_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, shapes = graph_of("backwards")
    monkeypatch.setattr(movement, "slice_range", lambda size, start, end, step: range(size, 0, step))
    with pytest.raises(NotFusable, match="outside"):
        plan_of(graph, shapes)


def test_tensors_without_elements_have_no_kernel() -> None:
    graph, _ = graph_of("softmax", symbolic=True)
    with pytest.raises(NotFusable, match="without elements"):
        FusedKernel(graph)(np.zeros((0, 1, 1, 3), np.float32), np.zeros((0, 1, 1, 3), np.float32))


PLANTED = {  # the family, and what is written for what
    "a sum starts at one": ("residual and layer norm", "float s3 = 0;", "float s3 = 1;"),
    "the last column is left out": ("chain", "EG_INNER(c1, nc1,", "EG_INNER(c1, nc1 - 1,"),
    "a bias is a column off": ("residual and layer norm", "b3 + c0", "b3 + (c0 + 1) % nc0"),
    "the maximum forgets NaN": ("largest", "eg_max(", "fmaxf("),
    "a sign is lost": ("rotary", "= -v", "= v"),
    "half as much": ("gelu", "(0.5f)", "(0.25f)"),
    "a root becomes coarse": ("rms norm", "1 / sqrtf(", "0.9999f / sqrtf("),
    "the mask goes to the wrong batch": ("softmax", "r0 * s1r0", "0 * s1r0"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_check_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, right, wrong = PLANTED[name]
    graph, shapes = graph_of(family)
    written = text.Writer._text

    def planted(self: text.Writer) -> str:
        assert right in written(self)
        return written(self).replace(right, wrong)

    monkeypatch.setattr(text.Writer, "_text", planted)
    assert fault(FusedKernel(graph), shapes) is not None


@pytest.mark.parametrize(("name", "function", "low", "high", "ulps"), [
    ("expf", np.exp, -103.0, 88.7, 1.5), ("tanhf", np.tanh, -9.5, 9.5, 5.0),
    ("erff", np.vectorize(math.erf), -4.2, 4.2, 5.0), ("exp", np.exp, -745.0, 709.0, 2.0),
])  # fmt: skip
def test_own_functions_are_right_to_some_units_in_the_last_place(name: str, function: Callable[..., np.ndarray],
                                                                 low: float, high: float, ulps: float) -> None:
    kind, dtype = ("double", np.float64) if name == "exp" else ("float", np.float32)
    body = (f"EG_KERNEL(k) {{ EG_POINTER(const {kind}, x, 0) EG_POINTER({kind}, y, 1) EG_SIZE(n, 0) "
            f"EG_INNER(i, n, ) EG_PUT(y, i, {name}(EG_GET(x, i))); EG_END }}")
    run = compiler.compiled("k", body, False)
    x = np.concatenate([np.linspace(low, high, 6001), np.linspace(-1, 1, 2001), [1e-40, -1e-40, 0.0]]).astype(dtype)
    y = np.empty_like(x)
    pointers, sizes = np.array([x.ctypes.data, y.ctypes.data], np.int64), np.array([x.size], np.int64)
    run(pointers.ctypes.data, sizes.ctypes.data)
    truth = function(x.astype(np.float64))  # of double itself NumPy is right to an ulp
    error = np.abs(y.astype(np.float64) - truth) / np.spacing(np.abs(truth).astype(dtype)).astype(np.float64)
    assert float(error.max()) <= ulps


def rounded_sigmoid(x: np.ndarray) -> np.ndarray:
    """0 where it is 0 in float32."""
    return np.where(np.exp(x).astype(np.float32) == 0, 0, np.exp(-np.logaddexp(0, -x)))


@pytest.mark.parametrize(("nodes", "function", "ulps"), [
    ("y = Exp(x)", np.exp, 1.5), ("s = Sigmoid(x)\ny = Mul(x, s)", lambda x: x * rounded_sigmoid(x), 5.5),
    ("y = Sigmoid(x)", lambda x: np.exp(-np.logaddexp(0, -x)), 4.0),
])
def test_exponentials_at_the_edges_of_their_range(nodes: str, function: Callable[[np.ndarray], np.ndarray],
                                                  ulps: float) -> None:
    """Around the least normal number, where results are subnormal, 0, infinite or NaN."""
    kernel = FusedKernel(parse_graph(f'graph "g" opset 17 (x: float32[n]) -> (y) {{ {nodes} }}'))
    least, most = np.finfo(np.float32).min, np.finfo(np.float32).max
    x = np.concatenate([np.linspace(-88.5, -86, 20001), np.linspace(-110, 110, 40001), np.linspace(-105, -102, 5001),
                        np.linspace(88.5, 88.9, 5001),
                        [np.nan, np.inf, -np.inf, least, most, -104, -7.6206093, -103.97, 88.72283, 88.72284, 0.0, -0.0,
                         -1e-45]])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        truth = function(x.astype(np.float64))
        expected = truth.astype(np.float32)
    (found,) = kernel(x)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    finite = np.isfinite(expected) & (np.abs(expected) < most)
    error = np.abs(found[finite].astype(float) - truth[finite]) / np.spacing(np.abs(expected[finite])).astype(float)
    assert float(error.max()) <= ulps


def test_a_product_with_a_sigmoid_is_zero_where_the_sigmoid_is() -> None:
    """A zero times infinity is NaN."""
    kernel = FusedKernel(parse_graph('graph "g" opset 17 (x: float32[n], z: float32[n]) -> (y) '
                                     "{ s = Sigmoid(x)\nt = Mul(x, s)\ny = Mul(t, z) }"))
    x = np.array([-103.9, -103.98, -104, -120, -3e38, -np.inf, np.inf, np.nan] * 9, np.float32)
    (found,) = kernel(x, np.full_like(x, np.inf))
    np.testing.assert_array_equal(found, [-np.inf, *[np.nan] * 5, np.inf, np.nan] * 9)


THREADED = {  # inputs of a megabyte and more, and the nodes
    "rows": ({"x": (33, 128, 64), "m": (33, 1, 64)}, "v = Add(x, m); y = Softmax(v, axis=-1)"),
    "one loop": ({"x": (300001,)}, "a = Exp(x); y = Add(a, x)"),
    "two loops": ({"x": (5, 70001), "m": (5, 1)}, "y = Mul(x, m)"),
    "pieces of one loop": ({"x": (200001,), "m": (100003,)}, "a = Neg(x); b = Exp(m); y = Concat(a, b, axis=0)"),
    "pieces of rows": ({"x": (7, 20001), "m": (7, 20003)}, "a = Neg(x); b = Exp(m); y = Concat(a, b, axis=1)"),
    "pieces one by one": ({"x": (4, 30001), "m": (3, 30001)}, "a = Neg(x); b = Exp(m); y = Concat(a, b, axis=0)"),
    "all in one": ({"x": (1000, 301)}, "a = Mul(x, x); y = ReduceSum(a, axes=[0, 1])"),
}


@pytest.mark.parametrize("name", THREADED)
def test_threads_share_the_work(name: str) -> None:
    shapes, nodes = THREADED[name]
    inputs = ", ".join(f"{each}: float32[{', '.join(map(str, shape))}]" for each, shape in shapes.items())
    body = nodes.replace("; ", "\n")
    kernel = FusedKernel(parse_graph(f'graph "g" opset 20 ({inputs}) -> (y) {{\n{body}\n}}'))
    arrays = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    np.testing.assert_array_equal(kernel(*arrays, threads=3)[0], kernel(*arrays)[0])
    assert fault(kernel, {each: (2, *shape[1:]) if len(shape) > 2 else shape for each, shape in shapes.items()}) is None


def test_a_text_that_no_compiler_takes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGRAFT_KERNELS", str(tmp_path))
    with pytest.raises(ExecutionFailed, match="refused"):
        compiler.compiled("k", "this is no C", False)
    assert not list(tmp_path.iterdir())


def test_as_many_pieces_as_a_kernel_may_have() -> None:
    """Rows of their own sizes behind rows of the result: names of loops stay apart."""
    count = 16
    inputs = ", ".join(f"x{each}: float32[9, {each + 2}]" for each in range(count))
    graph = parse_graph(f'graph "g" opset 20 ({inputs}) -> (y) {{\n'
                        f'c = Concat({", ".join(f"x{each}" for each in range(count))}, axis=1)\ny = Neg(c)\n}}')
    arrays = [np.full((9, each + 2), each, np.float32) for each in range(count)]
    np.testing.assert_array_equal(FusedKernel(graph)(*arrays)[0], -np.concatenate(arrays, axis=1))
