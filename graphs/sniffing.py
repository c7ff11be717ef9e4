"""What a file is by how it begins, and what cannot be a model: for messages, and for services before any work."""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from pathlib import Path

from .onnx_io.sift import lacks_of_model

WHOLE_BYTES = 1 << 20  # of JSON that is parsed; of larger files the start is looked at
SNIFFED = 4096  # bytes at the start of a file that tell its form
NO_TEXT_FORM = "this is no graph in the text form, which begins with `graph`"
_LFS_POINTER = "version https://git-lfs.github.com/spec/"
_SHOWN = 40  # characters of a line that messages quote
_TEXT_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s+|#[^\n]*(?:\n|$))*(?P<rest>.*)", re.DOTALL)


def why_no_model(path: Path) -> str | None:
    """Why a file is no graph in the form that its suffix says (`.json`, `.txt`, else ONNX). None says nothing: the
    file may still be damaged or invalid. Takes little time and memory, whatever the file holds."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _no_json(path)
    if suffix == ".txt":
        return _no_text(path)
    with path.open("rb") as file:
        lacks = lacks_of_model(file, path.stat().st_size)
        file.seek(0)
        return lacks and (text_instead(file.read(SNIFFED)) or lacks)


def form_of(start: bytes) -> str:
    """`json`, `text` or `onnx`: what a file without a telling suffix is to be read as, by its first SNIFFED bytes."""
    if start.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").startswith(b"{"):
        return "json"
    return "text" if is_text_form(start, len(start) == SNIFFED) else "onnx"


def is_text_form(start: bytes, goes_on: bool = False) -> bool:
    """Does the text form begin so? It does with `graph` behind comments; nothing but comments may be one that
    `goes_on`."""
    found = _TEXT_START.match(start)
    rest = found["rest"] if found is not None else b""
    return re.match(rb"graph\b", rest) is not None or (goes_on and bool(start.strip()) and not rest)


def text_instead(start: bytes) -> str | None:
    """What to say of a file that should be an ONNX model and begins with text; None where it does not."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return None
    if not text.strip() or any(unicodedata.category(each) == "Cc" and not each.isspace() for each in text):
        return None
    if text.startswith(_LFS_POINTER):
        return "this is a pointer of Git LFS and no ONNX model: `git lfs pull` fetches the file that it stands for"
    first = text.strip().splitlines()[0]
    return f"this is text and no ONNX model: it begins {first[:_SHOWN] + ('...' if first[_SHOWN:] else '')!r}"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(WHOLE_BYTES)


def _no_json(path: Path) -> str | None:
    data = _start(path)
    if not data.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").startswith(b"{"):
        return "this is no graph in the JSON form: it is no JSON object"
    if path.stat().st_size > WHOLE_BYTES:
        return None
    try:
        json.loads(data)
    except RecursionError:
        return None  # too deep for here: who reads it says so
    except ValueError as error:  # no UTF-8, or no JSON
        return f"this is no JSON ({str(error)[:200]})"
    return None


def _no_text(path: Path) -> str | None:
    data = _start(path)
    return None if is_text_form(data, path.stat().st_size > len(data)) else NO_TEXT_FORM


__all__ = ["NO_TEXT_FORM", "SNIFFED", "form_of", "is_text_form", "text_instead", "why_no_model"]
