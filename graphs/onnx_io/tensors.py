"""Tensors of ONNX files: TensorProto to Constant and back, external data by memory map."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from .. import dtypes
from ..constants import Constant
from ..errors import InvalidModel, MissingData
from ..types import TensorType
from .ranges import RANGE, FileRange, identity_of

SPARSE = "sparse"  # key in a constant's __dict__: the SparseTensorProto that it stands for, or the attribute with it
_MAX_ELEMENTS = 1 << 48
_MAX_DENSE = 1 << 28  # elements of a sparse tensor that may be written out dense


class ExternalFiles:
    """Weights that are not in the message of a model: in files beside it, each mapped into memory once, or sifted."""

    def __init__(self, folder: Path | None, model: Path | None = None) -> None:
        self.folder, self.model = folder, model
        self.weights: dict[int, np.ndarray] = {}  # bytes that were kept out of the message, by initializer (see `sift`)
        self._maps: dict[Path, tuple[np.ndarray, tuple[int, ...]]] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in use, as real paths."""
        return tuple(str(path) for path in self._maps)

    def _resolve(self, location: str, name: str) -> Path:
        where = f"tensor {name!r}"
        if self.folder is None:
            raise MissingData(where, f"its data is in the file {location!r}, but the model came without a folder",
                              "give the model as a path, or say where its data lies (base_dir)")
        path = self.folder / location
        try:
            real = Path(os.path.realpath(path))
            found = real.is_file()
        except (OSError, ValueError):  # longer than names may be, or with a NUL in it
            raise MissingData(where, f"its external data {location[:80]!r} is no possible file name",
                              "write the model anew") from None
        homes = {Path(os.path.realpath(self.folder))}
        if self.model is not None:  # a model behind a link may have its data beside the real file
            homes.add(Path(os.path.realpath(self.model)).parent)
        if os.path.isabs(location) or not any(real.is_relative_to(home) for home in homes):
            raise MissingData(where, f"the path of its external data, {location!r}, leads outside the model's folder",
                              "put the file beside the model; paths outside are not allowed")
        if not found:
            raise MissingData(where, f"its external data {location!r} is missing", "put the file beside the model")
        return real

    def read(self, tensor: TensorProto, count: int) -> tuple[np.ndarray, FileRange]:
        """The bytes of an external tensor, `count` of them, as a view of the mapped file, and where they lie."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or count)
        except ValueError:
            raise MissingData(f"tensor {tensor.name!r}", "offset or length of its external data is no number",
                              "write the model anew") from None
        path = self._resolve(location, tensor.name)
        if path not in self._maps:
            self._maps[path] = _map(path)
        data, identity = self._maps[path]
        if length != count or offset < 0 or offset + count > data.size:
            raise MissingData(
                f"tensor {tensor.name!r}",
                f"it needs {count} bytes at {offset} of {location!r}, which has {data.size} (stated length {length})",
                "the data file is too short or belongs to another model")
        return data[offset : offset + count], FileRange(path, identity, offset, count)


def _map(path: Path) -> tuple[np.ndarray, tuple[int, ...]]:
    """The content of a file, and the identity of the file."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                return np.empty(0, np.uint8), identity_of(status)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return np.frombuffer(content, np.uint8), identity_of(status)
    except OSError as error:
        raise MissingData(str(path), f"the file cannot be read ({error.strerror})", "check the file") from error


def read_tensor(tensor: TensorProto, files: ExternalFiles, sifted: np.ndarray | None = None) -> Constant:
    """The constant of a TensorProto; its bytes are checked now. `sifted` are those that the message lacks."""
    where = f"tensor {tensor.name!r}"
    dtype = dtypes.FROM_ONNX.get(tensor.data_type)
    if dtype is None:
        raise InvalidModel(where, f"its element type {tensor.data_type} is unknown", "use a known element type")
    shape = tuple(tensor.dims)
    if any(dim < 0 for dim in shape):
        raise InvalidModel(where, f"its dims {list(shape)} are negative", "correct the tensor")
    if tensor.HasField("segment"):
        raise InvalidModel(where, "it is cut into segments, which ONNX no longer has", "write the model anew")
    type_ = TensorType(dtype, shape)
    if dtype == "string":
        return _strings(tensor, type_)
    size = math.prod(shape)
    if size >= _MAX_ELEMENTS:
        raise InvalidModel(where, f"its dims {list(shape)} are larger than any memory", "correct the tensor")
    count = math.ceil(size * dtypes.item_bytes(dtype))
    place: FileRange | None = None
    if tensor.data_location == TensorProto.EXTERNAL:
        raw: object
        raw, place = files.read(tensor, count)
    elif sifted is not None or tensor.HasField("raw_data"):
        raw = tensor.raw_data if sifted is None else sifted
        if len(raw) != count:  # type: ignore[arg-type]
            raise InvalidModel(where, f"{len(raw)} bytes of data where {type_} takes {count}",  # type: ignore[arg-type]
                               "the file is damaged")
    else:
        return _typed_fields(tensor, type_)
    array = from_bytes(raw, dtype, shape)
    constant = Constant(type_, lambda: array)
    if place is not None:
        constant.__dict__[RANGE] = place
    return constant


def _onnx_ir() -> Any:
    """onnx_ir, loaded for the first tensor that needs it: it takes longer to import than a small model to read."""
    import onnx_ir

    return onnx_ir


def from_bytes(raw: object, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """An array of ONNX raw data (little-endian; 4-bit and 2-bit elements packed)."""
    bits = dtypes.BITS.get(dtype, 8)
    if bits == 8:
        return np.frombuffer(raw, dtypes.numpy_dtype(dtype)).reshape(shape)  # type: ignore[call-overload]
    data = bytes(memoryview(raw))  # type: ignore[arg-type]
    proto = TensorProto(data_type=dtypes.ONNX_NUMBER[dtype], dims=shape, raw_data=data)
    return _onnx_ir().serde.TensorProtoTensor(proto).numpy()


def to_bytes(constant: Constant) -> memoryview:
    """Raw data of a constant, without a copy where possible."""
    array = constant.array
    if dtypes.BITS.get(constant.dtype, 8) == 8:
        flat = np.ascontiguousarray(array).reshape(-1)
        return flat.view(np.uint8).data if flat.size else memoryview(b"")
    return memoryview(_onnx_ir().Tensor(np.ascontiguousarray(array)).tobytes())


def _typed_fields(tensor: TensorProto, type_: TensorType) -> Constant:
    try:
        array = _onnx_ir().serde.TensorProtoTensor(tensor).numpy()
        array = np.array(array).reshape(type_.shape or ())  # type: ignore[arg-type]
    except (ValueError, TypeError, AssertionError) as error:
        raise InvalidModel(f"tensor {tensor.name!r}", f"its data does not fit {type_} ({error})",
                           "the file is damaged") from error
    return Constant(type_, lambda: array)


def _strings(tensor: TensorProto, type_: TensorType) -> Constant:
    items = [_decoded(item) for item in tensor.string_data]
    array = np.empty(len(items), object)
    array[:] = items
    size = math.prod(type_.shape or ())  # type: ignore[arg-type]
    if len(items) != size:
        raise InvalidModel(f"tensor {tensor.name!r}", f"{len(items)} strings where {type_} holds {size}",
                           "the file is damaged")
    array = array.reshape(type_.shape)  # type: ignore[arg-type]
    return Constant(type_, lambda: array)


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def read_sparse(sparse: onnx.SparseTensorProto, files: ExternalFiles) -> Constant:
    """A sparse tensor as a (dense) constant that remembers its sparse form for the writer."""
    name = sparse.values.name
    values, indices = read_tensor(sparse.values, files), read_tensor(sparse.indices, files)
    shape = tuple(sparse.dims)
    size = math.prod(shape)
    where = f"sparse tensor {name!r}"
    if size > _MAX_DENSE:
        raise InvalidModel(where, f"it has {size} elements written out", "use a smaller tensor")
    places = indices.array.astype(np.int64)
    if places.ndim == 2:
        if places.shape[1] != len(shape):
            raise InvalidModel(where, "its indices have the wrong rank", "correct the tensor")
        if places.size and ((places < 0) | (places >= np.array(shape))).any():
            raise InvalidModel(where, "an index lies outside its dims", "correct the tensor")
        places = np.ravel_multi_index(tuple(places.T), shape) if places.size else places.reshape(-1)
    if (places.size and not (places.min() >= 0 and places.max() < size)) or len(places) != values.size:
        raise InvalidModel(where, "its indices do not fit its dims and values", "correct the tensor")

    def dense() -> np.ndarray:
        flat = np.zeros(size, dtypes.numpy_dtype(values.dtype))
        flat[places] = values.array.reshape(-1)
        return flat.reshape(shape)

    constant = Constant(TensorType(values.dtype, shape), dense)
    constant.__dict__[SPARSE] = sparse
    return constant


def write_tensor(constant: Constant, name: str) -> TensorProto:
    """A TensorProto with the data inside."""
    proto = TensorProto(data_type=dtypes.ONNX_NUMBER[constant.dtype], dims=constant.shape)
    if name:
        proto.name = name
    if constant.dtype == "string":
        items = constant.array.reshape(-1)
        proto.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in items)
    else:
        proto.raw_data = bytes(to_bytes(constant))
    return proto
