"""The BLAS library that NumPy is linked to: its name, the kernel it chose for this CPU, its thread count."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

# OpenBLAS is built with and without a prefix and a suffix for 64-bit integers; NumPy's wheels have both.
_SPELLINGS = tuple((prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", ""))


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL, str, str] | None:
    """The loaded OpenBLAS with the spelling of its functions, None where NumPy uses another library."""
    np.dot(np.ones((2, 2)), np.ones((2, 2)))  # so that a lazily loaded library is there
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = dict.fromkeys(
        line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if "blas" in line
    )
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:  # a file mapped under a name that is gone; another entry may be the one
            continue
        for prefix, suffix in _SPELLINGS:
            if hasattr(library, f"{prefix}openblas_get_config{suffix}"):
                return library, prefix, suffix
    return None


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    found = _library()
    if found is None:
        return None
    library, prefix, suffix = found
    function = getattr(library, f"{prefix}openblas_{name}{suffix}", None)
    if function is not None:
        function.restype, function.argtypes = result, list(arguments)
    return function


def _text(name: str) -> str:
    function = _function(name, ctypes.c_char_p)
    answer = function() if function is not None else None
    return answer.decode(errors="replace").strip() if answer else ""


def description() -> dict[str, str]:
    """Name, version and chosen kernel; empty text where the library does not tell."""
    config: Any = np.show_config(mode="dicts")
    build = config.get("Build Dependencies", {}).get("blas", {}) if isinstance(config, dict) else {}
    return {
        "name": str(build.get("name", "")),
        "version": _text("get_config") or str(build.get("version", "")),
        "kernel": _text("get_corename"),
    }


def threads() -> int | None:
    """How many threads NumPy's BLAS uses now, None where it does not tell."""
    function = _function("get_num_threads", ctypes.c_int)
    return int(function()) if function is not None else None


@lru_cache(maxsize=1)
def thread_switch() -> Callable[[int], int]:
    """A fast function that sets the number of BLAS threads and answers the one before.

    It does nothing, and answers its argument, where the library does not let itself be set from here.
    """
    getter = _function("get_num_threads", ctypes.c_int)
    setter = _function("set_num_threads", None, ctypes.c_int)
    if getter is None or setter is None:
        return lambda count: count

    def switch(count: int) -> int:
        before = int(getter())
        if before != count:
            setter(count)
        return before

    return switch


@contextmanager
def limited_to(count: int) -> Iterator[None]:
    """Let NumPy's BLAS use `count` threads inside, where that can be set from here."""
    switch = thread_switch()
    before = switch(count)
    try:
        yield
    finally:
        switch(before)
