"""A disk or a database without room: who sends is told so, nothing is left behind, and no job runs for ever."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from graphs.errors import EgraftError, InvalidOption
from server import worker
from server.app import create_app
from server.errors import storage_full
from server.settings import Settings
from server.store import DONE, FAILED, QUEUED, RUNNING, Job, Store
from server.supervisor import Supervisor
from tests.server.support import LOCAL, onnx_bytes
from tests.server.test_batches import zipped
from tests.server.test_http import problem
from tests.server.test_store import job

DATABASE_FULL = OperationalError("INSERT", {}, Exception("database or disk is full"))


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(tmp_path_factory.mktemp("idle"), workers=0)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as found:
        yield found


def refuse(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(("place", "error", "status", "code"), [
    ("server.uploads._Sink.write", OSError(errno.ENOSPC, "full"), 507, "storage-full"),
    ("server.uploads._Sink.write", OSError(errno.EDQUOT, "full"), 507, "storage-full"),
    ("server.uploads._Sink.write", OSError(errno.EIO, "broken"), 500, "internal"),
    ("server.store.Store.add", DATABASE_FULL, 507, "storage-full"),
    ("server.store.Store.add_batch", DATABASE_FULL, 507, "storage-full"),
    ("server.store.Store.add", OperationalError("INSERT", {}, Exception("locked")), 500, "internal"),
])  # fmt: skip
def test_a_request_without_room(idle: TestClient, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception,
                                status: int, code: str) -> None:
    monkeypatch.setattr(place, refuse(error))
    batch = place.endswith("add_batch")
    body = zipped({"a.onnx": onnx_bytes()}) if batch else onnx_bytes()
    problem(idle.post("/v1/batches" if batch else "/v1/jobs", content=body), status, code)
    store: Store = idle.app.state.service.store  # type: ignore[attr-defined]
    assert not list(store.incoming.iterdir()) and store.counts()[QUEUED] == 0
    store.sweep()
    assert not list(store.jobs.iterdir())


def test_a_result_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for the model; then even for the outcome, which only the exit status can tell."""
    def save(folder: Path, request: object) -> dict:
        try:
            full()
        except OSError as error:
            raise InvalidOption("model.onnx", "the file cannot be written", "choose another place") from error
        return {}

    (tmp_path / worker.ATTEMPT).mkdir()
    (tmp_path / worker.REQUEST).write_text(json.dumps({"kind": "optimize", "memory": 1 << 60}))
    monkeypatch.setitem(worker.TASKS, "optimize", save)
    assert worker.work(tmp_path) == 0
    found = json.loads((tmp_path / worker.ATTEMPT / worker.OUTCOME).read_text())
    assert found["state"] == "failed" and found["problem"]["code"] == "storage-full"
    monkeypatch.setattr("optimizer.result._write_text", full)
    assert worker.work(tmp_path) == worker.NO_ROOM
    assert storage_full(EgraftError("a", "b", "c"), "job") is None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path)
    yield found
    found.close()


def claimed(store: Store) -> Job:
    job(store)
    found = store.claim()
    assert found is not None
    return found


def test_how_a_job_ended_is_written_down_when_the_database_takes_it(store: Store, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, row, refused = Supervisor(store, Settings(tmp_path, workers=0)), claimed(store), [0]
    finish = Store.finish

    def late(*arguments: Any, **values: Any) -> bool:
        refused[0] += 1
        if refused[0] < 3:
            raise DATABASE_FULL
        return finish(*arguments, **values)

    monkeypatch.setattr(Store, "finish", late)
    monkeypatch.setattr(supervisor.stopping, "wait", lambda seconds: False)
    supervisor._insist(row, lambda: supervisor._settle(row, worker.NO_ROOM, ""))
    found = store.get(row.id)
    assert refused[0] == 3 and found is not None and found.state == FAILED
    assert found.problem is not None and found.problem["code"] == "storage-full"


def test_a_job_that_cannot_be_started_is_tried_again_and_then_fails(store: Store, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, row = Supervisor(store, Settings(tmp_path, workers=0, attempts=2)), claimed(store)
    monkeypatch.setattr(supervisor, "_run", full)
    monkeypatch.setattr(supervisor.stopping, "wait", lambda seconds: False)
    supervisor._work(row, None)  # type: ignore[arg-type]
    assert store.get(row.id).state == QUEUED  # type: ignore[union-attr]
    again = store.claim()
    assert again is not None and again.state == RUNNING
    supervisor._work(again, None)  # type: ignore[arg-type]
    found = store.get(row.id)
    assert found is not None and found.state == FAILED and found.problem is not None
    assert found.problem["code"] == "storage-full"


def test_an_answer_that_cannot_be_linked_is_worked_out(store: Store, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    first = job(store, state=DONE, summary={})
    (store.folder(first.id) / worker.ATTEMPT).mkdir()
    (store.folder(first.id) / worker.ATTEMPT / worker.OUTCOME).write_text("{}")
    row = claimed(store)
    monkeypatch.setattr("shutil.copytree", full)
    assert not Supervisor(store, Settings(tmp_path, workers=0))._answered(row)
    monkeypatch.undo()
    assert Supervisor(store, Settings(tmp_path, workers=0))._answered(row)
    assert store.get(row.id).answered_by == first.id  # type: ignore[union-attr]


def test_files_that_a_worker_wrote_after_its_job_was_removed_go_too(store: Store, tmp_path: Path) -> None:
    supervisor, row = Supervisor(store, Settings(tmp_path, workers=0)), claimed(store)
    store.remove(row.id)
    store.folder(row.id).mkdir()  # what a worker that ran makes again
    supervisor._insist(row, lambda: supervisor._settle(row, 0, "cancelled"))
    assert not store.folder(row.id).exists()
