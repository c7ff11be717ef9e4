"""The SQLite file of a timing database: its table, rows as records, and how processes share it."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from .plausible import read_record
from .records import Record

SCHEMA_VERSION = 1
TABLE = f"records_{SCHEMA_VERSION}"  # tables of other versions stay in the file untouched and unread
COLUMNS = "key, target, fingerprint, kind, samples, median, spread, created, version, note"
CREATE = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    key TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL, kind TEXT NOT NULL, samples TEXT NOT
    NULL, median REAL NOT NULL, spread REAL NOT NULL, created REAL NOT NULL, version TEXT NOT NULL, note
    TEXT NOT NULL, PRIMARY KEY (key, target, fingerprint)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fingerprints (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
DOCUMENTS = "CREATE TABLE IF NOT EXISTS documents_1 (key TEXT PRIMARY KEY, created REAL NOT NULL, body BLOB NOT NULL)"
DOCUMENT_BYTES = 64 << 20  # of all documents
BUSY_SECONDS = 30.0
Answer = TypeVar("Answer")


def row_of(record: Record) -> tuple[object, ...]:
    """The columns of a record, as `COLUMNS` names them."""
    return (
        record.key,
        record.target,
        record.fingerprint,
        record.kind,
        json.dumps(record.samples),
        record.median,
        record.spread,
        record.created,
        record.version,
        json.dumps(dict(record.note), sort_keys=True),
    )


def record_of(row: tuple[Any, ...]) -> Record | None:
    """The record of a row with `COLUMNS`, None where it cannot be read or believed."""
    try:
        names = [name.strip() for name in COLUMNS.split(",")]
        data = dict(zip(names, row, strict=True))
        return read_record({**data, "samples": json.loads(data["samples"]), "note": json.loads(data["note"])})
    except (ValueError, TypeError, RecursionError):  # a damaged row is a miss
        return None


class Pruned(NamedTuple):
    """How many rows were deleted: of measurements, and of documents."""

    records: int
    documents: int


def delete(db: sqlite3.Connection, oldest: float | None, kept: frozenset[str] | None, max_bytes: int | None,
           device_of: Callable[[bytes], str | None] | None = None) -> Pruned:
    """Delete what `Timings.prune` says, inside a transaction."""
    lengths = " + ".join(f"length(CAST({name} AS BLOB))" for name in COLUMNS.split(", "))
    rows = db.execute(f"SELECT key, target, fingerprint, {lengths}, {COLUMNS} FROM {TABLE}").fetchall()
    gone, stay = [], []
    for key, target, fingerprint, size, *fields in rows:
        record = record_of(tuple(fields))
        out = record is None or (oldest is not None and record.created < oldest)
        if record is None or out or (kept is not None and fingerprint not in kept):
            gone.append((key, target, fingerprint))
        else:
            stay.append((record.created, (key, target, fingerprint), size))
    total = sum(size for _, _, size in stay)
    for _, place, size in sorted(stay):
        if max_bytes is None or total <= max_bytes:
            break
        gone.append(place)
        total -= size
    db.executemany(f"DELETE FROM {TABLE} WHERE key = ? AND target = ? AND fingerprint = ?", gone)
    db.execute(f"DELETE FROM fingerprints WHERE digest NOT IN (SELECT fingerprint FROM {TABLE})")
    if not has_documents(db):
        return Pruned(len(gone), 0)
    documents = [
        (key,) for key, created, body in db.execute("SELECT key, created, body FROM documents_1")
        if max_bytes is not None or (oldest is not None and created < oldest)
        or (kept is not None and (device_of is None or device_of(bytes(body)) not in kept))
    ]
    db.executemany("DELETE FROM documents_1 WHERE key = ?", documents)
    return Pruned(len(gone), len(documents))


def has_documents(db: sqlite3.Connection) -> bool:
    """Their table is there; it comes with the first of them."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'documents_1'").fetchone() is not None


def read_document(db: sqlite3.Connection, key: str) -> bytes | None:
    """The document of a key, None if there is none."""
    if not has_documents(db):
        return None
    row = db.execute("SELECT body FROM documents_1 WHERE key = ?", (key,)).fetchone()
    return bytes(row[0]) if row else None


def write_document(db: sqlite3.Connection, key: str, body: bytes, now: float) -> None:
    """Inside a transaction; the oldest go until all take at most `DOCUMENT_BYTES`."""
    db.execute(DOCUMENTS)
    db.execute("INSERT OR REPLACE INTO documents_1 VALUES (?, ?, ?)", (key, now, body))
    rows = db.execute("SELECT key, length(body) FROM documents_1 ORDER BY created DESC, key").fetchall()
    total = 0
    for name, size in rows:
        total += size
        if total > DOCUMENT_BYTES and name != key:
            db.execute("DELETE FROM documents_1 WHERE key = ?", (name,))


def shrink(db: sqlite3.Connection) -> None:
    """Give unused pages back; where others use the file (OperationalError) it stays as large as it is."""
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def in_transaction(db: sqlite3.Connection, body: Callable[[], Answer]) -> Answer:
    """All that `body` writes, or nothing of it; other writers wait meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        answer = body()
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return answer


def is_busy(error: Exception) -> bool:
    """Another process holds the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_database(path: str) -> bool:
    """A file that SQLite can read whole, or none."""
    if not os.path.exists(path):
        return True
    db = sqlite3.connect(path, BUSY_SECONDS)
    try:
        return bool(db.execute("PRAGMA quick_check").fetchall() == [("ok",)])
    except sqlite3.OperationalError:  # busy: somebody works with it
        return True
    except sqlite3.DatabaseError:
        return False
    finally:
        db.close()


def aside_names(path: str) -> Iterator[str]:
    """Names for a damaged file."""
    yield f"{path}.damaged"
    number = 1
    while True:
        number += 1
        yield f"{path}.damaged-{number}"


@contextmanager
def exclusive(path: str) -> Iterator[None]:
    """One process at a time; where the lock file cannot be made, without a lock."""
    try:
        handle = open(path, "w")  # noqa: SIM115 closed below
    except OSError:
        yield
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
