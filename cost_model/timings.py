"""The timing database: every measurement that egraft made, in one SQLite file that many processes may share.

A record of another device, of an older schema, that cannot be read, or whose numbers cannot be times is a
miss, never an error. A file that is no database is set aside with a warning; one that cannot be written is
read, and new records stay in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from graphs.errors import FrozenMiss, InvalidInput

from .fingerprint import Fingerprint
from .key_words import in_words
from .plausible import read_record
from .records import Kind, Record, own_version, spread_of
from .timings_file import (
    BUSY_SECONDS,
    COLUMNS,
    CREATE,
    SCHEMA_VERSION,
    TABLE,
    Pruned,
    aside_names,
    delete,
    exclusive,
    in_transaction,
    is_busy,
    is_database,
    read_document,
    record_of,
    row_of,
    shrink,
    write_document,
)

_PAUSE = 0.01
Answer = TypeVar("Answer")


class TimingsWarning(UserWarning):
    """The timing database was damaged or cannot be written; the run goes on."""


def default_path() -> Path:
    """`$EGRAFT_TIMINGS`, else `timings.db` in the user's cache folder."""
    named = os.environ.get("EGRAFT_TIMINGS")
    return Path(named) if named else Path(platformdirs.user_cache_dir("egraft")) / "timings.db"


class Timings:
    """A timing database.

    `path` None is `default_path()`, `":memory:"` lives as long as the object. With `frozen`, `get` raises
    FrozenMiss instead of answering None, and `put` reaches this object only, never the file. What was read
    or written is kept as it was at first, so that one run sees one value per record; `content_hash` is of
    those.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, frozen: bool = False) -> None:
        self.path = str(default_path() if path is None else path)
        self.frozen = frozen
        self.writable = not frozen
        self.used: dict[tuple[str, str, str], Record] = {}
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._fingerprints: dict[str, str] = {}
        self.trouble = ""  # with the file, when it was last read ("is damaged (...)")

    def freeze(self) -> None:
        """From now on a miss is an error and the file is not written."""
        self.frozen, self.writable = True, False

    # Reading and writing

    def get(self, key: str, target: str, fingerprint: Fingerprint | str) -> Record | None:
        """The record of this key on this very target and device, else None (FrozenMiss if frozen)."""
        digest = self._file(fingerprint)
        found = self.peek(key, target, digest)
        if found is None and self.frozen:
            raise self._frozen_miss(key, target, digest)
        if found is not None:
            self.used[found.place] = found
        return found

    def peek(self, key: str, target: str, fingerprint: Fingerprint | str) -> Record | None:
        """Like `get`, but the record does not count as used and a miss is never an error."""
        place = (key, target, self._file(fingerprint))
        with self._lock:
            if place in self.used:
                return self.used[place]
            sql = f"SELECT {COLUMNS} FROM {TABLE} WHERE key = ? AND target = ? AND fingerprint = ?"
            rows: list[tuple[Any, ...]] = self._try(lambda db: db.execute(sql, place).fetchall(), [])
        return record_of(rows[0]) if rows else None

    def put(self, record: Record, fingerprint: Fingerprint | None = None, replace: bool = False) -> Record:
        """Store a record; answers the one now in force.

        Without `replace` the first record of a place stays, so that processes that measure the same thing
        at the same time go on with the same number. `fingerprint` lets the file hold its text beside the
        digest.
        """
        if fingerprint is not None:
            self._file(fingerprint)
        with self._lock:
            if not replace:
                found = self.peek(*record.place)
                if found is not None:
                    self.used[record.place] = found
                    return found
            if self.writable:
                wins = always if replace else never
                self._try(lambda db: self._write(db, [record], wins), 0, writing=True)
                # Another process may have been first; `peek` asks the file because nothing is in `used` yet.
                record = record if replace else self.peek(*record.place) or record
            self.used[record.place] = record
        return record

    def add(self, key: str, target: str, fingerprint: Fingerprint, kind: Kind, samples: Iterable[float], median: float,
            note: dict[str, Any] | None = None, gives_way: Callable[[Record], bool] | None = None) -> Record:
        """Store a new measurement made now by this version of egraft; answers the record in force.

        `gives_way` says whether a record that is there is replaced; without it none is.
        """
        kept = tuple(float(each) for each in samples)
        record = Record(
            key,
            target,
            fingerprint.digest,
            kind,
            kept,
            float(median),
            spread_of(kept),
            time.time(),
            own_version(),
            note or {},
        )
        present = None if gives_way is None else self.peek(key, target, fingerprint)
        return self.put(record, fingerprint, replace=present is not None and gives_way is not None
                        and gives_way(present))

    def records(self, target: str | None = None, kind: Kind | None = None) -> Iterator[Record]:
        """All records in the file (and those that could not be written), ordered by key; damaged ones are
        left out.
        """
        with self._lock:
            sql = f"SELECT {COLUMNS} FROM {TABLE}"
            rows: list[tuple[Any, ...]] = self._try(lambda db: db.execute(sql).fetchall(), [])
        found = {record.place: record for record in map(record_of, rows) if record is not None}
        if not self.writable:
            found.update(self.used)
        for place in sorted(found):
            record = found[place]
            if (target is None or record.target == target) and (kind is None or record.kind == kind):
                yield record

    def fingerprint_text(self, digest: str) -> str:
        """The fields of a fingerprint as JSON, empty where they were never stored."""
        sql = "SELECT text FROM fingerprints WHERE digest = ?"
        with self._lock:
            rows: list[tuple[Any, ...]] = self._try(lambda db: db.execute(sql, (digest,)).fetchall(), [])
        text = rows[0][0] if rows else ""
        return text if _is_text_of(text, digest) else self._fingerprints.get(digest, "")

    def damaged(self) -> int:
        """How many rows of the file cannot be read or believed; they count as misses."""
        with self._lock:
            sql = f"SELECT {COLUMNS} FROM {TABLE}"
            return self._try(lambda db: sum(record_of(row) is None for row in db.execute(sql)), 0)

    # What a run used

    def content_hash(self, everything: bool = False) -> str:
        """SHA-256 of the records that this run used (or of all), whatever their order."""
        records = self.records() if everything else iter(list(self.used.values()))
        return hashlib.sha256("\n".join(sorted(record.digest for record in records)).encode()).hexdigest()

    # Moving records between files

    def export_lines(self) -> Iterator[str]:
        """JSON lines: a heading, records, then the fingerprints that they name."""
        yield json.dumps({"egraft_timings": SCHEMA_VERSION})
        digests = set()
        for record in self.records():
            digests.add(record.fingerprint)
            yield json.dumps(record.to_dict(), sort_keys=True)
        for digest in sorted(digests):
            text = self.fingerprint_text(digest)
            if text:
                yield json.dumps({"fingerprint_digest": digest, "fingerprint_text": text}, sort_keys=True)

    def import_lines(self, lines: Iterable[str]) -> int:
        """Read what `export_lines` wrote; answers how many records were new or better. See `better`.

        Every line is looked at before anything is stored. Raises InvalidInput naming the first that is none of such a
        file, or whose numbers cannot be times.
        """
        records, texts = [], {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = _line(line)
            except (ValueError, RecursionError) as error:
                raise InvalidInput(
                    f"timings, line {number}", str(error), "give what `egraft timings export` wrote"
                ) from error
            if isinstance(found, Record):
                records.append(found)
            else:
                texts.update(found)
        return self._take(records, texts)

    def merge(self, other: Timings) -> int:
        """Take over the records of another database; answers how many were new or better."""
        records = list(other.records())
        digests = {record.fingerprint for record in records}
        return self._take(records, {digest: other.fingerprint_text(digest) for digest in digests})

    def prune(
        self,
        older_than: float | None = None,
        keep_fingerprints: Iterable[str] | None = None,
        max_bytes: int | None = None,
        device_of: Callable[[bytes], str | None] | None = None,
    ) -> Pruned:
        """Delete records older than that many seconds and those of devices not named, then the oldest ones until the
        rest takes at most `max_bytes`; damaged rows go with them, and documents: the old ones, those of other devices
        as `device_of` says (all of them without it), all with `max_bytes`. Answers how many rows, none without a
        condition.

        The bytes counted are those of the records' texts; the file gives back what it no longer needs where no other
        process is reading.
        """
        kept = None if keep_fingerprints is None else frozenset(keep_fingerprints)
        if (older_than is None and kept is None and max_bytes is None) or not self.writable:
            return Pruned(0, 0)
        oldest = None if older_than is None else time.time() - older_than
        with self._lock:
            removed = self._try(
                lambda db: in_transaction(db, lambda: delete(db, oldest, kept, max_bytes, device_of)), Pruned(0, 0),
                writing=True,
            )
            self.used.clear()
            if any(removed):
                self._try(shrink, None)
        return removed

    def document(self, key: str) -> bytes | None:
        """What `keep_document` stored, None if nothing."""
        with self._lock:
            return self._try(lambda db: read_document(db, key), None)

    def keep_document(self, key: str, body: bytes) -> None:
        """Store the result of a whole run; the oldest ones give way to it. Such documents are no measurements: hashes,
        exports and merges do not see them."""
        if self.writable:
            with self._lock:
                self._try(lambda db: in_transaction(db, lambda: write_document(db, key, body, time.time())), None,
                          writing=True)

    def close(self) -> None:
        """Close the file; the next call opens it again. What only memory holds is lost."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Timings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The file

    def _take(self, records: list[Record], texts: dict[str, str]) -> int:
        with self._lock:
            self._fingerprints.update({digest: text for digest, text in texts.items() if text})
            if self.writable:
                taken = self._try(lambda db: self._write(db, records, better), 0, writing=True)
                if self.writable:
                    return taken
            chosen = [each for each in records if (old := self.peek(*each.place)) is None or better(each, old)]
            self.used.update({record.place: record for record in chosen})
            return len(chosen)

    def _write(self, db: sqlite3.Connection, records: list[Record], wins: Callable[[Record, Record], bool]) -> int:
        """Store what wins against the record of its place, if there is one that can be read; answers how many."""
        find = f"SELECT {COLUMNS} FROM {TABLE} WHERE key = ? AND target = ? AND fingerprint = ?"
        marks = ", ".join("?" * 10)

        def body() -> int:
            stored = 0
            for record in records:
                row = db.execute(find, record.place).fetchone()
                present = None if row is None else record_of(row)
                if present is not None and not wins(record, present):
                    continue
                db.execute(f"INSERT OR REPLACE INTO {TABLE} ({COLUMNS}) VALUES ({marks})", row_of(record))
                text = self._fingerprints.get(record.fingerprint)
                if text:
                    db.execute("INSERT OR REPLACE INTO fingerprints VALUES (?, ?)", (record.fingerprint, text))
                stored += 1
            return stored

        return in_transaction(db, body)

    def _file(self, fingerprint: Fingerprint | str) -> str:
        if isinstance(fingerprint, str):
            return fingerprint
        digest = fingerprint.digest
        self._fingerprints.setdefault(digest, fingerprint.text)
        return digest

    def _try(self, action: Callable[[sqlite3.Connection], Answer], otherwise: Answer, writing: bool = False) -> Answer:
        """Run on the file. Damage sets the file aside and tries once more; what cannot be written stays in
        memory.
        """
        for attempt in range(2):
            try:
                db = self._open()
                if db is None:
                    return otherwise
                answer = action(db)
                self.trouble = ""
                return answer
            except sqlite3.OperationalError as error:
                self.trouble = f"holds no records that can be read ({error})"
                if writing and not is_busy(error):  # busy for too long: this record stays in memory
                    self._warn_unwritable(error)
                return otherwise
            except sqlite3.DatabaseError as error:
                self.trouble = f"is damaged ({error})"
                if attempt == 0:
                    self._set_aside(error)
        return otherwise

    def _open(self) -> sqlite3.Connection | None:
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        # A connection inherited through fork belongs to the parent: it is dropped unclosed.
        self._owner = os.getpid()
        self._connection = self._open_for_writing() if self.writable else None
        if self._connection is None:
            self._connection = self._open_for_reading()
        return self._connection

    def _open_for_writing(self) -> sqlite3.Connection | None:
        for attempt in itertools.count(1):
            try:
                return self._create()
            except (sqlite3.OperationalError, OSError) as error:
                # Turning on the write-ahead log does not wait for other processes that do the same.
                if is_busy(error) and attempt * _PAUSE < BUSY_SECONDS:
                    time.sleep(_PAUSE)
                    continue
                self._warn_unwritable(error)
                return None
        raise AssertionError

    def _create(self) -> sqlite3.Connection:
        db = None
        try:
            if self.path != ":memory:":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(CREATE)
            return db
        except BaseException:
            if db is not None:
                db.close()
            raise

    def _open_for_reading(self) -> sqlite3.Connection | None:
        if self.path == ":memory:" or not os.path.exists(self.path):
            self.trouble = "" if self.path == ":memory:" else "is not there"
            return None
        place = Path(self.path).absolute().as_uri()
        for mode in (
            "mode=ro",
            "mode=ro&immutable=1",
        ):  # WAL needs a side file, which a read-only folder refuses
            try:
                db = sqlite3.connect(
                    f"{place}?{mode}", BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
                )
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return db
            except sqlite3.OperationalError as error:  # the next mode may do; with none of them everything is a miss
                self.trouble = f"cannot be opened ({error})"
        return None

    def _warn_unwritable(self, error: Exception) -> None:
        if self.writable:
            self.writable = False
            self.close()
            warnings.warn(
                f"timing database {self.path} cannot be written ({error}); new measurements are kept in memory only",
                TimingsWarning,
                stacklevel=4,
            )

    def _set_aside(self, error: Exception) -> None:
        self.close()
        if self.path == ":memory:" or not self.writable:  # what is only read is never moved
            return
        with exclusive(f"{self.path}.lock"):
            if is_database(self.path):  # another process was faster
                return
            aside = next(name for name in aside_names(self.path) if not os.path.exists(name))
            try:
                os.replace(self.path, aside)
            except OSError as refused:
                self._warn_unwritable(refused)
                return
            for suffix in ("-wal", "-shm"):
                Path(self.path + suffix).unlink(missing_ok=True)
        warnings.warn(
            f"timing database {self.path} is damaged ({error}); it is now {aside} and a new one is started",
            TimingsWarning,
            stacklevel=5,
        )

    def _frozen_miss(self, key: str, target: str, digest: str) -> FrozenMiss:
        sql = f"SELECT fingerprint FROM {TABLE} WHERE key = ? AND target = ?"
        rows: list[tuple[Any, ...]] = self._try(lambda db: db.execute(sql, (key, target)).fetchall(), [])
        what = in_words(key)
        found, fix = f"no measurement of {what}", "run once without --frozen"
        if (digest,) in rows:
            found = f"the record of {what} is damaged"
        elif rows:
            found = f"{what} was measured on another device only (this one is {digest})"
            fix = f"run once without --frozen, or replay the other device with --target {target}@{self.path}"
        elif self.trouble:
            found = f"the file {self.trouble}, so no measurement of {what} is known"
            fix = "name another file, or run once without --frozen, which starts a new one"
        return FrozenMiss(f"timing database {self.path}, target {target}", found, fix)


def better(new: Record, old: Record) -> bool:
    """Which of two records of one place is kept when databases are joined: more samples, then newer, then
    by hash.

    The order in which files are joined does not matter.
    """
    return (len(new.samples), new.created, new.digest) > (len(old.samples), old.created, old.digest)


def always(new: Record, old: Record) -> bool:
    """The new record is kept."""
    return True


def never(new: Record, old: Record) -> bool:
    """The record that was there first is kept."""
    return False


def _line(text: str) -> Record | dict[str, str]:
    """A line of an export: a record, or fingerprint digest -> text (empty for the heading). Raises ValueError."""
    try:
        data = json.loads(text)
    except ValueError:
        raise ValueError("not a line of JSON") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    if "egraft_timings" in data:
        if data["egraft_timings"] != SCHEMA_VERSION:
            raise ValueError(f"version {data['egraft_timings']!r} of the format; this egraft reads {SCHEMA_VERSION}")
        return {}
    if "fingerprint_digest" not in data:
        return read_record(data)
    digest, words = str(data["fingerprint_digest"]), str(data.get("fingerprint_text"))
    if not _is_text_of(words, digest):
        raise ValueError(f"the fingerprint's text does not hash to {digest}")
    return {digest: words}


def _is_text_of(text: object, digest: str) -> bool:
    """Are these the fields of that fingerprint? Digests are of the text."""
    return isinstance(text, str) and hashlib.sha256(text.encode()).hexdigest()[: len(digest)] == digest != ""
