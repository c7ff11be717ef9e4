"""Numbers of very different size in one output: what rounding does to the large ones is no excuse for the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import validate
from runtime.validation import Validation
from runtime.validation.compare import Samples, Terms, compare
from runtime.validation.levels import GAP, Levels, band_level, local_level

HUGE = ("1e4", "1e6", "1e9", "1e30", "3.4e38")
SIDE_BY_SIDE = """graph "g" opset 17 (x: %(dtype)s[n, 4]) -> (y) {
  big = constant %(dtype)s[] %(huge)s
  c = constant %(dtype)s[] %(factor)s
  t = Tanh(x)
  a = Mul(t, big)
  s = Sin(x)
  b = Mul(%(order)s)
  y = Concat(a, b, axis=1)
}"""
SOFT_CAP = """graph "g" opset 17 (q: %(dtype)s[b, 3, 4], k: %(dtype)s[b, 4, 3]) -> (y) {
  mask = constant %(dtype)s[3, 3] [0, -%(huge)s, -%(huge)s, 0, 0, -%(huge)s, 0, 0, 0]
  c = constant %(dtype)s[] %(factor)s
  d = constant %(dtype)s[] 50
  s = MatMul(q, k)
  r = Div(s, d)
  t = Tanh(r)
  u = Mul(t, c)
  y = Add(%(order)s)
}"""
FILLED = """graph "g" opset 17 (x: %(dtype)s[n, 4], m: bool[n, 4]) -> (y) {
  fill = constant %(dtype)s[] -%(huge)s
  c = constant %(dtype)s[] %(factor)s
  s = Sin(x)
  b = Mul(%(order)s)
  y = Where(m, b, fill)
}"""
KINDS = {"side by side": (SIDE_BY_SIDE, 1.0, ("s, c", "c, s")), "mask": (SOFT_CAP, 50.0, ("u, mask", "mask, u")),
         "filled": (FILLED, 1.0, ("s, c", "c, s"))}


def compared(kind: str, factor: float, dtype: str, huge: str, order: int, **options: float) -> Validation:
    """A graph of this kind, and the same with another factor or order of operands."""
    text, own, orders = KINDS[kind]
    graphs = [parse_graph(text % {"dtype": dtype, "huge": huge, "factor": own * each, "order": orders[place]})
              for each, place in ((1.0, 0), (factor, order))]
    return validate(graphs[0], graphs[1], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_beside_huge_numbers_is_found(kind: str, huge: str) -> None:
    for factor in (0.6, 1.05, 1 + 1e-4):
        assert compared(kind, factor, "float32", huge, 0).status == "failed", factor
    assert compared(kind, 1.0, "float32", huge, 1).ok


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "huge"), [("float16", "6e4"), ("float64", "1e9"), ("float64", "1e300")])
def test_other_precisions(dtype: str, huge: str, kind: str) -> None:
    assert compared(kind, 1.05, dtype, huge, 0).status == "failed"
    assert compared(kind, 1.0, dtype, huge, 1).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_relative_tolerance_is_one_of_each_size(kind: str) -> None:
    assert compared(kind, 1.05, "float32", "1e9", 0, rtol=1e-3).status == "failed"
    assert compared(kind, 1.0005, "float32", "1e9", 0, rtol=1e-2).ok


def test_what_really_cancels_huge_numbers_has_their_rounding() -> None:
    """(x + 1e6) - 1e6 is x but for 0.03; in another order the error is another one of that size."""
    head = 'graph "g" opset 17 (x: float32[n, 12]) -> (y) {\n  k = constant float32[] 1e6\n'
    one = parse_graph(head + "a = Add(x, k)\n s = Sin(a)\n y = Concat(s, a, axis=1) }")
    two = parse_graph(head + "m = constant float32[] 1e6\n a = Add(m, x)\n s = Sin(a)\n y = Concat(s, a, axis=1) }")
    assert validate(one, two).ok


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.lists(st.floats(1e9, 1e12), max_size=30))
def test_parts_have_the_levels_they_would_have_alone(small: list[float], large: list[float]) -> None:
    """Unless numbers of one of them leave a gap themselves."""
    values = np.array(small + large)
    levels = Levels.of(values, np.ones(values.shape, bool), least=1)
    own = Levels.of(values[:len(small)], np.ones(len(small), bool), least=1)
    np.testing.assert_allclose(levels.whole(values)[:len(small)], own.whole(values[:len(small)]), rtol=1e-12)
    assert len(levels.parts) - len(own.parts) == bool(large)
    assert levels.neighbours((0,)) == own.neighbours((0,))


@given(st.lists(st.floats(1.0, 2.0**GAP), min_size=1, max_size=30), st.integers(0, 9))
def test_without_a_gap_there_is_one_part(sizes: list[float], zeros: int) -> None:
    values = np.array(sizes + zeros * [0.0])
    usable = np.ones(values.shape, bool)
    levels = Levels.of(values, usable, least=1)
    assert len(levels.parts) == 1
    np.testing.assert_array_equal(levels.local(values), local_level(values, usable))


def test_zeros_belong_to_the_smallest_numbers_of_which_there_are_some() -> None:
    values = np.array([1e-9] + 20 * [0.0] + 10 * [1.0] + 10 * [1e9] + 3 * [1e20])
    levels = Levels.of(values, np.ones(values.shape, bool), least=1)
    assert [int(part.sum()) for part in levels.parts] == [1, 30, 10, 3]


def test_few_numbers_are_no_part() -> None:
    values = np.array(8 * [1e-9] + 7 * [1.0] + 10 * [1e9] + 3 * [1e20])
    levels = Levels.of(values, np.ones(values.shape, bool))
    assert [int(part.sum()) for part in levels.parts] == [8, 17, 3]


@pytest.mark.parametrize(("count", "right"), [(2, True), (8, False)])
def test_few_numbers_that_are_exact_by_luck_are_no_yardstick(count: int, right: bool) -> None:
    """GELU of -4.4 is -8e-6, computed as -4.4 / 2 times erf + 1: steps of 1.3e-7. Moved by an ulp it stays the same."""
    exact = np.array(count * [-8.283448e-06, 256.0])
    other = exact + np.array(count * [1.3e-7, 0.0])
    samples = Samples(exact.astype(np.float32), other.astype(np.float32), [exact.astype(np.float32)], exact, exact)
    assert compare("y", samples, Terms()).ok == right


def test_zeros_alone_have_the_level_of_each_other() -> None:
    level, count = band_level(np.array([1e-7, 0.0, 3e-7]), np.zeros(3), np.ones(3, bool))
    assert np.isinf(level).all() and count.tolist() == [3, 3, 3]


SCALES = """graph "g" opset 17 (x: %s[%s]) -> (y) {
  b = constant %s[%s] [%s]
  s = Sin(x)
  y = Mul(s, b)
}"""


@pytest.mark.parametrize(("dtype", "step", "factor"), [
    ("float32", 100, 1.02), ("float32", 1000, 1.02), ("float16", 40, 1.5), ("bfloat16", 100, 1.5),
    ("bfloat16", 1000, 1.5)])
@pytest.mark.parametrize("along", ["rows", "columns", "one row"])
def test_what_one_ulp_of_large_numbers_is_does_not_excuse_small_ones(along: str, step: int, dtype: str,
                                                                     factor: float) -> None:
    """Steps that leave no gap: each constant is moved by an ulp, and only its own numbers may move with it."""
    shape, own, count = {"rows": ("4, 4", "4, 1", 4), "columns": ("n, 4", "4", 4),
                         "one row": ("1, 32", "32", 32)}[along]
    scales = [float(step) ** (place % 4 - 2) for place in range(count)]

    def graph(first: float) -> Graph:
        return parse_graph(SCALES % (dtype, shape, dtype, own, ", ".join(map(str, [first, *scales[1:]]))))

    assert not validate(graph(scales[0]), graph(scales[0] * factor)).ok
    assert validate(graph(scales[0]), graph(scales[0])).ok


@pytest.mark.parametrize(("count", "huge"), [(2, "1e15"), (3, "1e18"), (7, "1e17"), (7, "1e300")])
def test_few_numbers_in_float64_beside_huge_ones(count: int, huge: str) -> None:
    text = """graph "g" opset 17 (x: float64[%d]) -> (y) {
      h = constant float64[3] [%s, %s, %s]
      k = constant float64[] %s
      s = Sin(x)
      t = Mul(s, k)
      y = Concat(t, h, axis=0)
    }"""
    one, other = (parse_graph(text % (count, huge, huge, huge, factor)) for factor in ("1", "1.05"))
    assert not validate(one, other).ok and validate(one, one).ok
