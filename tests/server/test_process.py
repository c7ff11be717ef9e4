"""The service as a process: killed, restarted, stopped; and the client of the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from urllib.parse import urlencode

import pytest

import graphs
from graphs.errors import EgraftError, InvalidOption
from optimizer.options import Options
from optimizer.remote import Client, external_files, multipart, optimize_remotely, query_of
from server.main import serve
from server.options import read_options
from tests.server.support import onnx_bytes, until, with_external

CODE = "import pathlib, sys, server.main as main; sys.exit(main.serve(port=0, data=pathlib.Path(sys.argv[1])))"


class Running:
    """A service in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "EGRAFT_TIMINGS": str(folder / "timings.db")}
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen([sys.executable, "-c", CODE, str(folder / "data")], env=environment,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + (folder / "log").read_text()
        self.url = found.group()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process.stdout.close()  # type: ignore[union-attr]
        self.log.close()
        return status


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]


@pytest.mark.slow
def test_a_killed_service_resumes_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "tiny.onnx"
    model.write_bytes(onnx_bytes())
    options = Options(effort="low", target="onnxruntime:cpu", objective="nodes")
    first = Running(tmp_path)
    try:
        job = Client(first.url).submit(model, options)
        deadline = time.monotonic() + 30
        while Client(first.url).ask("GET", f"/v1/jobs/{job}")["state"] == "queued" and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = children(first.process.pid)
        assert workers
    finally:
        first.end(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(alive(process) for process in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(process) for process in workers)

    second = Running(tmp_path)
    try:
        events: list[str] = []
        Client(second.url).follow(job, lambda event: events.append(event.stage))
        view = Client(second.url).ask("GET", f"/v1/jobs/{job}")
        assert view["state"] == "done" and view["attempts"] == 2 and "done" in events
        # The same model and options again, as `egraft optimize --server`: answered from the store.
        out, trace, report = tmp_path / "out.onnx", tmp_path / "trace.json", tmp_path / "report.html"
        assert optimize_remotely(second.url, model, out, options, trace, report, quiet=False) == 0
        assert graphs.load(out).node_count() == 1 and json.loads(trace.read_text())["egraft_trace"] == 1
        assert "<svg" in report.read_text() and f"{second.url}/jobs/" in capsys.readouterr().out
        with_external(tmp_path, "sub/weights.bin")  # sent as a multipart body of unknown length
        assert optimize_remotely(second.url, tmp_path / "external.onnx", out, options, None, None, quiet=True) == 0
        assert graphs.load(out).node_count() == 1
        bad = tmp_path / "bad.onnx"
        bad.write_bytes(b"no model")
        with pytest.raises(EgraftError) as caught:
            optimize_remotely(second.url, bad, out, options, None, None, quiet=True)
        assert caught.value.code == "invalid-model" and caught.value.exit_status == 2
    finally:
        assert second.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_killed_service_goes_on_with_its_batch(tmp_path: Path) -> None:
    """Killed while the second of three models runs: the first is not done again, the others are."""
    archive = tmp_path / "zoo.zip"
    with zipfile.ZipFile(archive, "w") as files:
        for rows in (4, 5, 6):
            files.writestr(f"{rows}.onnx", onnx_bytes("batch", rows))
    first = Running(tmp_path)
    try:
        options = query_of(Options(effort="low", target="onnxruntime:cpu", objective="nodes"))
        with Client(first.url).open("POST", f"/v1/batches?{urlencode(options)}", archive.read_bytes()) as response:
            at = json.load(response)["links"]["self"]
        before = until(lambda: _rows(first.url, at, "done", "running"))
    finally:
        first.end(signal.SIGKILL)
    second = Running(tmp_path)
    try:
        after = until(lambda: _rows(second.url, at, "done", "done", "done"))
        finished = [Client(second.url).ask("GET", row["links"]["self"]) for row in after]
        assert [row["job"] for row in before] == [row["job"] for row in after]
        assert [job["attempts"] for job in finished] == [1, 2, 1]
        assert Client(second.url).ask("GET", at)["state"] == "done"
    finally:
        assert second.end(signal.SIGTERM) == 0


def _rows(url: str, at: str, *states: str) -> list[dict] | None:
    """The models of a batch once the first of them are in these states."""
    rows: list[dict] = Client(url).ask("GET", at)["models"]
    return rows if all(row["state"] == state for row, state in zip(rows, states, strict=False)) else None


def test_addresses_of_others_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EGRAFT_API_KEY", raising=False)
    with pytest.raises(InvalidOption, match="EGRAFT_API_KEY"):
        serve("0.0.0.0", 0, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidOption, match="choose another port"):
            serve("127.0.0.1", taken.getsockname()[1], tmp_path)


@pytest.mark.parametrize("variable", ["EGRAFT_WORKERS", "EGRAFT_MAX_UPLOAD", "EGRAFT_JOB_SECONDS"])
def test_settings_that_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "many")
    with pytest.raises(InvalidOption, match=variable):
        serve("127.0.0.1", 0, tmp_path)


# ---------------------------------------------------------------- client


def test_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EgraftError, match="no egraft service answers"):
        Client(f"http://127.0.0.1:{port}").submit(tmp_path / "m.onnx", Options())
    for address in ("ftp://host", "http://", "http://host:port"):
        with pytest.raises(InvalidOption, match="HOST:PORT"):
            Client(address)


def test_options_as_parameters() -> None:
    options = Options(effort="high", dims={"batch": [1, 8]}, keep=["a", "b"], strict=True)
    assert query_of(options) == [("effort", "high"), ("dim", "batch=1,8"), ("keep", "a"), ("keep", "b"),
                                 ("strict", "true")]
    special = Options(fix_dims={"batch": 1, "height": 48}, buckets={"seq": [32, 64]})
    assert query_of(special) == [("fix_dim", "batch=1"), ("fix_dim", "height=48"), ("buckets", "seq=32,64")]
    assert read_options(query_of(special)) == special
    with pytest.raises(InvalidOption, match="timing database of its own"):
        Client("http://127.0.0.1").submit(Path("m.onnx"), Options(timings="t.db"))


def test_external_data_is_found_and_stays_inside(tmp_path: Path) -> None:
    with_external(tmp_path, "sub/weights.bin")
    assert external_files(tmp_path / "external.onnx") == ["sub/weights.bin"]
    body = b"".join(multipart([("data", 'a"b', tmp_path / "sub/weights.bin")], "b"))
    assert body.startswith(b'--b\r\nContent-Disposition: form-data; name="data"; filename="a\\"b"')
    with_external(tmp_path, "../secret")
    with pytest.raises(EgraftError, match="leads outside"):
        external_files(tmp_path / "external.onnx")
