"""The checking emulation: the CUDA reading of a kernel, run on the CPU by fibers (`emulation.h`, `emulation.cpp`).

It finds reads and writes outside of a tensor, reads of what nothing has written, races in global and shared memory,
divergent barriers and shuffles. A C++ compiler (`$CXX`, g++ or clang++) is needed; tests and checks use it, nothing
else does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from graphs.errors import ExecutionFailed, TargetUnavailable

from . import address
from .cache import cached
from .kernel import Kernel, language_text
from .scalar import Scalar

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-w")
# A kernel runs on little data: -O1 would take three times as long to compile for a third off the run.
KERNEL_LEVEL, SCHEDULER_LEVEL = "-O0", "-O2"
MOST_TEXT = 4000


class Faults(ExecutionFailed):
    """The emulation found what a GPU must not be asked to do."""


@dataclass(slots=True)
class Memory:
    """Bytes of a device, and which of them hold a value."""

    data: np.ndarray
    filled: np.ndarray

    @staticmethod
    def of(size: int) -> Memory:
        """Memory that nothing has written."""
        return Memory(np.full(size, 0xA5, np.uint8), np.zeros(size, np.uint8))


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor in memory: where its first element is (bytes), and the strides (elements) of its dimensions."""

    memory: Memory
    start: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def region(self) -> tuple[int, int]:
        """First byte and one past the last that it may touch."""
        low, high = address.extent(self.shape, self.strides)
        size = Scalar.of(self.dtype).bits // 8
        return self.start + low * size, self.start + high * size


class _Region(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("filled", ctypes.c_void_p), ("writer", ctypes.c_void_p),
                ("reader", ctypes.c_void_p), ("low", ctypes.c_long), ("high", ctypes.c_long),
                ("unit", ctypes.c_long), ("origin", ctypes.c_long), ("name", ctypes.c_char_p)]  # fmt: skip


def unavailable() -> str | None:
    """Why kernels cannot be emulated here; None if they can."""
    named = os.environ.get("CXX", "")
    if named and not shutil.which(named):
        return f"$CXX is {named!r}, and no such program is here; correct it, or leave it unset for g++ or clang++"
    return None if _compiler() else "no C++ compiler is here; install g++ or name one in $CXX"


@lru_cache(maxsize=1)
def _compiler() -> str | None:
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def _own(compiler: str) -> tuple[str, ...]:
    # Shared memory is a static variable of a template, which g++ makes one for all libraries of a process, although
    # it has another size in each.
    return () if "clang" in Path(compiler).name else ("-fno-gnu-unique",)


def _compile(source: str, name: str, level: str = KERNEL_LEVEL) -> Path:
    compiler = _compiler()
    if compiler is None:
        raise TargetUnavailable("the kernel emulation", "no C++ compiler is here", "install g++ or name one in $CXX")
    header = (HERE / "emulation.h").read_text(encoding="utf-8")
    told = [compiler, level, *FLAGS, *_own(compiler)]
    digest = hashlib.sha256("\0".join([source, header, *told]).encode()).hexdigest()[:24]

    def make(path: Path) -> None:
        command = [*told, f"-I{HERE}", "-x", "c++", "-", "-o", str(path)]
        done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
        if done.returncode:
            raise ExecutionFailed(f"kernel {name}", f"{compiler} refuses its emulation: {done.stderr[:2000]}",
                                  "report it: generated kernels must compile")

    return cached(f"emulated-{digest}.so", make)


@lru_cache(maxsize=1)
def _scheduler() -> ctypes.CDLL:
    path = _compile((HERE / "emulation.cpp").read_text(encoding="utf-8"), "scheduler", SCHEDULER_LEVEL)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _entry_source(kernel: Kernel) -> str:
    values = ", ".join(f"eg_pointer<{Scalar.of(each.dtype).storage}>{{(const eg_region*)a[{index}]}}"
                       for index, each in enumerate(kernel.parameters))
    return f'extern "C" void entry_{kernel.name}(void** a) {{ {kernel.name}({values}); }}\n'



_loaded: dict[str, ctypes.CDLL] = {}
_one_at_a_time = threading.RLock()  # fibers, and shared memory in libraries, are of the process


def prepare(kernels: Sequence[Kernel]) -> None:
    """Compile several kernels at once: one call of the compiler costs as much as many small kernels.

    Kernels of different definitions cannot share a file; each group of equal ones does, in namespaces.
    """
    with _one_at_a_time:
        _prepare(kernels)


def _prepare(kernels: Sequence[Kernel]) -> None:
    groups: dict[str, list[Kernel]] = {}
    for kernel in {each.key: each for each in kernels}.values():
        if kernel.key not in _loaded:
            groups.setdefault(repr(sorted(kernel.definitions.items())), []).append(kernel)
    _scheduler()
    for group in groups.values():
        first = group[0]
        definitions = "".join(f"#define {name} {value}\n" for name, value in sorted(first.definitions.items()))
        parts = [f"namespace k{each.key} {{\n{each.text}{_renamed(each)}}}\n" for each in group]
        source = f"#define EG_EMULATED 1\n{definitions}{language_text()}{''.join(parts)}"
        library = ctypes.CDLL(str(_compile(source, first.name)))
        for kernel in group:
            _loaded[kernel.key] = library


def _renamed(kernel: Kernel) -> str:
    return re.sub(r"\bentry_\w+", f"entry_{kernel.key}", _entry_source(kernel), count=1)


def launch(kernel: Kernel, arguments: Sequence[Argument], seed: int = 0, most_blocks: int = 1 << 16) -> None:
    """Run a kernel. `seed` other than 0 shuffles the order of threads and blocks. Raises Faults with what was
    found."""
    if len(arguments) != len(kernel.parameters):
        raise ValueError(f"kernel {kernel.name} takes {len(kernel.parameters)} tensors, not {len(arguments)}")
    for argument, parameter in zip(arguments, kernel.parameters):
        if argument.dtype != parameter.dtype:
            raise ValueError(f"{kernel.name}: {parameter.name} is {parameter.dtype}, not {argument.dtype}")
    keep, regions = _regions(kernel, arguments)
    pointers = (ctypes.c_void_p * max(len(regions), 1))(*(ctypes.addressof(region) for region in regions))
    text = ctypes.create_string_buffer(MOST_TEXT)
    block = (ctypes.c_uint * 2)(*kernel.block)
    with _one_at_a_time:
        _prepare([kernel])
        entry = ctypes.cast(getattr(_loaded[kernel.key], f"entry_{kernel.key}"), ctypes.c_void_p)
        found = _scheduler().eg_launch(entry, pointers, ctypes.c_uint(kernel.grid(most_blocks)), block,
                                       ctypes.c_uint(seed), int(kernel.waits), text, MOST_TEXT)
    del keep
    if found:
        first = text.value.decode(errors="replace").strip()
        raise Faults(f"kernel {kernel.name}", f"the emulation found {found} faults: {first[:1500]}",
                     "report it: a generated kernel must have none")


def _regions(kernel: Kernel, arguments: Sequence[Argument]) -> tuple[list[np.ndarray], list[_Region]]:
    """What the kernel is told of each tensor. Tensors that overlap share their shadows."""
    spans = [argument.region() for argument in arguments]
    keep: list[np.ndarray] = []
    regions: list[_Region | None] = [None] * len(arguments)
    left = list(range(len(arguments)))
    while left:
        group = [left.pop(0)]
        grown = True
        while grown:
            grown = False
            for index in list(left):
                if any(_overlap(arguments[index], spans[index], arguments[each], spans[each]) for each in group):
                    group.append(index)
                    left.remove(index)
                    grown = True
        low, high = min(spans[each][0] for each in group), max(spans[each][1] for each in group)
        unit = min(Scalar.of(arguments[each].dtype).bits // 8 for each in group)
        shadow = np.zeros((2, max((high - low) // unit + 2, 1)), np.int64)
        keep.append(shadow)
        for each in group:
            argument = arguments[each]
            first, last = address.extent(argument.shape, argument.strides)
            regions[each] = _Region(
                argument.memory.data.ctypes.data + argument.start, argument.memory.filled.ctypes.data + argument.start,
                shadow[0].ctypes.data, shadow[1].ctypes.data, first, last, unit, argument.start - low,
                kernel.parameters[each].name.encode())
    return keep, [region for region in regions if region is not None]


def _overlap(a: Argument, of_a: tuple[int, int], b: Argument, of_b: tuple[int, int]) -> bool:
    return a.memory is b.memory and of_a[0] < of_b[1] and of_b[0] < of_a[1]
