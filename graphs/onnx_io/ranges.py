"""Weights that lie in a file as they are: copied from file to file by the kernel, never through this process."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..constants import Constant

RANGE = "range"  # key in a constant's __dict__: the FileRange that its bytes came from
_STEP = 1 << 28  # bytes of one call
# No such file any more; a system or a file system that does this to sockets only.
_CANNOT = (errno.ENOENT, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK)


@dataclass(frozen=True, slots=True)
class FileRange:
    """`length` bytes from `offset` of a file; `identity` tells whether the path still leads to that very file."""

    path: Path
    identity: tuple[int, ...]
    offset: int
    length: int


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced or written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def copied(constant: Constant, out: BinaryIO) -> bool:
    """Append the bytes of a constant to a file; False, and nothing written, where they lie in no file or the kernel
    has no way to copy them. Raises OSError where the disk is full, say."""
    place = constant.__dict__.get(RANGE)
    if not isinstance(place, FileRange) or not hasattr(os, "sendfile"):
        return False
    start = out.tell()
    try:
        with place.path.open("rb") as source:
            if identity_of(os.fstat(source.fileno())) != place.identity:
                return False  # the map still holds the old content
            out.flush()
            done = 0
            while done < place.length:
                step = os.sendfile(out.fileno(), source.fileno(), place.offset + done, min(_STEP, place.length - done))
                if not step:
                    raise OSError(errno.EIO, f"{place.path} became shorter")
                done += step
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        out.seek(start)
        out.truncate()
        return False
    out.seek(start + place.length)
    return True
