"""Spellings that exporters use, and the operators that are left of them: the kind is won, not one case of it."""

from __future__ import annotations

from collections import Counter

import pytest

from graphs.text import parse_graph
from rules.apply import apply_everywhere
from rules.catalogue import permitted
from runtime.validation import validate

RULES = permitted("rounding")
X = "x: float32[n, 4]"
IMAGE = "x: float32[n, 2, 6, 6]"
ROWS = "x: float32[n, s, 4]"
NORM = "m = ReduceMean(x, axes=[-1]) d = Sub(x, m) "
EPS = "e = constant float32[] 1e-5 "
G = "g = constant float32[4] [1, 2, 3, 4] b = constant float32[4] [4, 3, 2, 1] "
BN = ("s = constant float32[2] [1, -2] h = constant float32[2] [0.5, 1] u = constant float32[2] [1, 2] "
      "v = constant float32[2] [1, 4] ")
CONV = "w = constant float32[2, 2, 1, 1] [1, -2, 3, 0.5] "
W = "w = constant float32[4, 2] [1, -2, 3, 0.5, 5, 6, 7, -8] "

# name: (opset, inputs, body, operators left)
SPELLINGS = {
    "x - 0, x + [0], x * [[1]]": (17, X, "z = constant float32[] 0 o = constant float32[1, 1] [1] a = Sub(x, z) "
                                  "c = Add(z, a) d = Mul(o, c) y = Exp(d)", "Exp"),
    "relu6 by Min of Relu": (17, X, "c = constant float32[] 6 r = Relu(x) m = Min(c, r) y = Exp(m)", "Clip Exp"),
    "relu6 by Clip then Relu": (17, X, "c = Clip(x, max=6) r = Relu(c) y = Exp(r)", "Clip Exp"),
    "clamp by Max first": (17, X, "a = constant float32[] -1 b = constant float32[1] [2] p = Max(a, x) q = Min(b, p) "
                           "y = Exp(q)", "Clip Exp"),
    "clamp by Min first": (17, X, "a = constant float32[] -1 b = constant float32[] 2 p = Min(b, x) q = Max(p, a) "
                           "y = Exp(q)", "Clip Exp"),
    "Abs of Exp": (17, X, "e = Exp(x) y = Abs(e)", "Exp"),
    "Clip of Sigmoid": (17, X, "e = Sigmoid(x) y = Clip(e, min=0, max=1)", "Sigmoid"),
    "Pow -1": (17, X, "c = constant float32[] -1 y = Pow(x, c)", "Reciprocal"),
    "x * 2 / 4 + 1 - 3": (17, X, "a = constant float32[] 2 b = constant float32[] 4 c = constant float32[] 1 "
                          "d = constant float32[] 3 p = Mul(x, a) q = Div(p, b) r = Add(q, c) y = Sub(r, d)",
                          "Mul Add"),
    "3 x - x - x is not joined": (17, X, "c = constant float32[] 3 p = Mul(x, c) q = Sub(p, x) y = Sub(q, x)",
                                  "Mul Sub Sub"),
    "2 / x * 3": (17, X, "a = constant float32[] 2 b = constant float32[] 3 p = Div(a, x) y = Mul(b, p)", "Div"),
    "x * -1": (17, X, "c = constant float32[] -1 p = Mul(x, c) y = Exp(p)", "Neg Exp|Mul Exp"),
    "sigmoid by Reciprocal and Mul -1": (17, X, "c = constant float32[] -1 o = constant float32[1] [1] p = Mul(c, x) "
                                         "e = Exp(p) a = Add(o, e) y = Reciprocal(a)", "Sigmoid"),
    "sigmoid by Pow -1": (17, X, "c = constant float32[] -1 o = constant float32[] 1 p = Neg(x) e = Exp(p) "
                          "a = Add(e, o) y = Pow(a, c)", "Sigmoid"),
    "sigmoid by Tanh": (17, X, "h = constant float32[] 0.5 t = Mul(x, h) q = Tanh(t) r = Mul(q, h) y = Add(h, r)",
                        "Sigmoid"),
    "silu": (17, X, "o = constant float32[] 1 p = Neg(x) e = Exp(p) a = Add(e, o) r = Reciprocal(a) y = Mul(r, x)",
             "Sigmoid Mul"),
    "silu as a quotient": (17, X, "o = constant float32[] 1 p = Neg(x) e = Exp(p) a = Add(e, o) y = Div(x, a)",
                           "Sigmoid Mul"),
    "mish from parts": (18, X, "o = constant float32[] 1 e = Exp(x) a = Add(e, o) l = Log(a) t = Tanh(l) y = "
        "Mul(t, x)",
                        "Mish"),
    "leaky by Max": (17, X, "a = constant float32[] 0.1 p = Mul(a, x) y = Max(p, x)", "LeakyRelu"),
    "leaky by two Relus": (17, X, "a = constant float32[] 0.1 r = Relu(x) p = Neg(x) q = Relu(p) s = Mul(a, q) "
                           "y = Sub(r, s)", "LeakyRelu"),
    "relu by Where": (17, X, "z = constant float32[] 0 c = Less(x, z) y = Where(c, z, x)", "Relu"),
    "hard sigmoid by Div": (17, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) c = Clip(a, "
                            "min=0, max=6) y = Div(c, s)", "HardSigmoid"),
    "hard sigmoid by shift, scale, Clip": (17, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) "
                                           "d = Div(a, s) y = Clip(d, min=0, max=1)", "HardSigmoid"),
    "hard swish by Div last": (17, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) "
                               "c = Clip(a, min=0, max=6) p = Mul(x, c) y = Div(p, s)", "HardSwish"),
    "hard swish by Div first": (17, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) "
                                "c = Clip(a, min=0, max=6) d = Div(c, s) y = Mul(d, x)", "HardSwish"),
    "hard swish by Relu and Min": (17, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) r = "
                                   "Relu(a) c = Min(r, s) p = Mul(c, x) y = Div(p, s)", "HardSwish"),
    "hard swish before opset 14": (13, X, "t = constant float32[] 3 s = constant float32[] 6 a = Add(x, t) "
                                   "c = Clip(a, min=0, max=6) p = Mul(x, c) y = Div(p, s)", "HardSigmoid Mul"),
    "gelu with Sqrt of 2 as divisor": (20, X, "r = constant float32[1] [1.4142135] o = constant float32[] 1 "
                                       "h = constant float32[] 0.5 d = Div(x, r) e = Erf(d) a = Add(e, o) p = "
                                       "Mul(x, a) y = Mul(p, h)", "Gelu"),
    "tanh gelu by Pow": (20, X, "k = constant float32[] 0.7978846 c = constant float32[] 0.044715 o = constant "
                         "float32[] 1 h = constant float32[] 0.5 t = constant float32[] 3 q = Pow(x, t) r = "
                          "Mul(q, c) s = "
                         "Add(r, x) u = Mul(s, k) v = Tanh(u) w = Add(v, o) p = Mul(x, h) y = Mul(p, w)", "Gelu"),
    "layer norm by Reciprocal": (17, ROWS, NORM + EPS + G + "q = Mul(d, d) v = ReduceMean(q, axes=[-1]) a = "
                                 "Add(v, e) r = Sqrt(a) i = Reciprocal(r) t = Mul(d, i) u = Mul(t, g) y = Add(b, u)",
                                 "LayerNormalization"),
    "layer norm by one over the root": (17, ROWS, NORM + EPS + G + "o = constant float32[] 1 q = Mul(d, d) "
                                        "v = ReduceMean(q, axes=[-1]) a = Add(v, e) r = Sqrt(a) i = Div(o, r) "
                                        "t = Mul(d, i) u = Mul(t, g) y = Add(b, u)", "LayerNormalization"),
    "layer norm without scale": (17, ROWS, NORM + EPS + "p = constant float32[1] [2] q = Pow(d, p) "
                                 "v = ReduceMean(q, axes=[-1]) a = Add(v, e) r = Sqrt(a) y = Div(d, r)",
                                 "LayerNormalization"),
    "layer norm by sums": (17, ROWS, "c = constant float32[] 4 s = ReduceSum(x, axes=[-1]) m = Div(s, c) d = "
        "Sub(x, m) "
                           + EPS + G + "q = Mul(d, d) t = ReduceSum(q, axes=[-1]) v = Div(t, c) a = Add(v, e) r "
                           "= Sqrt(a) p = Div(d, r) u = Mul(p, g) y = Add(u, b)", "LayerNormalization"),
    "rms norm by Reciprocal": (23, ROWS, EPS + G + "q = Mul(x, x) v = ReduceMean(q, axes=[-1]) a = Add(v, e) r "
                               "= Sqrt(a) i = Reciprocal(r) t = Mul(x, i) y = Mul(g, t)", "RMSNormalization"),
    "softmax by Reciprocal": (17, ROWS, "m = ReduceMax(x, axes=[1]) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, "
                              "axes=[1]) r = Reciprocal(s) y = Mul(e, r)", "Softmax"),
    "log softmax": (17, ROWS, "m = ReduceMax(x, axes=[-1]) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, axes=[-1]) "
                    "l = Log(s) y = Sub(d, l)", "LogSoftmax"),
    "mean by a reciprocal": (17, ROWS, "c = constant float32[] 0.25 s = ReduceSum(x, axes=[2], keepdims=0) y = "
        "Mul(c, s)",
                             "ReduceMean"),
    "norm from squares": (17, ROWS, "q = Mul(x, x) s = ReduceSum(q, axes=[2]) y = Sqrt(s)", "ReduceL2"),
    "conv, scalar scale and shift": (17, IMAGE, CONV + "k = constant float32[1] [3] c = Conv(x, w) p = Mul(c, k) "
                                     "y = Add(k, p)", "Conv"),
    "conv, bn, scale per channel": (17, IMAGE, CONV + BN + "k = constant float32[1, 2, 1, 1] [3, 4] "
                                    "c = Conv(x, w, pads=[1, 1, 1, 1]) n = BatchNormalization(c, s, h, u, v) "
                                    "y = Mul(n, k)", "Conv"),
    "depthwise conv, bn": (17, IMAGE, "w = constant float32[2, 1, 1, 1] [1, 2] " + BN + "c = Conv(x, w, group=2) "
                           "y = BatchNormalization(c, s, h, u, v)", "Conv"),
    "grouped deconv, bn": (17, IMAGE, "w = constant float32[2, 1, 1, 1] [1, 2] " + BN + "c = ConvTranspose(x, "
                           "w, group=2) y = BatchNormalization(c, s, h, u, v)", "ConvTranspose"),
    "pixels standardised, then conv": (17, IMAGE, CONV + "m = constant float32[1, 2, 1, 1] [1, 2] "
                                       "k = constant float32[1, 2, 1, 1] [3, 4] p = Sub(x, m) q = Div(p, k) "
                                       "y = Conv(q, w)", "Conv"),
    "bn, scale, bn": (17, IMAGE, BN + "k = constant float32[] 2 n = BatchNormalization(x, s, h, u, v) p = Mul(n, k) "
                      "y = BatchNormalization(p, h, s, u, v)", "BatchNormalization"),
    "gemm, bn": (17, X, W + BN + "c = Gemm(x, w, h) y = BatchNormalization(c, s, h, u, v)", "Gemm"),
    "matmul, bn": (17, X, W + BN + "c = MatMul(x, w) y = BatchNormalization(c, s, h, u, v)", "Gemm"),
    "gemm, scale": (17, X, W + BN + "k = constant float32[] 0.5 c = Gemm(x, w, h) y = Mul(k, c)", "Gemm"),
    "scale, gemm": (17, X, W + BN + "k = constant float32[] 0.5 c = Mul(x, k) y = Gemm(c, w, h)", "Gemm"),
    "matmul, bias, scale, bias": (17, ROWS, W + BN + "k = constant float32[] 0.5 c = MatMul(x, w) p = Add(c, h) "
                                  "q = Mul(p, k) y = Add(q, s)", "MatMul Add"),
    "matmul of a transpose": (17, "x: float32[4, n]", W + "t = Transpose(x) y = MatMul(t, w)", "Gemm"),
    "two layers after Softmax": (17, X, W + "v = constant float32[2, 4] [1, 2, 3, 4, 5, 6, 7, 8] s = Softmax(x) "
                                 "t = MatMul(s, w) y = MatMul(t, v)", "Softmax MatMul"),
    "shared weight, difference": (17, "x: float32[n, 4], z: float32[n, 4]", W + "p = MatMul(x, w) q = MatMul(z, w) "
                                  "y = Sub(p, q)", "Sub MatMul"),
    "einsum of heads": (17, "x: float32[b, q, 2, 4], z: float32[b, k, 2, 4]",
                        "y = Einsum(x, z, equation=\"bqhd,bkhd->bhqk\")", "Transpose Transpose MatMul"),
    "einsum with many columns": (17, ROWS, "w = constant float32[4, 2, 3] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "
                                 "12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24] y = Einsum(x, w, "
                                 "equation=\"abc,cde->abde\")",
                                 "MatMul Reshape"),
    "three slices cover": (17, X, "a = Slice(x, starts=[0], ends=[1], axes=[1]) b = Slice(x, starts=[1], ends=[-1], "
                           "axes=[1]) c = Slice(x, starts=[-1], ends=[9223372036854775807], axes=[1]) "
                           "d = Concat(a, b, c, axis=1) y = Exp(d)", "Exp"),
    "scaled pieces": (17, X, "k = constant float32[] 2 a, b = Split(x, axis=1, split=[1, 3]) p = Mul(a, k) q = "
                      "Mul(k, b) y = Concat(p, q, axis=1)", "Mul"),
    "transposes around Clip and Mul": (17, IMAGE, "k = constant float32[2] [2, 3] t = Transpose(x, perm=[0, 2, "
                                       "3, 1]) c = Clip(t, min=0, max=1) p = Mul(k, c) y = Transpose(p, perm=[0, "
                                       "3, 1, 2])",
                                       "Clip Mul"),
    "transposes around Pad": (17, IMAGE, "t = Transpose(x, perm=[0, 2, 3, 1]) p = Pad(t, pads=[0, 1, 1, 0, 0, "
                              "1, 1, 0]) y = Transpose(p, perm=[0, 3, 1, 2])", "Pad"),
    "transposes around a mean": (17, IMAGE, "t = Transpose(x, perm=[0, 2, 3, 1]) p = ReduceMean(t, axes=[1, 2]) "
                                 "y = Transpose(p, perm=[0, 3, 1, 2])", "GlobalAveragePool|ReduceMean"),
    "transposes around Softmax": (17, IMAGE, "t = Transpose(x, perm=[0, 2, 3, 1]) p = Softmax(t) "
                                  "y = Transpose(p, perm=[0, 3, 1, 2])", "Softmax"),
    "two branches in NHWC": (17, IMAGE, "t = Transpose(x, perm=[0, 2, 3, 1]) p = Sigmoid(t) q = Mul(t, p) "
                             "y = Transpose(q, perm=[0, 3, 1, 2])", "Sigmoid Mul"),
    "reshape around scale and Relu": (17, "x: float32[n, 2, 3]", "k = constant float32[] 2 r = Reshape(x, "
        "shape=[-1, 3]) "
                                      "p = Mul(r, k) q = Relu(p) y = Reshape(q, shape=[-1, 2, 3])", "Mul Relu"),
    "lookup of lookups": (17, "i: int64[n]", "t = constant float32[3, 2] [1, 2, 3, 4, 5, 6] c = Clip(i, min=0, "
                          "max=2) p = constant int64[3] [2, 0, 1] a = Gather(t, p) y = Gather(a, c)", "Clip Gather"),
    "pixels of a type without a kernel": (17, "x: int32[n, 8, 3, 5]", "t = Reshape(x, shape=[0, 2, 2, 2, 3, 5]) "
                                          "u = Transpose(t, perm=[0, 3, 4, 1, 5, 2]) "
                                          "y = Reshape(u, shape=[0, 2, 6, 10])", "Reshape Transpose Reshape"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name: str) -> None:
    opset, inputs, body, left = SPELLINGS[name]
    graph = parse_graph(f"graph opset {opset} ({inputs}) -> (y) {{ {body} }}")
    short = apply_everywhere(graph, RULES, limit=60)
    found = Counter(node.op for node in short.nodes)
    assert any(found == Counter(choice.split()) for choice in left.split("|")), f"left: {dict(found)}\n{short}"
    if short is not graph:
        verdict = validate(graph, short, "rounding")
        assert verdict.ok, verdict.reason
