"""The sizes that a run starts with are found once, and remembered where the timings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model.targets import resolve
from cost_model.targets.onnxruntime_cpu import OnnxRuntimeCpu
from cost_model.timings import Timings
from graphs.builder import Builder
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import optimize, sizing

TARGET = "onnxruntime:cpu"


def table_of(length: int) -> Graph:
    """A model that runs at `length` or fewer positions alone."""
    b = Builder("m", opset=17)
    ids = b.input("ids", "float32", ["batch", "sequence"])
    last = b.Sub(b.Gather(b.Shape(ids), np.int64(1), axis=0), np.int64(1))
    b.output(b.Add(ids, b.Gather(b.constant(np.zeros(length, np.float32)), last, axis=0)), "y")
    return b.graph()


def tried(graph: Graph, timings: Timings | None, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, int], int]:
    """(the sizes, how many were tried out)."""
    count = [0]
    runs = sizing._runs

    def counting(*args: object) -> bool:
        count[0] += 1
        return runs(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(sizing, "_runs", counting)
        return sizing.first_sizes(graph, {}, None, resolve(TARGET), 1, 0, timings), count[0]


def test_sizes_are_tried_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Timings(tmp_path / "t.db") as timings:
        first, tries = tried(table_of(20), timings, monkeypatch)
        assert 0 < first["sequence"] <= 20 and tries > 1
    with Timings(tmp_path / "t.db") as timings:
        assert tried(table_of(20), timings, monkeypatch) == (first, 0)
        assert tried(table_of(18), timings, monkeypatch)[1] > 0  # another model
    with Timings(tmp_path / "other.db", frozen=True) as timings:  # what is not known is tried out, and is no fault
        assert tried(table_of(20), timings, monkeypatch) == (first, tries)


def test_one_session_tries_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    plain = OnnxRuntimeCpu.session

    def session(*args: Any) -> Any:
        loaded.append(args)
        return plain(*args)

    monkeypatch.setattr(OnnxRuntimeCpu, "session", session)
    _, tries = tried(table_of(20), None, monkeypatch)
    assert tries > 1 and len(loaded) == 1


def test_a_record_of_other_sizes_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, target = table_of(20), resolve(TARGET)
    with Timings(tmp_path / "t.db") as timings:
        first, tries = tried(graph, timings, monkeypatch)
        (record,) = timings.records(kind="sizes")
    records = ({"batch": 1, "sequence": 0}, {"sequence": 4}, {"batch": 1, "sequence": "4"}, [4], None)
    for number, wrong in enumerate(records):
        with Timings(tmp_path / f"{number}.db") as timings:
            timings.add(record.key, record.target, target.fingerprint, "sizes", [1.0], 1.0, {"sizes": wrong})
            assert tried(graph, timings, monkeypatch) == (first, tries)


def refused(model: str, dims: dict[str, list[int]], target: str, database: Path) -> str:
    with pytest.raises(InvalidOption) as error:
        optimize(parse_graph(model), target=target, dims=dims, timings=str(database))
    return str(error.value)


@pytest.mark.parametrize(("inputs", "line", "dims", "says"), [
    ("w: float32[12, 4]", "y = MatMul(x, w)", {"n": [2], "k": [12, 7]}, "--dim n=2,k=7: the model does not take"),
    ("w: float32[m, 3]", "y = Concat(x, w, axis=1)", {"n": [2], "m": [3]}, "Concat 'y'"),
    ("w: float32[m, k]", "y = Add(x, w)", {"n": [2], "m": [3]}, "do not broadcast"),
    ("w: float32[n]", "y = Reshape(x, shape=[-1, 12])", {"n": [1], "k": [7]}, "Reshape 'y'"),
])
def test_sizes_at_which_types_contradict_are_refused(inputs: str, line: str, dims: dict[str, list[int]], says: str,
                                                     tmp_path: Path) -> None:
    model = f'graph "m" opset 17 (x: float32[n, k], {inputs}) -> (y) {{ {line} }}'
    assert says in refused(model, dims, "roofline", tmp_path / "t.db")


@pytest.mark.parametrize("target", [TARGET, "egraft:cpu"])
def test_sizes_at_which_the_model_does_not_run_are_refused(target: str, tmp_path: Path) -> None:
    model = """graph "m" opset 17 (x: float32[n, k]) -> (y) {
      nine = constant int64[1] [9]
      y = Gather(x, nine, axis=1) }"""
    assert "--dim k=7: the model does not run at this size: " in refused(model, {"k": [7]}, target, tmp_path / "t.db")
    found = optimize(parse_graph(model), target=target, dims={"k": [10]}, timings=str(tmp_path / "t.db"))
    assert found.report["target"]["sizes"]["k"] == 10


def test_sizes_that_were_asked_for_are_validated_where_the_usual_ones_do_not_run(tmp_path: Path) -> None:
    graph = parse_graph("""graph "m" opset 17 (x: float32[n, m]) -> (y) {
      shape = constant int64[2] [37, 13]
      h = Reshape(x, shape)
      twice = Neg(h)
      again = Neg(twice)
      y = Relu(again) }""")
    found = optimize(graph, target=TARGET, dims={"n": [37], "m": [13]}, timings=str(tmp_path / "t.db"))
    validation = found.report["validation"]
    assert validation["status"] == "passed" and [node.op for node in found.graph.nodes] == ["Reshape", "Relu"]
    assert all(each["sizes"] == {"n": 37, "m": 13} for each in validation["rounds"])
