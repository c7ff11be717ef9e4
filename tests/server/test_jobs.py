"""Jobs from the upload to the results, with real workers."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile
from pathlib import Path

import onnx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import graphs
from graphs.json_form import dumps
from tests.server.support import FAST, onnx_bytes, tiny, until, with_external

pytestmark = pytest.mark.xdist_group("service")  # one service, not one for each process that runs tests


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, tuple[str, bytes]]]:
    """The parts of a model with external data in a folder below it."""
    model, data = with_external(tmp_path_factory.mktemp("external"), "sub/weights.bin")
    return [("model", ("external.onnx", model)), ("data", ("sub/weights.bin", data))]


@pytest.fixture(scope="module")
def two_jobs(client: TestClient, external: list[tuple[str, tuple[str, bytes]]]) -> tuple[dict, dict]:
    """Two jobs at once: an ONNX model with external data, and a JSON graph."""
    first = client.post("/v1/jobs", data=FAST, files=external)
    second = client.post("/v1/jobs", content=dumps(tiny("json", 5)), params=FAST,
                         headers={"Content-Type": "application/json"})
    assert first.status_code == second.status_code == 202, (first.text, second.text)
    views = []
    for response in (first, second):
        at = response.headers["location"]
        assert response.json()["links"]["self"] == at and response.json()["state"] in ("queued", "running")
        views.append(until(lambda at=at: _ended(client, at)))
    return views[0], views[1]


def _ended(client: TestClient, at: str) -> dict | None:
    found = client.get(at).json()
    return found if found["state"] in ("done", "failed", "cancelled") else None


def test_both_jobs_end(two_jobs: tuple[dict, dict]) -> None:
    for view in two_jobs:
        assert view["state"] == "done", view["problem"]
        assert view["summary"]["nodes_before"] == 3 and view["summary"]["nodes_after"] == 1
        assert view["summary"]["valid"] is True and view["progress"]["stage"] == "done"
        assert view["attempts"] == 1 and view["options"]["effort"] == "low"


def test_the_model_is_a_valid_onnx_file(client: TestClient, two_jobs: tuple[dict, dict]) -> None:
    response = client.get(two_jobs[1]["links"]["model"])
    assert 'filename="model.optimized.onnx"' in response.headers["content-disposition"]
    model = onnx.load_from_string(response.content)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Relu"]


def test_external_data_comes_back_as_an_archive(client: TestClient, two_jobs: tuple[dict, dict],
                                                tmp_path: Path) -> None:
    response = client.get(two_jobs[0]["links"]["model"])
    assert response.headers["content-type"] == "application/zip"
    assert 'filename="external.optimized.zip"' in response.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.namelist()[0] == "model.onnx" and len(archive.namelist()) == 2
        archive.extractall(tmp_path)
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert len(onnx.load(tmp_path / "model.onnx").graph.node) == 1


def test_graph_trace_and_report(client: TestClient, two_jobs: tuple[dict, dict]) -> None:
    for view in two_jobs:
        links = view["links"]
        assert graphs.load(client.get(links["graph"]).content).node_count() == 1
        text = client.get(links["graph"], params={"form": "text"}).text
        assert text.startswith("graph ") and "Transpose" not in text
        trace = client.get(links["trace"]).json()
        assert trace["egraft_trace"] == 1 and len(trace["steps"]) == view["summary"]["steps"] > 0
        assert client.get(f"{links['trace']}/0").json() == trace["steps"][0]
        assert client.get(f"{links['trace']}/99").status_code == 404
        report = client.get(links["report"]).json()
        assert report["before"]["nodes"] == 3 and report["options"]["timings"] is None


def test_pages_show_report_and_trace(client: TestClient, two_jobs: tuple[dict, dict]) -> None:
    view = two_jobs[0]
    page = client.get(view["links"]["page"]).text
    trace = client.get(view["links"]["trace"]).json()
    assert trace["steps"][0]["rule"] in page and "onnxruntime:cpu" in page and "http-equiv" not in page
    assert "No step uses a rule of this name" in client.get(view["links"]["page"], params={"rule": "no-such"}).text
    assert view["id"] in client.get("/").text
    report = client.get(view["links"]["report"], params={"form": "html"})
    assert report.headers["content-type"].startswith("text/html") and "<script" not in report.text


def test_events_end_with_the_job(client: TestClient, two_jobs: tuple[dict, dict]) -> None:
    response = client.get(two_jobs[0]["links"]["events"])
    assert response.headers["content-type"].startswith("text/event-stream")
    kinds = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert kinds[0] == "progress" and kinds[-2:] == ["state", "end"]
    later = client.get(two_jobs[0]["links"]["events"], headers={"Last-Event-ID": "3"}).text
    assert "id: 4\n" in later and "id: 3\n" not in later


def test_the_same_request_is_answered_from_the_store(client: TestClient, two_jobs: tuple[dict, dict],
                                                     external: list[tuple[str, tuple[str, bytes]]]) -> None:
    renamed = [("model", ("other.onnx", external[0][1][1])), external[1]]
    response = client.post("/v1/jobs", params={"wait": "30"}, data=FAST, files=renamed)
    assert response.status_code == 200 and response.json()["answered_by"] == two_jobs[0]["id"]
    again = client.get(response.json()["links"]["model"])
    assert again.content == client.get(two_jobs[0]["links"]["model"]).content
    client.delete(response.json()["links"]["self"], params={"purge": "true"})
    assert client.get(response.json()["links"]["self"]).status_code == 404
    assert client.get(two_jobs[0]["links"]["model"]).status_code == 200


def test_the_list_is_paged(client: TestClient, two_jobs: tuple[dict, dict]) -> None:
    first = client.get("/v1/jobs", params={"limit": 1}).json()
    second = client.get(first["next"]).json()
    assert len(first["jobs"]) == len(second["jobs"]) == 1 and first["jobs"][0]["id"] != second["jobs"][0]["id"]
    assert client.get("/v1/jobs", params={"state": "cancelled"}).json()["jobs"] == []


def test_not_a_model(client: TestClient) -> None:
    response = client.post("/v1/jobs", content=b"this is no model", params={"wait": "60"})
    assert response.status_code == 400 and response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "invalid-model" and problem["type"] == "/docs/errors#invalid-model"
    assert problem["where"] == "model.onnx" and problem["found"] and problem["fix"]
    view = client.get(problem["instance"]).json()
    assert view["state"] == "failed" and view["problem"]["code"] == "invalid-model"
    assert client.get(f"/v1/jobs/{view['id']}/model").json()["code"] == "invalid-model"
    assert "invalid-model" in client.get(f"/jobs/{view['id']}").text


def test_a_killed_worker_is_tried_again_and_then_fails(client: TestClient, app: FastAPI) -> None:
    supervisor = app.state.service.supervisor
    job = client.post("/v1/jobs", content=onnx_bytes("killed"), params=FAST).json()["id"]
    for attempt in (1, 2):
        def running(attempt: int = attempt) -> int | None:
            at = client.get(f"/v1/jobs/{job}").json()
            return supervisor.processes.get(job) if at["attempts"] == attempt else None
        os.kill(until(running), signal.SIGKILL)
    view = until(lambda: _ended(client, f"/v1/jobs/{job}"))
    assert view["state"] == "failed" and view["attempts"] == 2
    assert view["problem"]["code"] == "worker-died" and "SIGKILL" in view["problem"]["found"]
    assert client.get(f"/v1/jobs/{job}/report").status_code == 500
    assert client.get("/readyz").json()["status"] == "ok"


def test_cancelling_kills_the_worker(client: TestClient, app: FastAPI) -> None:
    supervisor = app.state.service.supervisor
    job = client.post("/v1/jobs", content=onnx_bytes("cancelled"), params=FAST).json()["id"]
    waits = client.post("/v1/jobs", content=onnx_bytes("waits"), params=FAST).json()["id"]
    process = until(lambda: supervisor.processes.get(job))
    assert client.get(f"/v1/jobs/{job}/model").json()["code"] == "not-ready"
    assert client.delete(f"/v1/jobs/{waits}").json()["state"] == "cancelled"
    assert client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    until(lambda: job not in supervisor.processes)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert client.get(f"/v1/jobs/{job}/model").status_code == 409
    assert client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"


def test_a_check(client: TestClient) -> None:
    files = {"a": ("m.onnx", onnx_bytes()), "b": ("m.onnx", onnx_bytes())}
    response = client.post("/v1/checks", files=files, data={"precision": "exact"})
    assert response.status_code == 200, response.text
    assert response.json()["result"]["ok"] is True
    assert client.get(response.json()["links"]["self"]).json()["summary"]["equal"] is True
    assert json.dumps(response.json()["result"]["outputs"])
