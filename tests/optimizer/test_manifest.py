"""Buckets as several files with a manifest, and what runs them; constant sizes that do not pay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from cost_model.comparison import Comparison, Interval, Result, SampleLists
from graphs import load, save
from graphs.errors import InvalidInput, InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import optimize, specialize
from optimizer.command_line import main
from optimizer.finalists import INPUT, Finalist
from optimizer.fixing import fixed
from optimizer.manifest import save_manifest
from optimizer.specialize import RESULT
from runtime.buckets import BucketSession, read_manifest
from search.trace import same_graph
from server.options import read_options

Output = pytest.CaptureFixture[str]
WORDS: dict[str, Any] = {"target": "roofline", "effort": "low"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("timings") / "t.db")


def model() -> Graph:
    """A shape computed at run time, which constant sizes make go away; two inputs that share a size."""
    found = parse_graph("""graph "m" opset 18 (x: float32[batch, seq, 4], mask: float32[batch, seq + 1]) -> (y, m) {
      a = Transpose(x, perm=[1, 0, 2]) b = Transpose(a, perm=[1, 0, 2]) s = Shape(x) y = Reshape(b, shape=[0, -1])
      m = Neg(mask) }""")
    infer(found)
    return found


def feeds(batch: int, seq: int, mask: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((batch, seq))
    return {"x": rng.normal(size=(batch, seq, 4)).astype(np.float32),
            "mask": rng.normal(size=(batch, seq + 1 if mask is None else mask)).astype(np.float32)}


def test_a_manifest_chooses_by_all_sizes(tmp_path: Path) -> None:
    graph = model()
    variants = [({"seq": 3, "batch": 2}, fixed(graph, {"seq": 3, "batch": 2})), ({"seq": 5}, fixed(graph, {"seq": 5}))]
    save_manifest(graph, variants, tmp_path / "m.manifest.json")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "m.general.onnx", "m.manifest.json", "m.seq-3-batch-2.onnx", "m.seq-5.onnx"]
    session = BucketSession(tmp_path / "m.manifest.json")
    save(graph, tmp_path / "whole.onnx")
    whole = onnxruntime.InferenceSession(tmp_path / "whole.onnx", providers=["CPUExecutionProvider"])
    for batch, seq, mask, file in ((2, 3, None, "m.seq-3-batch-2.onnx"), (1, 3, None, "m.general.onnx"),
                                   (7, 5, None, "m.seq-5.onnx"), (2, 4, None, "m.general.onnx"),
                                   (2, 5, 9, "m.general.onnx")):  # inputs that do not agree with each other
        given = feeds(batch, seq, mask)
        assert session.choose(given).name == file
        for left, right in zip(session.run(None, given), whole.run(None, given), strict=True):
            np.testing.assert_array_equal(left, right)
    assert session.choose({}).name == "m.general.onnx"
    [only] = session.run(["m"], feeds(2, 3))
    np.testing.assert_array_equal(only, -feeds(2, 3)["mask"])


def test_files_are_opened_when_they_are_chosen(tmp_path: Path) -> None:
    class Opened:
        def run(self, names: Any, given: Mapping[str, Any]) -> list[Any]:
            return []

    opened: list[str] = []

    def open_session(path: Path) -> Opened:
        opened.append(path.name)
        return Opened()

    save_manifest(model(), [({"seq": 3}, fixed(model(), {"seq": 3}))], tmp_path / "manifest.json")
    session = BucketSession(tmp_path / "manifest.json", open_session)
    for seq in (3, 3, 4, 3):
        session.run(None, feeds(1, seq))
    assert opened == ["seq-3.onnx", "general.onnx"]


@pytest.mark.parametrize("text", [
    "{", "[]", "{}", '{"egraft_buckets": 2, "general": "a", "buckets": []}', '{"egraft_buckets": 1, "buckets": []}',
    '{"egraft_buckets": 1, "general": "../a.onnx", "buckets": []}',
    '{"egraft_buckets": 1, "general": "/a.onnx", "buckets": []}',
    '{"egraft_buckets": 1, "general": "a", "buckets": [{"file": "b", "guard": []}]}',
    '{"egraft_buckets": 1, "general": "a", "buckets": [{"file": "b", "guard": [{"input": "x", "axis": -1, "size": 1}]}'
    "]}",
])  # fmt: skip
def test_what_is_no_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InvalidInput):
        read_manifest(tmp_path / "manifest.json")


def test_the_service_answers_one_file() -> None:
    with pytest.raises(InvalidOption, match="the service answers one file"):
        read_options([("buckets", "seq=3"), ("bucket_form", "manifest")])


def measured(ratios: Mapping[str, float]) -> Any:
    """In the place of measuring: times by the input's, as the test says."""

    def measure(entries: list[Finalist], context: Any, sizes: Any, look: int = 1) -> tuple[Comparison, dict, str]:
        rows = {entry.name: ratios.get(entry.name, 1.0) for entry in entries}
        results = {name: Result(ratio, ratio, ratio, 0.99, "faster" if ratio < 0.98 else
                                "slower" if ratio > 1.02 else "equal", ratio, 0.0) for name, ratio in rows.items()}
        samples = {name: SampleLists((ratio,), (ratio,)) for name, ratio in rows.items()}
        return Comparison(INPUT, results, Interval(1, 1, 1, 1), 0.02, 0.02, "cpu", 1, 1, "clear",
                          samples=samples), {}, ""

    return measure


def test_a_manifest_from_the_command_line(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch,
                                          capsys: Output) -> None:
    monkeypatch.setattr(specialize, "measure_whole", measured({"bucket": 0.5}))
    save(model(), tmp_path / "m.onnx")
    words = ["optimize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.manifest.json"), "--target", "roofline",
             "--effort", "low", "--timings", database, "--buckets", "seq=3", "--report", str(tmp_path / "r.json")]
    assert main(words) == 0
    assert "buckets    files of their own" in capsys.readouterr().out
    data = json.loads((tmp_path / "out.manifest.json").read_text())
    assert [row["sizes"] for row in data["buckets"]] == [{"seq": 3}]
    report = json.loads((tmp_path / "r.json").read_text())["buckets"]
    assert report["chosen"] and [row["status"] for row in report["validation"]] == ["passed"]
    session = BucketSession(tmp_path / "out.manifest.json")
    given = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for seq in (3, 4):
        for left, right in zip(session.run(None, feeds(2, seq)), given.run(None, feeds(2, seq)), strict=True):
            np.testing.assert_array_equal(left, right)
    assert str(load(session.choose(feeds(1, 3))).declared["x"]) == "float32[batch, 3, 4]"


def test_without_a_bucket_that_pays_the_manifest_names_the_general_file(tmp_path: Path, database: str,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "measure_whole", measured({"bucket": 1.0}))
    result = optimize(model(), buckets={"seq": [3]}, bucket_form="manifest", **WORDS, timings=database)
    result.save(tmp_path / "manifest.json")
    assert [each.file.name for each in read_manifest(tmp_path / "manifest.json")] == ["general.onnx"]


@pytest.mark.parametrize(("against_file", "rewritten"), [(0.8, True), (1.0, True), (1.3, False)])
def test_rewrites_of_constant_sizes_that_are_no_gain_over_the_file(
        against_file: float, rewritten: bool, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slower than the file that was given is not handed back as faster."""
    monkeypatch.setattr(specialize, "measure_whole", measured({RESULT: against_file}))
    graph = model()
    result = optimize(graph, fix_dims={"seq": 3, "batch": 2}, **WORDS, timings=database)
    found = result.report
    assert found["measured"]["speed_up"] == pytest.approx(1 / against_file)
    assert found["fixed"]["against_the_file"]["verdict"] == found["measured"]["verdict"]
    assert any(node.op == "Transpose" for node in result.graph.nodes) != rewritten
    assert str(result.graph.declared["x"]) == "float32[2, 3, 4]"
    assert any("constant sizes do not pay" in text for text in found["warnings"]) != rewritten
    assert same_graph(result.trace.replay(graph), result.graph)
    assert found["after"]["nodes"] == result.graph.node_count() and found["unchanged"] != rewritten
