"""What cannot be a model, told without reading the whole file: for services, before any work is begun."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .onnx_io.sift import lacks_of_model

WHOLE_BYTES = 1 << 20  # of JSON that is parsed; of larger files the start is looked at
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
        return lacks_of_model(file, path.stat().st_size)


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
    found = _TEXT_START.match(data)
    rest = found["rest"] if found is not None else b""
    if not rest and path.stat().st_size > len(data):
        return None  # nothing but comments so far
    return None if re.match(rb"graph\b", rest) else "this is no graph in the text form, which begins with `graph`"


__all__ = ["why_no_model"]
