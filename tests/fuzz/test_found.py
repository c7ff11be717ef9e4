"""What the fuzzer found once, each as the smallest graph of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.text import parse_graph

from .checking import examine

# name: (precision, inputs, outputs, body)
FOUND = {
    "a result of constants alone is estimated at no time": ("exact", "x: float32[3]", "y", "y = Shape(x)"),
    "another one of two equal outputs is computed": (
        "exact", "x: bool[3]", "y, r", "t = Tile(x, repeats=[2]) r = Reshape(t, shape=[-1]) s = Shape(t) "
        "y = Reshape(r, s, shape=runtime)"),
    "two equal outputs and a reader of both": (
        "exact", "x: float64[1, 2, n]", "s, b, a", "a = Exp(x) b = Exp(x) s = Sub(a, b)"),
    "three equal outputs": (
        "exact", "x: float32[4]", "y, c, r", "c = Ceil(x) r = Reshape(c, shape=[-1]) y = Ceil(x)"),
    "equal nodes of several outputs": (
        "exact", "x: float32[6, n]", "s, a, r, b, c", "a, q = Split(x, axis=0, num_outputs=2) "
        "b, r = Split(x, axis=0, num_outputs=2) k = Neg(a) z = Neg(k) c = Neg(r) s = Reshape(z, shape=[0, 0])"),
    "equal constants as outputs": (
        "rounding", "x: float32[4, 2]", "b, r, a", "k = constant float32[] -0.5 f = Flatten(x) r = Relu(f) "
        "a = Abs(k) b = Abs(a)"),
    "discrete nodes that merged into the output": (
        "exact", "x: float16[2, 3, 4]", "y", "f = Floor(x) y = Floor(f)"),
    "discrete nodes that merged into the output, up to rounding": (
        "rounding", "x: float32[2, 3, 4]", "y", "f = Ceil(x) y = Ceil(f)"),
    "a Squeeze and a Reshape that are one": (
        "rounding", "x: float32[1, 3, 5]", "q, s", "r = Reshape(x, shape=[3, 5]) q = Reshape(r, shape=[3, 5]) "
        "s = Squeeze(x, axes=[0])"),
    "an infinite scale in a LayerNormalization in parts": (
        "rounding", "x: float32[n, 2, 4]", "y", "g = constant float32[4] [1, inf, 3, 4] b = constant float32[1] [40] "
        "e = constant float32[] 1e-05 m = ReduceMean(x, axes=[-1]) d = Sub(x, m) q = Mul(d, d) "
        "v = ReduceMean(q, axes=[-1]) a = Add(v, e) s = Sqrt(a) r = Reciprocal(s) f = Mul(r, g) p = Mul(x, f) "
        "o = Mul(m, f) t = Sub(b, o) y = Add(p, t)"),
    "overflow inside a product of doubles": (
        "rounding", "x: float64[3, 5]", "y", "k = constant float64[] 2.5 w = constant float64[5, 2] [-0.05, 0.8, 0.4, "
        "0.3, 0.1, 0.2, 0.3, 0.4, 0.1, 0.6] m = Mul(x, k) y = MatMul(m, w)"),
    "the first power is the value to the bit": (
        "exact", "x: float32[2, 5, 5]", "y", "k = constant float32[5] [1, 1, 1, 1, 1] y = Pow(x, k)"),
    "a new value takes the name of a dead one": (
        "rounding", "x: float32[], z: float64[m, 3]", "y", "floor = Floor(z) f = Floor(x) "
        "r = Reshape(f, shape=[1, -1, 1]) h = HardSwish(x) s = Reshape(h, shape=[1, -1, 1]) m = Mul(s, r) "
        "p = ReduceProd(m, axes=[-3, 2, 1]) y = Neg(p)"),
    "a Concat of nothing but empty tensors": (
        "exact", "p: float16[4, 0], a: float16[4, 0]", "y, c",
        "r = Relu(p) c = Concat(r, a, axis=-1) y = Slice(c, starts=[0], ends=[0], axes=[-1])"),
    "an output of a Split that stays is computed elsewhere": (
        "rounding", "x: float32[1, 1], b: float32[n, 2], a: float32[n, 3]", "r, s, h",
        "t = Transpose(x, perm=[0, 1]) c = Concat(a, a, a, a, a, b, a, axis=1) "
        "p, q, u, v, r, w, s = Split(c, axis=1, split=[3, 3, 3, 3, 3, 2, 3]) h = Hardmax(t, axis=-2)"),
    "an absent output at the end": (
        "rounding", "x: float32[2, 1, 1], i: float32[1, 1, 1]", "y", "k = constant float32[1, 1, 1] [0.5] "
        "h, = RNN(x, k, k, , , i, hidden_size=1) y = Squeeze(h, axes=[1])"),
    "a Loop without condition and states": (
        "exact", "x: float32[2, 3], m: int64[]", "y", "y = Loop(m, body=graph (i: int64[], c: bool[]) -> (c, n) { "
        "t = Transpose(x, perm=[1, 0]) u = Transpose(t, perm=[1, 0]) n = Neg(u) })"),
    "equal outputs of the same terms in another order": (
        "rounding", "p: float32[2], q: float32[2]", "b, a", "a = Add(p, q) b = Add(q, p)"),
    "joined products whose Splits become equal on the way": (
        "rounding", "x: float32[1, 3]", "y, b", "z = constant float32[] 0 k = constant float32[3, 1] [-0.4, 1.2, 0.6] "
        "l = constant float32[1] [-0.8] m = constant float32[3, 1] [0.8, 0.2, 0.1] n = constant float32[1] [1.1] "
        "o = constant float32[3, 1] [0.6, 1.1, 0.2] s = Add(z, x) p = MatMul(s, k) a = Add(p, l) q = MatMul(s, m) "
        "b = Add(q, n) r = MatMul(s, o) y = Concat(a, b, r, axis=-1)"),
    "a small constant beside a large one": (
        "rounding", "x: float32[m]", "y", "o = constant float32[1] [-1] e = constant float32[1] [1e-05] c = Ceil(x) "
        "a = Add(o, c) y = Sub(a, e)"),
    "a Loop without inputs": (
        "exact", "x: float32[2, 3]", "y", "y = Loop(body=graph (i: int64[], c: bool[]) -> (d, n) { "
        "t = Transpose(x, perm=[1, 0]) u = Transpose(t, perm=[1, 0]) n = Neg(u) f = constant bool[] false "
        "d = Identity(f) })"),
    "a new constant of a body and one outside that the body does not read any more": (
        "rounding", "c: bool[], x: float32[2, 3]", "y", "constant = constant bool[] false y = If(c, then_branch="
        "graph () -> (a) { k = constant float32[1] [-1] i = If(constant, then_branch=graph () -> (t) { t = Neg(x) }, "
        "else_branch=graph () -> (e) { m = constant float32[] -1 b = Abs(x) e = Add(b, m) }) a = Add(i, k) }, "
        "else_branch=graph () -> (z) { n = constant float32[1] [-1] z = Add(x, n) })"),
    "another form of what is constant, which no rule leads to": (
        "finite", "x: float32[n, 3]", "m, y", "k = constant float32[3] [0.05, -1.5, -0.6] "
        "w = constant float32[3, 1] [-1.2, -3, 1.7] o = constant float32[1, 1] [1] r = Relu(x) s = Relu(r) "
        "p = Mul(r, k) m = MatMul(p, w) f = Flatten(s, axis=0) y = Mul(f, o)"),
    "a large constant of a branch that is inlined": (
        "exact", "x: float32[70]", "y", "c = constant bool[] true y = If(c, then_branch=graph () -> (a) { "
        f"k = constant float32[70] [{', '.join(str(each / 4) for each in range(70))}] a = Mul(x, k) }}, "
        "else_branch=graph () -> (b) { b = Neg(x) })"),
    "an equal node, written as one that is gone by then": (
        "rounding", "x: float32[4, 6]", "c, d", "a, b = Split(x, axis=1, split=[1, 5]) j = Concat(a, b, axis=1) "
        "c, d = Split(j, axis=-1, split=[1, 5])"),
    "a branch in the body of a Loop": (
        "finite", "x: int64[n]", "y, z", "m = constant int64[] 0 r = Reshape(x, shape=[-1]) s = Shape(x) "
        "t = Reshape(r, s, shape=runtime) y, z = Loop(m, , t, body=graph (i: int64[], c: bool[], v: int64[n]) -> "
        "(d, f, v) { k = constant bool[] false d = Identity(c) f = If(k, then_branch=graph () -> (p) { p = Neg(v) }, "
        "else_branch=graph () -> (q) { o = constant int64[1] [0] e = constant int64[] 0 g = Add(v, o) q = Sub(g, e) "
        "}) })"),
    "an output of a Split that a Slice of a Slice equals": (
        "exact", "x: float32[9]", "y, t", "s = Slice(x, starts=[7], ends=[9], axes=[0]) "
        "a, t = Split(s, axis=0, split=[1, 1]) c = Concat(a, t, axis=0) "
        "y = Slice(c, starts=[1], ends=[2], axes=[0])"),
    "a product that is joined with others as what a zero is taken from, and read itself": (
        "rounding", "x: float32[2, 1]", "y, m, z", "a = constant float32[1, 2] [-0.66, -2.36] "
        "b = constant float32[2] [-1.72, -0.97] c = constant float32[1, 2] [-1.45, -0.12] "
        "d = constant float32[2] [0.62, 1.81] e = constant float32[1, 2] [-0.85, -0.47] o = constant float32[2] [0, 0] "
        "p = MatMul(x, a) q = Add(p, b) r = MatMul(x, c) s = Add(r, d) m = MatMul(x, e) y = Add(q, s) z = Sub(m, o)"),
    "values that are led over each other without end": (
        "finite", "x: float64[n, n]", "y", "h = HardSigmoid(x, alpha=0.16666667) t = Neg(h) u = Neg(t) a = Abs(u) "
        "y = Relu(a)"),
    "no infinities in the validation of finite rules beside integers": (
        "finite", "i: int8[5, 1], x: float32[n, 2, 4]", "j, y", "j = Neg(i) e = Exp(x) s = ReduceSum(e, axes=[-1]) "
        "y = Div(e, s)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, tmp_path: Path) -> None:
    precision, inputs, outputs, body = FOUND[name]
    graph = parse_graph(f'graph "found" opset 18 ({inputs}) -> ({outputs}) {{ {body} }}')
    outcome = examine(graph, precision, str(tmp_path / "timings.db"), again=True)
    assert not outcome.fault, f"{outcome.fault}\n{graph}"
    assert outcome.compared
