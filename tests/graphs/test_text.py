"""The text form: what prints parses back; errors carry line and column."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.canonical import float_bits
from graphs.constants import Constant
from graphs.dims import parse_dim
from graphs.errors import InferenceError, ParseError
from graphs.operators import RUNTIME
from graphs.text import float_text, parse_graph, print_constant, print_graph, print_node
from graphs.types import TensorType

FULL = '''graph "name" opset 17, my.domain 1 (x: float32[batch, 3], n: bool[], `odd name`: int64[`a b`, k + 1]) -> (y) {
  w = constant float32[3, 2] [1, 2, 3, 4, 5, 6]
  t = MatMul(x, w)
  a, b = Split(t, axis=1)
  c = Clip(a, max=6.0)
  d = my.domain.Foo(c, , b, alpha=1.5, mode="linear", axes=[1, -1], value=float32[2] [1, 2])
  y = If(n, then_branch=graph () -> (u) { u = Relu(d) }, else_branch=graph () -> (u2) { u2 = Neg(d) })
}'''


def test_the_documented_form_prints_as_it_was_written() -> None:
    assert print_graph(parse_graph(FULL)) == FULL


def test_a_comment_is_skipped_and_blanks_do_not_matter() -> None:
    graph = parse_graph("graph(x:float32[2])->(y){#one\n y=Relu(x)# two\n}")
    assert graph.opset == 21 and graph.types["y"] == TensorType("float32", (2,))


def test_defaults_are_filled_in_and_do_not_print() -> None:
    graph = parse_graph("graph (x: float32[2, 3]) -> (y) { y = Gemm(x, x, transB=1) }")
    assert graph.nodes[0].attrs == {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
    assert print_node(graph.nodes[0]) == "y = Gemm(x, x, transB=1)"


def test_versions_follow_the_opset() -> None:
    versions = {opset: parse_graph(f"graph opset {opset} (x: float32[2]) -> (y) {{ y = Relu(x) }}").nodes[0].version
                for opset in (6, 12, 13, 14, 21)}
    assert versions == {6: 6, 12: 6, 13: 13, 14: 14, 21: 14}  # the changes of Relu in the ONNX change log


def test_an_unknown_operator_is_opaque_and_keeps_its_attributes() -> None:
    graph = parse_graph("graph (x: float32[2]) -> (y) { y = Swoosh9(x, gain=0.5, mode=none) }")
    assert graph.nodes[0].is_opaque and graph.nodes[0].attrs == {"gain": 0.5, "mode": None}


def test_a_known_operator_may_be_kept_opaque() -> None:
    text = "graph (x: float32[2]) -> (y) { y = opaque Relu(x, odd=1) }"
    graph = parse_graph(text)
    assert graph.nodes[0].is_opaque
    assert print_node(graph.nodes[0]) == "y = opaque Relu(x, odd=1)"


def test_absent_inputs_and_outputs_keep_their_places() -> None:
    graph = parse_graph("graph (x: float32[2], s: int64[2]) -> (b) { , b = my.Two(x, , s)\n `` = my.None() }")
    assert graph.nodes[0].inputs == ("x", "", "s") and graph.nodes[0].outputs == ("", "b")
    assert graph.nodes[1].outputs == ("",)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_a_runtime_attribute_prints() -> None:
    graph = parse_graph("graph (x: float32[a], s: int64[2]) -> (y) { y = Reshape(x, s, shape=runtime) }")
    assert graph.nodes[0].attrs["shape"] is RUNTIME
    assert "shape=runtime" in print_graph(graph)


def test_an_operand_that_may_be_an_attribute_is_one_of_the_run() -> None:
    text = "graph opset 18 (x: float32[2, 3], a: int64[1]) -> (y) {{ y = ReduceSum(x, a{}) }}"
    one, other = (parse_graph(text.format(more)) for more in ("", ", axes=runtime"))
    assert print_graph(one) == print_graph(other) and one.nodes[0].attrs["axes"] is RUNTIME
    assert one.types["y"].shape is None or one.types["y"].shape != (1, 1)


def test_large_constants_come_by_digest() -> None:
    big = Constant.of(np.arange(100, dtype=np.float32))
    text = f"graph (x: float32[100]) -> (y) {{\n  w = constant float32[100] sha256:{big.digest}\n  y = Add(x, w)\n}}"
    assert print_constant(big) == f"float32[100] sha256:{big.digest}"
    assert parse_graph(text, {big.digest: big}).constants["w"] == big
    assert parse_graph(text, {"any name": big}).constants["w"] == big
    with pytest.raises(ParseError, match=r"line 2, column 29.*not at hand"):
        parse_graph(text)


@pytest.mark.parametrize("text", [
    "float32[4] [nan, inf, -inf, -0]", "float16[3] [0.1, 65504, 6e-08]", "bfloat16[2] [0.1, 3.39e+38]",
    "float64[] 0.1", "int8[2] [-128, 127]", "uint64[] 18446744073709551615", "bool[2] [true, false]",
    'string[2] ["a\\n\\"b\\"", b"/w=="]', "int4[2] [-8, 7]", "uint4[1] [15]", "float8_e4m3fn[2] [448, nan]",
    "complex64[1] [(1.5, -0.0)]", "int64[0, 3] []", "float32[1] [nan(0x7fc00001)]",
])  # fmt: skip
def test_constants_of_every_type_print_as_they_were_written(text: str) -> None:
    graph = parse_graph(f"graph () -> (c) {{ c = constant {text} }}")
    assert print_constant(graph.constants["c"]) == text


@given(st.integers(0, 2**32 - 1))
def test_every_float32_prints_to_text_of_the_same_bits(bits: int) -> None:
    constant = Constant.of(np.array([bits], np.uint32).view(np.float32))
    read = parse_graph(f"graph () -> (c) {{ c = constant {print_constant(constant)} }}").constants["c"]
    assert read.array.view(np.uint32)[0] == bits


@given(st.floats(width=16, allow_nan=False))
def test_the_text_of_a_float16_is_short(value: float) -> None:
    text = float_text(float_bits(value, "float16"), "float16")
    assert float_bits(float(text), "float16") == float_bits(value, "float16")
    assert len(text) <= max(len(repr(value)), len("65504.0"))


@pytest.mark.parametrize(("text", "place", "found"), [
    ("graph (x: float32[2]) -> (y) {\n  y = Relu(z)\n}", "line 2, column 12", "'z'"),
    ("graph (x: float33[2]) -> (x) {}", "line 1, column 11", "float33"),
    ("graph (x: float32[2) -> (x) {}", "line 1, column 20", "']'"),
    ("graph (x: float32[2]) -> (x) {\n  y = Relu(x,,\n}", "line 3, column 1", "'}'"),
    ("graph (x) -> (x) { y = Softmax(x, foo=1) }", "line 1, column 24", "foo"),
    ("graph (x) -> (y) { y = Cast(x) }", "line 1, column 24", "needs the attribute 'to'"),
    ("graph (x) -> (x) { ? }", "line 1, column 20", "'?'"),
    ("graph (x) -> (x) { c = constant int8[2] [1, 300] }", "line 1, column 41", "range"),
    ("graph (x) -> (x) { c = constant int8[2] [1] }", "line 1, column 41", "1 elements"),
    ("graph (x) -> (y) { y = Relu(x)\n  y = Neg(x) }", "line 2, column 3", "twice"),
    ("graph (x) -> (y) { y = Relu(z) z = Relu(y) }", "line 1, column 1", "cycle"),
    ("graph (x) -> (x) {", "line 1, column 19", "end of the text"),
    ("graph (x) -> (x) {} more", "line 1, column 21", "'more'"),
    ("graph (x, x) -> (x) {}", "line 1, column 11", "twice"),
    ("graph (x) -> (y) { y = Relu(alpha=1, x) }", "line 1, column 38", "attribute"),
    ("nonsense", "line 1, column 1", "'graph'"),
])  # fmt: skip
def test_errors_name_line_and_column(text: str, place: str, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert caught.value.where == place
    assert found in caught.value.found
    assert "\n" not in str(caught.value)


def test_an_ill_typed_graph_is_refused() -> None:
    with pytest.raises(InferenceError, match="MatMul"):
        parse_graph("graph (x: float32[2, 3]) -> (y) { y = MatMul(x, x) }")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(NAMES, min_size=2, max_size=5, unique=True), st.lists(st.integers(0, 9), max_size=3), st.data())
def test_any_names_and_types_survive(names: list[str], sizes: list[int], data: st.DataObject) -> None:
    from graphs.ir import Graph, Node

    shape = tuple(data.draw(st.sampled_from([size, parse_dim("n"), parse_dim("n + 1")])) for size in sizes)
    type_ = TensorType(data.draw(st.sampled_from(["float32", "int64", "bool", "string", "bfloat16"])), shape)
    nodes = [Node("Foo", (source,), (name,), {names[0]: name}, domain="my.domain")
             for source, name in pairwise(names)]
    graph = Graph(data.draw(NAMES), [names[0]], [names[-1]], nodes, types={names[0]: type_},
                  opsets={"": 21, "my.domain": 3})
    text = print_graph(graph)
    again = parse_graph(text)
    assert print_graph(again) == text
    assert (again.inputs, again.outputs, again.types[names[0]]) == (graph.inputs, graph.outputs, type_)
    assert [(n.inputs, n.outputs, n.attrs) for n in again.nodes] == [(n.inputs, n.outputs, n.attrs) for n in nodes]
