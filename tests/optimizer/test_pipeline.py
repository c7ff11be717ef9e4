"""`optimize` as a whole: options, traces and their replay, the journal of patches, nested graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs import load, save
from graphs.errors import EgraftError, InvalidOption, ParseError
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import Options, Result, Trace, optimize
from optimizer.journal import apply, diff
from optimizer.replay import prefixes
from runtime import run
from runtime.feeds import draw
from search.trace import same_graph

GRAPH = """graph "g" opset 18 (x: float32[n, 3, 4]) -> (y, z) {
  one = constant float32[1] [1]
  k = constant float32[4] [1, 2, 3, 4]
  a = Mul(x, one)
  t = Transpose(a, perm=[0, 2, 1])
  r = Relu(t)
  u = Transpose(r, perm=[0, 2, 1])
  m = Neg(k)
  y = Add(u, m)
  z = Neg(u)
}"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"target": "roofline", "effort": "low", "timings": str(tmp_path / "timings.db")}


def optimized(graph: Graph | Path, settings: dict[str, Any], **more: Any) -> Result:
    result = optimize(graph, **{**settings, **more})
    assert same_graph(result.trace.replay(result.original), result.graph)
    assert not result.report["dropped"]
    return result


def test_nothing_is_silent_where_the_input_or_the_normalized_graph_is_handed_back(settings: dict[str, Any]) -> None:
    plain = optimized(parse_graph("graph opset 18 (x: float32[2]) -> (y) { y = Relu(x) }"), settings)
    assert plain.report["unchanged"] and plain.report["predicted"] is None
    lines = plain.summary().splitlines()
    assert {"predicted  nothing: the input is handed back", "validated  nothing: the input is handed back"} <= {*lines}
    twice = "graph opset 18 (x: float32[2]) -> (y) { a = Relu(x) b = Identity(a) c = Relu(x) y = MatMul(b, c) }"
    cleaned = optimized(parse_graph(twice), {**settings, "stages": "normalize", "objective": "time"})
    assert cleaned.report["chosen"] == "normalized"
    assert cleaned.report["predicted"]["before"] > cleaned.report["predicted"]["after"] > 0


def test_result_trace_and_report(settings: dict[str, Any]) -> None:
    graph = parse_graph(GRAPH)
    text = str(graph)
    result = optimized(graph, settings)
    assert str(graph) == text, "the graph given is not changed"
    assert [node.op for node in result.graph.nodes] == ["Relu", "Add", "Neg"]
    assert result.report["before"]["nodes"] == 7 and result.report["after"]["nodes"] == 3
    assert result.report["steps"] == len(result.trace.steps) and not result.report["unchanged"]
    assert json.loads(json.dumps(result.report)) and "3" in result.summary()
    feeds = draw(graph, 0)
    for name, value in run(graph, feeds).items():
        np.testing.assert_array_equal(run(result.graph, feeds)[name], value)


def test_nothing_to_gain(settings: dict[str, Any]) -> None:
    result = optimized(parse_graph("graph opset 18 (x: float32[3]) -> (y) { y = Exp(x) }"), settings)
    assert result.report["unchanged"] and not result.trace.steps


def test_the_same_input_gives_the_same_file_and_trace(settings: dict[str, Any], tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        result = optimized(parse_graph(GRAPH), settings)
        result.save(tmp_path / f"{name}.onnx")
        result.trace.save(tmp_path / f"{name}.json")
        files.append(((tmp_path / f"{name}.onnx").read_bytes(), (tmp_path / f"{name}.json").read_text()))
    assert files[0] == files[1]


def test_a_trace_read_from_its_file_replays(settings: dict[str, Any], tmp_path: Path) -> None:
    result = optimized(parse_graph(GRAPH), settings)
    result.trace.save(tmp_path / "trace.json")
    again = Trace.load(tmp_path / "trace.json")
    assert same_graph(again.replay(parse_graph(GRAPH)), result.graph)
    graphs = list(prefixes(parse_graph(GRAPH), again.steps))
    feeds = draw(graphs[0], 1)
    for graph in graphs:  # every prefix is a valid graph of the same results
        np.testing.assert_array_equal(run(graph, feeds)["y"], run(graphs[0], feeds)["y"])


def test_a_trace_on_another_model_is_an_error(settings: dict[str, Any]) -> None:
    result = optimized(parse_graph(GRAPH), settings)
    other = parse_graph("graph opset 18 (p: float32[3]) -> (q) { q = Exp(p) }")
    with pytest.raises(EgraftError):
        result.trace.replay(other)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"egraft_trace": 99}'])
def test_files_that_are_no_trace(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(EgraftError):
        Trace.load(tmp_path / "trace.json")


# ---------------------------------------------------------------- the journal


def test_patch_round_trip() -> None:
    before = parse_graph(GRAPH)
    after = parse_graph(GRAPH.replace("  m = Neg(k)\n", "").replace("Add(u, m)", "Add(u, k)").replace(
        "[1, 2, 3, 4]", "[-1, -2, -3, -4]"))
    patch = json.loads(json.dumps(diff(before, after)))
    assert same_graph(apply(before, patch), after)
    assert same_graph(apply(apply(before, patch), json.loads(json.dumps(diff(after, before)))), before)
    assert not diff(before, before)["add"] and not diff(before, before)["remove"]


def test_large_constants_are_computed_again() -> None:
    body = "k = constant float32[2, 50] {values} {node}y = Add(x, {read})"
    values = "[" + ", ".join(map(str, range(100))) + "]"
    negative = "[" + ", ".join(f"-{each}" for each in range(100)) + "]"
    before = parse_graph("graph opset 18 (x: float32[2, 50]) -> (y) {" + body.format(
        values=values, node="m = Neg(k) ", read="m") + "}")
    after = parse_graph("graph opset 18 (x: float32[2, 50]) -> (y) { m = constant float32[2, 50] " + negative
                        + " y = Add(x, m) }")
    patch = json.loads(json.dumps(diff(before, after)))
    assert "digest" in patch["constants"]["m"] and len(json.dumps(patch)) < 400
    assert same_graph(apply(before, patch), after)
    other = parse_graph("graph opset 18 (x: float32[2, 50]) -> (y) {" + body.format(
        values=values.replace("[0", "[7"), node="m = Neg(k) ", read="m") + "}")
    with pytest.raises(ParseError):
        apply(other, patch)


# ---------------------------------------------------------------- options


def test_precision(settings: dict[str, Any]) -> None:
    text = """graph opset 18 (x: float32[n, 3]) -> (y) { w = constant float32[3, 2] [1, 2, 3, 4, 5, 6]
        k = constant float32[] 3 m = MatMul(x, w) y = Mul(m, k) }"""
    assert optimized(parse_graph(text), settings, precision="exact").report["unchanged"]
    assert [node.op for node in optimized(parse_graph(text), settings).graph.nodes] == ["MatMul"]


def test_disabled_rule(settings: dict[str, Any]) -> None:
    text = "graph opset 18 (x: float32[3]) -> (y) { a = Neg(x) y = Neg(a) }"
    used = optimized(parse_graph(text), settings).report["rules_used"]
    assert used == {"neg-neg": 1}
    assert optimized(parse_graph(text), settings, disabled_rules=["neg-neg"]).report["unchanged"]


def test_keep(settings: dict[str, Any]) -> None:
    graph = parse_graph("graph opset 18 (x: float32[3]) -> (y) { a = Neg(x) b = Neg(a) y = Exp(b) }")
    graph.nodes[0].name = "mine"
    kept = optimized(graph, settings, keep=["mine"]).graph
    assert "mine" in {node.name for node in kept.nodes}


def test_opset(settings: dict[str, Any], tmp_path: Path) -> None:
    graph = parse_graph(GRAPH)
    optimized(graph, settings, opset=21).save(tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").opset == 21
    with pytest.raises(InvalidOption):
        optimize(parse_graph("graph opset 20 (x: float32[3]) -> (y) { y = Gelu(x) }"), **settings, opset=13)


def test_dims(settings: dict[str, Any]) -> None:
    report = optimized(parse_graph(GRAPH), settings, dims={"n": [7]}).report
    assert report["target"]["sizes"]["n"] == 7


def test_inputs(settings: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 3, 4), np.float32))
    assert optimized(parse_graph(GRAPH), settings, inputs=str(tmp_path / "feeds.npz")).report["validation"]["ok"]


@pytest.mark.parametrize("bad", [
    {"target": "moon:cpu"}, {"effort": "much"}, {"precision": "some"}, {"objective": "beauty"}, {"timeout": -1},
    {"opset": 0}, {"threads": 0}, {"disabled_rules": ["no-such-rule"]}, {"keep": ["no such node"]},
    {"inputs": "/no/such/file.npz"}, {"nonsense": 1}, {"dims": {"n": ["many"]}}, {"opset": 999},
    {"dims": {"no_such_symbol": [1]}}, {"dims": {"n": []}}, {"dims": {"n": [-1]}}, {"rtol": -1.0},
])  # fmt: skip
def test_impossible_options(bad: dict[str, Any], settings: dict[str, Any]) -> None:
    with pytest.raises(EgraftError) as error:
        optimize(parse_graph(GRAPH), **{**settings, **bad})
    assert "\n" not in str(error.value) and error.value.exit_status == 2


def test_options_or_settings() -> None:
    with pytest.raises(InvalidOption):
        optimize(parse_graph(GRAPH), Options(), effort="low")


def test_objectives(settings: dict[str, Any]) -> None:
    for objective in ("nodes", "memory", "time"):
        assert optimized(parse_graph(GRAPH), settings, objective=objective).report["after"]["nodes"] == 3


# ---------------------------------------------------------------- nested graphs


NESTED = """graph "nested" opset 18 (x: float32[n, 4], c: bool[]) -> (y, o) {
  k = constant float32[4] [1, 2, 3, 4]
  o = Neg(x)
  y = If(c, then_branch=graph () -> (u) { a = Transpose(x, perm=[1, 0]) b = Transpose(a, perm=[1, 0]) u = Add(b, k) },
            else_branch=graph () -> (v) { p = Neg(o) q = Neg(p) w = If(c, then_branch=graph () -> (s) { s = Neg(p) },
            else_branch=graph () -> (t) { d = constant float32[1] [1] t = Mul(o, d) }) v = Add(w, q) })
}"""


def test_branches_are_optimized(settings: dict[str, Any], tmp_path: Path) -> None:
    graph = parse_graph(NESTED)
    result = optimized(graph, settings)
    assert result.graph.node_count() < graph.node_count()
    save(result.graph, tmp_path / "m.onnx")
    again = load(tmp_path / "m.onnx")
    for condition in (True, False):
        feeds = {**draw(graph, 0, {"n": 3}), "c": np.array(condition)}
        for name, value in run(graph, feeds).items():
            np.testing.assert_array_equal(run(again, feeds)[name], value)


def test_rewrites_that_do_not_pay_are_shown_in_names_of_the_model(settings: dict[str, Any]) -> None:
    graph = parse_graph("""graph opset 18 (image: float32[2, 8]) -> (out) {
        shift = constant float32[8] [1, 2, 3, 4, 5, 6, 7, 8]
        weight = constant float32[8, 2] [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8]
        moved = Add(image, shift)
        product = MatMul(moved, weight)
        other = Relu(moved)
        out = Concat(product, other, axis=1) }""")
    rows = {row["rule"]: row["example"] for row in optimized(graph, settings).report["not_used"]}
    assert rows["shift-then-matmul"]["old"] == ["moved = Add(image, shift)", "product = MatMul(moved, weight)"]
    assert rows["shift-then-matmul"]["new"] == ["product = Add(MatMul(image, weight), MatMul(shift, weight))"]


def test_a_gradient_operator_is_optimized_as_what_it_stands_for(settings: dict[str, Any]) -> None:
    """It names y, which nothing else reads: it must not be removed from under it."""
    graph = parse_graph("""graph opset 18, ai.onnx.preview.training 1 (x: float32[2]) -> (g) {
        y = Mul(x, x)
        g = ai.onnx.preview.training.Gradient(x, xs=["x"], y="y") }""")
    result = optimized(graph, settings)
    assert all(not node.domain for node in result.graph.nodes)
    assert run(result.graph, {"x": np.float32([3, -1])})["g"].tolist() == [6, -2]
