"""ONNX files: reading them safely, writing them whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, TensorProto

from .. import dtypes
from ..constants import Constant
from ..errors import InvalidModel, InvalidOption, UnreadableFile
from ..ir import Graph
from ..structure import FLATTEN, TOO_DEEP
from .ranges import copied
from .reader import read_model
from .sift import sift
from .stream import model_pieces
from .tensors import ExternalFiles, to_bytes, write_tensor
from .writer import to_model_proto

INLINE_LIMIT = 1_500_000_000  # bytes of weights in one file; protobuf ends at 2 GB
_EXTERNAL_THRESHOLD = 1024  # bytes; smaller tensors stay in the model file
_SIFTED_BYTES = 8 << 20  # of a file; a smaller one is read sooner as a whole
_PAGE = 4096
_PROTOBUF_LIMIT = (1 << 31) - (1 << 20)


def load_onnx(source: str | os.PathLike[str] | bytes, base_dir: str | os.PathLike[str] | None = None) -> Graph:
    """Read an ONNX model from a path or from bytes; `base_dir` is where its external data lies.

    Raises UnreadableFile, InvalidModel or MissingData. Weights in external files are mapped into memory, not read.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        files = ExternalFiles(Path(base_dir) if base_dir is not None else None)
        return _parse(bytes(source), "the model", files)
    path = Path(source)
    files = ExternalFiles(Path(base_dir) if base_dir is not None else path.parent, path)
    graph = _sifted(path, files) or _parse(read_bytes(path), str(path), files)
    graph.extras["source"] = os.path.realpath(path)
    return graph


def read_bytes(path: Path) -> bytes:
    """The content of a model file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableFile.of(path, error) from error


def _sifted(path: Path, files: ExternalFiles) -> Graph | None:
    """The graph of a large file whose weights are not copied; None where it is read as a whole like any other."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            sifted = sift(file, size) if size >= _SIFTED_BYTES else None
    except OSError:
        return None
    if sifted is None:
        return None
    files.weights = sifted.weights
    return _parse(sifted.message, str(path), files)


def _parse(data: bytes, where: str, files: ExternalFiles) -> Graph:
    if not data:
        raise InvalidModel(where, "the file is empty", "give an ONNX model")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise InvalidModel(where, TOO_DEEP, FLATTEN) from error
        raise _no_model(where, data, "this is no ONNX model, or it is cut short (truncated)") from error
    if not model.HasField("graph") or not (model.ir_version or model.opset_import):
        raise _no_model(where, data, "this is no ONNX model (it has no graph or no version), or it is cut short")
    try:
        return read_model(model, files)
    except InvalidModel as error:
        raise type(error)(f"{where}: {error.where}", error.found, error.fix) from error


def _no_model(where: str, data: bytes, found: str) -> InvalidModel:
    from ..sniffing import SNIFFED, text_instead

    return InvalidModel(where, text_instead(data[:SNIFFED]) or found, "give a complete ONNX file, or a graph as .json "
                        "or .txt")


class _External:
    """Writes large tensors into one file beside the model."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self.file, self.location = file, location

    def tensor(self, constant: Constant, name: str) -> TensorProto:
        """A TensorProto, its bytes in the external file if there are many."""
        if constant.dtype == "string" or constant.nbytes < _EXTERNAL_THRESHOLD:
            return write_tensor(constant, name)
        offset = -(-self.file.tell() // _PAGE) * _PAGE  # whole pages can be mapped
        self.file.seek(offset)
        if not copied(constant, self.file):
            self.file.write(to_bytes(constant))
        proto = TensorProto(name=name, data_type=dtypes.ONNX_NUMBER[constant.dtype], dims=constant.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", str(offset)), ("length", str(constant.nbytes))):
            proto.external_data.add(key=key, value=value)
        return proto


def save_onnx(graph: Graph, path: str | os.PathLike[str], opset: int | None = None) -> None:
    """Write a graph as an ONNX file, whole or not at all.

    Weights go to `<path>.data` where the input kept them in files of their own, or where they exceed 1.5 GB.
    """
    target = Path(path)
    total = sum(constant.nbytes for each in graph.walk() for constant in each.constants.values())
    external = bool(graph.extras.get("external")) or total > INLINE_LIMIT
    try:
        if external:
            _save_external(graph, target, opset)
        else:
            with replacing(target) as file:
                file.writelines(_pieces(graph, opset, target))
    except OSError as error:
        raise InvalidOption(str(target), f"the file cannot be written ({error.strerror})",
                            "choose another place") from error


def _save_external(graph: Graph, target: Path, opset: int | None) -> None:
    """The data take a name that no file has before the model does: a process that dies on the way leaves what stood at
    `target`, with the data that belong to it."""
    used = () if graph.extras.get("source") == os.path.realpath(target) else graph.extras.get("external") or ()
    former = [path for path in _own_data(target) if os.path.realpath(path) not in used]  # type: ignore[operator]
    data_path = _free_data_path(target)
    with replacing(data_path) as data:
        model = to_model_proto(graph, opset, _External(data, data_path.name).tensor)
        if not data.tell():
            data.write(b"\0")  # an empty file cannot be mapped
        text = _serialized(model, target)
    try:
        with replacing(target) as file:
            file.write(text)
    except BaseException:
        if data_path not in _own_data(target):  # Ctrl-C may come when the new model stands already
            data_path.unlink(missing_ok=True)
        raise
    for path in former:
        path.unlink(missing_ok=True)


def _own_data(target: Path) -> list[Path]:
    """Files that an earlier model at `target` was written with, by their names: they go with it."""
    try:
        with target.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            model = ModelProto.FromString(file.read()) if size < _SIFTED_BYTES else ModelProto()
    except (OSError, DecodeError):
        return []
    used = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data
            if entry.key == "location"}
    own = re.compile(re.escape(target.name) + r"(\.\d+)?\.data")
    return [target.with_name(name) for name in used if own.fullmatch(name)]


def _free_data_path(target: Path) -> Path:
    """`<target>.data`, or with a number where there is such a file: whoever it belongs to, it is not written over."""
    path = target.with_name(target.name + ".data")
    number = 1
    while os.path.lexists(path):
        path = target.with_name(f"{target.name}.{number}.data")
        number += 1
    return path


def _serialized(model: ModelProto, path: Path) -> bytes:
    try:
        return model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise InvalidOption(str(path), f"the model is too large for one file ({error})",
                            "keep its weights in external data") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end, and leaves nothing behind on an error. Raises InvalidOption
    where something else than a file is, which that would destroy: a device (`/dev/null`), a pipe."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidOption(str(path), "it is no regular file, and writing would put one into its place",
                            "give the name of a file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise InvalidOption(str(path), f"the file cannot be written ({error.strerror})",
                            "choose another place") from error


def proto_bytes(graph: Graph, opset: int | None = None) -> bytes:
    """A graph as the bytes of an ONNX file with all weights inside."""
    return b"".join(_pieces(graph, opset, Path("the model")))


def _pieces(graph: Graph, opset: int | None, path: Path) -> Iterator[bytes | memoryview]:
    total = sum(constant.nbytes for each in graph.walk() for constant in each.constants.values())
    if total >= _PROTOBUF_LIMIT:
        raise InvalidOption(str(path), f"the model is too large for one file ({total} bytes of weights)",
                            "keep its weights in external data")
    try:
        yield from model_pieces(graph, opset)
    except (EncodeError, ValueError) as error:
        raise InvalidOption(str(path), f"the model is too large for one file ({error})",
                            "keep its weights in external data") from error


__all__ = ["load_onnx", "proto_bytes", "replacing", "save_onnx", "write_bytes"]
