"""What a batch consists of: `python -m server.splitting FOLDER` unpacks its archives and finds its models.

A process of its own, because an archive or a model may ask for any amount of memory: the service only reads the file
that it leaves. `FOLDER/task.json` says what came; `FOLDER/members.json` then says which files each model needs.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from graphs.errors import EgraftError

from .errors import BadRequest, TooLarge, storage_full
from .uploads import ARCHIVE, MAX_PARTS, safe_name
from .worker import UPLOAD, leave, limit_memory

TASK, MEMBERS = "task.json", "members.json"
MODEL_SUFFIX = ".onnx"
BLOCK = 1 << 20
BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
          OSError, ValueError)  # what a damaged, encrypted or unknown archive raises


def main(folder: Path) -> int:
    """Do the task of a folder; a problem with what came is in the file, not in the exit status."""
    task = json.loads((folder / TASK).read_text(encoding="utf-8"))
    limit_memory(task["memory"])
    try:
        found = split(folder / UPLOAD, task["parts"], task["limit"])
    except EgraftError as error:
        found = {"problem": error.problem()}
    except MemoryError:
        found = {"problem": BadRequest("archive", "unpacking it needs too much memory", "send a simpler one").problem()}
    return leave(folder / MEMBERS, found)


def split(folder: Path, parts: dict[str, str], limit: int) -> dict[str, Any]:
    """`models` (each with `model` and its `data`, relative names) and the digests of what came out of archives.

    Raises BadRequest for an archive that cannot be read, and where there is no model; TooLarge.
    """
    digests: dict[str, str] = {}
    for name, part in parts.items():
        if part == ARCHIVE:
            digests.update(_Unpacker(folder, limit).unpack(folder / name))
            (folder / name).unlink()
    sent = {name for name, part in parts.items() if part == "model"}
    files = [*digests, *(name for name, part in parts.items() if part != ARCHIVE)]
    models = sorted(name for name in files if name in sent or _is_model(Path(name).name))
    if not models:
        raise BadRequest("body", "it holds no model", "send file parts `model`, or an archive with .onnx files")
    return {"models": [{"model": name, "data": data_of(folder, name)} for name in models], "digests": digests}


def _is_model(name: str) -> bool:
    return name.lower().endswith(MODEL_SUFFIX) and not name.startswith("._")  # what macOS adds to archives


def data_of(folder: Path, model: str) -> list[str]:
    """Names, relative to the model, of the files of its external data that came. What is wrong with a model that names
    others, or cannot be read, its job will say."""
    from optimizer.remote import external_files

    path = folder / model
    try:
        named = external_files(path)
    except (EgraftError, OSError, ValueError, RecursionError):
        return []
    return sorted(name for name in named if _inside(name) and (path.parent / name).is_file())


def _inside(name: str) -> bool:
    try:
        return safe_name(name) == name
    except BadRequest:
        return False


class _Unpacker:
    """Writes the regular files of an archive below a folder, counting entries and bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.bytes = 0

    def unpack(self, archive: Path) -> dict[str, str]:
        """File -> SHA-256 of its content."""
        digests: dict[str, str] = {}
        with archive.open("rb") as file:
            entries = _zip_entries if file.read(2) == b"PK" else _tar_entries
        try:
            for count, (name, stream) in enumerate(entries(archive), 1):
                if count > MAX_PARTS:
                    raise TooLarge("archive", f"more than {MAX_PARTS} entries", "send fewer files")
                if stream is not None:
                    digests[safe_name(name)] = self._write(safe_name(name), stream)
        except EgraftError:
            raise
        except BROKEN as error:
            full = storage_full(error, "archive")
            if full is not None:
                raise full from None
            raise BadRequest("archive", f"it cannot be unpacked ({error})",
                             "send a zip or tar archive, not encrypted, as the body or as the part `archive`") from None
        return digests

    def _write(self, name: str, stream: IO[bytes]) -> str:
        digest, path = hashlib.sha256(), self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = path.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise BadRequest(f"archive, entry {name!r}", "another file has this name",
                             "give each file a name of its own") from None
        with file:
            while block := stream.read(BLOCK):
                self.bytes += len(block)
                if self.bytes > self.limit:
                    raise TooLarge("archive", f"more than {self.limit} bytes when unpacked", "send a smaller one, or "
                                   "start the service with a larger EGRAFT_MAX_UPLOAD")
                digest.update(block)
                file.write(block)
        return digest.hexdigest()


def _zip_entries(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as found:
        for info in found.infolist():
            if info.is_dir():
                yield info.filename, None
                continue
            if info.external_attr >> 28 not in (0, 8):  # the kind of file in Unix: none given, or a regular file
                raise _no_file(info.filename)
            with found.open(info) as stream:
                yield info.filename, stream


def _tar_entries(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(archive) as found:
        for info in found:
            if info.isdir():
                yield info.name, None
                continue
            stream = found.extractfile(info) if info.isreg() else None
            if stream is None:
                raise _no_file(info.name)
            with stream:
                yield info.name, stream


def _no_file(name: str) -> BadRequest:
    return BadRequest(f"archive, entry {name[:200]!r}", "it is a link or a special file", "archive what it points to")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
