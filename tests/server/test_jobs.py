"""Jobs from the upload to the results, with real workers."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import graphs
from graphs.json_form import dumps
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from tests.server.support import FAST, onnx_bytes, tiny, until, with_external

Parts = list[tuple[str, tuple[str, bytes]]]


@dataclass
class World:
    """One service with two jobs that ended: an ONNX model with external data, and a JSON graph."""

    client: TestClient
    app: FastAPI
    folder: Path
    external: Parts
    jobs: tuple[dict, dict]


def test_jobs_from_upload_to_results(client: TestClient, app: FastAPI, tmp_path: Path,
                                     subtests: pytest.Subtests) -> None:
    """One test: a service of its own for each process that runs tests would take far longer."""
    model, data = with_external(tmp_path, "sub/weights.bin")
    external = [("model", ("external.onnx", model)), ("data", ("sub/weights.bin", data))]
    world = World(client, app, tmp_path, external, two_jobs(client, external))
    for check in CHECKS:
        with subtests.test(msg=check.__name__):
            check(world)


def two_jobs(client: TestClient, external: Parts) -> tuple[dict, dict]:
    """Two jobs at once."""
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


def both_jobs_end(world: World) -> None:
    for view in world.jobs:
        assert view["state"] == "done", view["problem"]
        assert view["summary"]["nodes_before"] == 3 and view["summary"]["nodes_after"] == 1
        assert view["summary"]["valid"] is True and view["progress"]["stage"] == "done"
        assert view["attempts"] == 1 and view["options"]["effort"] == "low"


def the_model_is_a_valid_onnx_file(world: World) -> None:
    response = world.client.get(world.jobs[1]["links"]["model"])
    assert 'filename="model.optimized.onnx"' in response.headers["content-disposition"]
    model = onnx.load_from_string(response.content)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Relu"]


def external_data_comes_back_as_an_archive(world: World) -> None:
    response = world.client.get(world.jobs[0]["links"]["model"])
    assert response.headers["content-type"] == "application/zip"
    assert 'filename="external.optimized.zip"' in response.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.namelist()[0] == "model.onnx" and len(archive.namelist()) == 2
        archive.extractall(world.folder)
    onnx.checker.check_model(str(world.folder / "model.onnx"))
    assert len(onnx.load(world.folder / "model.onnx").graph.node) == 1


def graph_trace_and_report(world: World) -> None:
    for view in world.jobs:
        links = view["links"]
        assert graphs.load(world.client.get(links["graph"]).content).node_count() == 1
        text = world.client.get(links["graph"], params={"form": "text"}).text
        assert text.startswith("graph ") and "Transpose" not in text
        trace = world.client.get(links["trace"]).json()
        assert trace["egraft_trace"] == 1 and len(trace["steps"]) == view["summary"]["steps"] > 0
        assert world.client.get(f"{links['trace']}/0").json() == trace["steps"][0]
        assert world.client.get(f"{links['trace']}/99").status_code == 404
        report = world.client.get(links["report"]).json()
        assert report["before"]["nodes"] == 3 and report["options"]["timings"] is None


def pages_show_report_and_trace(world: World) -> None:
    view = world.jobs[0]
    page = world.client.get(view["links"]["page"]).text
    trace = world.client.get(view["links"]["trace"]).json()
    assert trace["steps"][0]["rule"] in page and "onnxruntime:cpu" in page and "http-equiv" not in page
    assert 'aria-label="before step' in page and 'class="node"><title>t = Transpose(x, perm=[1, 0])</title>' in page
    searched = world.client.get(view["links"]["page"], params={"rule": "no-such"}).text
    assert "No step uses a rule of this name" in searched
    assert view["id"] in world.client.get("/").text
    report = world.client.get(view["links"]["report"], params={"form": "html"})
    assert report.headers["content-type"].startswith("text/html") and "<script" not in report.text


def events_end_with_the_job(world: World) -> None:
    response = world.client.get(world.jobs[0]["links"]["events"])
    assert response.headers["content-type"].startswith("text/event-stream")
    kinds = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert kinds[0] == "progress" and kinds[-2:] == ["state", "end"]
    later = world.client.get(world.jobs[0]["links"]["events"], headers={"Last-Event-ID": "3"}).text
    assert "id: 4\n" in later and "id: 3\n" not in later


def the_same_request_is_answered_from_the_store(world: World) -> None:
    renamed = [("model", ("other.onnx", world.external[0][1][1])), world.external[1]]
    response = world.client.post("/v1/jobs", params={"wait": "30"}, data=FAST, files=renamed)
    assert response.status_code == 200 and response.json()["answered_by"] == world.jobs[0]["id"]
    again = world.client.get(response.json()["links"]["model"])
    assert again.content == world.client.get(world.jobs[0]["links"]["model"]).content
    world.client.delete(response.json()["links"]["self"], params={"purge": "true"})
    assert world.client.get(response.json()["links"]["self"]).status_code == 404
    assert world.client.get(world.jobs[0]["links"]["model"]).status_code == 200


def the_list_is_paged(world: World) -> None:
    first = world.client.get("/v1/jobs", params={"limit": 1}).json()
    second = world.client.get(first["next"]).json()
    assert len(first["jobs"]) == len(second["jobs"]) == 1 and first["jobs"][0]["id"] != second["jobs"][0]["id"]
    assert world.client.get("/v1/jobs", params={"state": "cancelled"}).json()["jobs"] == []


def not_a_model(world: World) -> None:
    broken = b"\x08\x08" + b"\x3a\x04" + b"\xff\xff\xff\xff"  # a version, and a graph that is none
    response = world.client.post("/v1/jobs", content=broken, params={"wait": "60"})
    assert response.status_code == 400 and response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "invalid-model" and problem["type"] == "/docs/errors#invalid-model"
    assert problem["where"] == "model.onnx" and problem["found"] and problem["fix"]
    view = world.client.get(problem["instance"]).json()
    assert view["state"] == "failed" and view["problem"]["code"] == "invalid-model"
    assert world.client.get(f"/v1/jobs/{view['id']}/model").json()["code"] == "invalid-model"
    assert "invalid-model" in world.client.get(f"/jobs/{view['id']}").text


def a_killed_worker_is_tried_again_and_then_fails(world: World) -> None:
    supervisor = world.app.state.service.supervisor
    job = world.client.post("/v1/jobs", content=onnx_bytes("killed"), params=FAST).json()["id"]
    for attempt in (1, 2):
        def running(attempt: int = attempt) -> int | None:
            at = world.client.get(f"/v1/jobs/{job}").json()
            return supervisor.processes.get(job) if at["attempts"] == attempt else None
        os.kill(until(running), signal.SIGKILL)
    view = until(lambda: _ended(world.client, f"/v1/jobs/{job}"))
    assert view["state"] == "failed" and view["attempts"] == 2
    assert view["problem"]["code"] == "worker-died" and "SIGKILL" in view["problem"]["found"]
    assert world.client.get(f"/v1/jobs/{job}/report").status_code == 500
    assert world.client.get("/readyz").json()["status"] == "ok"


def cancelling_kills_the_worker(world: World) -> None:
    supervisor = world.app.state.service.supervisor
    job = world.client.post("/v1/jobs", content=onnx_bytes("cancelled"), params=FAST).json()["id"]
    waits = world.client.post("/v1/jobs", content=onnx_bytes("waits"), params=FAST).json()["id"]
    process = until(lambda: supervisor.processes.get(job))
    assert world.client.get(f"/v1/jobs/{job}/model").json()["code"] == "not-ready"
    assert world.client.delete(f"/v1/jobs/{waits}").json()["state"] == "cancelled"
    assert world.client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    until(lambda: job not in supervisor.processes)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert world.client.get(f"/v1/jobs/{job}/model").status_code == 409
    assert world.client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"


def a_check(world: World) -> None:
    files = {"a": ("m.onnx", onnx_bytes()), "b": ("m.onnx", onnx_bytes())}
    response = world.client.post("/v1/checks", files=files, data={"precision": "exact"})
    assert response.status_code == 200, response.text
    assert response.json()["result"]["ok"] is True
    found = world.client.get(response.json()["links"]["self"]).json()
    assert found["summary"]["equal"] is True
    assert found["progress"]["stage"] == "done" and found["progress"]["progress"] == 1.0
    assert json.dumps(response.json()["result"]["outputs"])


def a_check_with_a_proof(world: World) -> None:
    """Two transposes that undo each other are a rewrite; Abs is another function; 3x and x + x + x are equal, whether
    the rules know it or not."""
    head, rest = "graph \"m\" opset 17 (x: float32[4, 8]) -> (y) { ", " }"
    three = "c = constant float32[] 3.0 y = Mul(x, c)"
    cases = [(tiny(), "y = Relu(x)", True), (tiny(), "y = Abs(x)", False),
             (parse_graph(f"{head}{three}{rest}"), "t = Add(x, x) y = Add(t, x)", True)]
    for left, text, equal in cases:
        files = {"a": ("a.onnx", bytes(proto_bytes(left))),
                 "b": ("b.onnx", bytes(proto_bytes(parse_graph(head + text + rest))))}
        found = world.client.post("/v1/checks", files=files, data={"prove": "true"}).json()
        assert "summary" in found, found
        assert found["summary"]["equal"] is equal and found["options"]["prove"] is True, found
        if not equal:
            assert "proof" not in found["result"] and "proved" not in found["summary"]
            continue
        proof = found["result"]["proof"]
        assert proof["joined"] is found["summary"]["proved"] and set(proof["outputs"]) == {"y"}
        if "Relu" in text:
            assert proof["joined"] and proof["exactness"] == "exact" and "Transpose" in str(proof["steps"])
    problem = world.client.post("/v1/checks", files=files, data={"effort": "low"}).json()
    assert problem["code"] == "invalid-option" and "prove" in problem["fix"]


def a_training_step(world: World) -> None:
    client, model = world.client, world.folder / "model.onnx"
    graphs.save(parse_graph("""graph "m" opset 18 (x: float32[n, 2]) -> (y) {
      w = constant float32[2, 2] [1, 2, 3, 4] y = MatMul(x, w) }"""), model)
    fields = {"kind": "train-step", "loss": "mse", "optimizer": "adam", "wait": "60"}
    job = client.post("/v1/jobs", params=fields, content=model.read_bytes()).json()
    assert job["state"] == "done" and job["kind"] == "train-step", job
    assert job["summary"]["valid"] and job["options"]["optimizer"] == "adam"
    response = client.get(job["links"]["model"])
    assert 'filename="model.step.onnx"' in response.headers["content-disposition"]
    made = onnx.load_from_string(response.content)
    onnx.checker.check_model(made)
    assert {"next_w", "next_w_mean", "next_step"} <= {each.name for each in made.graph.output}
    page = client.get(f"/jobs/{job['id']}").text
    assert "next_w_square" in page and "central differences" not in page and "passed" in page
    assert "next_w" in client.get(f"{job['links']['report']}?form=html").text
    assert [row["id"] for row in client.get("/v1/jobs?kind=train-step").json()["jobs"]] == [job["id"]]
    bad = client.post("/v1/jobs", params={**fields, "loss": "y"}, content=model.read_bytes())
    assert bad.status_code == 400 and bad.json()["code"] == "invalid-option" and bad.json()["where"] == "loss"


CHECKS: list[Callable[[World], None]] = [
    both_jobs_end,
    the_model_is_a_valid_onnx_file,
    external_data_comes_back_as_an_archive,
    graph_trace_and_report,
    pages_show_report_and_trace,
    events_end_with_the_job,
    the_same_request_is_answered_from_the_store,
    the_list_is_paged,
    not_a_model,
    a_killed_worker_is_tried_again_and_then_fails,
    cancelling_kills_the_worker,
    a_check,
    a_check_with_a_proof,
    a_training_step,
]
