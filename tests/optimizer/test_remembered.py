"""A result that is known is found again, validated again, and never believed."""

from __future__ import annotations

import json
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from graphs import load
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph, print_graph
from optimizer import pipeline, remembered
from optimizer.pipeline import optimize

TEXT = """graph opset 17 (x: float32[N, 4]) -> (y) {
    w = constant float32[4, 4] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    b = constant float32[4] [0.5, 0.25, 1, 2]
    one = constant float32[] 1
    t = MatMul(x, w)
    u = Mul(t, one)
    v = Add(u, b)
    y = Transpose(Transpose(v, perm=[1, 0]), perm=[1, 0])
}""".replace("y = Transpose(Transpose(v, perm=[1, 0]), perm=[1, 0])",
             "s = Transpose(v, perm=[1, 0])\n    y = Transpose(s, perm=[1, 0])")


def _graph(text: str = TEXT) -> Graph:
    graph = parse_graph(text)
    infer(graph)
    return graph


def _options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"target": "onnxruntime:cpu", "threads": 1, "effort": "low", "timings": str(folder / "t.db"), **more}


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a search was made")

    monkeypatch.setattr(pipeline, "improve_graph", never)


def test_the_same_model_is_answered_without_a_search(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = optimize(_graph(), **_options(tmp_path))
    request.getfixturevalue("no_search")
    again = optimize(_graph(), **_options(tmp_path))
    assert print_graph(again.graph) == print_graph(first.graph)
    assert again.trace.to_dict() == json.loads(json.dumps(first.trace.to_dict()))
    assert first.report["remembered"] is None and again.report["remembered"] is not None
    assert again.report["validation"]["status"] == "passed"
    assert again.report["measured"] == first.report["measured"]
    assert len(first.report["stages"]) > 3
    assert [row["stage"] for row in again.report["stages"]] == ["load", "recall"]
    assert "no other stage ran" in again.report["stages"][1]["notes"]["remembered"]
    assert "--fresh" in again.summary()


@pytest.mark.parametrize(("text", "more"), [
    (TEXT.replace("0.25", "0.75"), {}), (TEXT.replace("float32[N, 4]", "float32[3, 4]"), {}),
    (TEXT.replace("opset 17", "opset 18"), {}), (TEXT, {"precision": "exact"}), (TEXT, {"fresh": True}),
    (TEXT, {"seed": 1}), (TEXT, {"timeout": 100.0}), (TEXT, {"disabled_rules": ["mul-one"]})])
def test_another_model_or_other_options_are_searched(tmp_path: Path, text: str, more: dict[str, Any],
                                                     request: pytest.FixtureRequest) -> None:
    optimize(_graph(), **_options(tmp_path))
    request.getfixturevalue("no_search")
    with pytest.raises(AssertionError, match="a search was made"):
        optimize(_graph(text), **_options(tmp_path, **more))


def test_given_inputs_count_by_their_content(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A service puts them into a folder of each job."""
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((3, 4), value, np.float32))
    optimize(_graph(), **_options(tmp_path, inputs=str(tmp_path / "a.npz")))
    request.getfixturevalue("no_search")
    again = optimize(_graph(), **_options(tmp_path, inputs=str(tmp_path / "b.npz")))
    assert again.report["remembered"] is not None
    with pytest.raises(AssertionError, match="a search was made"):
        optimize(_graph(), **_options(tmp_path, inputs=str(tmp_path / "c.npz")))


def _cut_short(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "trace": {**document["trace"], "steps": document["trace"]["steps"][:-1]}}


def test_a_frozen_run_takes_what_the_run_that_filled_the_database_handed_back(
        tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = optimize(_graph(), **_options(tmp_path))
    request.getfixturevalue("no_search")
    with sqlite3.connect(tmp_path / "t.db") as db:  # as where there was no time to measure all
        db.execute("delete from records_1 where kind = 'node'")
    frozen = optimize(_graph(), **_options(tmp_path, frozen=True))
    assert frozen.report["remembered"] and print_graph(frozen.graph) == print_graph(first.graph)


def test_a_wrong_entry_fails_its_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimize(_graph(), **_options(tmp_path))
    wrong = _graph(TEXT.replace("v = Add(u, b)", "v = Sub(u, b)"))
    monkeypatch.setattr(remembered, "_digest", lambda graph: "the same")
    with sqlite3.connect(tmp_path / "t.db") as db:
        (body,) = db.execute("SELECT body FROM documents_1").fetchone()
        db.execute("UPDATE documents_1 SET body = ?", (zlib.compress(json.dumps(
            {**json.loads(zlib.decompress(body)), "graph": "the same"}).encode()),))
    monkeypatch.setattr(remembered, "replay", lambda graph, steps: wrong)
    again = optimize(_graph(), **_options(tmp_path))
    assert again.report["remembered"] is None
    assert "Sub" not in print_graph(again.graph)


@pytest.mark.parametrize("change", [_cut_short, lambda document: {}, lambda document: {**document, "trace": 3},
                                    lambda document: {**document, "graph": "0"}])
def test_what_does_not_hold_is_searched_again(tmp_path: Path, change: Any) -> None:
    first = optimize(_graph(), **_options(tmp_path))
    with sqlite3.connect(tmp_path / "t.db") as db:
        (body,) = db.execute("SELECT body FROM documents_1").fetchone()
        db.execute("UPDATE documents_1 SET body = ?", (zlib.compress(json.dumps(
            change(json.loads(zlib.decompress(body)))).encode()),))
    again = optimize(_graph(), **_options(tmp_path))
    assert again.report["remembered"] is None
    assert print_graph(again.graph) == print_graph(first.graph)
    assert optimize(_graph(), **_options(tmp_path)).report["remembered"] is not None


def test_functions_that_nobody_calls_any_more_do_not_come_back(tmp_path: Path) -> None:
    """Steps inline a call; that the function goes with its last call is in no step."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[N, 12] x) => (float[N, 12] y) { y = f.block(x) }
        <domain: "f", opset_import: ["" : 17]> block (a) => (c) { b = Neg(a) d = Neg(b) c = Sigmoid(d) }""")
    for _ in range(2):
        result = optimize(load(model.SerializeToString()), **_options(tmp_path))
        assert [node.op for node in result.graph.nodes] == ["Sigmoid"]
        assert not result.graph.functions
    assert result.report["remembered"] is not None
