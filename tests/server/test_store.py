"""Rows of jobs: who may change which state, and what a new start finds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from server.settings import Settings
from server.store import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Job, Store, new_id
from server.supervisor import Supervisor


def job(store: Store, **values: object) -> Job:
    row = Job(**{"id": new_id(), "kind": "optimize", "state": QUEUED, "name": "m", "key": "k", "request": {},  # type: ignore[arg-type]
                 "bytes": 1, "created": time.time(), "attempts": 0, **values})
    store.folder(row.id).mkdir()
    return store.add(row)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path)
    yield found
    found.close()


def test_jobs_are_claimed_in_order_and_once(store: Store) -> None:
    first, second = job(store), job(store)
    assert [store.claim().id, store.claim().id] == [first.id, second.id]  # type: ignore[union-attr]
    assert store.claim() is None
    assert store.get(first.id).state == RUNNING  # type: ignore[union-attr]


def test_a_cancelled_job_stays_cancelled(store: Store) -> None:
    row = job(store)
    store.claim()
    assert store.finish(row.id, CANCELLED)
    assert not store.finish(row.id, DONE, summary={}) and not store.requeue(row.id)
    assert store.get(row.id).state == CANCELLED  # type: ignore[union-attr]


def test_answers_have_the_same_key_and_are_done(store: Store) -> None:
    row = job(store)
    job(store, key="other", state=DONE)
    assert store.answer("k") is None
    store.finish(row.id, DONE, summary={"steps": 1})
    assert store.answer("k").summary == {"steps": 1}  # type: ignore[union-attr]


def test_a_new_start_takes_running_jobs_up_until_they_had_their_attempts(store: Store, tmp_path: Path) -> None:
    fresh = job(store, state=RUNNING, attempts=1)
    tried = job(store, state=RUNNING, attempts=3)
    supervisor = Supervisor(store, Settings(tmp_path, workers=0, attempts=3))
    supervisor.start()
    assert store.get(fresh.id).state == QUEUED  # type: ignore[union-attr]
    found = store.get(tried.id)
    assert found is not None and found.state == FAILED and found.problem is not None
    assert found.problem["code"] == "worker-died" and "3 times" in found.problem["found"]


def test_what_never_became_a_job_is_swept(store: Store) -> None:
    kept = job(store)
    store.folder("orphan").mkdir()
    (store.incoming / "half").mkdir()
    store.sweep()
    assert [path.name for path in store.jobs.iterdir()] == [kept.id] and not list(store.incoming.iterdir())


def test_rows_outlive_the_process(store: Store, tmp_path: Path) -> None:
    row = job(store)
    store.close()
    again = Store(tmp_path)
    assert again.get(row.id) is not None and again.counts()[QUEUED] == 1
    again.close()


def test_bytes_beyond_32_bits(store: Store) -> None:
    assert "bytes BIGINT" in str(CreateTable(Job.__table__).compile(dialect=postgresql.dialect()))  # type: ignore[arg-type]
    row = job(store, bytes=5 << 30)
    assert store.get(row.id).bytes == 5 << 30  # type: ignore[union-attr]
