"""Inference through graphs: nested graphs, loops, opaque nodes, what is unknown, what is refused."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from graphs import Graph
from graphs.builder import Builder
from graphs.errors import InferenceError
from graphs.inference import contents, infer, infer_node
from graphs.ir import Node
from graphs.operators import find
from graphs.text import parse_graph
from graphs.types import TensorType


def types(text: str) -> dict[str, str]:
    return {name: str(type_) for name, type_ in parse_graph(text).types.items()}


def test_shapes_flow_through_symbols() -> None:
    found = types("graph (x: float32[n, 4]) -> (y) { a = Concat(x, x, axis=0)\n y = Reshape(a, shape=[-1, 2]) }")
    assert found == {"x": "float32[n, 4]", "a": "float32[2*n, 4]", "y": "float32[4*n, 2]"}


def test_sizes_flow_through_integer_tensors() -> None:
    graph = parse_graph("graph (x: float32[n, 4], z: float32[m]) -> (y) { s = Shape(x)\n i = constant int64[1] [0]\n"
                        " g = Gather(s, i, axis=0)\n y = Expand(z, g, shape=runtime) }")
    assert [str(each) for each in contents(graph)["s"]] == ["n", "4"]
    assert str(graph.types["y"]) == "float32[broadcast(m, n)]"


def test_what_is_unknown_stays_unknown_and_stops_nothing() -> None:
    graph = parse_graph("graph (x, z: float32[2]) -> (y) { a = Relu(x)\n b = Add(a, z)\n c = MatMul(b, x)\n"
                        " d = Softmax(c)\n e = Concat(d, z, axis=0)\n"
                        " y = Conv(d, x) }")
    assert graph.types["z"] == TensorType("float32", (2,))


def test_an_opaque_node_of_a_known_schema_has_an_element_type_and_no_shape() -> None:
    found = types("graph (x: float16[2]) -> (y) { y = opaque Relu(x)\n z = opaque Shape(x)\n w = my.Foo(x) }")
    assert found == {"x": "float16[2]", "y": "float16[...]", "z": "int64[...]"}


def test_data_dependent_sizes_of_two_branches_are_two_sizes() -> None:
    graph = parse_graph(
        "graph (c: bool[], x: float32[n]) -> (y) { y = If(c, then_branch=graph () -> (t) { t = NonZero(x) },"
        " else_branch=graph () -> (t) { t = NonZero(x) }) }")
    then, other = graph.nodes[0].graphs
    assert then.types["t"] != other.types["t"]
    assert graph.types["y"] not in (then.types["t"], other.types["t"])


def test_a_loop_state_that_keeps_its_shape_keeps_it() -> None:
    graph = parse_graph(
        "graph (m: int64[], c: bool[], x: float32[n, 2]) -> (y) { y = Loop(m, c, x, body=graph (i, k, s) -> (k2, t)"
        " { k2 = Identity(k)\n t = Relu(s) }) }")
    assert str(graph.types["y"]) == "float32[n, 2]"
    assert {name: str(graph.nodes[0].attrs["body"].types[name]) for name in ("i", "k", "s")} == {
        "i": "int64[]", "k": "bool[]", "s": "float32[n, 2]"}  # type: ignore[attr-defined]


def test_a_loop_state_that_grows_has_an_unknown_size() -> None:
    graph = parse_graph(
        "graph (m: int64[], c: bool[], x: float32[n, 2]) -> (y) { y = Loop(m, c, x, body=graph (i, k, s) -> (k2, t)"
        " { k2 = Identity(k)\n t = Concat(s, s, axis=0) }) }")
    body = graph.nodes[0].attrs["body"]
    assert isinstance(body, Graph)
    grown = body.types["s"]
    assert isinstance(grown, TensorType) and grown.shape is not None
    assert not isinstance(grown.shape[0], int) and str(grown.shape[0]) != "n" and grown.shape[1] == 2
    assert "n, 2" not in str(graph.types["y"])


def test_a_loop_state_that_changes_its_rank_has_no_shape() -> None:
    graph = parse_graph(
        "graph (m: int64[], c: bool[], x: float32[n]) -> (y) { y = Loop(m, c, x, body=graph (i, k, s) -> (k2, t)"
        " { k2 = Identity(k)\n t = Unsqueeze(s, axes=[0]) }) }")
    assert graph.types["y"] == TensorType("float32")


def test_scan_takes_its_axis_off() -> None:
    graph = parse_graph(
        "graph (s: float32[k], x: float32[k, n]) -> (y, z) { y, z = Scan(s, x, num_scan_inputs=1, scan_input_axes=[1],"
        " body=graph (a, b) -> (t, u) { t = Add(a, b)\n u = Identity(t) }) }")
    assert str(graph.nodes[0].attrs["body"].types["b"]) == "float32[k]"  # type: ignore[attr-defined]
    assert (str(graph.types["y"]), str(graph.types["z"])) == ("float32[k]", "float32[n, k]")


def test_an_error_names_node_and_reason() -> None:
    with pytest.raises(InferenceError) as caught:
        parse_graph("graph (x: float32[2], y: float32[3]) -> (z) { z = Add(x, y) }")
    assert caught.value.where == "Add 'z'" and "broadcast" in caught.value.found


def test_no_size_is_negative() -> None:
    """A deconvolution with a stride of 2 over nothing, with a kernel of 1: 2 * (0 - 1) + 1 elements."""
    with pytest.raises(InferenceError, match=r"\[1, 1, -1\]"):
        parse_graph("graph (x: float32[1, 1, 0], w: float32[1, 1, 1]) -> (y) { y = ConvTranspose(x, w, strides=[2]) }")


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("block", [0, -2])
def test_blocks_of_pixels_have_a_size(op: str, block: int) -> None:
    with pytest.raises(InferenceError, match=f"blocks of {block} x {block}"):
        types(f"graph (x: float32[n, 4, 4, 4]) -> (y) {{ y = {op}(x, blocksize={block}) }}")


def test_a_node_without_a_graph() -> None:
    record = find("Add")
    assert record is not None
    node = Node("Add", ("", ""), ("",), version=14)
    pair = TensorType("int64", (2,))
    found = infer_node(node, [pair, pair], [(1, 2), (3, 4)], [None, None], "?")
    assert found.types == [TensorType("int64", (2,))] and found.contents == (4, 6)


def test_a_defect_of_a_record_does_not_refuse_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(site: object) -> list:
        raise KeyError("oops")

    graph = parse_graph("graph (x: float32[2]) -> (y) { y = Relu(x) }")
    record = find("Relu")
    assert record is not None
    monkeypatch.setattr("graphs.inference.find", lambda op, domain: replace(record, infer=broken))
    graph.nodes[0].seen = None  # as if it had not been inferred before
    infer(graph)
    assert "y" not in graph.types


def test_time_grows_with_the_size_only() -> None:
    def seconds(count: int) -> float:
        b = Builder()
        value = b.input("x", "float32", ["n", 4])
        for _ in range(count):
            value = b.Relu(value)
        b.output(value, "y")
        graph = b.graph()
        begin = time.process_time()
        infer(graph)
        return time.process_time() - begin

    small, large = seconds(1000), seconds(4000)
    assert large < 12 * small + 0.05
