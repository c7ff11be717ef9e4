"""A model file read in two parts: large weights go straight into arrays, only the rest passes through a message.

The counterpart of `stream`: a message would copy each weight twice, and each copy costs more than reading the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from ..spill import let_go, room
from .stream import STREAMED_BYTES, varint

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers
_VERSIONS = ((1, _VARINT), (8, _LENGTH))  # of the format, of an operator set
_LONGEST_VARINT = 10
_MANY_FIELDS = 100_000  # more are not looked at


class _Unusual(Exception):
    """Damaged, or spelled as no known writer does: the whole file goes through a message, which says what is wrong."""


@dataclass(slots=True)
class Sifted:
    """The message without the bytes of large tensors; those by the position of their initializer."""

    message: bytes
    weights: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a field of a message lies in the file: its tag at `head`, its content from `start` to `stop`."""

    number: int
    kind: int
    head: int
    start: int
    stop: int


def sift(file: BinaryIO, size: int) -> Sifted | None:
    """Take a model file of `size` bytes apart; None where that is not possible, or not worth while."""
    found = Sifted(b"")
    try:
        kept: list[bytes] = []
        graphs = 0
        for each in _fields(file, 0, size):
            if each.number != _MODEL_GRAPH:
                kept.append(_between(file, each.head, each.stop))
                continue
            graphs += 1
            if graphs > 1 or each.kind != _LENGTH:
                raise _Unusual
            graph = _graph(file, each, found.weights)
            kept += [_tag(_MODEL_GRAPH), varint(len(graph)), graph]
    except _Unusual:
        return None
    found.message = b"".join(kept)
    return found if found.weights else None


def _graph(file: BinaryIO, whole: _Field, weights: dict[int, np.ndarray]) -> bytes:
    """The bytes of the graph's message without large weights, which it adds to `weights`."""
    kept: list[bytes] = []
    since, position = whole.start, -1
    for each in _fields(file, whole.start, whole.stop):
        if each.number != _GRAPH_INITIALIZER or each.kind != _LENGTH:
            continue
        position += 1
        if each.stop - each.start < STREAMED_BYTES:
            continue
        raw = [inner for inner in _fields(file, each.start, each.stop) if inner.number == _TENSOR_RAW_DATA]
        if len(raw) != 1 or raw[0].kind != _LENGTH or raw[0].stop - raw[0].start < STREAMED_BYTES:
            continue
        weights[position] = _array(file, raw[0])
        rest = _between(file, each.start, raw[0].head) + _between(file, raw[0].stop, each.stop)
        kept += [_between(file, since, each.head), _tag(_GRAPH_INITIALIZER), varint(len(rest)), rest]
        since = each.stop
    return b"".join([*kept, _between(file, since, whole.stop)])


def _fields(file: BinaryIO, start: int, stop: int) -> Iterator[_Field]:
    """The fields of the message between two places of the file."""
    at = start
    while at < stop:
        file.seek(at)
        tag, length = _number(file)
        kind, here = tag & 7, at + length
        if kind == _VARINT:
            end = here + _number(file)[1]
        elif kind == _LENGTH:
            size, length = _number(file)
            here += length
            end = here + size
        elif kind in (_FIXED64, _FIXED32):
            end = here + (8 if kind == _FIXED64 else 4)
        else:
            raise _Unusual
        if end > stop or tag >> 3 == 0:
            raise _Unusual
        yield _Field(tag >> 3, kind, at, here, end)
        at = end


def _number(file: BinaryIO) -> tuple[int, int]:
    """The number at the present place of the file, and how many bytes it takes."""
    found = 0
    for index in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte:
            raise _Unusual
        found |= (byte[0] & 0x7F) << 7 * index
        if byte[0] < 0x80:
            return found, index + 1
    raise _Unusual


def _between(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    found = file.read(stop - start)
    if len(found) != stop - start:
        raise _Unusual
    return found


def _array(file: BinaryIO, place: _Field) -> np.ndarray:
    found = room(place.stop - place.start)
    file.seek(place.start)
    if file.readinto(found.data) != found.size:  # type: ignore[attr-defined]
        raise _Unusual
    let_go(found)
    return found


def _tag(number: int) -> bytes:
    return varint(number << 3 | _LENGTH)


def lacks_of_model(file: BinaryIO, size: int) -> str | None:
    """Why a file of `size` bytes is no ModelProto, from its outermost fields alone; None where it may be one."""
    seen: set[tuple[int, int]] = set()
    try:
        for count, each in enumerate(_fields(file, 0, size)):
            seen.add((each.number, each.kind))
            if count >= _MANY_FIELDS:
                return None
    except _Unusual:
        return "this is no ONNX model, or it is cut short (truncated)"
    if (_MODEL_GRAPH, _LENGTH) not in seen or seen.isdisjoint(_VERSIONS):
        return "this is no ONNX model (it has no graph or no version), or it is cut short"
    return None
