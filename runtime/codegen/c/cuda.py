"""The CUDA reading of a fused kernel: the text that the C compiler gets, with sizes as numbers.

A row is shared by some of a block's threads (`Variant`); without reductions, where there are no rows, a thread has an
element. Products are the engine's, which has no CUDA reading: kernels behind one read what cuBLAS wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from ..kernel import PARALLEL_THREADS, Kernel, Parameter
from ..rowwise import MOST_KEPT, OWN_ROWS, block_of
from ..scalar import Scalar
from .text import BUFFER, FAULT, Written

READING = Path(__file__).with_name("reading.cuh")
_ROW = re.compile(r"EG_OVER\((r\d+), (\w+)\)$")
_LOOP = re.compile(r"EG_(OVER|INNER|BLOCKS)\(([A-Za-z]\d+), (\w+)[,)]")
_BASE = re.compile(r"const eg_index b(\d+) = ")
_KEPT = re.compile(r"EG_KEPT\(p(\d+), (.*?), (\w+), (\w+)\)")
_INNERMOST = re.compile(r"EG_(?:INNER|BLOCKS)\(\w+, (\w+)")
_STEP = re.compile(r"s(\d+)([A-Za-wyz])(\d+)$")  # x: of indices
_VARIANT = re.compile(r"c(\d+)(?:r(\d+))?(n?)$")
MOST_THREADS = 1024  # of a block
FLAT_THREADS = (128, 512)  # of blocks beside the usual ones
ROW_BLOCKS = ((1, 256), (32, 4), (128, 1), (256, 1), (512, 1), (1024, 1))  # (threads of a row, rows of a block)


@dataclass(frozen=True, slots=True)
class Variant:
    """How fused kernels are launched where it is not as usual: `columns` threads share a row, and a block has so many
    `rows`; where there are no rows (0), a block has so many threads. `keeps`: a thread keeps what it needs again of its
    row, instead of computing it again. As text `c128r2`, with an `n` behind it if nothing is kept."""

    columns: int
    rows: int = 0
    keeps: bool = True

    def __str__(self) -> str:
        return f"c{self.columns}{f'r{self.rows}' if self.rows else ''}{'' if self.keeps else 'n'}"

    @staticmethod
    def of(text: str) -> Variant | None:
        """The variant of a text; None for what is none, such as the empty text of the usual one."""
        found = _VARIANT.match(text)
        if found is None:
            return None
        made = Variant(int(found.group(1)), int(found.group(2) or 0), not found.group(3))
        threads = made.columns * max(made.rows, 1)
        return made if threads <= MOST_THREADS and threads and not made.columns & (made.columns - 1) else None


@dataclass(frozen=True)
class Reading:
    """A kernel and the tensors that it is launched on, one for each parameter (`text.FAULT` is an int64 that holds
    0)."""

    kernel: Kernel
    tensors: tuple[str, ...]


def reading_of(written: Written, given: Collection[str], exact: bool, wide: bool = False,
               variant: Variant | None = None, told: bool = True) -> Reading:
    """The CUDA reading of a written kernel, whose parameters are tensors: those that are not `given` are written.
    `wide`: a tensor has 2^31 elements or more. `told`: FAULT tells of indices outside of their axes; else those read 0
    (the kernel is that of guarded values)."""
    body, rows = _parted(written)
    body = [_from_start(line, written) for line in body]
    flat = is_flat(written)
    lines = [f"  const eg_index {name} = {size};" for name, size in written.sizes.items()]
    if flat:
        own, items = _flat(body, written)
        block = (variant.columns if variant is not None and not variant.rows else PARALLEL_THREADS), 1
    else:
        items, block = prod(size for _, size in rows), block_for(written, variant)
        body = [_by_rows(line, bool(_kept(body, written))) for line in body]
        own = [f"EG_ROWS(row, {items})", *_digits("row", rows), *_buffers(body, written), *body, "EG_END"]
    if not told:
        own = [f"EG_PLACE({line[len('EG_INDEX('):]}" if line.startswith("EG_INDEX(") else line for line in own]
    left = {BUFFER} if told else {BUFFER, FAULT}
    named = [(number, tensor) for number, (tensor, _) in enumerate(written.pointers) if tensor not in left]
    parameters = tuple(Parameter(f"p{number}", written.dtypes[number], tensor not in given)
                       for number, tensor in named)
    kernel = Kernel("eg_fused", parameters, "\n".join([*lines, *own]), items, *block, waits=not flat and block[0] > 1,
                    exact=exact, wide=wide, helpers=(_reading(), *written.helpers))
    return Reading(kernel, tuple(tensor for _, tensor in named))


@cache
def _reading() -> str:
    return READING.read_text(encoding="utf-8")


def _by_rows(line: str, kept: bool) -> str:
    """A line where threads share rows: those of rows beyond the last one write nothing. `kept`: there are row buffers,
    which a thread has in registers if its loops over columns are unrolled."""
    if line.startswith("EG_PUT("):
        return f"EG_PUT_ROW({line[len('EG_PUT('):]}"
    if kept and line.startswith(("EG_INNER(", "EG_BLOCK_INNER(")):
        return f"EG_KEPT_{line[len('EG_'):]}"
    return line


def _parted(written: Written) -> tuple[list[str], list[tuple[str, int]]]:
    """What stands inside of the loops over rows, and those loops."""
    body, rows = list(written.body), []
    while body and (found := _ROW.match(body[0])):
        rows.append((found.group(1), written.sizes[found.group(2)]))
        body.pop(0)
    return body[:len(body) - len(rows)], rows


def is_flat(written: Written) -> bool:
    """Whether a thread has an element: there is nothing that threads would share."""
    body, rows = _parted(written)
    return not rows and not any("EG_TOTAL" in line or "EG_PUT_ONCE" in line for line in body)


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
    """A thread for each element of each piece: all loops of a piece, which have its letter, as one."""
    loops: dict[str, list[tuple[str, int]]] = {}
    for line in body:
        if found := _LOOP.match(line):
            loops.setdefault(found.group(2)[0], []).append((found.group(2), written.sizes.get(found.group(3), 1)))
    items = {piece: prod(size for _, size in own) for piece, own in loops.items()}
    lines, opened = [], set()
    for line in body:
        if found := _LOOP.match(line):
            piece = found.group(2)[0]
            lines += [] if piece in opened else [f"EG_PARALLEL(i, {items[piece]})", *_digits("i", loops[piece])]
            opened.add(piece)
        elif line != "EG_END":
            lines.append("EG_END" if line == "EG_INNER_END" else line)
    return lines, max(items.values())


def block_for(written: Written, variant: Variant | None = None) -> tuple[int, int]:
    """Threads that share a row, and rows of a block, of a kernel with rows."""
    if variant is not None and variant.rows:
        return variant.columns, variant.rows
    body, rows = _parted(written)
    names = [name for line in body for name in _INNERMOST.findall(line)]
    length, count = max((written.sizes.get(name, 1) for name in names), default=1), prod(size for _, size in rows)
    own = _side_by_side(written, len(rows)) and (count >= OWN_ROWS or length <= MOST_KEPT)
    return block_of(count, length, own)


def _side_by_side(written: Written, rows: int) -> bool:
    """Whether neighbouring rows are nearer in memory than neighbouring columns, for every tensor that has both."""
    steps: dict[int, dict[str, int]] = {}
    for name, step in written.sizes.items():
        found = _STEP.match(name)
        if found is not None and (found.group(2) != "r" or int(found.group(3)) == rows - 1):
            steps.setdefault(int(found.group(1)), {})["row" if found.group(2) == "r" else "column"] = step
    both = [each for each in steps.values() if "row" in each]
    return bool(both) and all(abs(each["row"]) < abs(each.get("column", 1)) for each in both)


def kept_by(written: Written, columns: int) -> int:
    """Numbers that a thread keeps of its row, where so many threads share it."""
    return sum(outer * -(-size // columns) for _, outer, size in _kept(written.body, written))


def _kept(body: Collection[str], written: Written) -> list[tuple[int, int, int]]:
    """Row buffers: the number of the pointer, rounds of the loops outside, trips of the innermost one."""
    trips = {found.group(0): found for line in body for found in _KEPT.finditer(line)}
    sizes = {int(found.group(1)): written.sizes.get(found.group(3), 1) for found in trips.values()}
    return [(number, elements // sizes[number], sizes[number])
            for number, (tensor, elements) in enumerate(written.pointers) if tensor == BUFFER and number in sizes]


def _buffers(body: list[str], written: Written) -> list[str]:
    """What a thread keeps of its row."""
    return [f"{Scalar.of(written.dtypes[number]).compute} p{number}[{outer} * EG_KEPT_SIZE({size})];"
            for number, outer, size in _kept(body, written)]


def variants_of(kernels: Collection[Kernel]) -> tuple[Variant, ...]:
    """Other ways to launch fused kernels that are launched as usual."""
    by_rows = [each for each in kernels if each.is_rowwise]
    if not by_rows:
        return tuple(map(Variant, FLAT_THREADS)) if kernels else ()
    usual = {each.block for each in by_rows}
    found = [Variant(*block) for block in ROW_BLOCKS if {block} != usual]
    if len(usual) == 1 and any("EG_KEPT(" in each.body for each in by_rows):
        found.append(Variant(*usual.pop(), keeps=False))
    return tuple(found)


def described(kernel: Kernel) -> str:
    """A fused kernel as reports show it: how it is launched, and its text without the functions that all share."""
    threads, rows = kernel.block
    how = f"{threads} threads for each of {rows} rows" if kernel.is_rowwise else f"{threads * rows} threads"
    return f"// a block: {how}\n{kernel.text.replace(_reading().rstrip(), '').lstrip()}"
