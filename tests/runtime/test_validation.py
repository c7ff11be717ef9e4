"""Validation: planted wrong graphs are rejected, right ones accepted, and the report says how to draw again."""

import json

import ml_dtypes
import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.ir import Graph, Node
from graphs.text import parse_graph
from runtime import validate
from runtime.validation import Validation, compare_feeds, foreign, rounds, twins
from runtime.validation.compare import Samples, Terms, compare
from runtime.validation.twins import coarsest_epsilon

X = 'graph "g" opset 17 (x: float32[n, 12]) -> (y) { %s }'
INTS = 'graph "g" opset 17 (x: int32[n, 12]) -> (y) { %s }'


def both(original: str, optimized: str, exactness: str = "rounding", header: str = X) -> Validation:
    return validate(parse_graph(header % original), parse_graph(header % optimized), exactness)


SQUARE = 'graph "g" opset 17 (x: float32[4, 4]) -> (y) { %s }'
WEIGHT = f"w = constant float32[12, 2] [{', '.join(str(i * 0.37 % 1) for i in range(24))}]"
PRODUCT = f"{WEIGHT}\n k = constant float32[] 3"

WRONG = {
    "relu as leaky relu": (X, "y = Relu(x)", "y = LeakyRelu(x, alpha=1e-4)"),
    "axis": (X, "y = Softmax(x, axis=-1)", "y = Softmax(x, axis=0)"),
    "axis where all axes are alike": ('graph "g" opset 17 (x: float32[n, n]) -> (y) { %s }',
                                      "y = Transpose(x, perm=[1, 0])", "y = Identity(x)"),
    "integer overflow": (INTS, "k = constant int32[] 2\n t = Mul(x, k)\n y = Div(t, k)", "y = Identity(x)"),
    "division rounds": (INTS, "k = constant int32[] 2\n t = Div(x, k)\n y = Mul(t, k)", "y = Identity(x)"),
    "zero times infinity": (X, "z = constant float32[] 0\n y = Mul(x, z)",
                            "s = Shape(x)\n y = ConstantOfShape(s, value=float32[1] [0])"),
    "x - x": (X, "y = Sub(x, x)", "s = Shape(x)\n y = ConstantOfShape(s, value=float32[1] [0])"),
    "max drops NaN": (X, "y = Relu(x)", "z = constant float32[] 0\n c = Greater(x, z)\n y = Where(c, x, z)"),
    "square root of a square": (X, "t = Mul(x, x)\n y = Sqrt(t)", "y = Identity(x)"),
    "half precision inside": (X, "y = Tanh(x)", "h = Cast(x, to=10)\n w = Cast(h, to=1)\n y = Tanh(w)"),
    "the same shape but for size 1": ('graph "g" opset 17 (x: float32[n, 12], b: float32[n]) -> (y) { %s }',
                                      "t = Unsqueeze(b, axes=[1])\n y = Add(x, t)",
                                      "t = Unsqueeze(b, axes=[0])\n u = Transpose(t, perm=[1, 0])\n "
                                      "v = ReduceMean(u, axes=[0])\n y = Add(x, v)"),
    "cancelling variance": (X, "m = ReduceMean(x, axes=[1])\n d = Sub(x, m)\n q = Mul(d, d)\n "
                               "y = ReduceMean(q, axes=[1])",
                            "k = constant float32[] 3000\n s = Add(x, k)\n m = ReduceMean(s, axes=[1])\n "
                            "q = Mul(s, s)\n e = ReduceMean(q, axes=[1])\n p = Mul(m, m)\n y = Sub(e, p)"),
    "half precision that the model asks for": (X, "h = Cast(x, to=10)\n y = Cast(h, to=1)", "y = Identity(x)"),
    "two draws made one": (X, "q = RandomNormalLike(x)\n r = RandomNormalLike(x)\n y = Sub(q, r)",
                           "q = RandomNormalLike(x)\n y = Sub(q, q)"),
    "another rounding, moved": (X, "t = Transpose(x, perm=[1, 0])\n y = Round(t)",
                                "t = Floor(x)\n y = Transpose(t, perm=[1, 0])"),
    "the rounding of a square, not turned back": (SQUARE, "t = Transpose(x, perm=[1, 0])\n r = Round(t)\n y = Neg(r)",
                                                  "s = Round(x)\n y = Neg(s)"),
    "a rounding in front of a product, too early": (X, f"{PRODUCT}\n t = Mul(x, k)\n r = Round(t)\n y = MatMul(r, w)",
                                                    f"{PRODUCT}\n s = Round(x)\n u = Mul(s, k)\n y = MatMul(u, w)"),
    "quantization dropped": (X, "s = constant float32[] 0.05\n z = constant uint8[] 128\n "
                                "q = QuantizeLinear(x, s, z)\n y = DequantizeLinear(q, s, z)", "y = Identity(x)"),
    "dtype": (X, "y = Relu(x)", "h = Relu(x)\n y = Cast(h, to=11)"),
    "float round trip of large integers": ('graph "g" opset 17 (x: int64[n, 12]) -> (y) { %s }', "y = Identity(x)",
                                           "f = Cast(x, to=1)\n y = Cast(f, to=7)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_errors_are_rejected(name: str) -> None:
    header, original, optimized = WRONG[name]
    verdict = both(original, optimized, header=header)
    assert verdict.status == "failed", verdict.summary()
    assert verdict.reason and verdict.worst is not None


RIGHT = {
    "the smallest normal number is absorbed": (
        'graph "g" opset 17 (x: float32[]) -> (y) { %s }',
        "o = constant float32[] 1\n t = Sub(x, o)\n y = Add(t, o)", "y = Identity(x)"),
    "double negation": (X, "a = Neg(x)\n y = Neg(a)", "y = Identity(x)"),
    "reassociated sum": (X, "a = constant float32[] 0.3\n b = constant float32[] 0.7\n t = Add(x, a)\n y = Add(t, b)",
                         "c = constant float32[] 1\n y = Add(x, c)"),
    "reciprocal": (X, "k = constant float32[] 3\n y = Div(x, k)",
                   "k = constant float32[] 0.33333334\n y = Mul(x, k)"),
    "softmax written out": (X, "y = Softmax(x, axis=-1)",
                            "m = ReduceMax(x, axes=[-1])\n d = Sub(x, m)\n e = Exp(d)\n "
                            "s = ReduceSum(e, axes=[-1])\n y = Div(e, s)"),
    "scale moved through matmul": (X, f"{WEIGHT}\n k = constant float32[] 0.3\n t = Mul(x, k)\n y = MatMul(t, w)",
                                   f"{WEIGHT}\n k = constant float32[] 0.3\n t = MatMul(x, w)\n y = Mul(t, k)"),
    "the arg max of a scaled value": (X, "k = constant float32[] 3\n a = Mul(x, k)\n b = Add(a, x)\n "
                                         "y = ArgMax(b, axis=1)",
                                      "k = constant float32[] 4\n a = Mul(x, k)\n y = ArgMax(a, axis=1)"),
    "rounding moved": (X, "t = Transpose(x, perm=[1, 0])\n y = Round(t)",
                       "t = Round(x)\n y = Transpose(t, perm=[1, 0])"),
    "the rounding of a square moved": (SQUARE, "t = Transpose(x, perm=[1, 0])\n r = Round(t)\n y = Neg(r)",
                                       "s = Round(x)\n u = Transpose(s, perm=[1, 0])\n y = Neg(u)"),
    "a rounding of another shape in front of a product": (
        'graph "g" opset 17 (x: float32[12, 3]) -> (y) { %s }',
        f"{WEIGHT}\n t = Transpose(x, perm=[1, 0])\n r = Round(t)\n y = MatMul(r, w)",
        f"{WEIGHT}\n s = Round(x)\n u = Transpose(s, perm=[1, 0])\n y = MatMul(u, w)"),
    "order is all that counts": (X, "k = constant float32[] 3.7\n s = Mul(x, k)\n y = Hardmax(s)", "y = Hardmax(x)"),
    "relu by comparison": (X, "z = constant float32[] 0\n c = Less(x, z)\n y = Where(c, z, x)", "y = Relu(x)"),
    "training dropout": (X, "r = constant float32[] 0.5\n m = constant bool[] true\n a = Neg(x)\n c = Neg(a)\n "
                            "y = Dropout(c, r, m)",
                         "r = constant float32[] 0.5\n m = constant bool[] true\n y = Dropout(x, r, m)"),
    "integers wrap": (INTS, "k = constant int32[] 2\n y = Mul(x, k)", "y = Add(x, x)"),
    "random": (X, "r = RandomNormalLike(x)\n y = Add(x, r)", "r = RandomNormalLike(x)\n y = Add(r, x)"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rewrites_are_accepted(name: str) -> None:
    header, original, optimized = RIGHT[name]
    verdict = both(original, optimized, header=header)
    assert verdict.ok, verdict.summary()


def test_the_class_decides() -> None:
    zeros = "s = Shape(x)\n y = ConstantOfShape(s, value=float32[1] [0])"
    assert both("z = constant float32[] 0\n y = Mul(x, z)", zeros, "finite").ok
    assert both("y = Sub(x, x)", zeros, "finite").ok
    plus_zero = "z = constant float32[] 0\n y = Add(x, z)"
    assert both(plus_zero, "y = Identity(x)").ok
    assert not both(plus_zero, "y = Identity(x)", "exact").ok
    assert both("a = Neg(x)\n y = Neg(a)", "y = Identity(x)", "exact").ok
    tanh = "k = constant float32[] 0.99999\n t = Tanh(x)\n y = Mul(t, k)"
    assert not both("y = Tanh(x)", tanh).ok
    assert both("y = Tanh(x)", tanh, "approximate").ok


def test_explicit_tolerance() -> None:
    a, b = (parse_graph(X % f"k = constant float32[] {k}\n y = Mul(x, k)") for k in (1.5, 1.501))
    assert validate(a, b, rtol=1e-2).ok
    assert not validate(a, b, rtol=1e-5, atol=1e-6).ok


def normalized(b: Builder, x: Value, dtype: str, recognised: bool, epsilon: float, size: int,
               rng: np.random.Generator) -> Value:
    gain, bias = rng.uniform(0.5, 1.5, size).astype(dtype), (rng.standard_normal(size) / 10).astype(dtype)
    if recognised:
        return b.LayerNormalization(x, gain, bias, epsilon=epsilon)
    centered = x - b.ReduceMean(x, axes=[-1])
    variance = b.ReduceMean(centered * centered, axes=[-1])
    return centered / b.Sqrt(variance + np.array(epsilon, dtype)) * gain + bias


def deep(layers: int, recognised: bool, dtype: str = "float32", fault: str = "", at: int = 0,
         amplify: float = 1.0) -> Graph:
    """Residual blocks with normalization; with `amplify` > 1 small errors grow from block to block."""
    rng, size = np.random.default_rng(2), 32
    b = Builder("deep", opset=17)
    h = b.input("x", dtype, ["batch", "seq", size])
    for layer in range(layers):
        wrong = fault if layer == at else ""
        z = normalized(b, h, dtype, recognised, 1e-6 if wrong == "epsilon" else 1e-5, size, rng)
        if wrong == "half":
            z = b.Cast(b.Cast(z, to=10), to=1)
        w1 = (rng.standard_normal((size, 2 * size)) * size**-0.5 * amplify).astype(dtype)
        w2 = (rng.standard_normal((2 * size, size)) * (2 * size) ** -0.5 * amplify).astype(dtype)
        b1, b2 = (rng.standard_normal(n).astype(dtype) / np.array(10, dtype) for n in (2 * size, size))
        u = b.MatMul(z, w1)
        if wrong != "bias":
            u = u + b1
        h = h + (b.MatMul(b.Tanh(u), w2) + b2)
    b.output(h, "y")
    return b.graph()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("layers", "amplify"), [(1, 1.0), (8, 1.0), (8, 4.0)])
def test_a_deep_network(dtype: str, layers: int, amplify: float) -> None:
    original = deep(layers, False, dtype, amplify=amplify)
    for seed in (0, 7, 20):
        right = validate(original, deep(layers, True, dtype, amplify=amplify), seed=seed)
        assert right.ok, right.summary()
    faults = ["epsilon", "bias"] + (["half"] if dtype == "float32" else [])
    for fault in faults:
        wrong = validate(original, deep(layers, True, dtype, fault, amplify=amplify))
        assert wrong.status == "failed", (fault, wrong.summary())
    if amplify == 1:
        assert not validate(original, deep(layers, True, dtype, "epsilon", at=layers - 1)).ok


def folded(dtype: str, fold: bool, fault: str = "") -> Graph:
    rng = np.random.default_rng(1)
    weight, bias = rng.standard_normal((8, 3, 3, 3)) / 5, rng.standard_normal(8) / 10
    gain, shift, mean, variance = (rng.uniform(0.5, 2, 8), rng.standard_normal(8), rng.standard_normal(8) / 2,
                                   rng.uniform(0.3, 3, 8))
    stored = [array.astype(dtype) for array in (weight, bias, gain, shift, mean, variance)]
    b = Builder("conv", opset=17)
    x = b.input("x", dtype, ["batch", 3, "height", "width"])
    if not fold:
        y = b.BatchNormalization(b.Conv(x, stored[0], stored[1], pads=[1, 1, 1, 1]), *stored[2:], epsilon=1e-5)
    else:
        weight, bias, gain, shift, mean, variance = (array.astype(np.float32) for array in stored)
        scale = gain / np.sqrt(variance + np.float32(1e-2 if fault == "epsilon" else 1e-5))
        weight = (weight * scale[:, None, None, None]).astype(dtype)
        bias = ((bias - mean) * scale + shift).astype(dtype)
        y = b.Conv(x, weight, *([] if fault == "bias" else [bias]), pads=[1, 1, 1, 1])
    b.output(b.Relu(y), "y")
    return b.graph()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolution_and_batch_normalization(dtype: str) -> None:
    original = folded(dtype, False)
    for seed in (0, 11, 100):
        right = validate(original, folded(dtype, True), seed=seed)
        assert right.ok, right.summary()
    for fault in ("bias", "epsilon"):
        assert validate(original, folded(dtype, True, fault)).status == "failed", fault


def shifted(dtype: np.dtype, values: str, factor: float = 1.0) -> tuple[Graph, Graph]:
    """(x A + b) C and x A C + (b C), where the last product was rounded when it was folded."""
    rng = np.random.default_rng(3)
    a, c = rng.integers(-4, 8, (3, 3)), rng.integers(-3, 8, (3, 2))
    shift = np.array([1001, 2003, 3001] if values == "integers" else [1003.7, 1871.3, 2922.1]).astype(dtype)
    product = (shift.astype(np.float64) @ c * factor).astype(dtype)
    graphs = []
    for fold in (False, True):
        b = Builder("shift", opset=17)
        m = b.MatMul(b.input("x", str(dtype), ["n", 3]), a.astype(dtype))
        wide = c.astype(dtype)
        b.output(b.Add(b.MatMul(m, wide), product) if fold else b.MatMul(b.Add(m, shift), wide), "y")
        graphs.append(b.graph())
    return graphs[0], graphs[1]


@pytest.mark.parametrize("values", ["integers", "fractions"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_folding_rounds_to_integers_where_the_type_has_no_fractions(dtype: np.dtype, values: str) -> None:
    right = validate(*shifted(dtype, values))
    assert right.ok, right.summary()
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    assert validate(*shifted(dtype, values, 1 + 20 * epsilon)).status == "failed"


@pytest.mark.parametrize(("value", "exact"), [
    ([1.0, 2.0, 3.0], True), ([0.0], True), ([1.0], True), ([600.0], False), ([600.0, 3.0], True),
    ([4096.0, 3.0], False), ([0.5], False),
])
def test_integers_that_rounding_may_have_made(value: list[float], exact: bool) -> None:
    array = np.array(value, np.float16)
    assert np.array_equal(twins.moved(array, 0, "k", chance=twins.LOST), array) is exact
    assert np.array_equal(twins.moved(array, 0, "k"), array) is (value != [0.5])
    assert np.array_equal(twins.moved(array.astype(np.float32), 0, "k", chance=twins.LOST), array) is (value != [0.5])
    assert np.array_equal(twins.moved(array, 0, "k", chance=twins.NEW), array) is (value == [0.0])


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1 + 2.0**-6, False)])
def test_new_constants_of_half_precision_are_rounded_whatever_they_are(factor: float, right: bool) -> None:
    """1 / sqrt(1 + 1e-5) is 1 in float16, which is also the scale that was there."""
    norm = ("s = constant float16[2] [1, 2] b = constant float16[2] [0.5, 0] m = constant float16[2] [2, 1] "
            "v = constant float16[2] [1, 4] y = BatchNormalization(x, s, b, m, v)")
    affine = (f"f = constant float16[2, 1] [{factor}, 1] h = constant float16[2, 1] [-1.5, -1] "
              "t = Mul(x, f) y = Add(t, h)")
    found = both(norm, affine, header='graph "g" opset 17 (x: float16[2, 2, 3]) -> (y) { %s }')
    assert found.ok is right, found.summary()


@pytest.mark.filterwarnings("error::RuntimeWarning")  # users would read it
@pytest.mark.skipif(not twins.EXTENDS, reason="longdouble is float64 here")
@pytest.mark.parametrize(("original", "optimized", "right"), [
    ("t = Reciprocal(x)\n y = Mul(z, t)", "y = Div(z, x)", True),  # 1 / x overflows where x is subnormal
    ("y = Reciprocal(x)", "a = Relu(x)\n b = Add(a, k)\n y = Reciprocal(b)", False),
    ("t = Mul(x, k)\n y = Div(z, t)", "y = Mul(z, k)", False),
])
def test_float64_that_overflows_inside(original: str, optimized: str, right: bool) -> None:
    header = 'graph "g" opset 17 (x: float64[40], z: float64[40]) -> (y) { k = constant float64[] 1e-300\n %s }'
    assert all(validate(parse_graph(header % original), parse_graph(header % optimized), seed=seed).ok is right
               for seed in range(3))


@pytest.mark.parametrize(("scale", "right"), [(1.0335665, True), (1.0335695, False)])
def test_a_product_of_few_terms_over_rounded_weights(scale: float, right: bool) -> None:
    """The three terms of both moved runs cancel by chance (of 40 seeds at these two); a factor of 1 + 3e-6 is wrong."""
    header = 'graph "g" opset 17 (x: float32[3]) -> (y) { %s }'
    weights = np.float32([0.1104814, 0.59151477, -1.3219349])
    wide = (weights.astype(np.float64) * np.float32(scale)).astype(np.float32)
    before, after = (f"w = constant float32[3, 1] [{', '.join(map(str, each))}]" for each in (weights, wide))
    original = parse_graph(header % f"{before} k = constant float32[1] [1.0335665] m = Mul(x, k) y = MatMul(m, w)")
    scaled = parse_graph(header % f"{after} y = MatMul(x, w)")
    assert [validate(original, scaled, seed=seed).ok for seed in (6000, 9000)] == [right] * 2


def test_what_overflows_inside_both_graphs_is_no_yardstick() -> None:
    """1 / x overflows where x is subnormal: k / x - 1 is NaN as k (1 / x) - x (1 / x), infinite with x / x."""
    header = ('graph "g" opset 17 (x: float32[40]) -> (y) { k = constant float32[] 2.25 r = Reciprocal(x) '
              "a = Mul(r, k) b = %s y = Sub(a, b) }")
    found = [validate(parse_graph(header % "Mul(r, x)"), parse_graph(header % other), seed=seed).ok
             for other in ("Div(x, x)", "constant float32[] 1") for seed in range(3)]
    assert found == [True] * 3 + [False] * 3  # 0 / 0 and inf / inf are NaN, and no overflow


@pytest.mark.parametrize(("size", "right"), [(0.5, True), (0.0, False)])
def test_what_was_rounded_to_zero_on_the_way(size: float, right: bool) -> None:
    """tanh(x / 2) / 2 + 1 / 2 is 0 for x = -23.5 in float32, whose last digits end at 6e-8; sigmoid(x) is 6e-11."""
    value, zero = np.full(2, 6.28e-11), np.zeros(2, np.float32)
    samples = Samples(zero, value.astype(np.float32), [zero], value, value)
    assert compare("y", samples, Terms(special=True, size=size)).ok is right


@pytest.mark.parametrize(("source", "right"), [("x", True), ("a", False)])
def test_equal_discrete_nodes_become_one(source: str, right: bool) -> None:
    """In float64 the scale of the one that is gone would not be the rounded one of the other."""
    header = """graph "g" opset 17 (x: float32[4]) -> (y, w) { o = constant float32[] 0.0039 a = Add(x, o)
      k = constant int8[4, 1] [-23, -21, 57, -61] l = constant int8[4, 2] [0, 1, -128, 127, 127, 1, 0, 0]
      q, d, p = DynamicQuantizeLinear(x) i = MatMulInteger(q, k, p) c = Cast(i, to=1) y = Mul(c, d) %s }"""
    original = header % (f"r, e, t = DynamicQuantizeLinear({source}) j = MatMulInteger(r, l, t) f = Cast(j, to=1) "
                         "w = Mul(f, e)")
    one = header % "j = MatMulInteger(q, l, p) f = Cast(j, to=1) w = Mul(f, d)"
    assert all(validate(parse_graph(original), parse_graph(one), seed=100 * seed).ok is right for seed in range(4))


QUANTIZED = """
  s = constant float32[] 0.037
  z = constant uint8[] 128
  k = constant float32[] {k}
  w = constant float32[12, 2] [{w}]
  a = Mul(x, k)
  {bias}
  q = QuantizeLinear(a2, s, z)
  d = DequantizeLinear(q, s, z)
  m = MatMul(d, w)
  q2 = QuantizeLinear(m, s, z)
  y = DequantizeLinear(q2, s, z)"""


def test_quantized_models_are_compared_before_each_rounding() -> None:
    weights = ", ".join(str(round(i * 0.377 % 1 - 0.5, 3)) for i in range(24))
    plain = QUANTIZED.format(k=0.3, w=weights, bias="a2 = Identity(a)")
    again = QUANTIZED.format(k=0.3, w=weights, bias="t = Neg(a)\n a2 = Neg(t)")
    assert both(plain, again).ok
    moved = both(plain, QUANTIZED.format(k=0.3001, w=weights, bias="a2 = Identity(a)"))
    assert moved.status == "failed" and "QuantizeLinear" in moved.reason


OPAQUE = 'graph "g" opset 17, my.domain 1 (x: float32[n, 12]) -> (y) { %s }'


def test_around_a_node_that_cannot_be_executed() -> None:
    original = "a = Relu(x)\n b = Relu(a)\n c = my.domain.Foo(b, alpha=1.5)\n t = Neg(c)\n y = Neg(t)"
    right = both(original, "b = Relu(x)\n c = my.domain.Foo(b, alpha=1.5)\n y = Identity(c)", header=OPAQUE)
    assert right.ok and right.executed["not_executed"] and "not executed" in right.notes[0]
    before = both(original, "c = my.domain.Foo(x, alpha=1.5)\n y = Identity(c)", header=OPAQUE)
    assert before.status == "failed" and "Foo" in before.reason
    after = both(original, "b = Relu(x)\n c = my.domain.Foo(b, alpha=1.5)\n y = Neg(c)", header=OPAQUE)
    assert after.status == "failed"
    other = both(original, "b = Relu(x)\n c = my.domain.Foo(b, alpha=2.0)\n y = Identity(c)", header=OPAQUE)
    assert other.status == "failed"


def test_each_side_of_an_opaque_node_is_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the rank that `Foo` gives: what reads it says so. The second half runs only then."""
    monkeypatch.setattr(foreign, "_run_alone", lambda *_: None)
    header = OPAQUE.replace("(x: float32[n, 12])", "(x: float32[n, 12], z: float32[n, 3])")
    weights = "w = constant float32[5, 3] [" + ", ".join(str(i % 7 - 2) for i in range(15)) + "]\n "
    start = weights + "b = Relu(x)\n c = my.domain.Foo(b)\n m = MatMul(c, w)\n "
    original = start + "t = Neg(m)\n s = Neg(t)\n y = Add(s, z)"
    right = both(original, start + "y = Add(m, z)", header=header)
    assert right.ok and right.executed["regions"] == 2
    assert right.executed["random_values_for"] == {"output 0 of my.domain.Foo ''": "float32[n, 5]"}
    assert "not executed: my.domain.Foo" in right.notes[-1] and "2 regions" in right.notes[-1]
    for wrong, output in (("Abs(x)\n c = my.domain.Foo(b)\n m = MatMul(c, w)", "input 0 of my.domain.Foo ''"),
                          ("Relu(x)\n c = my.domain.Foo(b)\n u = Neg(c)\n m = MatMul(u, w)", "y")):
        found = both(original, f"{weights}b = {wrong}\n y = Add(m, z)", header=header)
        assert found.status == "failed" and found.reason.startswith(f"{output}:"), found.reason


def test_opaque_nodes_without_a_partner_or_in_nested_graphs_are_not_cut() -> None:
    original = "a = my.domain.Foo(x)\n b = my.domain.Bar(a)\n y = Neg(b)"
    assert both(original, "a = my.domain.Bar(x)\n y = Neg(a)", header=OPAQUE).status == "failed"
    inside = ("k = constant bool[] true\n y = If(k, then_branch=graph () -> (u) { u = my.domain.Foo(x) }, "
              "else_branch=graph () -> (v) { v = Neg(x) })")
    found = both(inside, inside, header=OPAQUE)
    assert found.ok and "regions" not in found.executed


def test_shapes_that_onnx_runtime_finds_for_an_operator() -> None:
    pytest.importorskip("onnxruntime")
    graph = parse_graph('graph "g" opset 17, com.microsoft 1 (x: float32[n, 2, 12]) -> (y) { '
                        'a = com.microsoft.FusedMatMul(x, x, transB=1)\n y = Transpose(a, perm=[0, 2, 1]) }')
    assert str(foreign.types_of_all(graph, graph.nodes[:1])["a"]) == "float32[n, 2, 2]"


def test_shapes_of_an_operator_after_another_one() -> None:
    """The second LSTM reads a Reshape of what the first one gives."""
    pytest.importorskip("onnxruntime")
    weights = " ".join(f"{name} = constant int8[2, {size}, 8] {np.ones((2, size, 8), int).tolist()}"
                       for name, size in (("w", 3), ("r", 2), ("v", 4)))
    lstm = "com.microsoft.DynamicQuantizeLSTM({}, r, , , , , , s, z, s, z, direction=\"bidirectional\", hidden_size=2)"
    graph = parse_graph(f"""graph "g" opset 17, com.microsoft 1 (x: float32[n, m, 3]) -> (y) {{ {weights}
      s = constant float32[2] [1, 1] z = constant int8[2] [0, 0]
      a = {lstm.format("x, w")}
      b = Transpose(a, perm=[0, 2, 1, 3]) c = Reshape(b, shape=[0, 0, -1])
      d = {lstm.format("c, v")} y = Transpose(d, perm=[0, 2, 1, 3]) }}""")
    found = foreign.types_of_all(graph, [node for node in graph.nodes if node.domain])
    assert {name: str(type_) for name, type_ in found.items()} == dict.fromkeys("ad", "float32[n, 2, m, 2]")


@pytest.mark.parametrize(("text", "spread"), [
    ("n = Abs(x)\n m = Neg(n)\n s = ReduceSum(x)\n a = Sum(s, m)\n t = Acosh(x)\n y = ReduceSum(t)", "above one"),
    ("t = Asin(x)\n y = ReduceSum(t)", "small"), ("t = Log(x)\n y = ReduceSum(t)", "positive"),
])
def test_draws_that_are_nan_everywhere_give_way_to_others(text: str, spread: str) -> None:
    found = both(text, text)
    assert found.ok and found.rounds[0].spread == spread
    assert "NaN everywhere" in found.notes[0]
    other = text.replace("y = ReduceSum(t)", "u = ReduceSum(t)\n k = constant float32[] 1.001\n y = Mul(u, k)")
    wrong = both(text, other)
    assert wrong.status == "failed"


def test_nan_whatever_is_drawn_is_not_validated() -> None:
    text = "a = Abs(x)\n b = Neg(a)\n k = constant float32[] 1\n c = Sub(b, k)\n y = Sqrt(c)"
    found = both(text, text)
    assert found.status == "not validated" and "above one" in found.reason


def test_control_flow_branches_are_both_tried() -> None:
    header = 'graph "g" opset 17 (c: bool[], x: float32[n, 12]) -> (y) { %s }'
    body = "y = If(c, then_branch=graph () -> (u) {{ u = {}(x) }}, else_branch=graph () -> (v) {{ v = {}(x) }})"
    assert both(body.format("Relu", "Neg"), body.format("Relu", "Neg"), header=header).ok
    for wrong in (("Neg", "Relu"), ("Relu", "Abs"), ("Abs", "Neg")):
        assert both(body.format("Relu", "Neg"), body.format(*wrong), header=header).status == "failed", wrong


@pytest.mark.parametrize("limit", ["", "n"])
def test_a_loop_that_some_values_never_end(limit: str) -> None:
    header = 'graph "g" opset 17 (x: float32[2]) -> (y) { n = constant int64[] 9223372036854775807 %s }'
    body = """g = constant bool[] true k = constant float32[] 1 h = constant float32[] 9
      y = Loop({}, g, x, body=graph (i: int64[], c: bool[], v: float32[2]) -> (c2, w) {{
        w = {}(v, k) r = ReduceMin(w, keepdims=0) c2 = Less(r, h) }})"""
    found = both(body.format(limit, "Add"), body.format(limit, "Add"), header=header)
    assert found.ok and found.rounds  # 1e30 + 1 is 1e30, and -inf + 1 is -inf: these rounds are left out
    assert both(body.format(limit, "Add"), body.format(limit, "Sub"), header=header).status == "failed"


def test_what_cannot_be_compared_is_not_validated() -> None:
    turns = [f"k{i} = constant float32[] 1e6\n t{i} = Mul(s{i - 1}, k{i})\n s{i} = Sin(t{i})" for i in range(1, 4)]
    chaotic = "\n ".join(["s0 = Sin(x)", *turns, "y = Identity(s3)"])
    verdict = both(chaotic, chaotic)
    assert verdict.status == "not validated" and "could be compared" in verdict.reason


def test_the_contract_of_names() -> None:
    a = parse_graph('graph "g" opset 17 (x: float32[n]) -> (y) { y = Relu(x) }')
    b = parse_graph('graph "g" opset 17 (x: float32[n]) -> (z) { z = Relu(x) }')
    assert "outputs are z" in validate(a, b).reason


def test_given_data_and_the_report() -> None:
    a, b = (parse_graph(X % f"y = {op}(x)") for op in ("Relu", "Abs"))
    positive, negative = ({"x": sign * np.ones((3, 12), np.float32)} for sign in (1, -1))
    assert compare_feeds(a, b, positive).ok
    verdict = compare_feeds(a, b, [positive, negative])
    assert verdict.status == "failed" and len(verdict.rounds) == 2
    report = json.loads(json.dumps(validate(a, a).to_dict(), allow_nan=False))
    assert report["ok"] and report["rounds"][0]["sizes"] == {"n": 2} and report["outputs"][0]["allowed"] > 0
    assert "\n" not in report["summary"] and "seeds 0 to" in report["summary"]


def test_verdicts_repeat() -> None:
    a, b = deep(2, False), deep(2, True)
    assert validate(a, b).to_dict() == validate(a, b).to_dict()


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_runs_in_threads_give_the_same_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header, original, optimized = WRONG[name] if name in WRONG else RIGHT[name]
    monkeypatch.setattr(rounds.Comparison, "slow", True)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(rounds, "AHEAD_THREADS", threads)
        found.append(both(original, optimized, header=header).to_dict())
    assert found[0] == found[1]


def test_sizes_include_one() -> None:
    a = parse_graph(X % "y = Relu(x)")
    sizes = [each.sizes["n"] for each in validate(a, a).rounds]
    assert 1 in sizes and len(set(sizes)) > 1


def test_nothing_but_nan_is_no_comparison() -> None:
    graph = parse_graph(X % "k = constant float32[] -1\n a = Mul(x, x)\n b = Mul(a, k)\n y = Log(b)")
    verdict = validate(graph, graph)
    assert verdict.status == "not validated" and "NaN" in verdict.reason


def test_a_node_without_outputs() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[2]) -> (y) { y = Relu(x) }')
    graph.nodes.append(Node("Print", ("x",), (), {}, "my"))
    assert coarsest_epsilon(graph) == 2.0**-23
