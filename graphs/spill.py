"""Large arrays in temporary files instead of memory: weights that lie inside a model file, and folded ones.

Mapped from a file, a weight takes memory only while it is read, and the system may take that back. The files have no
name and end with the process; they lie in `$TMPDIR`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO

import numpy as np

LEAST_BYTES = 1 << 20  # a smaller array stays in memory
_SEGMENT = 256 << 20  # bytes of one file: few files for many arrays
_PAGE = mmap.PAGESIZE
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
_MOST_KEPT = 32 << 20  # bytes of a piece, to where glibc raises its threshold by itself


class _Segments:
    """Files that are filled one after the other. A file is given back when no array in it is used any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self._used = 0

    def place(self, size: int) -> np.ndarray:
        """Room for `size` bytes. Raises OSError where the disk has none."""
        with self._lock:
            if self._file is None or self._map is None or self._used + size > len(self._map):
                if self._file is not None:
                    self._file.close()  # its map holds what lies in it
                self._file = self._map = None
                self._file = tempfile.TemporaryFile(prefix="egraft-")  # noqa: SIM115
                self._file.truncate(max(_SEGMENT, size))
                self._map, self._used = mmap.mmap(self._file.fileno(), 0), 0
            if hasattr(os, "posix_fallocate"):  # without it a full disk would end the process at the first write
                os.posix_fallocate(self._file.fileno(), self._used, size)
            start, self._used = self._used, -(-(self._used + size) // _PAGE) * _PAGE
            return np.frombuffer(self._map, np.uint8, size, start)


_segments = _Segments()


def spilled(array: np.ndarray) -> np.ndarray:
    """The array, or an equal one in a file if it is large. Whoever gets it does not write into it."""
    if array.nbytes < LEAST_BYTES or array.dtype.hasobject or is_mapped(array):
        return array
    place = _placed(array.nbytes)
    if place is None:
        return array
    found = place.view(array.dtype).reshape(array.shape)
    np.copyto(found, array)
    let_go(found)
    return found


def room(size: int) -> np.ndarray:
    """An array of `size` bytes to write into: in a file if it is large. After that, `let_go` gives its memory back."""
    place = _placed(size) if size >= LEAST_BYTES else None
    return np.empty(size, np.uint8) if place is None else place


def _placed(size: int) -> np.ndarray | None:
    try:
        return _segments.place(size)
    except OSError:  # no room, or no folder for temporary files: it stays in memory, as it would without this module
        return None


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


def files_of(arrays: Iterable[np.ndarray]) -> list[mmap.mmap]:
    """The maps that large arrays lie in, each once, for `let_go_of_files`."""
    found = (_file_of(array) for array in arrays if array.nbytes >= LEAST_BYTES)
    return list({id(content): content for content in found if content is not None}.values())


def let_go_of_files(files: Iterable[mmap.mmap]) -> None:
    """Give back what whole maps take, whoever reads in them."""
    for content in files if hasattr(mmap, "MADV_DONTNEED") else ():
        content.madvise(mmap.MADV_DONTNEED)


def _file_of(array: np.ndarray) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def trim() -> None:
    """Give the system back what the C library keeps of freed memory (of glibc; elsewhere nothing is done).

    A runtime that loads hundreds of MB of weights frees as much on the way, in pieces that are kept for later.
    """
    give_back = getattr(_libc(), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


@contextmanager
def mapping_freed_memory() -> Iterator[None]:
    """Inside, what is allocated in pieces of 1 MiB or more goes back to the system when it is freed (glibc; elsewhere
    nothing changes). Else glibc learns to keep pieces up to 32 MiB, and is told afterwards to do so, since mapping
    memory anew at each run would slow NumPy down."""
    set_option = getattr(_libc(), "mallopt", None)
    if set_option is None:
        yield
        return
    set_option(_MMAP_THRESHOLD, LEAST_BYTES)
    try:
        yield
    finally:
        set_option(_MMAP_THRESHOLD, _MOST_KEPT)
        set_option(_TRIM_THRESHOLD, 2 * _MOST_KEPT)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # no library of that kind
        return None
