"""Large values are folded once while they are in use."""

import gc

import numpy as np

from graphs.constants import Constant
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer.normalize import normalize
from optimizer.normalize.memory import Place

TEXT = """graph "g" opset 17 (x: float32[2, 200]) -> (y) {
  k = constant float32[] 3
  s = MatMul(a, b)
  t = Mul(s, k)
  y = MatMul(x, t)
}"""


def graph() -> Graph:
    """A graph whose weight t is folded from two others."""
    a, b = (np.random.default_rng(seed).standard_normal((200, 200)).astype(np.float32) for seed in (1, 2))
    text = TEXT.replace("(x: float32[2, 200])", "(x: float32[2, 200], a: float32[200, 200], b: float32[200, 200])")
    found = parse_graph(text)
    for name, value in (("a", a), ("b", b)):
        found.inputs.remove(name)
        found.types.pop(name, None)
        found.constants[name] = Constant.of(value)
    return found


def test_the_same_constants_fold_to_the_same_object() -> None:
    original = graph()
    first, second = original.copy(), original.copy()
    normalize(first)
    normalize(second)
    assert first.constants["t"] is second.constants["t"] and [node.op for node in first.nodes] == ["MatMul"]
    other = graph()  # equal weights, but other objects: computed anew, to the same bits
    normalize(other)
    assert other.constants["t"] is not first.constants["t"] and other.constants["t"] == first.constants["t"]


def test_another_attribute_or_constant_is_another_value() -> None:
    first, second = graph(), graph()
    second.constants.update({name: first.constants[name] for name in ("a", "b")})
    second.constants["k"] = parse_graph('graph opset 17 () -> (k) { k = constant float32[] 4 }').constants["k"]
    normalize(first)
    normalize(second)
    assert first.constants["t"] != second.constants["t"]


def test_what_nobody_uses_is_forgotten() -> None:
    original = graph()
    done = original.copy()
    normalize(done)
    place = Place(original, "t", original.producers())
    assert place.recall() is done.constants["t"]
    del done
    gc.collect()
    assert place.recall() is None
