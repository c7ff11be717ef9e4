"""Dataflow graphs: values, nodes, types, operator records, and the forms they are read from and written to."""

from __future__ import annotations

import os
from pathlib import Path

from .constants import Constant
from .errors import ParseError, UnreadableFile
from .ir import Graph, NameSupply, Node
from .types import OtherType, TensorType, Type


def load(source: str | os.PathLike[str] | bytes) -> Graph:
    """Read a graph: an ONNX model, the JSON form or the text form, from a path or from bytes.

    The suffix `.onnx`, `.json` or `.txt` decides, and else what the content looks like. Raises UnreadableFile,
    InvalidModel, MissingData, ParseError or InferenceError, each of one line. A model without outputs is not valid:
    onnx.checker and ONNX Runtime load it, but no run of it succeeds.
    """
    from .structure import check_outputs

    graph = _read(source)
    check_outputs(graph)
    return graph


def _read(source: str | os.PathLike[str] | bytes) -> Graph:
    from .onnx_io import load_onnx
    from .onnx_io.files import read_bytes
    from .sniffing import SNIFFED, form_of

    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        form = form_of(data[:SNIFFED])
        return load_onnx(data) if form == "onnx" else _parse(data, form, "")
    path = Path(source)
    if path.is_fifo() or path.is_char_device():
        return _read(read_bytes(path))  # it can be read once only
    form = {".onnx": "onnx", ".json": "json", ".txt": "text"}.get(path.suffix.lower(), "")
    if not form:
        try:
            with path.open("rb") as file:
                form = form_of(file.read(SNIFFED))
        except OSError as error:
            raise UnreadableFile.of(path, error) from error
    if form == "onnx":
        return load_onnx(path)
    return _parse(read_bytes(path), form, f"{path}, ")


def save(graph: Graph, path: str | os.PathLike[str], opset: int | None = None) -> None:
    """Write a graph: `.json` and `.txt` in the JSON and text form, all else as an ONNX model.

    The file appears whole or not at all.
    """
    from .onnx_io import save_onnx
    from .onnx_io.files import write_bytes

    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        from .json_form import dumps

        write_bytes(Path(path), (dumps(graph) + "\n").encode())
    elif suffix == ".txt":
        write_bytes(Path(path), (str(graph) + "\n").encode())
    else:
        save_onnx(graph, path, opset)


def _parse(data: bytes, form: str, where: str) -> Graph:
    from .json_form import from_json
    from .sniffing import NO_TEXT_FORM, is_text_form
    from .text import parse_graph

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"{where}byte {error.start}", "the text is not UTF-8", "write it as UTF-8") from error
    if form == "text" and not is_text_form(data):
        raise ParseError(where.removesuffix(", ") or "the text", NO_TEXT_FORM, "docs/architecture.md shows the form")
    try:
        return from_json(text) if form == "json" else parse_graph(text)
    except ParseError as error:
        raise ParseError(f"{where}{error.where}", error.found, error.fix) from error


__all__ = ["Constant", "Graph", "NameSupply", "Node", "OtherType", "TensorType", "Type", "load", "save"]
