"""Input constraints and random feeds."""

import numpy as np
import pytest

from graphs.errors import InvalidInput
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session
from runtime.feeds import constraints, default_sizes, draw

EMBEDDING = """graph "g" opset 17 (ids: int64[batch, seq], attention_mask: int64[batch, seq],
                                  types: int32[batch, seq]) -> (y) {
  table = constant float32[10, 2] [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
  small = constant float32[2, 2] [0, 1, 2, 3]
  two = constant int64[] 2
  one = constant float32[] 1
  shifted = Add(ids, two)
  wide = Cast(types, to=7)
  a = Gather(table, shifted)
  b = Gather(small, wide)
  m = Unsqueeze(attention_mask, axes=[2])
  f = Cast(m, to=1)
  n = Sub(one, f)
  s = Add(a, b)
  y = Add(s, n)
}"""


def test_indices_stay_inside_their_tables_and_masks_are_masks() -> None:
    graph = parse_graph(EMBEDDING)
    found = constraints(graph)
    assert (found["ids"].kind, found["ids"].low, found["ids"].high) == ("index", -2, 8)
    assert (found["types"].kind, found["types"].high) == ("index", 2)
    assert found["attention_mask"].kind == "mask"
    for seed in range(5):
        feeds = draw(graph, seed, {"batch": 3, "seq": 40})
        assert feeds["ids"].shape == (3, 40) and feeds["ids"].min() >= -2 and feeds["ids"].max() < 8
        assert set(np.unique(feeds["attention_mask"])) == {0, 1} and (feeds["attention_mask"][:, 0] == 1).all()
        Session(graph).run(feeds)


def test_the_same_seed_draws_the_same() -> None:
    graph = parse_graph(EMBEDDING)
    first, second, other = draw(graph, 1), draw(graph, 1), draw(graph, 2)
    assert all((first[name] == second[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_sizes_by_name_and_place() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float32[batch, 3, height, width], t: float32[N, seq_len]) -> (y) '
                        "{ y = Relu(x) }")
    sizes = default_sizes(graph)
    assert sizes == {"batch": 2, "height": 32, "width": 32, "N": 2, "seq_len": 16}


def test_special_values_are_mixed_in() -> None:
    graph = parse_graph('graph "g" opset 17 (x: float16[n, 64], i: int32[n, 64]) -> (y) { y = Relu(x) }')
    feeds = draw(graph, 0, {"n": 64}, special=True)
    x = feeds["x"]
    assert np.isnan(x).any() and np.isposinf(x).any() and np.isneginf(x).any()
    assert (np.signbit(x) & (x == 0)).any() and x.dtype == np.float16
    assert feeds["i"].max() == np.iinfo(np.int32).max
    mild = draw(graph, 0, {"n": 64}, special=True, huge=False)["x"].astype(np.float64)
    assert np.abs(mild[np.isfinite(mild)]).max() < 100


@pytest.mark.parametrize("body", [
    "y = Reshape(x, s, shape=runtime)", "y = Expand(x, s, shape=runtime)", "y = Tile(x, s, repeats=runtime)",
    "y = ConstantOfShape(s)",
])
def test_inputs_that_decide_shapes_are_plausible(body: str) -> None:
    graph = parse_graph(f'graph "g" opset 17 (x: float32[a, b], s: int64[2]) -> (y) {{ {body} }}')
    assert constraints(graph)["s"].kind == "structural"
    Session(graph).run(draw(graph, 0))


def test_one_hot_and_lengths() -> None:
    graph = parse_graph("""graph "g" opset 17 (i: int64[n]) -> (y) {
      d = constant int64[] 5
      v = constant float32[2] [0, 1]
      y = OneHot(i, d, v)
    }""")
    assert constraints(graph)["i"].high == 5
    lengths = parse_graph("""graph "g" opset 17 (x: float32[t, b, 3], l: int64[b]) -> (y) {
      y = ReverseSequence(x, l, time_axis=0, batch_axis=1)
    }""")
    for seed in range(10):
        feeds = draw(lengths, seed, {"t": 4, "b": 3})
        assert feeds["l"].min() >= 1 and feeds["l"].max() <= 4


@pytest.mark.parametrize("shape", [f"{1 << 40}, 8", f"{1 << 62}, {1 << 62}"])
def test_inputs_that_no_memory_holds_are_not_drawn(shape: str) -> None:
    graph = parse_graph(f'graph "g" opset 17 (x: float32[{shape}]) -> (y) {{ y = Relu(x) }}')
    with pytest.raises(InvalidInput, match="larger"):
        draw(graph, 0)


@pytest.mark.parametrize(("condition", "values"), [
    ("c = Equal(x, k)", {5}), ("d = Equal(k, x)\n c = Not(d)", {5}), ("c = Less(x, k)", {4, 5}),
    ("c = Less(k, x)", {5, 6}), ("c = Greater(x, k)", {5, 6}), ("c = LessOrEqual(x, k)", {5, 6}),
    ("c = GreaterOrEqual(k, x)", {5, 6}),
    ("e = Equal(x, k)\n f = Equal(x, m)\n c = Or(e, f)", {5, 7}),
])
def test_each_branch_has_its_round(condition: str, values: set[int]) -> None:
    """A branch that asks for one number of 2^64 is never taken by chance."""
    graph = parse_graph(f"""graph "g" opset 18 (x: int64[], z: float32[2]) -> (y) {{
      k = constant int64[] 5
      m = constant int64[] 7
      {condition}
      y = If(c, then_branch=graph "t" () -> (t) {{ t = Neg(z) }}, else_branch=graph "e" () -> (e) {{ e = Exp(z) }})
    }}""")
    infer(graph)
    drawn = [int(draw(graph, seed)["x"]) for seed in range(len(values) + 1)]
    assert values <= set(drawn) and drawn[0] in values
    run = Session(graph)
    taken = {bool((run.run(feeds)["y"] == -feeds["z"]).all()) for feeds in (draw(graph, seed) for seed in range(4))}
    assert taken == {True, False}


@pytest.mark.parametrize(("dtype", "number"), [("uint8", 255), ("int8", -128), ("int64", 2**63 - 1), ("float16", 65504),
                                               ("uint64", 2**64 - 1), ("int64", -2**63)])
def test_choices_stay_inside_their_type(dtype: str, number: int) -> None:
    graph = parse_graph(f"""graph "g" opset 18 (x: {dtype}[], z: float32[2]) -> (y) {{
      k = constant {dtype}[] {number}
      c = Greater(x, k)
      y = If(c, then_branch=graph "t" () -> (t) {{ t = Neg(z) }}, else_branch=graph "e" () -> (e) {{ e = Exp(z) }})
    }}""")
    infer(graph)
    drawn = [draw(graph, seed)["x"] for seed in range(3)]
    assert all(each.dtype == dtype for each in drawn) and number in [int(each) for each in drawn[:2]]


def test_what_no_branch_depends_on_is_free() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: int64[4]) -> (y) {
      k = constant int64[] 5
      y = Equal(x, k)
    }""")
    infer(graph)
    assert "x" not in constraints(graph)


@pytest.mark.parametrize(("body", "value"), [
    ("k = constant int64[] 77\n c = Equal(x, k)\n g = Gather(w, x)", 77),
    ("k = constant int64[] 9007199254740993\n c = Equal(x, k)\n g = Neg(z)", 9007199254740993),
    ("k = constant int64[3] [300, 900, 2700]\n e = Equal(x, k)\n f = Cast(e, to=6)\n r = ReduceMax(f, keepdims=0)\n "
     "c = Cast(r, to=9)\n g = Neg(z)", 900),
])
def test_numbers_that_a_branch_asks_for_are_drawn_exactly(body: str, value: int) -> None:
    graph = parse_graph(f"""graph "g" opset 18 (x: int64[], z: float32[2]) -> (y, g) {{
      w = constant float32[100] [{", ".join(map(str, range(100)))}]
      {body}
      y = If(c, then_branch=graph "t" () -> (t) {{ t = Neg(z) }}, else_branch=graph "e" () -> (e) {{ e = Exp(z) }})
    }}""")
    infer(graph)
    assert value in [int(draw(graph, seed)["x"]) for seed in range(4)]


def test_of_an_array_that_a_branch_depends_on_one_element_is_chosen() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[2, 300]) -> (y) {
      k = constant float32[] 3
      m = ReduceMax(x, keepdims=0)
      c = Equal(m, k)
      y = If(c, then_branch=graph "t" () -> (t) { t = Neg(x) }, else_branch=graph "e" () -> (e) { e = Exp(x) })
    }""")
    infer(graph)
    chosen, other = (draw(graph, seed)["x"] for seed in (0, 1))
    assert chosen.flat[0] == 3 and 3 not in other
    assert np.unique(chosen).size > 500 and np.unique(other).size > 500


def test_a_choice_at_the_end_of_bfloat16() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: bfloat16[], z: float32[2]) -> (y) {
      k = constant bfloat16[] -3.38e38
      c = Greater(x, k)
      y = If(c, then_branch=graph "t" () -> (t) { t = Neg(z) }, else_branch=graph "e" () -> (e) { e = Exp(z) })
    }""")
    infer(graph)
    assert float(draw(graph, 0)["x"]) < -3e38


def updated(root: str) -> Graph:
    """A step of Adam from the mean `x` after `n` updates, with lines that lead to `d`, a divisor."""
    graph = parse_graph(f"""graph "g" opset 18 (n: int64[4], x: float32[4]) -> (y) {{
      k = constant float32[] 0.9
      one = constant float32[] 1
      i = constant int64[] 3
      {root}
      y = Div(x, d)
    }}""")
    infer(graph)
    return graph


@pytest.mark.parametrize(("root", "least"), [
    ("c = Cast(n, to=1)\n p = Pow(k, c)\n e = Sub(one, p)\n d = Sqrt(e)", 1),
    ("a = Add(n, i)\n p = Pow(k, a)\n q = Unsqueeze(p, axes=[0])\n e = Sub(one, q)\n d = Log(e)", -2),
    ("a = Sub(n, i)\n p = Pow(k, a)\n e = Sub(one, p)\n f = Identity(e)\n d = Sqrt(f)", 4),
])
def test_a_count_under_a_root_of_one_minus_its_power(root: str, least: int) -> None:
    """How Adam corrects its means after n updates: 1 - 0.9^n has a root for n >= 0 only, and is 0 for n = 0."""
    graph = updated(root)
    drawn = np.concatenate([draw(graph, seed)["n"] for seed in range(30)])
    assert drawn.min() == least and len(set(drawn)) > 9
    assert np.isfinite(Session(graph).run(draw(graph, 0))["y"]).all()
    special = np.concatenate([draw(graph, seed, special=True)["n"] for seed in range(30)])
    assert {np.iinfo("int64").min, np.iinfo("int64").max} <= set(special)


@pytest.mark.parametrize("power", ["p = Pow(k, n)\n d = Sub(one, p)", "p = Pow(k, n)\n d = Sqrt(p)",
                                   "p = Pow(x, n)\n e = Sub(one, p)\n d = Sqrt(e)",
                                   "p = Pow(k, n)\n e = Sub(p, one)\n d = Sqrt(e)"])
def test_exponents_that_may_be_negative_are_drawn_so(power: str) -> None:
    graph = updated(power)
    assert "n" not in constraints(graph)
    assert np.concatenate([draw(graph, seed)["n"] for seed in range(30)]).min() < 0
