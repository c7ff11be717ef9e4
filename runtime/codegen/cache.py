"""Compiled kernels on disk, by the digest of all that went into them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import platformdirs

LEFT_BEHIND = 3600  # seconds
_UNDER_WAY = "making-"  # how names begin of what is not whole yet
_SEAL = hashlib.sha256().digest_size  # a digest of the content behind it, which loaders of programs do not look at


def folder() -> Path:
    """`$EGRAFT_KERNELS`, else a folder of the user's cache."""
    named = os.environ.get("EGRAFT_KERNELS")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("egraft")) / "kernels"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, made by `make(path)` where it is not there or damaged. Two processes may make it at
    once: each writes a file of its own, and the last to be renamed stays. Where the folder cannot be written, a
    folder of this process takes its place. `content` reads a file; programs are loaded as they are."""
    target = folder() / name
    if _is_whole(target):
        return target
    try:
        return _made(target, make)
    except OSError:  # also of `make`: the disk may be full
        spare = Path(_own_folder().name) / name
        return spare if _is_whole(spare) else _made(spare, make)


def content(path: Path) -> bytes:
    """What was made."""
    return path.read_bytes()[:-_SEAL]


def _made(target: Path, make: Callable[[Path], None]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    handle, own = tempfile.mkstemp(dir=target.parent, prefix=_UNDER_WAY, suffix=target.suffix)
    os.close(handle)
    try:
        make(Path(own))
        with open(own, "ab") as file:
            file.write(hashlib.sha256(Path(own).read_bytes()).digest())
        os.replace(own, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(own)
    return target


@cache
def _sweep(where: Path) -> None:
    """Once in a process: away with what others left that were killed meanwhile. Nothing takes that long to compile."""
    for path in where.glob(f"{_UNDER_WAY}*"):
        with contextlib.suppress(OSError):  # another process was faster, or it is not ours
            if time.time() - path.stat().st_mtime > LEFT_BEHIND:
                path.unlink()


def _is_whole(path: Path) -> bool:
    try:
        found = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(found[:-_SEAL]).digest() == found[-_SEAL:]


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="egraft-kernels-")
