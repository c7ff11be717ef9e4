"""Batches: archives and parts become jobs, with real workers; what is no archive is refused before."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, inspect, text

from graphs.json_form import dumps
from server.app import create_app
from server.store import Store
from tests.server.support import FAST, LOCAL, onnx_bytes, tiny, until, with_external
from tests.server.test_http import problem
from tests.server.test_store import job


def zipped(files: dict[str, bytes]) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return found.getvalue()


def tarred(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for info, data in entries:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return found.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service without workers: jobs wait for ever."""
    app = create_app(tmp_path_factory.mktemp("idle"), workers=0, max_upload=100_000, max_queue=3)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as found:
        yield found


def test_a_batch_from_upload_to_results(client: TestClient, app: FastAPI, tmp_path: Path) -> None:
    model, data = with_external(tmp_path, "sub/weights.bin")
    archive = zipped({"zoo/a.onnx": onnx_bytes("a"), "zoo/ü b.onnx": onnx_bytes("b", 5), "zoo/bad.onnx": b"no model",
                      "big/external.onnx": model, "big/sub/weights.bin": data, "readme.md": b"#",
                      "__MACOSX/._a.onnx": b"resource fork"})
    sent = client.post("/v1/batches", content=archive, params={**FAST, "wait": "60", "name": "my zoo"})
    assert sent.status_code == 200, sent.text
    view = client.get(sent.headers["location"]).json()
    assert view == sent.json() and view["state"] == "failed" and view["name"] == "my zoo"
    assert view["jobs"] == {"queued": 0, "running": 0, "done": 3, "failed": 1, "cancelled": 0}
    rows = {row["model"]: row for row in view["models"]}
    assert list(rows) == ["big/external.onnx", "zoo/a.onnx", "zoo/bad.onnx", "zoo/ü b.onnx"]
    assert rows["zoo/bad.onnx"]["problem"]["code"] == "invalid-model"
    assert rows["big/external.onnx"]["summary"]["nodes_after"] == 1
    assert view["summary"]["nodes_before"] == 9 and view["summary"]["nodes_after"] == 3
    assert client.get(rows["zoo/a.onnx"]["links"]["self"]).json()["batch"] == view["id"]

    results = client.get(view["links"]["models"])
    with zipfile.ZipFile(io.BytesIO(results.content)) as found:
        assert found.testzip() is None
        found.extractall(tmp_path / "out")
    assert json.loads((tmp_path / "out/summary.json").read_text())["id"] == view["id"]
    external = tmp_path / "out/big/external.onnx/model.onnx"
    onnx.checker.check_model(str(external))
    assert len(onnx.load(external).graph.node) == len(onnx.load(tmp_path / "out/zoo/ü b.onnx").graph.node) == 1
    assert json.loads((tmp_path / "out/zoo/a.onnx.report.json").read_text())["after"]["nodes"] == 1

    events = client.get(view["links"]["events"]).text
    assert events.count("event: model") == 4 and events.rstrip().splitlines()[-2] == "event: end"
    for page in ("/batches", view["links"]["page"], rows["zoo/a.onnx"]["links"]["page"]):
        assert view["id"] in client.get(page).text
    assert client.get("/v1/batches").json()["batches"][0]["id"] == view["id"]

    # A model of a batch is a request like one that came alone: answered from the store.
    alone = client.post("/v1/jobs", content=onnx_bytes("a"), params={**FAST, "wait": "30"}).json()
    assert alone["answered_by"] == rows["zoo/a.onnx"]["job"]
    client.delete(view["links"]["self"], params={"purge": "true"})
    problem(client.get(view["links"]["self"]), 404, "not-found")
    problem(client.get(rows["zoo/a.onnx"]["links"]["self"]), 404, "not-found")
    assert client.get(alone["links"]["model"]).status_code == 200
    assert {path.name for path in app.state.service.store.jobs.iterdir()} == {alone["id"]}


def test_cancelling_a_batch_kills_and_starts_nothing(client: TestClient, app: FastAPI) -> None:
    files = [("model", (f"m{index}.onnx", onnx_bytes(f"cancel{index}"))) for index in range(3)]
    view = client.post("/v1/batches", files=files, data=FAST).json()
    processes = app.state.service.supervisor.processes
    until(lambda: view["models"][0]["job"] in processes)
    at = view["links"]["self"]
    assert client.get(at).json()["state"] == "running"
    problem(client.get(f"{at}/models"), 409, "not-ready")
    assert client.delete(at).json()["jobs"]["cancelled"] == 3
    until(lambda: not processes)
    found = client.get(at).json()
    assert found["state"] == "cancelled" and [row["state"] for row in found["models"]] == ["cancelled"] * 3
    assert "event: end" in client.get(f"{at}/events").text


def test_models_as_parts(idle: TestClient, tmp_path: Path) -> None:
    model, data = with_external(tmp_path, "w.bin")
    files = [("model", ("x/one.onnx", model)), ("data", ("x/w.bin", data)),
             ("model", ("two.json", dumps(tiny()).encode())), ("note", ("other.json", b"{}"))]
    view = idle.post("/v1/batches", files=files, data={"effort": "low"}).json()
    assert [row["model"] for row in view["models"]] == ["two.json", "x/one.onnx"] and view["state"] == "queued"
    assert view["options"]["effort"] == "low"
    store = idle.app.state.service.store  # type: ignore[attr-defined]
    upload = store.folder(view["models"][1]["job"]) / "upload"
    assert sorted(path.name for path in upload.iterdir()) == ["one.onnx", "w.bin"]
    assert idle.delete(view["links"]["self"]).json()["state"] == "cancelled"
    assert not list(store.incoming.iterdir())


A, OUT = onnx_bytes(), "../out.onnx"
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "no archive": (b"PK nothing", 400, "bad-request"),
    "a model alone": (A, 400, "bad-request"),
    "no model": (zipped({"a.txt": b"x"}), 400, "bad-request"),
    "empty": (b"", 400, "bad-request"),
    "leads outside": (zipped({OUT: A}), 400, "bad-request"),
    "absolute": (tarred([(tarfile.TarInfo("/a.onnx"), A)]), 400, "bad-request"),
    "no unicode": (tarred([(tarfile.TarInfo("a\udcff.onnx"), A)]), 400, "bad-request"),
    "a name that leads nowhere": (zipped({"a\\b.onnx": A}), 400, "bad-request"),
    "twice": (tarred([(tarfile.TarInfo("a.onnx"), A), (tarfile.TarInfo("./a.onnx"), A)]), 400, "bad-request"),
    "symbolic link": (tarred([link("a.onnx", "/etc/passwd")]), 400, "bad-request"),
    "hard link": (tarred([(tarfile.TarInfo("b.onnx"), A), link("a.onnx", "b.onnx", tarfile.LNKTYPE)]), 400,
                  "bad-request"),
    "bomb": (zipped({"a.onnx": bytes(3_000_000)}), 413, "too-large"),
    "too many": (zipped({f"{index}.onnx": A for index in range(4)}), 503, "queue-full"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(idle: TestClient, case: str) -> None:
    body, status, code = REFUSED[case]
    problem(idle.post("/v1/batches", content=body), status, code)
    store = idle.app.state.service.store  # type: ignore[attr-defined]
    assert not list(store.incoming.iterdir()) and store.counts()["queued"] == 0 and not store.batches(1)[1:]


def test_options_of_a_batch(idle: TestClient) -> None:
    body = zipped({"a.onnx": A})
    problem(idle.post("/v1/batches", content=body, params={"effort": "heroic"}), 400, "invalid-option")
    problem(idle.post("/v1/batches", files={"model": ("a.onnx", A), "inputs": ("i.npz", b"x")}), 400, "invalid-option")
    problem(idle.get("/v1/batches/nobody"), 404, "not-found")
    view = idle.post("/v1/batches", content=body, params={"name": "my\0 zoo\n\N{ROCKET}" + "x" * 300}).json()
    assert view["name"] == ("my zoo\N{ROCKET}" + "x" * 300)[:200]
    idle.delete(view["links"]["self"], params={"purge": "true"})
    problem(idle.delete("/v1/batches/nobody"), 404, "not-found")


def test_a_store_without_batches_gets_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    row = job(store)
    store.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_jobs_batch"))
        connection.execute(text("ALTER TABLE jobs DROP COLUMN batch"))
    again = Store(tmp_path)
    assert again.get(row.id).batch is None and again.members("x") == []  # type: ignore[union-attr]
    assert "ix_jobs_batch" in {each["name"] for each in inspect(engine).get_indexes("jobs")}
    again.close()
    engine.dispose()
