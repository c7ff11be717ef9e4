"""Requests that never reach a worker: errors, guard, reference, pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from graphs.errors import EgraftError, InvalidOption
from graphs.json_form import dumps
from graphs.sniffing import why_no_model
from optimizer.deriving import KINDS, TrainOptions
from optimizer.remote import query_of
from server.app import create_app
from server.error_catalogue import EXAMPLES, entries, markdown
from server.options import parameters, read_options
from server.uploads import model_name, safe_name
from tests.server.support import LOCAL, onnx_bytes, tiny

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service without workers: jobs wait for ever."""
    app = create_app(tmp_path_factory.mktemp("idle"), workers=0, max_upload=100_000, max_queue=3)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as found:
        yield found


def problem(response: object, status: int, code: str) -> dict:
    assert response.status_code == status, response.text  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    found = response.json()  # type: ignore[attr-defined]
    assert found["code"] == code and found["status"] == status, found
    assert all(found[key] for key in ("type", "title", "detail", "where", "found", "fix"))
    return found


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/v1/nothing", 404, "not-found"),
    ("GET", "/v1/jobs/nobody", 404, "not-found"),
    ("GET", "/v1/jobs/nobody/events", 404, "not-found"),
    ("GET", "/v1/jobs/nobody/model", 404, "not-found"),
    ("DELETE", "/v1/jobs/nobody", 404, "not-found"),
    ("GET", "/v1/checks/nobody", 404, "not-found"),
    ("GET", "/v1/rules/nobody", 404, "not-found"),
    ("PUT", "/v1/jobs", 405, "method-not-allowed"),
    ("GET", "/v1/jobs?limit=0", 422, "invalid-request"),
    ("GET", "/v1/jobs?state=odd", 422, "invalid-request"),
    ("GET", f"/v1/jobs?before={10**30}", 422, "invalid-request"),
    ("GET", f"/?before={10**30}", 422, "invalid-request"),
    ("POST", "/v1/jobs", 400, "bad-request"),
    ("POST", "/v1/checks", 400, "bad-request"),
])
def test_problems(idle: TestClient, method: str, path: str, status: int, code: str) -> None:
    problem(idle.request(method, path), status, code)


@pytest.mark.parametrize("options", [
    {"effort": "heroic"}, {"target": "onnxruntime:cpu@/tmp/x.db"}, {"target": "nosuch"}, {"timings": "/tmp/x.db"},
    {"inputs": "/etc/passwd"},
    {"no_such_option": "1"}, {"dim": "batch"}, {"timeout": "-1"}, {"wait": "soon"},
    {"wait": "600.5"}, {"wait": "inf"}, {"reuse": "perhaps"},
    {"opset": "seventeen"}, {"timeout": "inf"}, {"rtol": "inf"}, {"dim": "n=²"}, {"dim": "n=" + "9" * 5000},
    {"seed": "-1"}, {"seed": "9" * 30}, {"threads": "4000"}, {"kind": "differentiate"}, {"loss": "mse"},
    {"kind": "grad", "optimizer": "adam"}, {"kind": "grad", "effort": "low"}, {"kind": "train-step", "lr": "-1"},
])
def test_impossible_options(idle: TestClient, options: dict[str, str]) -> None:
    problem(idle.post("/v1/jobs", content=onnx_bytes(), params=options), 400, "invalid-option")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..", "a\\..\\evil", "C:evil", "x" * 300])
def test_names_of_parts_stay_inside(idle: TestClient, name: str) -> None:
    files = [("model", ("m.onnx", onnx_bytes())), ("data", (name, b"evil"))]
    response = idle.post("/v1/jobs", files=files)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "bad-request"


NO_MODELS = [
    ("train.py", b"import torch\n\nmodel = None\n"), ("train.py", b"#!/usr/bin/env python\nimport torch\n"),
    ("weights.pt", b"PK\x03\x04" + bytes(60)), ("m.onnx", onnx_bytes()[:-5]), ("m.onnx", b"\x08\x08"),
    ("m.onnx", b'{"nodes": []}'), ("m.json", b"[1, 2]"), ("m.json", b'{"nodes": ['), ("m.txt", b"# a note\n graphic"),
]


@pytest.mark.parametrize(("name", "content"), NO_MODELS)
def test_what_cannot_be_a_model_becomes_no_job(idle: TestClient, name: str, content: bytes) -> None:
    problem(idle.post("/v1/jobs", files={"model": (name, content)}), 400, "invalid-model")
    files = {"a": ("a.onnx", onnx_bytes()), "b": (name, content)}
    problem(idle.post("/v1/checks", files=files), 400, "invalid-model")
    assert not idle.get("/v1/jobs").json()["jobs"]
    assert not list(idle.app.state.service.store.incoming.iterdir())  # type: ignore[attr-defined]


def test_what_may_be_a_model_is_no_reason(tmp_path: Path) -> None:
    texts = {"a.txt": "\ufeff# one\n\n# two\n" + str(tiny()), "b.json": dumps(tiny()), "c.json": "{" + " " * (1 << 20)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert why_no_model(tmp_path / name) is None
    (tmp_path / "d.onnx").write_bytes(onnx_bytes() + b"\xf2\x07\x01a")  # a field of a later version
    assert why_no_model(tmp_path / "d.onnx") is None


def test_two_parts_of_one_name(idle: TestClient) -> None:
    files = [("model", ("m.onnx", b"1")), ("data", ("d", b"2")), ("data", ("d", b"3"))]
    problem(idle.post("/v1/jobs", files=files), 400, "bad-request")
    files = [("model", ("m.onnx", b"1")), ("data", ("d", b"2")), ("data", ("d/e", b"3"))]
    problem(idle.post("/v1/jobs", files=files), 400, "bad-request")


CUT = b'--b\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\nxx'


@pytest.mark.parametrize("body", [b"", b"--b\r\n", CUT])
def test_broken_multipart(idle: TestClient, body: bytes) -> None:
    response = idle.post("/v1/jobs", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    problem(response, 400, "bad-request")


def test_uploads_are_bounded_and_leave_nothing(idle: TestClient) -> None:
    problem(idle.post("/v1/jobs", content=b"x" * 100_001), 413, "too-large")
    problem(idle.post("/v1/jobs", content=iter([b"x" * 60_000] * 2)), 413, "too-large")
    problem(idle.post("/v1/jobs", files={"model": ("m.onnx", b"x" * 100_001)}), 413, "too-large")
    assert not list(idle.app.state.service.store.incoming.iterdir())  # type: ignore[attr-defined]


def test_the_queue_is_bounded_and_waiting_ends(idle: TestClient) -> None:
    jobs = [idle.post("/v1/jobs", content=onnx_bytes(), params={"wait": "0.2"}) for _ in range(3)]
    assert [job.status_code for job in jobs] == [202, 202, 202] and jobs[0].json()["state"] == "queued"
    response = idle.post("/v1/jobs", content=onnx_bytes())
    problem(response, 503, "queue-full")
    assert response.headers["retry-after"]
    assert idle.get("/readyz").status_code == 503
    for job in jobs:
        problem(idle.get(f"{job.headers['location']}/trace"), 409, "not-ready")
        assert idle.delete(job.headers["location"]).json()["state"] == "cancelled"
    assert idle.get("/readyz").status_code == 200


def test_options_of_a_request() -> None:
    found = read_options([("effort", "high"), ("dim", "batch=1,8"), ("dims", "seq=128"), ("disable-rule", "a"),
                          ("disabled_rules", "b"), ("strict", "true"), ("wait", "3"), ("rtol", "")])
    assert found.effort == "high" and found.dims == {"batch": [1, 8], "seq": [128]}
    assert found.disabled_rules == ["a", "b"] and found.strict and found.rtol is None
    with pytest.raises(InvalidOption, match="effort"):
        read_options([("efort", "high")])
    found = read_options([("fix_dim", "batch=1,height=48"), ("fix-dim", "width=32"), ("buckets", "seq=32,64,32"),
                          ("buckets", "time=8")])
    assert found.fix_dims == {"batch": 1, "height": 48, "width": 32}
    assert found.buckets == {"seq": [32, 64], "time": [8]}
    for wrong in (("fix_dim", "batch=1,batch=2"), ("fix_dim", "batch"), ("buckets", "seq="), ("buckets", "seq=0")):
        with pytest.raises(InvalidOption):
            read_options([wrong])
    rows = {row["name"]: row for row in parameters()}
    assert {"dim", "fix_dim", "buckets", "kind"} <= rows.keys()
    assert rows["wrt"]["description"].startswith("grad and train-step: ")
    assert rows["mode"]["schema"]["enum"] == ["reverse", "forward"]
    step = read_options([("wrt", "a"), ("wrt", "b"), ("lr", "0.5"), ("optimize", "true"), ("kind", "train-step")],
                        KINDS["train-step"])
    assert isinstance(step, TrainOptions) and (step.wrt, step.lr, step.optimize) == (["a", "b"], 0.5, True)
    assert read_options(query_of(step), KINDS["train-step"]) == step


def test_names_of_files() -> None:
    assert safe_name("a/b.bin") == "a/b.bin"
    with pytest.raises(EgraftError, match="outside"):
        safe_name("a\x01b")
    assert model_name("C:\\models\\net.onnx", b"") == "net.onnx" and model_name("../x/net", b"\x08\x07") == "net.onnx"
    assert model_name(None, b' {"egraft"') == "model.json" and model_name("", b"graph (") == "model.txt"


def test_reference(idle: TestClient) -> None:
    rules = idle.get("/v1/rules").json()["rules"]
    assert rules and {"name", "family", "exactness", "meaning"} == set(rules[0])
    one = idle.get(f"/v1/rules/{rules[0]['name']}").json()
    assert one["text"] and one["example"] and one["near_miss"]
    families = {row["family"] for row in idle.get("/v1/rules", params={"family": rules[0]["family"]}).json()["rules"]}
    assert families == {rules[0]["family"]}
    targets = {row["name"]: row for row in idle.get("/v1/targets").json()["targets"]}
    assert targets["egraft:cpu"]["available"] and sum(row["auto"] for row in targets.values()) == 1


def test_metrics_are_well_formed(idle: TestClient) -> None:
    lines = idle.get("/metrics").text.splitlines()
    sample = re.compile(r'^[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [-0-9.e+]+$')
    assert all(line.startswith("# ") or sample.match(line) for line in lines), lines
    assert any(line.startswith('egraft_jobs{state="queued"}') for line in lines)


def test_pages_need_nothing_from_elsewhere(idle: TestClient) -> None:
    for path in ("/", "/docs", "/docs/errors"):
        page = idle.get(path)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert not re.search(r"(src|href)=\"https?://", page.text)
    assert "/v1/jobs/{job}/trace/{step}" in idle.get("/docs").text
    names = {row["name"] for row in idle.get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]["parameters"]}
    assert {"target", "precision", "dim", "wait"} <= names and not names & {"inputs", "timings"}
    browser = idle.get("/jobs/nobody", headers={"Accept": "text/html"})
    assert browser.status_code == 404 and "<h1>" in browser.text


def test_every_error_is_documented() -> None:
    missing = [entry.code for entry in entries() if entry.code not in EXAMPLES]
    assert not missing, f"no example in server/error_catalogue.py: {missing}"
    assert (ROOT / "docs/errors.md").read_text() == markdown(), "python -m server.error_catalogue > docs/errors.md"


def test_an_unforeseen_defect_is_a_problem_document(idle: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("server.store.Store.counts", fail)
    assert "secret" not in str(problem(idle.get("/metrics"), 500, "internal"))


def test_names_are_escaped_in_pages(idle: TestClient) -> None:
    job = idle.post("/v1/jobs", files={"model": ("<script>alert(1)</script>.onnx", onnx_bytes())}).json()
    assert "<script>" not in idle.get(job["links"]["page"]).text + idle.get("/").text
    idle.delete(job["links"]["self"])


# ---------------------------------------------------------------- guard


def test_an_api_key_is_asked_for(tmp_path: Path) -> None:
    with TestClient(create_app(tmp_path, workers=0, api_key="sesame"), base_url="http://egraft.example") as client:
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        refused = client.get("/v1/jobs")
        problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Basic")
        problem(client.get("/", headers={"Authorization": "Bearer wrong"}), 401, "unauthorized")
        assert client.get("/", headers={"Authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/", headers={"X-API-Key": "sesame"}).status_code == 200
        assert client.get("/", auth=("me", "sesame")).status_code == 200
        problem(client.get("/", headers={"Authorization": "Basic !"}), 401, "unauthorized")


def test_other_sites_are_kept_out(idle: TestClient) -> None:
    problem(idle.get("/v1/jobs", headers={"Host": "evil.example"}), 403, "forbidden")
    problem(idle.post("/v1/jobs", content=b"x", headers={"Origin": "http://evil.example"}), 403, "forbidden")
    problem(idle.get("/v1/jobs", headers={"Host": "[::1"}), 403, "forbidden")
    problem(idle.get("/v1/jobs", headers={"Origin": "http://["}), 403, "forbidden")
    assert idle.get("/v1/jobs", headers={"Host": "localhost:80", "Origin": "http://localhost:80"}).status_code == 200


@pytest.mark.parametrize("last", [b"\xb2", b"9" * 5000, b"x"])
def test_an_odd_event_id_counts_for_none(idle: TestClient, last: bytes) -> None:
    job = idle.post("/v1/jobs", content=onnx_bytes()).json()["id"]
    idle.delete(f"/v1/jobs/{job}")
    found = idle.get(f"/v1/jobs/{job}/events", headers=[(b"last-event-id", last)])  # type: ignore[arg-type]
    assert found.status_code == 200 and "event: end" in found.text


def test_one_service_per_folder(tmp_path: Path) -> None:
    with TestClient(create_app(tmp_path, workers=0)):
        second = create_app(tmp_path, workers=0)
        with pytest.raises(EgraftError, match="another service"):
            second.state.service.open()
        second.state.service.close()
