"""Large arrays that were computed, in temporary files instead of memory.

A folded weight is as large as what it was folded from. Mapped from a file, it takes memory only while it is read, and
the system may take that back. The files have no name and end with the process; they lie in `$TMPDIR`.
"""

from __future__ import annotations

import mmap
import tempfile
import threading

import numpy as np

LEAST_BYTES = 8 << 20  # a smaller array stays in memory
_SEGMENT = 256 << 20  # bytes of one file: few files for many arrays
_PAGE = mmap.PAGESIZE


class _Segments:
    """Files that are filled one after the other. A file is given back when no array in it is used any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        self._used = 0

    def place(self, size: int) -> np.ndarray:
        """Room for `size` bytes. Raises OSError where the disk has none."""
        with self._lock:
            if self._map is None or self._used + size > len(self._map):
                with tempfile.TemporaryFile(prefix="egraft-") as file:
                    file.truncate(max(_SEGMENT, size))
                    self._map, self._used = mmap.mmap(file.fileno(), 0), 0
            start, self._used = self._used, -(-(self._used + size) // _PAGE) * _PAGE
            return np.frombuffer(self._map, np.uint8, size, start)


_segments = _Segments()


def spilled(array: np.ndarray) -> np.ndarray:
    """The array, or an equal one in a file if it is large. Whoever gets it does not write into it."""
    if array.nbytes < LEAST_BYTES or array.dtype.hasobject or is_mapped(array):
        return array
    try:
        room = _segments.place(array.nbytes)
    except OSError:  # no room, or no folder for temporary files: it stays in memory, as it would without this module
        return array
    found = room.view(array.dtype).reshape(array.shape)
    np.copyto(found, array)
    let_go(found)
    return found


def is_mapped(array: np.ndarray) -> bool:
    """It lies in a mapped file, without gaps."""
    return array.flags.c_contiguous and _file_of(array) is not None


def let_go(array: np.ndarray) -> None:
    """Give back the memory that a large array of a mapped file takes; whoever reads it has it read again."""
    if array.nbytes < LEAST_BYTES or not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    content = _file_of(array)
    if content is None:
        return
    first = array.ctypes.data - np.frombuffer(content, np.uint8).ctypes.data
    start = -(-first // _PAGE) * _PAGE  # whole pages of its own
    if first + array.nbytes > start:
        content.madvise(mmap.MADV_DONTNEED, start, first + array.nbytes - start)


def _file_of(array: np.ndarray) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None
