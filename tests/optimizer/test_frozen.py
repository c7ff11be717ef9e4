"""What a timing database may change: which of several right graphs is handed back, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from cost_model.timings import Timings
from graphs import save
from graphs.builder import Builder
from optimizer.command_line import main

TARGET = "onnxruntime:cpu"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, its timing database after one run, and what that run wrote."""
    folder = tmp_path_factory.mktemp("frozen")
    b = Builder("m", opset=18)
    rng = np.random.default_rng(1)
    x = b.input("x", "float32", ["n", 8])
    turned = b.Transpose(b.Relu(b.Transpose(x, perm=[1, 0])), perm=[1, 0])
    scaled = b.Mul(b.MatMul(turned, rng.normal(size=(8, 4)).astype(np.float32)), np.full(4, 0.5, np.float32))
    b.output(b.Div(b.Exp(scaled), b.Add(b.Exp(scaled), np.float32(1.0))), "y")
    model, database = folder / "m.onnx", folder / "t.db"
    save(b.graph(), model)
    assert optimize(model, folder / "first.onnx", database) == 0
    return model, database, folder / "first.onnx"


def optimize(model: Path, out: Path, database: Path, *more: str) -> int:
    return main(["optimize", str(model), "-o", str(out), "--target", TARGET, "--effort", "low", "--threads", "1",
                 "--timings", str(database), *more])


def outputs(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def copied(database: Path, folder: Path) -> Path:
    """A copy that holds what the write-ahead log of the original holds."""
    with Timings(database) as source, Timings(folder / "copy.db") as copy:
        copy.merge(source)
    return folder / "copy.db"


def test_a_frozen_database_gives_the_same_bytes(recorded: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, database, first = recorded
    frozen = copied(database, tmp_path)
    before = list(Timings(frozen).records())
    reports = []
    for number in range(2):
        out, report = tmp_path / f"{number}.onnx", tmp_path / f"{number}.json"
        trace = tmp_path / f"{number}.trace.json"
        assert optimize(model, out, frozen, "--frozen", "--report", str(report), "--trace", str(trace)) == 0
        assert out.read_bytes() == first.read_bytes()
        reports.append(json.loads(report.read_text()))
    assert (tmp_path / "0.trace.json").read_bytes() == (tmp_path / "1.trace.json").read_bytes()
    assert reports[0]["timings_hash"] == reports[1]["timings_hash"]
    assert reports[0]["measured"] == reports[1]["measured"] and reports[0]["measured"]["kind"] == "database"
    assert list(Timings(frozen).records()) == before


def test_foreign_entries_change_nothing(recorded: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Other machines, other library versions, other tables, rows that are damaged: frozen, the same file."""
    model, database, first = recorded
    frozen = copied(database, tmp_path)
    with Timings(frozen) as timings:
        for record in list(timings.records()):
            for digest in ("0" * 16, record.fingerprint[:-1]):
                timings.put(dataclasses.replace(record, fingerprint=digest, samples=(1e-9,), median=1e-9), replace=True)
    with sqlite3.connect(frozen) as db:
        db.execute("INSERT INTO records_1 SELECT key || ' x', target, fingerprint, kind, '[', -1, 'x', 0, '', '' "
                   "FROM records_1")
        db.execute("CREATE TABLE records_2 AS SELECT * FROM records_1")
    assert optimize(model, tmp_path / "o.onnx", frozen, "--frozen") == 0
    assert (tmp_path / "o.onnx").read_bytes() == first.read_bytes()


@pytest.mark.parametrize("seed", [0, 1])
def test_wrong_times_change_nothing_but_time(seed: int, recorded: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Every time is wrong by up to a factor of 1000, and verdicts are turned round: the result still computes the
    same."""
    model, database, _ = recorded
    rng, wrong = np.random.default_rng(seed), copied(database, tmp_path)
    changed = 0
    with Timings(wrong) as timings:
        for record in list(timings.records()):
            if record.kind == "verdict":
                note: dict[str, Any] = json.loads(json.dumps(dict(record.note)))
                for row in note["comparison"]["results"].values():
                    row.update(ratio=1 / row["ratio"], low=1 / row["high"], high=1 / row["low"], verdict={
                        "faster": "slower", "slower": "faster"}.get(row["verdict"], "faster"))
                timings.put(dataclasses.replace(record, note=note), replace=True)
            elif record.kind == "node":
                factor = float(10 ** rng.uniform(-3, 3))
                timings.put(dataclasses.replace(record, samples=tuple(factor * each for each in record.samples),
                                                median=factor * record.median), replace=True)
            changed += record.kind in ("verdict", "node")
    assert changed > 5 and Timings(wrong).damaged() == 0
    out = tmp_path / "o.onnx"
    assert optimize(model, out, wrong) == 0
    np.testing.assert_allclose(outputs(out), outputs(model), rtol=1e-5, atol=1e-6)


def test_a_damaged_file_is_begun_anew(recorded: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, database, _ = recorded
    cut = tmp_path / "cut.db"
    shutil.copy(copied(database, tmp_path), cut)
    content = cut.read_bytes()
    cut.write_bytes(content[:4096] + bytes(len(content) // 2))
    out = tmp_path / "o.onnx"
    with pytest.warns(UserWarning, match="is damaged"):
        assert optimize(model, out, cut) == 0
    np.testing.assert_allclose(outputs(out), outputs(model), rtol=1e-5, atol=1e-6)
