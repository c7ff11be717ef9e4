"""A generated kernel: its text, its parameters, and how it is launched."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .scalar import Scalar

LANGUAGE = Path(__file__).with_name("language.h")
PARALLEL_THREADS = 256


@dataclass(frozen=True, slots=True)
class Parameter:
    """A pointer to the elements of a tensor, in the order of the launch's arguments."""

    name: str
    dtype: str
    output: bool = False

    @property
    def text(self) -> str:
        """As the kernel declares it."""
        return f"{'EG_OUT' if self.output else 'EG_IN'}({Scalar.of(self.dtype).storage}) {self.name}"


@dataclass(frozen=True)
class Kernel:
    """One kernel, specialized for sizes and attributes.

    `body` is what stands between the braces. `items` counts what `EG_PARALLEL` or `EG_ROWS` walks over; `columns`
    (threads of a row) and `rows` (of a block) are 256 and 1 for `EG_PARALLEL`. `waits`: it has barriers or shuffles.
    `in_place`: an output may lie on an input of the same shape and dtype, since every thread reads its elements
    before it writes them. `exact`: compiled without contraction into fused multiply-adds.
    """

    name: str
    parameters: tuple[Parameter, ...]
    body: str
    items: int
    columns: int = PARALLEL_THREADS
    rows: int = 1
    waits: bool = False
    in_place: bool = False
    exact: bool = True
    wide: bool = False
    helpers: tuple[str, ...] = field(default=())  # texts of device functions that the body calls

    @cached_property
    def text(self) -> str:
        """The kernel alone, as traces show it."""
        helpers = "".join(f"{text.rstrip()}\n" for text in self.helpers)
        parameters = ", ".join(each.text for each in self.parameters)
        return f"{helpers}EG_KERNEL({self.name})({parameters}) {{\n{self.body.rstrip()}\n}}\n"

    @property
    def block(self) -> tuple[int, int]:
        """Threads of a block."""
        return self.columns, self.rows

    def grid(self, most_blocks: int) -> int:
        """Blocks of a launch; each walks on where there are more items than the grid covers."""
        per_block = self.columns * self.rows if not self.is_rowwise else self.rows
        return max(1, min(-(-self.items // per_block), most_blocks))

    @property
    def is_rowwise(self) -> bool:
        """It walks with `EG_ROWS`."""
        return "EG_ROWS(" in self.body

    @property
    def definitions(self) -> dict[str, str]:
        """Macros that the language reads."""
        found = {"EG_BX": str(self.columns), "EG_BY": str(self.rows)}
        if self.in_place:
            found["EG_ALIASING"] = "1"
        if self.wide:
            found["EG_WIDE"] = "1"
        return found

    @cached_property
    def key(self) -> str:
        """Digest of all that decides what is compiled, the language included."""
        parts = [language_text(), self.text, repr(sorted(self.definitions.items())), str(self.exact)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def source(self) -> str:
        """The whole text that a CUDA compiler gets."""
        definitions = "".join(f"#define {name} {value}\n" for name, value in sorted(self.definitions.items()))
        return f"{definitions}{language_text()}{self.text}"


def language_text() -> str:
    """`language.h`."""
    global _language
    if not _language:
        _language = LANGUAGE.read_text(encoding="utf-8")
    return _language


_language = ""
