"""The JSON form: it round-trips, and errors name the place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphs import load, save
from graphs.constants import Constant
from graphs.errors import InvalidModel, ParseError
from graphs.json_form import dumps, from_json, to_json
from graphs.text import parse_graph, print_graph

SMALL = {
    "egraft": 1, "name": "mlp", "opset": 17,
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}],
    "outputs": ["y"],
    "constants": {"w": {"dtype": "float32", "shape": [3, 2], "data": [[1, 2], [3, 4], [5, 6]]}},
    "nodes": [
        {"op": "Softmax", "inputs": ["t"], "outputs": ["y"], "attributes": {"axis": -1}},
        {"op": "MatMul", "inputs": ["x", "w"], "outputs": ["t"]},
    ],
}  # fmt: skip
TEXT = """graph "all" opset 17, my.domain 1 (x: float32[n, 3], s: int64[2] = int64[2] [1, 3], c: bool[]) -> (y) {
  w = constant float32[2] [nan, -0]
  k = constant complex64[1] [(1.0, -0.5)]
  words = constant string[2] ["a", b"/w=="]
  r = Reshape(x, s, shape=runtime)
  f = my.domain.Foo(r, w, , k, words, a=nan, b=-0.0, i=1, t=float32[1] [2], many=["p", b"/w=="], none=none)
  y = If(c, then_branch=graph () -> (u) { u = Relu(f) }, else_branch=graph () -> (v) { v = opaque Neg(f, odd=1) })
}"""


def test_the_documented_example() -> None:
    assert print_graph(from_json(json.dumps(SMALL))) == (
        'graph "mlp" opset 17 (x: float32[batch, 3]) -> (y) {\n'
        "  w = constant float32[3, 2] [1, 2, 3, 4, 5, 6]\n  t = MatMul(x, w)\n  y = Softmax(t)\n}")


def test_everything_survives_as_json_text() -> None:
    graph = parse_graph(TEXT)
    again = from_json(dumps(graph))
    assert print_graph(again) == print_graph(graph) == TEXT
    assert to_json(again) == to_json(graph)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint64", "bool", "int4", "float8_e5m2"])
@pytest.mark.parametrize("count", [3, 100])
def test_constants_of_every_type(dtype: str, count: int) -> None:
    graph = parse_graph("graph () -> (c) { c = constant float32[] 0 }")
    graph.constants["c"] = Constant.of(np.arange(count) % 2, dtype)
    found = from_json(dumps(graph)).constants["c"]
    assert found == graph.constants["c"]
    assert ("base64" in dumps(graph)) == (count > 64)


def changed(**fields: object) -> dict:
    return {**SMALL, **fields}


NODE = SMALL["nodes"][1]


@pytest.mark.parametrize(("data", "where", "found"), [
    ("{", "line 1, column 2", "does not parse"), ("[]", "$", "an object"), ({}, "$.egraft", "version None"),
    (changed(egraft=2), "$.egraft", "version 2"), (changed(opset="17"), "$.opset", "an object"),
    (changed(extra=1), "$.extra", "no field"), (changed(outputs="y"), "$.outputs", "a list"),
    (changed(inputs=[{"name": "x", "dtype": "f32"}]), "$.inputs[0].dtype", "f32"),
    (changed(inputs=[{"name": "x", "dtype": "int8", "shape": ["a b"]}]), "$.inputs[0].shape[0]", "unexpected"),
    (changed(inputs=[{"name": "x", "dtype": "int8", "shape": [-1]}]), "$.inputs[0].shape[0]", "negative"),
    (changed(nodes=[{"op": 3}]), "$.nodes[0].op", "a text"),
    (changed(nodes=[{**NODE, "attr": {}}]), "$.nodes[0].attr", "no field"),
    (changed(nodes=[{**NODE, "attributes": {"a": 1}}]), "$.nodes[0]", "no attribute 'a'"),
    (changed(nodes=[{**NODE, "op": "Foo", "attributes": {"a": {"q": 1}}}]), "$.nodes[0].attributes.a", "'q'"),
    (changed(constants={"w": {"dtype": "float32", "shape": [2], "data": [1]}}), "$.constants.w", "float32[2]"),
    (changed(constants={"w": {"dtype": "float32", "shape": [1], "base64": "?"}}), "$.constants.w.base64", "base64"),
    (changed(constants={"w": {"dtype": "int8", "shape": [1], "data": [300]}}), "$.constants.w", "range"),
])  # fmt: skip
def test_errors_name_the_place(data: object, where: str, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        from_json(data if isinstance(data, str) else json.dumps(data))
    assert caught.value.where == where and found in caught.value.found


def test_the_rules_of_graphs_hold_here_too() -> None:
    with pytest.raises(InvalidModel, match="no node, input or initializer"):
        from_json(changed(outputs=["z"]))


@pytest.mark.parametrize("suffix", [".json", ".txt", ".onnx"])
def test_load_and_save_go_by_the_suffix_or_the_content(tmp_path: Path, suffix: str) -> None:
    graph = from_json(SMALL)
    path, plain = tmp_path / f"g{suffix}", tmp_path / "file"
    save(graph, path)
    plain.write_bytes(path.read_bytes())
    texts = {print_graph(load(source)) for source in (path, plain, path.read_bytes())}
    assert texts == {print_graph(graph)}


def test_errors_in_files_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("graph (x) -> (y) { }")
    (tmp_path / "latin.json").write_bytes(b'{"egraft": 1, "name": "\xe9"}')
    with pytest.raises(ParseError, match=r"bad\.txt, line 1, column 15"):
        load(tmp_path / "bad.txt")
    with pytest.raises(ParseError, match=r"latin\.json, byte 23.*UTF-8"):
        load(tmp_path / "latin.json")


@pytest.mark.parametrize("text", ['graph "g" opset DIGITS () -> () {}',
                                  '{"egraft": DIGITS}', 'graph "g" opset 17 () -> (y) { y = constant int64[] DIGITS }',
                                  'graph "g" opset 17 () -> (y) { y = constant float32[] nan(zz) }'])
def test_numbers_that_python_refuses_are_parse_errors(text: str) -> None:
    with pytest.raises(ParseError):
        load(text.replace("DIGITS", "9" * 10_000).encode())
