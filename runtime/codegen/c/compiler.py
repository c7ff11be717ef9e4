"""The system's C compiler, and functions that it made: cached on disk by content, loaded with ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from graphs.errors import ExecutionFailed, TargetUnavailable

from ..cache import cached
from .views import NotCompiled

HERE = Path(__file__).parent
READING = HERE / "reading.h"
# No -ffast-math: it turns subnormal numbers off for the whole process. What is set changes no value: nobody looks at
# errno or at floating-point traps, and `omp simd` regroups only the sums that say so.
FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd",
         "-fwrapv", "-ffp-contract=off", "-w")  # fmt: skip
_TESTED = "int main(void) { return 0; }\n"
SECONDS = 60  # a compiler that takes longer for one kernel hangs
MOST_TEXT = 2000
REFUSED = "the C compiler refused it"
# What compilers say of a text; else it was the linker, a full disk, the end of memory: that says nothing of the text.
_REFUSED = re.compile(r"^<stdin>:\d+:(\d+:)? (fatal )?error: ", re.MULTILINE)
_failed: dict[str, str] = {}  # what was not made in this process, and why: nothing is tried twice
_INNER = re.compile(r"^(EG_INNER|EG_BLOCK_INNER)\(")
_LAST = "EG_INNER_END"

Function = Callable[[int, int], None]  # addresses of the array of pointers and of the array of sizes


def unavailable() -> str | None:
    """Why kernels cannot be compiled here; None if they can."""
    if _compiler():
        return None
    why = f" ({trouble})" if (trouble := _trouble_with_cc()) else ""
    return (f"no C compiler is here{why}; install gcc or clang, name one in $CC, or "
            "pip install 'egraft[jit]', which brings one")


def passed_over() -> str | None:
    """What to tell where another compiler is used than $CC names; None if it is that one, or none at all."""
    found, trouble = _compiler(), _trouble_with_cc()
    if found is None or trouble is None:
        return None
    return f"{trouble}: kernels are compiled with {shlex.join(found[0])} instead"


def _trouble_with_cc() -> str | None:
    """Why what $CC names is not the compiler; None if it is, or nothing is named."""
    found, wanted, named = _compiler(), _named(), os.environ.get("CC", "").strip()
    if not named or (found is not None and found[0] == wanted):
        return None
    why = "no such program is here" if wanted is None else "it does not answer as compilers do"
    return f"$CC is {named!r}, and {why}"


def identity() -> str:
    """The compiler, its flags and the machine's instructions as a digest; empty without a compiler."""
    found = _compiler()
    return hashlib.sha256(found[2].encode()).hexdigest()[:16] if found else ""


def _commands() -> Iterator[tuple[str, ...]]:
    """Compilers that may be here: the system's, and that of the package ziglang (clang, without a system)."""
    named = _named()
    if named is not None:
        yield named
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            yield (path,)
    if find_spec("ziglang") is not None:
        yield sys.executable, "-m", "ziglang", "cc"


def _named() -> tuple[str, ...] | None:
    """The command in $CC, a program and perhaps options (`ccache gcc`); None where there is no such program."""
    try:
        program, *more = shlex.split(os.environ.get("CC", "")) or [""]
    except ValueError:  # a quotation mark that does not end: no program is called so
        return None
    path = shutil.which(program)
    return None if path is None else (path, *more)


@lru_cache(maxsize=1)
def _compiler() -> tuple[tuple[str, ...], tuple[str, ...], str] | None:
    """(command, flags for this machine, what identifies both and the machine's instructions)."""
    for command in _commands():
        try:
            said = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace",
                                  timeout=SECONDS)
            flags = _machine_flags(command) if said.returncode == 0 else None
        except (OSError, subprocess.TimeoutExpired):  # no program, whatever its mode says; `passed_over` tells
            continue
        if flags is not None:
            return command, flags, "\0".join([said.stdout.partition("\n")[0], *flags, _instructions()])
    return None


def _machine_flags(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """Flags for this very machine that the compiler knows; None where it compiles nothing."""
    wide = platform.machine() == "x86_64" and " avx512f " in f" {_instructions()} "
    native = ("-march=native", "-mprefer-vector-width=512") if wide else ("-march=native",)
    with TemporaryDirectory() as folder:  # ziglang cannot do without a file that it writes
        made = Path(folder) / "tested.o"
        for flags in (native, ("-mcpu=native",), ()):
            tried = [*command, *flags, "-x", "c", "-", "-c", "-o", str(made)]
            done = subprocess.run(tried, input=_TESTED, text=True, errors="replace", capture_output=True,
                                  timeout=SECONDS)
            if done.returncode == 0 and made.exists():  # `true` says that all went well
                return flags
    return None


@lru_cache(maxsize=1)
def _instructions() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(errors="replace").splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return value.strip()
    return platform.processor()


@lru_cache(maxsize=1)
def _reading() -> str:
    return READING.read_text(encoding="utf-8")


@lru_cache(maxsize=4096)
def compiled(name: str, text: str, exact: bool) -> Function:
    """The function `name` of a kernel text. Raises TargetUnavailable without a compiler, ExecutionFailed with what
    the compiler said where it refuses the text.

    `exact`: exp, tanh and erf are those of C's library.
    """
    source = f"{'#define EG_EXACT 1' if exact else ''}\n{_reading()}\n{with_rests(text)}"
    function = getattr(library(name, source), name)
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return function  # type: ignore[no-any-return]


def with_rests(text: str) -> str:
    """The text with each innermost loop that is inside of another one in two parts: whole vectors, and the rest as one
    vector (`reading.h`)."""
    made: list[str] = []
    depth = 0
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if line.startswith(("EG_OVER(", "EG_BLOCKS(")):
            depth += 1
        elif line == "EG_END":
            depth -= 1
        made.append(line)
        if depth and line == _LAST:
            first = max(at for at in range(place) if _INNER.match(lines[at]))
            inside, length = lines[first + 1:place], place - first + 1
            made[-length] = _INNER.sub(r"\1_WHOLE(", lines[first])
            made += [_INNER.sub(r"\1_REST(", lines[first]), *inside, "EG_REST_END"]
    return "\n".join(made)


def library(name: str, source: str, *more: str, seconds: int = SECONDS) -> ctypes.CDLL:
    """A C text compiled (with `more` flags) and loaded. Raises as `compiled` does, and NotCompiled."""
    found = _compiler()
    if found is None:
        raise TargetUnavailable("fused kernels", *str(unavailable()).split("; "))
    program, machine, identity = found
    flags = [*FLAGS, *machine, *more]
    digest = hashlib.sha256("\0".join([identity, *flags, source]).encode()).hexdigest()[:24]
    if digest in _failed:
        raise NotCompiled(_failed[digest])

    def make(target: Path) -> None:
        command = [*program, *flags, "-x", "c", "-", "-o", str(target), "-lm"]
        done = subprocess.run(command, input=source, text=True, errors="replace", capture_output=True, timeout=seconds,
                              env={**os.environ, "LC_ALL": "C"})  # it says "error" in English
        if not done.returncode:
            return
        if _REFUSED.search(done.stderr):
            raise ExecutionFailed(f"kernel {name!r}", f"{REFUSED}: {done.stderr[:MOST_TEXT]}",
                                  "report this as a defect of egraft")
        raise OSError(f"the C compiler failed (status {done.returncode}): {done.stderr.strip()[-MOST_TEXT:]}")

    try:
        return ctypes.CDLL(str(cached(f"{name}-{digest}.so", make)))
    except (subprocess.TimeoutExpired, OSError) as reason:
        _failed[digest] = " ".join(str(reason).split())[:MOST_TEXT]
        raise NotCompiled(_failed[digest]) from reason


def not_compiled() -> str:
    """Why kernels were not compiled in this process that the compiler does not refuse; empty if none was."""
    return next(iter(_failed.values()), "")
