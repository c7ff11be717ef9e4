"""Each pass of normalization: what it changes, what it must leave, and that the results stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import pytest

from graphs import load
from graphs.builder import Builder
from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from graphs.operators import RUNTIME
from graphs.text import parse_graph
from optimizer.journal import apply, diff
from optimizer.normalize import PASSES, normalize
from runtime import run
from runtime.feeds import draw


def normalized(graph: Graph, dims: dict[str, int] | None = None) -> Graph:
    """The normalized graph: same results, valid as a file, every pass a patch that can be applied again."""
    result, replayed = graph.copy(), graph.copy()
    patches = []
    normalize(result, lambda named, before, after, places: patches.append(diff(before, after)))
    for patch in patches:
        replayed = apply(replayed, patch)
    assert sorted(map(str, replayed.nodes)) or not result.nodes
    assert [node.outputs for node in sorted(replayed.nodes, key=lambda each: each.outputs)] == [
        node.outputs for node in sorted(result.nodes, key=lambda each: each.outputs)]
    assert (result.inputs, result.outputs) == (graph.inputs, graph.outputs)
    onnx.checker.check_model(to_model_proto(result), full_check=True)
    for seed in range(3):
        feeds = draw(graph, seed, dims)
        before, after = run(graph, feeds), run(result, feeds)
        for name in graph.outputs:
            np.testing.assert_array_equal(after[name], before[name])
    return result


def text(inputs: str, outputs: str, body: str, opset: int = 18) -> Graph:
    return parse_graph(f"graph opset {opset} ({inputs}) -> ({outputs}) {{ {body} }}")


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op for each in graph.walk() for node in each.nodes)


def test_names_and_meanings() -> None:
    assert len({each.name for each in PASSES}) == len(PASSES)
    assert all(each.meaning.endswith(".") for each in PASSES)


# ---------------------------------------------------------------- If


def branch(then: str, rest: str) -> str:
    return f"If(c, then_branch=graph () -> {then}, else_branch=graph () -> {rest})"


def test_what_made_an_output_of_an_if_that_nobody_reads_goes_with_it() -> None:
    inner = branch("(r, s) { r = Exp(x) e = Cos(x) s = Tanh(e) }", "(r, s) { r = Neg(x) s = Sin(x) }")
    inner = inner.replace("(c,", "(d,")
    found = normalized(text("x: float32[3], c: bool[], d: bool[]", "y", "y, z = " + branch(
        f"(p, q) {{ p = Abs(x) i, j = {inner} k = Erf(j) q = Add(i, k) }}", "(p, q) { p = Floor(x) q = Ceil(x) }")))
    assert operators(found) == {"If": 1, "Abs": 1, "Floor": 1}
    found = normalized(text("x: float32[3], c: bool[], d: bool[]", "y", "y, z = " + branch(
        f"(p, q) {{ i, j = {inner} k = Erf(j) p = Abs(i) q = Add(i, k) }}", "(p, q) { p = Floor(x) q = Ceil(x) }")))
    assert operators(found) == {"If": 2, "Exp": 1, "Neg": 1, "Abs": 1, "Floor": 1}


@pytest.mark.parametrize("value", ["true", "false"])
def test_constant_condition(value: str) -> None:
    graph = text("x: float32[3]", "y", f"c = constant bool[] {value} a = Neg(x) "
                 f"y = {branch('(u) { u = Relu(a) }', '(v) { t = Exp(a) v = Abs(t) }')}")
    result = normalized(graph)
    assert operators(result) == (Counter(Neg=1, Relu=1) if value == "true" else Counter(Neg=1, Exp=1, Abs=1))


def test_condition_of_shape_one() -> None:
    result = normalized(text("x: float32[3]", "y", "c = constant bool[1] [true] "
                             f"y = {branch('(u) { u = Relu(x) }', '(v) { v = Exp(x) }')}"))
    assert operators(result) == Counter(Relu=1)


def test_branch_that_hands_an_outer_value_through() -> None:
    """The captured value is an output of the graph too, and an input of the graph in the second case."""
    graph = text("x: float32[3]", "y, a", "c = constant bool[] true a = Neg(x) "
                 f"y = {branch('(u) { u = Identity(a) }', '(v) { v = Exp(a) }')}")
    assert operators(normalized(graph)) == Counter(Neg=1, Identity=1)
    graph = text("x: float32[3]", "y, x", "c = constant bool[] true "
                 f"y = {branch('(u) { u = Identity(x) }', '(v) { v = Exp(x) }')}")
    assert operators(normalized(graph)) == Counter(Identity=1)


def test_branch_output_is_a_captured_value_itself() -> None:
    graph = text("x: float32[3]", "y, z, a", "c = constant bool[] true a = Neg(x) "
                 f"y, z = {branch('(a, a) { }', '(v, v) { v = Exp(a) }')}")
    result = normalized(graph)
    assert operators(result) == Counter(Neg=1, Identity=2)


def test_branch_gives_one_value_twice() -> None:
    graph = text("x: float32[3]", "y, z", "c = constant bool[] false "
                 f"y, z = {branch('(x, x) { }', '(v, v) { v = Exp(x) }')}")
    assert operators(normalized(graph)) == Counter(Exp=1, Identity=1)


def test_branch_of_a_constant() -> None:
    graph = text("x: float32[2]", "y, w", "c = constant bool[] true "
                 f"y = {branch('(u) { u = constant float32[2] [1, 2] }', '(v) { v = Exp(x) }')} w = Add(x, y)")
    result = normalized(graph)
    assert operators(result) == Counter(Add=1) and result.constants["y"].array.tolist() == [1, 2]


def test_nested_branches() -> None:
    inner = branch("(p) { p = Relu(a) }", "(q) { q = Neg(a) }")
    graph = text("x: float32[3]", "y", f"c = constant bool[] true a = Abs(x) "
                 f"y = {branch('(u) { u = ' + inner + ' }', '(v) { v = Exp(a) }')}")
    assert operators(normalized(graph)) == Counter(Abs=1, Relu=1)


def test_nested_branch_with_its_own_condition() -> None:
    graph = text("x: float32[3], d: bool[]", "y", "c = constant bool[] true y = If(c, then_branch=graph () -> (u) { "
                 "k = Neg(x) u = If(d, then_branch=graph () -> (p) { p = Add(k, x) }, "
                 "else_branch=graph () -> (q) { q = Exp(k) }) }, else_branch=graph () -> (v) { v = Exp(x) })")
    result = normalized(graph)
    assert [node.op for node in result.nodes] == ["Neg", "If"]


def test_names_clash_between_inlined_branches() -> None:
    """Sibling branches of a file may use the same names, of values and of nodes."""
    graph = text("x: float32[3]", "y, t_1", "c = constant bool[] true t_1 = Neg(x) "
                 f"a = {branch('(u) { t = Abs(x) k = constant float32[1] [2] u = Mul(t, k) }', '(v) { v = Exp(x) }')} "
                 f"b = {branch('(u) { t = Neg(x) k = constant float32[1] [3] u = Mul(t, k) }', '(v) { v = Exp(x) }')} "
                 "y = Add(a, b)")
    for node in graph.nodes:
        for inner in [each for nested in node.graphs for each in nested.nodes]:
            inner.name = "same"
    result = normalized(graph)
    assert operators(result) == Counter(Abs=1, Neg=1, Mul=2, Add=1)
    names = [node.name for node in result.nodes if node.name]
    assert len(names) == len(set(names))


def test_outputs_of_a_branch_that_nobody_reads() -> None:
    graph = text("x: float32[3], c: bool[]", "y", f"y, z = "
                 f"{branch('(u, s) { u = Relu(x) s = Exp(x) }', '(v, t) { v = Neg(x) t = Abs(x) }')}")
    result = normalized(graph)
    assert len(result.nodes[0].outputs) == 1
    assert all(len(each.outputs) == 1 for each in result.nodes[0].graphs)


# ---------------------------------------------------------------- functions, identities, equal things


FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
agraph (float[N] x) => (float[N] y, float[N] z) {
    t = local.twice(x)
    y = local.twice(t)
    z = Add(t, y)
}
<domain: "local", opset_import: ["" : 17]>
twice (a) => (b) { t = Add(a, a)  b = Relu(t) }
"""


def test_functions_are_inlined() -> None:
    graph = load(onnx.parser.parse_model(FUNCTION).SerializeToString())
    assert operators(normalized(graph)) == Counter(Add=3, Relu=2)


def test_identities_and_dropout() -> None:
    graph = text("x: float32[3]", "y, z, x", "a = Identity(x) b = Dropout(a) c = Neg(b) y = Identity(c) "
                 "d = Identity(c) z = Exp(d)")
    assert operators(normalized(graph)) == Counter(Neg=1, Exp=1)


def test_identity_between_contract_names_stays() -> None:
    graph = text("x: float32[3]", "y, z", "y = Identity(x) a = Neg(x) z = Identity(y)")
    assert operators(normalized(graph)) == Counter(Identity=2)


def test_equal_constants_and_nodes_are_merged() -> None:
    graph = text("x: float32[2]", "y, k", "k = constant float32[2] [1, 2] l = constant float32[2] [1, 2] "
                 "m = constant float32[2] [1, 2] a = Add(x, l) b = Add(x, m) y = Mul(a, b)")
    result = normalized(graph)
    assert operators(result) == Counter(Add=1, Mul=1) and "k" in result.constants


def test_constants_of_equal_bytes_but_other_type_stay_apart() -> None:
    graph = text("x: float32[2], n: int32[2]", "y, z", "k = constant float32[2] [0, 0] l = constant int32[2] [0, 0] "
                 "y = Add(x, k) z = Add(n, l)")
    assert len(normalized(graph).constants) == 2


def test_signed_zeros_stay_apart() -> None:
    graph = text("x: float32[1]", "y, z", "k = constant float32[1] [0] l = constant float32[1] [-0] "
                 "y = Div(x, k) z = Div(x, l)")
    assert len(normalized(graph).constants) == 2
    graph = text("x: float32[3]", "y, z", "y = LeakyRelu(x, alpha=0.0) z = LeakyRelu(x, alpha=-0.0)")
    assert operators(normalized(graph)) == Counter(LeakyRelu=2)


def test_equal_nodes_that_are_both_outputs_stay() -> None:
    assert operators(normalized(text("x: float32[3]", "a, b", "a = Exp(x) b = Exp(x)")))["Exp"] == 2


def test_equal_nodes_one_of_them_an_output() -> None:
    graph = text("x: float32[3]", "b, y", "a = Exp(x) c = Neg(a) b = Exp(x) y = Add(b, c)")
    assert operators(normalized(graph)) == Counter(Exp=1, Neg=1, Add=1)


def test_random_nodes_are_never_merged() -> None:
    graph = text("x: float32[3]", "y", "a = RandomUniformLike(x) b = RandomUniformLike(x) y = Sub(a, b)")
    result = graph.copy()
    normalize(result)
    assert operators(result)["RandomUniformLike"] == 2


def test_dead_code_and_unread_outputs() -> None:
    graph = text("x: float32[1, 2, 4, 4]", "y", "d = Exp(x) y, i = MaxPool(x, kernel_shape=[2, 2]) e = Neg(d)")
    result = normalized(graph)
    assert [node.outputs for node in result.nodes] == [("y",)]


# ---------------------------------------------------------------- constants


def test_constants_are_folded_and_outputs_may_be_constants() -> None:
    graph = text("x: float32[2]", "y, b", "k = constant float32[2] [1, 2] a = Neg(k) b = Exp(a) y = Add(x, a)")
    result = normalized(graph)
    assert operators(result) == Counter(Add=1)
    np.testing.assert_array_equal(result.constants["b"].array, np.exp(np.array([-1, -2], np.float32)))


def test_everything_constant() -> None:
    graph = text("x: float32[2]", "y", "k = constant float32[2] [1, 2] y = Neg(k)")
    result = normalized(graph)
    assert not result.nodes and result.inputs == ["x"]


def test_folding_does_not_blow_the_file_up() -> None:
    graph = text("x: float32[n, 1000]", "y", "k = constant float32[1] [2] e = Expand(k, shape=[1000, 1000]) "
                 "t = MatMul(x, e) u = constant float32[3] [1, 2, 3] v = Neg(u) w = ReduceSum(v) y = Mul(t, w)")
    result = normalized(graph, {"n": 2})
    assert operators(result) == Counter(Expand=1, MatMul=1, Mul=1)
    assert sum(each.nbytes for each in result.constants.values()) < 100


def test_what_is_small_in_the_end_is_folded_through_what_is_large() -> None:
    graph = text("x: float32[1]", "y", "k = constant float32[1] [2] e = Expand(k, shape=[1000, 1000]) "
                 "r = ReduceMax(e, axes=[0, 1], keepdims=0) y = Mul(x, r)")
    result = normalized(graph)
    assert operators(result) == Counter(Mul=1)


def test_weights_are_replaced_but_not_doubled() -> None:
    b = Builder(opset=18)
    x = b.input("x", "float32", ["n", 300])
    weight = b.constant(np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32))
    turned = b.Transpose(weight, perm=[1, 0])
    b.output(x @ turned, "y")
    assert operators(normalized(b.graph(), {"n": 2})) == Counter(MatMul=1)
    b.output(x @ weight, "z")
    assert operators(normalized(b.graph(), {"n": 2})) == Counter(MatMul=2, Transpose=1)


def test_random_and_opaque_nodes_are_not_folded() -> None:
    graph = text("x: float32[2]", "y", "k = constant float32[2] [1, 2] r = Bernoulli(k) o = my.domain.Foo(k) "
                 "a = Add(r, o) y = Add(x, a)", opset=18)
    result = graph.copy()
    normalize(result)
    assert operators(result) == Counter(Bernoulli=1, Foo=1, Add=2)


def test_a_node_that_fails_on_its_constants_stays() -> None:
    graph = text("x: float32[2]", "y", "k = constant float32[2] [1, 2] i = constant int64[1] [7] g = Gather(k, i) "
                 "y = Add(x, g)")
    result = graph.copy()
    normalize(result)
    assert operators(result) == Counter(Gather=1, Add=1)


# ---------------------------------------------------------------- shapes


def test_shape_chain_with_symbols() -> None:
    graph = text("x: float32[batch, seq, 12]", "y", "s = Shape(x) i = constant int64[1] [0] j = constant int64[1] [1] "
                 "b = Gather(s, i, axis=0) t = Gather(s, j, axis=0) h = constant int64[2] [3, 4] "
                 "k = Concat(b, t, h, axis=0) y = Reshape(x, k, shape=runtime)")
    result = normalized(graph, {"batch": 2, "seq": 5})
    assert operators(result) == Counter(Reshape=1) and result.nodes[0].inputs == ("x",)


def test_product_of_symbols_as_a_target() -> None:
    graph = text("x: float32[a, b, 3]", "y", "s = Shape(x) i = constant int64[1] [0] j = constant int64[1] [1] "
                 "p = Gather(s, i, axis=0) q = Gather(s, j, axis=0) m = Mul(p, q) h = constant int64[1] [3] "
                 "k = Concat(m, h, axis=0) y = Reshape(x, k, shape=runtime)")
    assert operators(normalized(graph, {"a": 2, "b": 5})) == Counter(Reshape=1)
    assert operators(normalized(graph, {"a": 1, "b": 1})) == Counter(Reshape=1)


@pytest.mark.parametrize("n", [1, 3])
def test_a_symbol_that_moves(n: int) -> None:
    graph = text("x: float32[n, 4]", "y", "s = Shape(x) i = constant int64[1] [0] b = Gather(s, i, axis=0) "
                 "h = constant int64[1] [4] k = Concat(h, b, axis=0) y = Reshape(x, k, shape=runtime)")
    assert operators(normalized(graph, {"n": n})) == Counter(Reshape=1)


def test_sizes_of_known_inputs_are_constants() -> None:
    graph = text("x: float32[2, 3]", "y, s", "s = Shape(x) z = Size(x) c = Cast(z, to=1) y = Mul(x, c)")
    result = normalized(graph)
    assert operators(result) == Counter(Mul=1) and result.constants["s"].array.tolist() == [2, 3]


def test_expand_to_the_shape_of_another() -> None:
    graph = text("x: float32[n, 1], z: float32[n, 4]", "y", "s = Shape(z) y = Expand(x, s, shape=runtime)")
    normalized(graph, {"n": 3})
    normalized(graph, {"n": 1})


RESIZE = ("s = Shape(x) i = constant int64[2] [0, 1] b = Gather(s, i, axis=0) h = constant int64[2] [{}] "
          "k = Concat(b, h, axis=0) y = Resize(x, , , k, sizes=runtime, mode=\"linear\")")


@pytest.mark.parametrize(("sizes", "opset", "attrs"), [
    ("8, 6", 17, {"scales": (1.0, 1.0, 2.0, 1.0), "axes": None, "sizes": None}),
    ("9, 6", 17, {"scales": (1.0, 1.0, 2.25, 1.0), "axes": None, "sizes": None}),
    ("8, 7", 17, {"sizes": RUNTIME}),
    ("9, 7", 19, {"axes": (2, 3), "sizes": (9, 7), "scales": None}),
    ("4, 7", 19, {"axes": (3,), "sizes": (7,), "scales": None}),
])
def test_a_resize_of_planes_has_no_sizes_at_run_time(sizes: str, opset: int, attrs: dict[str, object]) -> None:
    """Whatever the batch; before opset 18 only ratios that a float holds exactly say the same."""
    graph = text("x: float32[n, 3, 4, 6]", "y", RESIZE.format(sizes), opset=opset)
    (*_, last) = normalized(graph, {"n": 2}).nodes
    normalized(graph, {"n": 1})
    assert {name: last.attrs[name] for name in attrs} == attrs


@pytest.mark.parametrize(("target", "allow"), [("[0, 3]", 1), ("[0, 0]", 0), ("[3, 0]", 1)])
def test_allowzero(target: str, allow: int) -> None:
    shape = "[0, 3]" if allow else "[2, 3]"
    graph = text(f"x: float32{shape}", "y", f"s = constant int64[2] {target} a = Neg(x) "
                 f"y = Reshape(a, shape={target}, allowzero={allow})")
    normalized(graph)


def test_empty_tensors() -> None:
    graph = text("x: float32[0, 3]", "y, z, s", "k = constant float32[0, 3] [] a = Add(x, k) "
                 "y = ReduceSum(a, axes=[0]) s = Shape(a) z = Concat(a, k, axis=0)")
    result = normalized(graph)
    assert result.constants["s"].array.tolist() == [0, 3]


def test_runtime_axes_and_pads_become_attributes() -> None:
    graph = text("x: float32[2, 3]", "y", "p = constant int64[4] [0, 1, 0, 1] q = Neg(p) r = Neg(q) "
                 "y = Pad(x, r, pads=runtime)")
    assert normalized(graph).nodes[0].attrs["pads"] == (0, 1, 0, 1)


def test_a_target_that_data_decide_stays() -> None:
    graph = text("x: float32[2, 3], s: int64[2]", "y", "y = Reshape(x, s, shape=runtime)")
    assert normalized(graph).nodes[0].inputs == ("x", "s")


@pytest.mark.parametrize(("value", "pools"), [("nan", 1), ("3", 0)])
def test_the_largest_of_numbers_and_nan_is_left_to_the_runtime(value: str, pools: int) -> None:
    """ONNX Runtime's GlobalMaxPool leaves NaN out, others hand it on (fuzz seed 507915)."""
    graph = text("x: float32[1, 2, 1]", "y", f"c = constant float32[1, 2, 2] [1, {value}, 2, 0.5] "
                 "p = GlobalMaxPool(c) y = Add(x, p)")
    normalize(graph)
    assert operators(graph)["GlobalMaxPool"] == pools


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("value", "left"), [("nan", 1), ("3", 0)])
def test_so_is_it_in_all_float_types(dtype: str, value: str, left: int) -> None:
    graph = text(f"x: {dtype}[2]", "y", f"c = constant {dtype}[2, 2] [1, {value}, 2, 0.5] "
                 "m = ReduceMax(c, axes=[1], keepdims=0) y = Add(x, m)")
    normalize(graph)
    assert operators(graph)["ReduceMax"] == left


@pytest.mark.parametrize("bounded, stated", [("r", None), ("x", -1)])
def test_an_input_that_a_file_needs_a_type_for_stays(bounded: str, stated: int | None) -> None:
    """A Clip has its bounds as inputs from opset 11 on: of a value of unknown type they cannot be written again."""
    graph = parse_graph('graph "g" opset 18 (x: int64[2]) -> (y) { p = constant int64[] 1 m = constant int64[] -1 '
                        "s = SequenceConstruct(x, x) e = SequenceErase(s, p) r = ConcatFromSequence(e, axis=-1) "
                        f"y = Clip({bounded}, m, min=runtime) }}")
    normalize(graph, lambda named, before, after, places: None)
    assert graph.types.get("r") is None
    clip = next(node for node in graph.nodes if node.op == "Clip")
    assert (clip.attrs["min"], len(clip.inputs)) == ((stated, 1) if stated else (RUNTIME, 2))
    to_model_proto(graph)  # was an InvalidOption
