"""Parts of the pipeline, for ablations: normalization alone, rules without an e-graph, an e-graph without the rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from graphs import save
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import optimize, validating
from runtime.validation.report import FAILED
from search.trace import same_graph

WORDS: dict[str, Any] = {"target": "roofline", "effort": "low"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("timings") / "t.db")


def operators(graph: Graph) -> list[str]:
    return sorted(node.op for node in graph.nodes)


def model() -> Graph:
    """`y`: two transposes in a row, which one rule removes. `z`: a Relu between them, which first has to be moved."""
    return parse_graph("""graph "m" opset 18 (x: float32[64, 65]) -> (y, z) {
      a = Transpose(x, perm=[1, 0]) b = Transpose(a, perm=[1, 0]) y = Tanh(b)
      s = Sin(x) t = Transpose(s, perm=[1, 0]) r = Relu(t) u = Transpose(r, perm=[1, 0]) z = Sigmoid(u) }""")


@pytest.mark.parametrize(("stages", "wanted"), [
    ("normalize", ["Relu", "Sigmoid", "Sin", "Tanh", "Transpose", "Transpose", "Transpose", "Transpose"]),
    ("greedy", ["Relu", "Sigmoid", "Sin", "Tanh", "Transpose", "Transpose"]),
    ("nodes", ["Relu", "Sigmoid", "Sin", "Tanh"]),
    ("neighbourhoods", ["Relu", "Sigmoid", "Sin", "Tanh"]),
])
def test_each_stage_finds_what_it_can(stages: str, wanted: list[str], tmp_path: Path, database: str) -> None:
    graph = model()
    result = optimize(graph, stages=stages, **WORDS, timings=database)
    assert operators(result.graph) == wanted
    assert same_graph(result.trace.replay(graph), result.graph)
    assert result.report["measured"]["speed_up"] is None
    given = {"x": np.random.default_rng(0).normal(size=(64, 65)).astype(np.float32)}
    outputs = []
    for name, each in (("a", graph), ("b", result.graph)):
        save(each, tmp_path / f"{name}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, given))
    for left, right in zip(*outputs, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_greedy_counts_what_others_still_read(database: str) -> None:
    """Folding a number into weights that are read twice makes a second product, which costs more than the number."""
    weight = np.ones((64, 64), np.float32)
    graph = parse_graph("""graph "m" opset 18 (x: float32[64, 64]) -> (y, z) {
      w = constant float32[64, 64] sha256:0 m = MatMul(x, w) y = Mul(m, m) k = constant float32[] 3.0 z = Mul(m, k) }"""
                        .replace("sha256:0", str(weight.tolist()).replace("],", "],\n")))
    result = optimize(graph, stages="greedy", **WORDS, timings=database)
    assert operators(result.graph).count("MatMul") == 1


def test_greedy_leaves_what_is_to_be_kept(database: str) -> None:
    graph = model()
    for node in graph.nodes:
        node.name = f"n_{node.outputs[0]}"
    result = optimize(graph, stages="greedy", keep=["n_a"], **WORDS, timings=database)
    assert any(node.name == "n_a" for node in result.graph.nodes)


def test_greedy_goes_into_nested_graphs(database: str) -> None:
    graph = parse_graph("""graph "m" opset 18 (c: bool[], x: float32[8, 9]) -> (y) {
      y = If(c, then_branch=graph "t" () -> (p) { a = Transpose(x, perm=[1, 0]) b = Transpose(a, perm=[1, 0])
          p = Exp(b) }, else_branch=graph "e" () -> (q) { q = Exp(x) }) }""")
    inside = [node.op for each in optimize(graph, stages="greedy", **WORDS, timings=database).graph.walk()
              for node in each.nodes]
    assert "Transpose" not in inside and inside.count("Exp") >= 1


def test_other_objectives_have_no_stages() -> None:
    with pytest.raises(InvalidOption, match="it is for the objective time"):
        optimize(model(), stages="nodes", objective="nodes")


def test_nested_graphs_whose_rewrites_fail_are_rewritten_by_exact_rules(database: str,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """All rewrites of nested graphs are one step of the trace, so none of them can be found guilty by itself."""
    graph = parse_graph("""graph "m" opset 18 (c: bool[], x: float32[8, 9]) -> (y) {
      y = If(c, then_branch=graph "t" () -> (p) { a = Transpose(x, perm=[1, 0]) b = Transpose(a, perm=[1, 0])
          k = constant float32[] 3.0 d = Mul(b, k) l = constant float32[] 2.0 p = Mul(d, l) },
          else_branch=graph "e" () -> (q) { q = Exp(x) }) }""")
    assert optimize(graph, **WORDS, timings=database).graph.node_count() == 3  # one product, by 6

    def check(original: Graph, found: Graph, context: Any) -> Any:
        failed = found.node_count() == 3
        return SimpleNamespace(ok=not failed, status=FAILED if failed else "passed", reason="said by the test",
                               summary=str, to_dict=dict)

    monkeypatch.setattr(validating, "check", check)
    result = optimize(graph, **WORDS, timings=database, fresh=True)
    inside = sorted(node.op for each in result.graph.walk() for node in each.nodes)
    assert inside == ["Exp", "If", "Mul", "Mul"]
    assert [row["rule"] for row in result.report["dropped"]] == ["optimize-bodies"]
