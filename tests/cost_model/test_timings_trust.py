"""Which records are believed, and what is left of a database whose writers are killed."""

from __future__ import annotations

import copy
import dataclasses
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model.fingerprint import Fingerprint
from cost_model.protocol import Settings
from cost_model.records import Record
from cost_model.targets.base import overhead_from
from cost_model.timings import Timings
from graphs.errors import FrozenMiss, InvalidInput
from graphs.text import parse_graph

from .fakes import FakeTarget

HERE = Fingerprint.of({"cpu": "here"})
NODE = Record("a", "t:cpu", HERE.digest, "node", (1e-3, 2e-3, 4e-3), 2e-3, 1e-3, 5.0, "1",
              {"call": 1e-5, "launch": 1e-6})
PEAK = Record("peak x", "t:cpu", HERE.digest, "peak", (0.5, 0.25), 400.0, 0.125, 5.0, "1", {"amount": 100.0})
CHAIN = Record("overhead", "t:cpu", HERE.digest, "peak", (1e-5,), 1e-5, 0.0, 5.0, "1", {"chain": 4e-5})


def stored(path: Path, record: Record, row: dict[str, Any]) -> None:
    """The record's row with some columns written over, as whatever damaged the file left them."""
    with Timings(path) as timings:
        timings.put(record, HERE, replace=True)
    with sqlite3.connect(path) as db:
        for column, value in row.items():
            db.execute(f"UPDATE records_1 SET {column} = ?", (value,))


@pytest.mark.parametrize(("record", "row"), [
    (NODE, {"median": 0.0}), (NODE, {"median": 9e9}), (NODE, {"median": "nan"}), (NODE, {"median": -2e-3}),
    (NODE, {"samples": "[0.0, 0.002, 0.004]"}), (NODE, {"samples": "[-0.001, 0.002, 0.004]"}),
    (NODE, {"samples": "[NaN, 0.002]"}), (NODE, {"samples": "[0.002, Infinity]"}), (NODE, {"samples": "[1e9, 0.002]"}),
    (NODE, {"samples": "[]"}), (NODE, {"samples": "{}"}), (NODE, {"spread": -1.0}), (NODE, {"note": "[1"}),
    (NODE, {"note": '{"call": "x"}'}), (NODE, {"note": '{"launch": -1}'}), (NODE, {"note": '{"call": NaN}'}),
    (NODE, {"note": "[" * 9999}), (NODE, {"kind": "verdict"}), (NODE, {"samples": b"\xff\xfe"}),
    (PEAK, {"median": 0.0}), (PEAK, {"median": 401.0}), (PEAK, {"note": '{"amount": 0}'}), (PEAK, {"samples": "[]"}),
    (CHAIN, {"note": '{"chain": null}'}),
], ids=lambda each: str(each)[:40] if isinstance(each, dict) else each.kind)  # fmt: skip
def test_numbers_that_are_no_times_are_a_miss(record: Record, row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stored(path, record, row)
    with Timings(path) as timings:
        assert timings.get(*record.place) is None
        assert list(timings.records()) == [] and timings.damaged() == 1
        timings.put(record)  # a new measurement takes its place
    with Timings(path) as timings:
        assert timings.get(*record.place) == record
        assert timings.damaged() == 0
    stored(path, record, row)
    with pytest.raises(FrozenMiss, match="is damaged"):
        Timings(path, frozen=True).get(*record.place)
    assert Timings(path).prune(older_than=1e12) == (1, 0)


@pytest.mark.parametrize(("damage", "says"), [
    (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is damaged"),
    (lambda path: path.write_bytes(path.read_bytes()[:16] + bytes(range(256)) * 99), "is damaged"),
    (lambda path: path.write_bytes(b""), "holds no records"), (lambda path: path.unlink(), "is not there"),
])
def test_a_frozen_run_names_what_is_wrong_with_the_file(damage: Callable[[Path], object], says: str,
                                                        tmp_path: Path) -> None:
    with Timings(tmp_path / "t.db") as timings:
        timings.put(NODE)
    with Timings(tmp_path / "t.db", frozen=True) as timings:
        assert timings.get(*NODE.place) == NODE
    damage(tmp_path / "t.db")
    with Timings(tmp_path / "t.db", frozen=True) as timings, pytest.raises(FrozenMiss, match=f"the file {says}"):
        timings.get(*NODE.place)


def test_what_was_measured_is_believed(tmp_path: Path) -> None:
    never = Record("n", "t:cpu", HERE.digest, "node", (), float("inf"), 0.0, note={"unsupported": "no kernel"})
    failed = dataclasses.replace(never, key="f", median=0.0, note={"failed": "x"})
    with Timings(tmp_path / "t.db") as timings:
        for record in (NODE, PEAK, CHAIN, never, failed):
            timings.put(record)
    with Timings(tmp_path / "t.db") as timings:
        assert all(timings.get(*record.place) == record for record in (NODE, PEAK, CHAIN, never, failed))
        assert overhead_from(CHAIN).launch == pytest.approx(3e-5 / 32)


def _damage(comparison: dict[str, Any], how: str) -> None:
    digest = next(iter(comparison["results"]))
    if how == "ratio":
        comparison["results"][digest]["ratio"] = -1.0
    elif how == "samples":
        comparison["samples"].pop(digest)
    elif how == "noise":
        comparison["noise"] = [float("nan")] * 4
    elif how == "other graphs":
        for part in ("results", "samples", "inner"):
            comparison[part]["0" * 64] = comparison[part].pop(digest)
        comparison["baseline"] = comparison["baseline"].replace(digest, "0" * 64)
    else:
        comparison.pop("clock")


@pytest.mark.parametrize("how", ["ratio", "samples", "noise", "other graphs", "clock"])
def test_a_wrong_verdict_is_measured_anew(how: str, tmp_path: Path) -> None:
    graphs = {name: parse_graph(f'graph "m" opset 18 (x: float32[2]) -> (y) {{ y = {op}(x) }}')
              for name, op in (("input", "Neg"), ("other", "Abs"))}
    path, feeds = tmp_path / "t.db", {"x": np.ones(2, np.float32)}
    settings = Settings(budget=0.01, max_rounds=3, sample=1e-6)

    def compare() -> str:
        target = FakeTarget()
        with Timings(path) as timings:
            return target.compare(graphs, "input", feeds, settings=settings, timings=timings).kind

    assert [compare(), compare()] == ["measured", "database"]
    with sqlite3.connect(path) as db:
        note = json.loads(db.execute("SELECT note FROM records_1 WHERE kind = 'verdict'").fetchone()[0])
        wrong = copy.deepcopy(note)
        _damage(wrong["comparison"], how)
        db.execute("UPDATE records_1 SET note = ? WHERE kind = 'verdict'", (json.dumps(wrong),))
    assert [compare(), compare()] == ["measured", "database"]


@pytest.mark.parametrize(("line", "words"), [
    ("{", "not a line of JSON"), ("[]", "not a JSON object"), ('{"egraft_timings": 99}', "version 99"),
    ('{"key": 1}', "lacks 'median'"), (json.dumps({**NODE.to_dict(), "median": 0.0}), "outside the samples"),
    (json.dumps({**NODE.to_dict(), "samples": [0.0]}), "a sample is not between"),
    (json.dumps({"fingerprint_digest": HERE.digest, "fingerprint_text": "{}"}), "does not hash to"),
])  # fmt: skip
def test_an_import_names_the_wrong_line_and_stores_nothing(line: str, words: str) -> None:
    timings = Timings(":memory:")
    with pytest.raises(InvalidInput, match=f"timings, line 2: .*{words}"):
        timings.import_lines([json.dumps(NODE.to_dict()), line])
    assert list(timings.records()) == []


def test_prune_by_size_removes_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        for number in range(400):
            timings.put(dataclasses.replace(NODE, key=f"{number:03}", created=float(number), note={"text": "x" * 2000}))
        before = path.stat().st_size
        assert timings.prune(max_bytes=1 << 40) == (0, 0)
        assert timings.prune(max_bytes=100 * 2048).records > 290
        kept = [int(record.key) for record in timings.records()]
        assert kept and kept == list(range(kept[0], 400)) and kept[0] > 300
    assert path.stat().st_size < before / 2


def _write(path: str, worker: int) -> None:
    timings = Timings(path)
    number = 0
    while True:
        number += 1
        timings.put(dataclasses.replace(NODE, key=f"{worker} {number}"))
        timings.put(dataclasses.replace(NODE, key=f"shared {number}"))
        timings.merge(_ten(number))


def _ten(number: int) -> Timings:
    found = Timings(":memory:")
    for each in range(10):
        found.put(dataclasses.replace(NODE, key=f"batch {number} {each}"))
    return found


def test_killed_writers_leave_whole_records(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")
    context = multiprocessing.get_context("fork")
    for round_ in range(3):
        workers = [context.Process(target=_write, args=(path, worker), daemon=True) for worker in range(3)]
        for worker in workers:
            worker.start()
        until = time.monotonic() + 20
        while len(list(Timings(path).records())) < 40 * (round_ + 1) and time.monotonic() < until:
            time.sleep(0.02)
        for worker in workers:
            assert worker.pid is not None and worker.is_alive()
            os.kill(worker.pid, signal.SIGKILL)
            worker.join(20)
        with Timings(path) as timings:
            keys = [record.key for record in timings.records()]
            assert len(keys) >= 40 * (round_ + 1) and timings.damaged() == 0
            batches: dict[str, int] = {}
            for key in keys:
                if key.startswith("batch"):
                    batches[key.split()[1]] = batches.get(key.split()[1], 0) + 1
            assert set(batches.values()) == {10}  # a merge is stored whole or not at all
            timings.put(dataclasses.replace(NODE, key=f"after {round_}"))
            assert timings.writable
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_text_of_another_fingerprint_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Timings(path) as timings:
        timings.put(NODE, HERE)
    assert json.loads(Timings(path).fingerprint_text(HERE.digest)) == {"cpu": "here"}
    for text in ('{"cpu": "there"}', "{", b"\xff"):
        with sqlite3.connect(path) as db:
            db.execute("UPDATE fingerprints SET text = ?", (text,))
        timings = Timings(path)
        assert timings.fingerprint_text(HERE.digest) == ""
        assert [record.key for record in timings.records()] == ["a"]
        assert not any("fingerprint_text" in line for line in timings.export_lines())
