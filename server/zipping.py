"""Zip archives that are written while they are sent, so that they take neither memory nor disk."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

BLOCK = 1 << 20


class _Pipe:
    """A file that only goes forward: what was written is taken out again."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        found = bytes(self.data)
        self.data.clear()
        return found


def zip_stream(files: Iterable[tuple[str, Path | bytes]]) -> Iterator[bytes]:
    """The bytes of an archive of (name, file or content), not compressed: weights hardly are."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for name, source in files:
            with archive.open(name, "w", force_zip64=True) as target:
                for block in [source] if isinstance(source, bytes) else _blocks(source):
                    target.write(block)
                    yield pipe.take()
    yield pipe.take()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
