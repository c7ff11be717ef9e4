import dataclasses
import json
import multiprocessing
import operator
import os
import sqlite3
from pathlib import Path

import pytest

from cost_model.fingerprint import Fingerprint, numpy_cpu, onnxruntime_cpu
from cost_model.records import Record
from cost_model.timings import Timings, TimingsWarning, default_path
from graphs.errors import FrozenMiss, InvalidInput

HERE = Fingerprint.of({"cpu": "here"})
THERE = Fingerprint.of({"cpu": "there"})


def store(timings: Timings, key: str = "a", median: float = 2.0, fingerprint: Fingerprint = HERE) -> Record:
    return timings.add(key, "t:cpu", fingerprint, "node", [1.0, median, 3.0], median, {"inner": 4})


def test_what_was_put_comes_back_after_closing(tmp_path: Path) -> None:
    with Timings(tmp_path / "deep" / "t.db") as timings:
        written = store(timings)
    with Timings(tmp_path / "deep" / "t.db") as timings:
        found = timings.get("a", "t:cpu", HERE)
        assert found == written
        assert found is not None and found.samples == (1.0, 2.0, 3.0) and found.spread == 1.0
        assert found.created > 0 and found.version and found.note == {"inner": 4}
        assert json.loads(timings.fingerprint_text(HERE.digest)) == {"cpu": "here"}


def test_another_device_target_or_key_is_a_miss() -> None:
    timings = Timings(":memory:")
    store(timings)
    assert timings.get("a", "t:cpu", THERE) is None
    assert timings.get("a", "other:cpu", HERE) is None
    assert timings.get("b", "t:cpu", HERE) is None


def test_an_older_schema_is_a_miss_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE records_0 (key TEXT)")
        db.execute("INSERT INTO records_0 VALUES ('a')")
    with Timings(path) as timings:
        assert timings.get("a", "t:cpu", HERE) is None
        store(timings)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT key FROM records_0").fetchall() == [("a",)]


def test_a_damaged_row_is_a_miss_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        store(timings)
    for column, value in (("samples", "[1.0, "), ("kind", "'?'"), ("median", "-1"), ("samples", '["x"]')):
        with sqlite3.connect(path) as db:
            db.execute(f"UPDATE records_1 SET {column} = ?", (value,))
        with Timings(path) as timings:
            assert timings.get("a", "t:cpu", HERE) is None
            assert list(timings.records()) == []
            store(timings)
        with Timings(path) as timings:
            assert timings.get("a", "t:cpu", HERE) is not None


@pytest.mark.parametrize("content", [b"this is not a database at all" * 50, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(content)
    timings = Timings(path)
    with pytest.warns(TimingsWarning, match="is damaged"):
        assert timings.get("a", "t:cpu", HERE) is None
    store(timings)
    timings.close()
    assert (tmp_path / "t.db.damaged").read_bytes() == content
    assert Timings(path).get("a", "t:cpu", HERE) is not None
    path.write_bytes(content)
    with pytest.warns(TimingsWarning):
        store(Timings(path))
    assert (tmp_path / "t.db.damaged-2").exists()


def test_a_place_that_cannot_be_written_keeps_records_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    timings = Timings(tmp_path / "file" / "t.db")  # its folder is a file
    with pytest.warns(TimingsWarning, match="cannot be written"):
        assert timings.get("a", "t:cpu", HERE) is None
    store(timings)
    assert timings.get("a", "t:cpu", HERE) is not None
    assert [record.key for record in timings.records()] == ["a"]
    assert timings.prune(0) == (0, 0)


def test_a_read_only_database_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        store(timings)
    frozen = Timings(path, frozen=True)
    before = path.read_bytes()
    assert frozen.get("a", "t:cpu", HERE) is not None
    store(frozen, "b")
    assert frozen.get("b", "t:cpu", HERE) is not None
    frozen.close()
    assert path.read_bytes() == before


def test_frozen_misses_are_errors_that_tell_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        store(timings)
    frozen = Timings(path, frozen=True)
    with pytest.raises(FrozenMiss, match="no measurement of b; run once without --frozen"):
        frozen.get("b", "t:cpu", HERE)
    with pytest.raises(FrozenMiss, match=f"another device only .*--target t:cpu@{path}"):
        frozen.get("a", "t:cpu", THERE)
    assert frozen.peek("b", "t:cpu", HERE) is None


def test_the_first_record_stays_unless_replaced() -> None:
    timings = Timings(":memory:")
    assert store(timings, median=2.0).median == 2.0
    assert store(timings, median=2.5).median == 2.0
    newer = dataclasses.replace(store(timings), median=2.5)
    assert timings.put(newer, replace=True).median == 2.5
    assert timings.get("a", "t:cpu", HERE) == newer


def test_a_failed_measurement_gives_way(tmp_path: Path) -> None:
    timings = Timings(tmp_path / "t.db")
    failed = operator.attrgetter("failed")
    timings.add("a", "t:cpu", HERE, "node", [], 0.0, {"failed": "x"})
    assert timings.add("a", "t:cpu", HERE, "node", [1.0], 1.0, gives_way=failed).median == 1.0
    assert Timings(tmp_path / "t.db").get("a", "t:cpu", HERE).median == 1.0  # type: ignore[union-attr]
    assert timings.add("a", "t:cpu", HERE, "node", [2.0], 2.0, gives_way=failed).median == 1.0


def test_content_hash_is_of_what_was_used_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        for key in "abc":
            store(timings, key)
    first, second, third = Timings(path), Timings(path), Timings(path)
    for timings, keys in ((first, "ab"), (second, "bab"), (third, "abc")):
        for key in keys:
            timings.get(key, "t:cpu", HERE)
    assert first.content_hash() == second.content_hash() != third.content_hash()
    assert third.content_hash() == third.content_hash(everything=True)
    first.peek("c", "t:cpu", HERE)
    first.get("missing", "t:cpu", HERE)
    assert first.content_hash() == second.content_hash()


def test_one_run_sees_one_value(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        record = store(timings)
    mine = Timings(path)
    assert mine.get("a", "t:cpu", HERE) == record
    Timings(path).put(dataclasses.replace(record, median=9.0), replace=True)
    assert mine.get("a", "t:cpu", HERE) == record


def test_export_import_and_merge_agree_whatever_the_order(tmp_path: Path) -> None:
    left, right = Timings(tmp_path / "l.db"), Timings(tmp_path / "r.db")
    store(left, "a", 1.0)
    store(left, "both", 1.0)
    right.add("both", "t:cpu", HERE, "node", [2.0] * 5, 2.0)
    store(right, "b", 2.0, THERE)
    right.add("never", "t:cpu", HERE, "node", [], float("inf"), {"unsupported": "no kernel"})
    lines_left, lines_right = list(left.export_lines()), list(right.export_lines())
    one, two = Timings(":memory:"), Timings(tmp_path / "two.db")
    assert one.import_lines(lines_left) == 2
    assert one.import_lines(lines_right) == 3
    assert two.merge(right) == 3
    assert two.merge(left) == 1
    assert two.merge(left) == 0
    assert list(one.export_lines()) == list(two.export_lines())
    found = two.get("both", "t:cpu", HERE)
    assert found is not None and found.median == 2.0  # more samples win
    assert two.fingerprint_text(THERE.digest) == THERE.text
    with pytest.raises(InvalidInput, match="line 2"):
        one.import_lines(["", '{"key": 1}'])


def test_prune_by_age_and_device(tmp_path: Path) -> None:
    timings = Timings(tmp_path / "t.db")
    old = dataclasses.replace(store(timings, "old"), created=1.0)
    timings.put(old, replace=True)
    store(timings, "new")
    store(timings, "foreign", fingerprint=THERE)
    assert timings.prune() == (0, 0)
    assert timings.prune(older_than=3600) == (1, 0)
    assert timings.prune(keep_fingerprints=[HERE.digest]) == (1, 0)
    assert [record.key for record in Timings(tmp_path / "t.db").records()] == ["new"]


def test_prune_takes_remembered_results_along(tmp_path: Path) -> None:
    with Timings(tmp_path / "t.db") as timings:
        store(timings, "new")
        timings.keep_document("a", b"one")
        timings.keep_document("b", b"two")
        assert timings.prune(older_than=3600) == (0, 0) and timings.document("a") == b"one"
        assert timings.prune(max_bytes=1 << 20) == (0, 2)
        assert timings.document("a") is timings.document("b") is None
        assert [record.key for record in timings.records()] == ["new"]


def test_default_path_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EGRAFT_TIMINGS", str(tmp_path / "mine.db"))
    assert default_path() == tmp_path / "mine.db"
    monkeypatch.delenv("EGRAFT_TIMINGS")
    assert default_path().name == "timings.db"


def _write_many(path: str, worker: int, barrier: object) -> None:
    timings = Timings(path)
    barrier.wait()  # type: ignore[attr-defined]
    for number in range(100):
        timings.add(f"own {worker} {number}", "t:cpu", HERE, "node", [1.0], 1.0)
        timings.add(f"shared {number}", "t:cpu", HERE, "node", [1.0 + worker], 1.0 + worker)
    timings.close()


def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    path = str(tmp_path / "t.db")
    workers = [context.Process(target=_write_many, args=(path, worker, barrier)) for worker in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    keys = [record.key for record in Timings(path).records()]
    assert len(keys) == 300
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    timings = Timings(tmp_path / "t.db")
    store(timings)
    child = os.fork()
    if child == 0:
        store(timings, "from the child")
        timings.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert timings.get("from the child", "t:cpu", HERE) is not None
    assert timings.get("a", "t:cpu", HERE) is not None


def test_fingerprints_tell_devices_and_libraries_apart() -> None:
    assert Fingerprint.of({"a": 1, "b": 2}) == Fingerprint.of({"b": 2, "a": 1})
    assert HERE.digest != THERE.digest
    fields = dict(numpy_cpu().fields)
    assert fields["cpu"] and fields["numpy"] and int(fields["cores"]) >= 1
    assert "OPENBLAS_CORETYPE" in fields and "numpy" not in dict(onnxruntime_cpu().fields)
