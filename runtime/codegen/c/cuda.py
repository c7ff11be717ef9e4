"""The CUDA reading of a fused kernel: the text that the C compiler gets, with sizes as numbers.

A row is a block's, and its columns are shared by the block's threads; without reductions, where there are no rows, a
thread has an element. Products are the engine's, which has no CUDA reading: kernels behind one read what cuBLAS wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from ..kernel import PARALLEL_THREADS, Kernel, Parameter
from ..scalar import Scalar
from .text import BUFFER, Written

READING = Path(__file__).with_name("reading.cuh")
_ROW = re.compile(r"EG_OVER\((r\d+), (\w+)\)$")
_LOOP = re.compile(r"EG_(OVER|INNER|BLOCKS)\(([a-z]\d+), (\w+)[,)]")
_BASE = re.compile(r"const eg_index b(\d+) = ")
_KEPT = re.compile(r"EG_KEPT\(p(\d+), (.*?), (\w+), (\w+)\)")
_INNERMOST = re.compile(r"EG_(?:INNER|BLOCKS)\(\w+, (\w+)")
_MOST_THREADS = 256


@dataclass(frozen=True)
class Reading:
    """A kernel and the tensors that it is launched on, one for each parameter (`text.FAULT` is an int64 that holds
    0)."""

    kernel: Kernel
    tensors: tuple[str, ...]


def reading_of(written: Written, given: Collection[str], exact: bool, wide: bool = False) -> Reading:
    """The CUDA reading of a written kernel, whose parameters are tensors: those that are not `given` are written.
    `wide`: a tensor has 2^31 elements or more."""
    body = list(written.body)
    rows = []
    while body and (found := _ROW.match(body[0])):
        rows.append((found.group(1), written.sizes[found.group(2)]))
        body.pop(0)
    del body[len(body) - len(rows):]
    body = [_from_start(line, written) for line in body]
    flat = not rows and not any("EG_TOTAL" in line or "EG_PUT_ONCE" in line for line in body)
    lines = [f"  const eg_index {name} = {size};" for name, size in written.sizes.items()]
    if flat:
        own, items = _flat(body, written)
        columns = PARALLEL_THREADS
    else:
        items, columns = prod(size for _, size in rows), _threads(body, written)
        own = [f"EG_ROWS(row, {items})", *_digits("row", rows), *_buffers(body, written), *body, "EG_END"]
    named = [(number, tensor) for number, (tensor, _) in enumerate(written.pointers) if tensor != BUFFER]
    parameters = tuple(Parameter(f"p{number}", written.dtypes[number], tensor not in given)
                       for number, tensor in named)
    kernel = Kernel("eg_fused", parameters, "\n".join([*lines, *own]), items, columns, waits=not flat and columns > 1,
                    exact=exact, wide=wide, helpers=(_reading(), *written.helpers))
    return Reading(kernel, tuple(tensor for _, tensor in named))


@cache
def _reading() -> str:
    return READING.read_text(encoding="utf-8")


def _from_start(line: str, written: Written) -> str:
    """Where a pointer begins is part of the text: parameters are whole tensors."""
    found = _BASE.match(line)
    start = written.pointers[int(found.group(1))][1] if found else 0
    return f"{line[:found.end()]}{start} + {line[found.end():]}" if found and start else line


def _digits(number: str, loops: list[tuple[str, int]]) -> list[str]:
    """The places in several loops, from one number."""
    lines, step = [], 1
    for at, (name, size) in reversed(list(enumerate(loops))):
        place = f"{number} / {step}" if step > 1 else number
        lines.append(f"const eg_index {name} = {f'({place}) % {size}' if at else place};")
        step *= size
    return lines[::-1]


def _flat(body: list[str], written: Written) -> tuple[list[str], int]:
    """A thread for each element: all loops as one."""
    loops = [(found.group(2), written.sizes.get(found.group(3), 1)) for line in body if (found := _LOOP.match(line))]
    items = prod(size for _, size in loops)
    own, opened = [], False
    for line in body:
        if _LOOP.match(line):
            own += [] if opened else [f"EG_PARALLEL(i, {items})", *_digits("i", loops)]
            opened = True
        elif line not in ("EG_END", "EG_INNER_END"):
            own.append(line)
    return [*own, "EG_END"], items


def _threads(body: list[str], written: Written) -> int:
    """Of a row: as many as the innermost loop has trips, a power of two."""
    names = [name for line in body for name in _INNERMOST.findall(line)]
    most = max((written.sizes.get(name, 1) for name in names), default=1)
    return 1 if most == 1 else max(4, min(_MOST_THREADS, 1 << (most - 1).bit_length()))


def _buffers(body: list[str], written: Written) -> list[str]:
    """What a thread keeps of its row."""
    trips = {found.group(0): found.group(3) for line in body for found in _KEPT.finditer(line)}
    sizes = {int(_KEPT.match(text).group(1)): written.sizes.get(name, 1) for text, name in trips.items()}  # type: ignore[union-attr]
    lines = []
    for number, (tensor, elements) in enumerate(written.pointers):
        if tensor == BUFFER and number in sizes:
            outer, kind = elements // sizes[number], Scalar.of(written.dtypes[number]).compute
            lines.append(f"{kind} p{number}[{outer} * EG_KEPT_SIZE({sizes[number]})];")
    return lines
