"""`egraft timings ...`."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from cost_model.fingerprint import Fingerprint
from cost_model.timings import Timings
from optimizer.command_line import main
from search.fusions.measure import fingerprint

Output = pytest.CaptureFixture[str]


def egraft(*words: object) -> int:
    return main([str(word) for word in words])


def one_line(output: Output, *words: str) -> None:
    """There is a single line on standard error, and it has these words."""
    lines = output.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("egraft: error["), lines
    for word in words:
        assert word in lines[0]


def test_timings(tmp_path: Path, capsys: Output) -> None:
    database = ["--timings", tmp_path / "t.db"]
    assert egraft("timings", "show", *database) == 0
    assert egraft("timings", "export", tmp_path / "lines.json", *database) == 0
    assert egraft("timings", "import", tmp_path / "lines.json", *database) == 0
    assert egraft("timings", "hash", *database) == 0
    capsys.readouterr()
    assert egraft("timings", "prune", *database) == 2
    one_line(capsys, "--days", "--max-mib")
    assert egraft("timings", "prune", "--fingerprint", "0", *database) == 2
    one_line(capsys, "--fingerprint 0", "known: none")
    for words in (["import", tmp_path / "nowhere"], ["merge", tmp_path / "nowhere"]):
        assert egraft("timings", *words, *database) == 2
        one_line(capsys, "nowhere")
    (tmp_path / "garbage").write_text("garbage\n")
    for words in (["import", tmp_path / "garbage"], ["merge", tmp_path / "garbage"]):
        assert egraft("timings", *words, *database) == 2
        one_line(capsys)


def test_looking_makes_no_file_and_hashes_are_of_all(tmp_path: Path, capsys: Output) -> None:
    nowhere = tmp_path / "t.db"
    for words in (["show"], ["hash"], ["export", tmp_path / "lines"]):
        assert egraft("timings", *words, "--timings", nowhere) == 0
    assert "no such file yet" in capsys.readouterr().out and not nowhere.exists()
    with Timings(nowhere) as timings:
        for target in ("a:cpu", "b:cpu"):
            timings.add("key", target, Fingerprint.of({"cpu": "here"}), "node", [1e-3], 1e-3)
        digest = timings.content_hash(everything=True)
    assert egraft("timings", "show", "--target", "a:cpu", "--timings", nowhere) == 0
    shown = capsys.readouterr().out
    assert f"2 records, 1 of them shown, hash of all {digest}" in shown and "b:cpu" not in shown


def test_kernels_made_here_are_not_foreign(tmp_path: Path, capsys: Output) -> None:
    database = ["--timings", tmp_path / "t.db"]
    with Timings(tmp_path / "t.db") as timings:
        timings.add("kernel", "egraft:cpu", fingerprint(), "fusion", [1e-3], 1e-3)
    assert egraft("timings", "show", *database) == 0
    assert "here" in (shown := capsys.readouterr().out) and "foreign" not in shown
    assert egraft("timings", "prune", "--foreign", *database) == 0
    assert "0 records removed" in capsys.readouterr().out


def test_timings_between_files(tmp_path: Path, capsys: Output) -> None:
    here, there = (Fingerprint.of({"cpu": name}) for name in ("here", "there"))
    for name, device in (("a.db", here), ("b.db", there)):
        with Timings(tmp_path / name) as timings:
            timings.add(f"of {name}", "t:cpu", device, "node", [1e-3], 1e-3)
    database = ["--timings", tmp_path / "all.db"]
    assert egraft("timings", "merge", tmp_path / "a.db", tmp_path / "b.db", *database) == 0
    assert egraft("timings", "export", tmp_path / "lines", *database) == 0
    assert egraft("timings", "import", tmp_path / "lines", *database) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "1 record added", "1 record added", f"2 records written to {tmp_path / 'lines'}", "0 records added"]
    assert egraft("timings", "show", "--key", "of a", *database) == 0
    assert "of a.db" in (shown := capsys.readouterr().out) and "of b.db" not in shown
    assert egraft("timings", "prune", "--fingerprint", there.digest, *database) == 0
    assert egraft("timings", "show", *database) == 0
    shown = capsys.readouterr().out
    assert "1 record removed" in shown and "there" not in shown and "foreign" in shown
    assert egraft("timings", "prune", "--foreign", *database) == 0
    assert "1 record removed" in capsys.readouterr().out


def test_lines_of_show_are_short(tmp_path: Path, capsys: Output) -> None:
    """A row names the device as far as people tell devices apart; an export has all of it, and the whole key."""
    device = Fingerprint.of({"cpu": "Some Processor", "cores": "2", "instructions": "0" * 300, "numpy": "2.4.6"})
    with Timings(tmp_path / "t.db") as timings:
        timings.add(f"Add {'x' * 300}", "t:cpu", device, "node", [1e-3], 1e-3)
    assert egraft("timings", "show", "--timings", tmp_path / "t.db") == 0
    row = capsys.readouterr().out.splitlines()[0]
    assert row.endswith("foreign  Some Processor, 2 cores, numpy 2.4.6") and device.digest in row
    assert egraft("timings", "show", "--key", "Add", "--timings", tmp_path / "t.db") == 0
    row = capsys.readouterr().out.splitlines()[0]
    assert row.endswith("xx ...") and len(row) < 180
    assert egraft("timings", "export", tmp_path / "lines", "--timings", tmp_path / "t.db") == 0
    assert capsys.readouterr().out == f"{tmp_path / 't.db'}: 1 record written to {tmp_path / 'lines'}\n"
    assert "x" * 300 in (lines := (tmp_path / "lines").read_text()) and "0" * 300 in lines


def remembered(device: str) -> bytes:
    return zlib.compress(json.dumps({"report": {"target": {"fingerprint": device}}}).encode())


def test_remembered_results_are_counted_apart_and_stay_where_their_device_does(tmp_path: Path, capsys: Output) -> None:
    database = ["--timings", tmp_path / "t.db"]
    with Timings(tmp_path / "t.db") as timings:
        timings.add("kernel", "egraft:cpu", fingerprint(), "fusion", [1e-3], 1e-3)
        for key, body in (("own", remembered(fingerprint().digest)), ("other", remembered("there")), ("bad", b"?")):
            timings.keep_document(key, body)
    assert egraft("timings", "prune", "--foreign", *database) == 0
    assert capsys.readouterr().out == "0 records removed, 2 remembered results removed\n"
    with Timings(tmp_path / "t.db") as timings:
        assert [timings.document(key) is None for key in ("own", "other", "bad")] == [False, True, True]
    assert egraft("timings", "prune", "--fingerprint", fingerprint().digest, *database) == 0
    assert capsys.readouterr().out == "1 record removed, 1 remembered result removed\n"


def test_pruning_makes_no_file(tmp_path: Path, capsys: Output) -> None:
    assert egraft("timings", "prune", "--days", "1", "--timings", tmp_path / "no.db") == 2
    one_line(capsys, "no.db", "no such file")
    assert list(tmp_path.iterdir()) == []


def damaged_database(path: Path) -> bytes:
    """Its first page is good, so that it is a database; the others are not."""
    with Timings(path) as timings:
        for number in range(200):
            timings.add(f"key {number}", "t:cpu", Fingerprint.of({"cpu": "here"}), "node", [1e-3], 1e-3)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"damaged!" * ((len(whole) - 4096) // 8))
    return path.read_bytes()


def test_looking_at_a_damaged_database_is_an_error_and_leaves_it(tmp_path: Path, capsys: Output) -> None:
    place = tmp_path / "t.db"
    found = damaged_database(place)
    for words in (["show"], ["hash"], ["export", tmp_path / "lines"], ["prune", "--days", "1"]):
        assert egraft("timings", *words, "--timings", place) == 2
        one_line(capsys, "t.db", "damaged")
    assert egraft("timings", "merge", place, "--timings", tmp_path / "new.db") == 2
    one_line(capsys, "t.db", "damaged")
    assert place.read_bytes() == found and not (tmp_path / "t.db.damaged").exists()


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    damaged_database(tmp_path / "t.db")
    with Timings(":memory:") as timings:
        timings.add("key", "t:cpu", Fingerprint.of({"cpu": "here"}), "node", [1e-3], 1e-3)
        (tmp_path / "lines").write_text("\n".join(timings.export_lines()))
    done = subprocess.run([sys.executable, "-m", "egraft", "timings", "import", tmp_path / "lines", "--timings",
                           tmp_path / "t.db"], capture_output=True, text=True, check=True)
    line, = done.stderr.splitlines()
    assert line.startswith("egraft: warning: timing database ") and "t.db.damaged" in line
