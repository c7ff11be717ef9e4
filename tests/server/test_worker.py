"""What a worker makes of bad uploads, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphs import load, save
from graphs.text import parse_graph
from server import worker
from server.options import MODELS
from tests.server.support import onnx_bytes, with_external


def outcome(tmp_path: Path, data: bytes, name: str = "m.onnx", kind: str = "optimize", **options: object) -> dict:
    folder = tmp_path / "job"
    (folder / worker.UPLOAD).mkdir(parents=True)
    (folder / worker.ATTEMPT / worker.RESULT).mkdir(parents=True)
    (folder / worker.UPLOAD / name).write_bytes(data)
    chosen = MODELS[kind](**options).model_dump(mode="json", exclude={"inputs", "timings"})
    request = {"kind": kind, "options": chosen, "timings": str(tmp_path / "timings.db"), "model": name,
               "memory": 1 << 60}
    (folder / worker.REQUEST).write_text(json.dumps(request))
    assert worker.work(folder) == 0
    found = json.loads((folder / worker.ATTEMPT / worker.OUTCOME).read_text())
    assert str(tmp_path) not in json.dumps(found)
    return found


def cyclic() -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
                              "cycle", [value("x", TensorProto.FLOAT, [2])], [value("b", TensorProto.FLOAT, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.mark.parametrize(("data", "name", "options", "code"), [
    (b"no model at all", "m.onnx", {}, "invalid-model"),
    (onnx_bytes()[:-20], "m.onnx", {}, "invalid-model"),
    (cyclic(), "m.onnx", {}, "invalid-model"),
    (b'{"egraft": 1, "nodes": [', "g.json", {}, "parse-error"),
    (b'{"egraft": 7}', "g.json", {}, "parse-error"),
    (onnx_bytes(), "m.onnx", {"target": "no:such"}, "invalid-option"),
    (onnx_bytes(), "m.onnx", {"keep": ["nobody"]}, "invalid-option"),
    (onnx_bytes(), "m.onnx", {"disabled_rules": ["no-such-rule"]}, "invalid-option"),
])  # fmt: skip
def test_bad_uploads(tmp_path: Path, data: bytes, name: str, options: dict, code: str) -> None:
    found = outcome(tmp_path, data, name, **options)
    assert found["state"] == "failed" and found["problem"]["code"] == code, found
    assert found["problem"]["status"] == 400 and found["problem"]["fix"]


@pytest.mark.parametrize("location", ["weights.bin", "../../outside.bin", "/etc/passwd"])
def test_external_data_that_is_missing_or_leads_outside(tmp_path: Path, location: str) -> None:
    (tmp_path / "made").mkdir()
    model, _ = with_external(tmp_path / "made", location)
    (tmp_path / "outside.bin").write_bytes(np.zeros(32, np.float32).tobytes())
    found = outcome(tmp_path, model)
    assert found["problem"]["code"] == "missing-data", found


def test_a_defect_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("something")

    monkeypatch.setitem(worker.TASKS, "optimize", fail)
    found = outcome(tmp_path, onnx_bytes())
    assert found["problem"]["code"] == "internal" and found["problem"]["status"] == 500


def test_out_of_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setitem(worker.TASKS, "optimize", fail)
    assert outcome(tmp_path, onnx_bytes())["problem"]["code"] == "limit-reached"


def test_json_without_what_json_lacks() -> None:
    assert worker.plain({"a": [float("nan"), 1.5], "b": float("-inf")}) == {"a": ["nan", 1.5], "b": "-inf"}


def small(tmp_path: Path) -> bytes:
    """y = x w with an input of integers besides."""
    save(parse_graph("""graph "m" opset 18 (x: float32[n, 2], ids: int64[n]) -> (y) {
      w = constant float32[2, 2] [1, 2, 3, 4] y = MatMul(x, w) }"""), tmp_path / "small.onnx")
    return (tmp_path / "small.onnx").read_bytes()


def test_gradients(tmp_path: Path) -> None:
    found = outcome(tmp_path, small(tmp_path), kind="grad", loss="mse")
    assert found["state"] == "done" and found["summary"]["valid"] and found["summary"]["nodes_before"] == 1
    results = tmp_path / "job" / worker.ATTEMPT / worker.RESULT
    assert load(results / worker.MODEL).outputs == ["y", "loss", "grad_w"]
    report = json.loads((results / "report.json").read_text())
    assert report["derivation"]["kind"] == "grad" and report["options"]["timings"] is None
    assert json.loads((results / "trace.json").read_text())["steps"] == []


def test_a_loss_that_is_not_there(tmp_path: Path) -> None:
    found = outcome(tmp_path, small(tmp_path), kind="train-step", loss="nothing")
    assert found["problem"]["code"] == "invalid-option" and found["problem"]["where"] == "loss"
    assert "nothing" in found["problem"]["found"]
