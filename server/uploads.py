"""Bodies of requests, streamed into a folder: plain bytes, or multipart with several files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from graphs.sniffing import SNIFFED, form_of

from .errors import BadRequest, TooLarge

MAX_PARTS = 10_000
MAX_TEXT = 1 << 20  # bytes of one form field
SUFFIXES = (".onnx", ".json", ".txt")
ARCHIVE = "archive"


@dataclass
class Upload:
    """What came: `mains` maps the part (`model`) to its file, `parts` other files to the part that they came in,
    `files` all files to their digests."""

    folder: Path
    mains: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    fields: list[tuple[str, str]] = field(default_factory=list)
    bytes: int = 0

    def digest(self) -> str:
        """Names the content, whatever the main files are called."""
        found = hashlib.sha256()
        roles = {file: f"part {part}{Path(file).suffix}" for part, file in self.mains.items()}
        for label, value in sorted((roles.get(name, f"file {name}"), value) for name, value in self.files.items()):
            found.update(f"{label}\0{value}\n".encode())
        return found.hexdigest()


def safe_name(name: str) -> str:
    """A relative file name that stays inside its folder. Raises BadRequest for every other."""
    path = PurePosixPath(name)
    bad = (not name or "\\" in name or ":" in name or any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
           or any("\ud800" <= letter <= "\udfff" for letter in name)  # bytes of an archive that are no UTF-8
           or path.is_absolute() or ".." in path.parts or not path.parts or len(name.encode()) > 1000
           or any(len(part.encode()) > 250 for part in path.parts))
    if bad:
        raise BadRequest(f"part {name[:200]!r}", "its file name is absolute, leads outside the upload, or is no name",
                         "send the relative name that the model gives for its external data")
    return path.as_posix()


def model_name(name: str | None, start: bytes) -> str:
    """File name of a main file, with the suffix that its content calls for."""
    stem = PurePosixPath((name or "").replace("\\", "/")).name
    stem = "".join(letter if letter.isalnum() or letter in "._- +" else "_" for letter in stem).strip(". ")[:120]
    if stem.lower().endswith(SUFFIXES):
        return stem
    suffix = {"json": ".json", "text": ".txt", "onnx": ".onnx"}[form_of(start[:SNIFFED])]
    return (stem or "model") + suffix


class _Sink:
    """Writes one file into the folder, digesting it and counting all bytes of the request."""

    def __init__(self, upload: Upload, limit: int) -> None:
        self.upload, self.limit = upload, limit
        self.file: BinaryIO | None = None
        self.name = ""
        self.size = 0
        self.hash = hashlib.sha256()

    def open(self, name: str) -> None:
        if name in self.upload.files:
            raise BadRequest(f"part {name!r}", "two parts have this file name", "give each file a name of its own")
        path = self.upload.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.file = path.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise BadRequest(f"part {name!r}", "its file name collides with another part",
                             "give each file a name of its own") from None
        self.name, self.size, self.hash = name, 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        assert self.file is not None
        self.size += len(data)
        self.count(len(data))
        self.hash.update(data)
        self.file.write(data)

    def count(self, size: int) -> None:
        self.upload.bytes += size
        if self.upload.bytes > self.limit:
            raise too_large(self.limit)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.upload.files[self.name] = self.hash.hexdigest()
            self.file = None


def too_large(limit: int) -> TooLarge:
    """The error of an upload beyond the limit."""
    return TooLarge("body", f"more than {limit} bytes", "send a smaller model, or start the service with a larger "
                    "EGRAFT_MAX_UPLOAD")


async def receive(request: Request, folder: Path, limit: int, mains: Collection[str] = ("model",)) -> Upload:
    """Stream the body into the folder. Raises BadRequest and TooLarge; the caller removes the folder then.

    Without `mains` every file keeps its relative name, and a body that is no multipart is the part `archive`.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    kind, parts = parse_options_header(request.headers.get("content-type", ""))
    upload = Upload(folder, fields=list(request.query_params.multi_items()))
    sink = _Sink(upload, limit)
    try:
        if kind == b"multipart/form-data":
            await _receive_parts(request, _Parts(sink, mains), parts.get(b"boundary", b""))
        else:
            await _receive_bytes(request, sink, next(iter(mains), None))
    finally:
        sink.close()
    for part in mains:
        if part not in upload.mains:
            raise BadRequest("body", f"it has no part {part!r}", _how(mains))
        if not (folder / upload.mains[part]).stat().st_size:
            raise BadRequest(f"part {part!r}", "it is empty", _how(mains))
    return upload


def _how(mains: Collection[str]) -> str:
    if tuple(mains) == ("model",):
        return "send the bytes of an ONNX model or a JSON graph, or a multipart body with a file part `model`"
    return f"send a multipart body with the file parts {', '.join(mains)}"


async def _receive_bytes(request: Request, sink: _Sink, part: str | None) -> None:
    named = dict(sink.upload.fields).get("name") or _disposition_name(request.headers.get("content-disposition", ""))
    async for chunk in request.stream():
        if not chunk:
            continue
        if sink.file is None and part is None:
            sink.open(ARCHIVE)
            sink.upload.parts[ARCHIVE] = ARCHIVE
        elif sink.file is None and part is not None:
            name = model_name(named, chunk[:64])
            sink.open(name)
            sink.upload.mains[part] = name
        sink.write(chunk)


def _disposition_name(header: str) -> str:
    _, parts = parse_options_header(header)
    return parts.get(b"filename", b"").decode("utf-8", "replace")


async def _receive_parts(request: Request, parts: _Parts, boundary: bytes) -> None:
    if not boundary:
        raise BadRequest("body", "multipart without a boundary", "let the client make the Content-Type header")
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        async for chunk in request.stream():
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise BadRequest("body", f"the multipart body is broken ({error})", "send it again") from None
    if not parts.complete:
        raise BadRequest("body", "the multipart body is cut short", "send it again")


class _Parts:
    """Callbacks of the multipart parser: files go to the sink, fields to the upload."""

    def __init__(self, sink: _Sink, mains: Collection[str]) -> None:
        self.sink, self.mains = sink, mains
        self.header = [b"", b""]
        self.headers: dict[bytes, bytes] = {}
        self.field = self.file_name = ""
        self.text: bytearray | None = None
        self.count = 0
        self.complete = False

    def callbacks(self) -> Any:
        """For MultipartParser."""
        return {"on_part_begin": self.begin, "on_header_field": self.header_field, "on_header_value": self.header_value,
                "on_header_end": self.header_end, "on_headers_finished": self.headers_finished,
                "on_part_data": self.data, "on_part_end": self.end, "on_end": self.finish}

    def begin(self) -> None:
        self.headers, self.header, self.text, self.file_name = {}, [b"", b""], None, ""
        self.count += 1
        if self.count > MAX_PARTS:
            raise BadRequest("body", f"more than {MAX_PARTS} parts", "send fewer files")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self.header[0] += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self.header[1] += data[start:end]

    def header_end(self) -> None:
        self.headers[self.header[0].lower()] = self.header[1]
        self.header = [b"", b""]

    def headers_finished(self) -> None:
        _, found = parse_options_header(self.headers.get(b"content-disposition", b""))
        self.field = found.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" not in found and self.field not in self.mains and self.field != "inputs":
            self.text = bytearray()
            return
        self.file_name = found.get(b"filename", b"").decode("utf-8", "replace") or self.field
        if self.field not in self.mains and self.field != "inputs":
            name = safe_name(self.file_name)
            self.sink.open(name)
            self.sink.upload.parts[name] = self.field

    def data(self, data: bytes, start: int, end: int) -> None:
        chunk = data[start:end]
        if self.text is not None:
            self.sink.count(len(chunk))
            self.text += chunk
            if len(self.text) > MAX_TEXT:
                raise BadRequest(f"part {self.field!r}", f"a field of more than {MAX_TEXT} bytes", "send it as a file")
            return
        if self.sink.file is None:
            self.open_main(bytes(chunk[:64]))
        self.sink.write(chunk)

    def open_main(self, start: bytes) -> None:
        """Open the file of a part that the service names itself."""
        upload = self.sink.upload
        if self.field in upload.mains:
            raise BadRequest(f"part {self.field!r}", "it comes twice", "send it once")
        name = "inputs.npz" if self.field == "inputs" else model_name(self.file_name, start)
        if name in upload.files and len(self.mains) > 1:
            name = f"{self.field}-{name}"
        self.sink.open(name)
        upload.mains[self.field] = name

    def end(self) -> None:
        if self.text is not None:
            self.sink.upload.fields.append((self.field, self.text.decode("utf-8", "replace")))
        elif self.sink.file is None:
            self.open_main(b"")
        self.sink.close()

    def finish(self) -> None:
        self.complete = True

