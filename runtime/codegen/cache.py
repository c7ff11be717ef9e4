"""Compiled kernels on disk, by the digest of all that went into them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs


def folder() -> Path:
    """`$EGRAFT_KERNELS`, else a folder of the user's cache."""
    named = os.environ.get("EGRAFT_KERNELS")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("egraft")) / "kernels"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, made by `make(path)` where it is not there. Two processes may make it at once: each
    writes a file of its own, and the last to be renamed stays."""
    target = folder() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, own = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
    os.close(handle)
    try:
        make(Path(own))
        os.replace(own, target)
    finally:
        Path(own).unlink(missing_ok=True)
    return target
