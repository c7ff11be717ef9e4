"""Kernels whose threads share rows: a tensor is seen as rows (some of its dimensions) of columns (the others)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from . import address
from .address import Shape, Strides
from .kernel import Kernel, Parameter
from .scalar import Scalar

MOST_KEPT = 32  # elements of its row that a thread keeps in registers
FEW_ROWS = 256  # that blocks of 256 threads leave a GPU idle with
OWN_ROWS = 2048  # from so many on, rows that lie side by side get a thread each


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a rowwise kernel: strides over the dimensions of rows and of columns."""

    dtype: str
    rows: Strides
    columns: Strides


@dataclass(frozen=True, slots=True)
class Layout:
    """Which dimensions of a shape are rows, and which are columns: those of `axes`, in that order."""

    shape: Shape
    axes: tuple[int, ...]

    def split(self, values: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Values of the dimensions, those of rows first."""
        kept = tuple(value for axis, value in enumerate(values) if axis not in self.axes)
        return kept, tuple(values[axis] for axis in self.axes)

    @property
    def rows(self) -> Shape:
        """Sizes of the dimensions of rows."""
        return self.split(self.shape)[0]

    @property
    def columns(self) -> Shape:
        """Sizes of the dimensions of columns."""
        return self.split(self.shape)[1]

    @property
    def count(self) -> int:
        """Number of rows."""
        return prod(self.rows)

    @property
    def length(self) -> int:
        """Columns of a row."""
        return prod(self.columns)

    def operand(self, dtype: str, strides: Strides) -> Operand:
        """A tensor with these strides over the whole shape."""
        return Operand(dtype, *self.split(strides))

    def side_by_side(self, strides: Strides) -> bool:
        """Neighbouring rows are nearer in memory than neighbouring columns."""
        def step(axes: Collection[int]) -> int:
            return min((abs(strides[axis]) for axis in axes if self.shape[axis] > 1 and strides[axis]),
                       default=1 << 62)

        return step([axis for axis in range(len(self.shape)) if axis not in self.axes]) < step(self.axes)


def by_stride(axes: Sequence[int], shape: Shape, strides: Strides) -> tuple[int, ...]:
    """Axes in the order in which they lie in memory, for kernels to which the order of columns means nothing."""
    return tuple(sorted(axes, key=lambda axis: (-abs(strides[axis]), axis)))


def block_of(count: int, length: int, own: bool = False) -> tuple[int, int]:
    """Threads that share a row, and rows of a block. `own`: a thread for each row."""
    if own or length <= 2:
        return 1, 256
    if length <= 32:
        columns = max(4, 1 << (length - 1).bit_length())
    elif length <= 256:
        columns = 32
    elif length <= 1024:
        columns = 128
    elif length <= 4096 or (length <= 8192 and count >= FEW_ROWS):
        columns = 256
    else:
        columns = 512 if count >= FEW_ROWS else 1024
    return columns, max(1, 128 // columns)


def is_own(layout: Layout, strides: Strides) -> bool:
    """Each row of an operand with these strides is best walked by one thread."""
    return layout.side_by_side(strides) and (layout.count >= OWN_ROWS or layout.length <= MOST_KEPT)


class RowKernel:
    """Writes a kernel over rows, phase by phase.

    Texts name the row's number `row`, the column `j` and the k-th element that a thread keeps `b[k]`.
    """

    def __init__(self, name: str, layout: Layout, block: tuple[int, int]) -> None:
        self.name, self.layout, self.block = name, layout, block
        steps = -(-layout.length // block[0])
        self.keeps = steps <= (MOST_KEPT if block[0] < 1024 else MOST_KEPT // 2)
        self.operands: dict[str, Operand] = {}
        self.parameters: list[Parameter] = []
        self.lines: list[str] = []

    def add(self, name: str, operand: Operand, output: bool = False) -> Scalar:
        """A parameter. What its elements are in registers."""
        self.operands[name] = operand
        self.parameters.append(Parameter(name, operand.dtype, output))
        where = address.offset("row", self.layout.rows, operand.rows)
        self.line(f"const eg_index {name}_row = {where};")
        return Scalar.of(operand.dtype)

    def line(self, *texts: str) -> None:
        """Statements that every thread of the row does."""
        self.lines.extend(f"  {text}" for text in texts)

    def buffer(self, compute: str) -> None:
        """Declare `b`, where the row is kept."""
        if self.keeps:
            self.line(f"EG_ROW_BUFFER({compute}, b, {self.layout.length});")

    def columns(self, *texts: str) -> None:
        """Statements for each column. Empty texts are left out."""
        walk = "EG_KEPT_COLUMNS" if self.keeps else "EG_COLUMNS"
        if self.layout.length:
            self.line(f"{walk}(j, k, {self.layout.length})", *(f"  {text}" for text in texts if text), "EG_COLUMNS_END")

    def at(self, name: str, column: str = "j") -> str:
        """The offset of an operand's element."""
        where = address.offset(column, self.layout.columns, self.operands[name].columns)
        return f"{name}_row" if where == "0" else f"{name}_row + {where}"

    def load(self, name: str, column: str = "j") -> str:
        """An operand's element in its compute type."""
        return Scalar.of(self.operands[name].dtype).load(name, self.at(name, column))

    def store(self, name: str, value: str, column: str = "j") -> str:
        """The statement that writes an operand's element."""
        return Scalar.of(self.operands[name].dtype).store_row(name, self.at(name, column), value)

    def store_first(self, name: str, value: str) -> str:
        """The statement with which one thread of the row writes the row's only element."""
        stored = Scalar.of(self.operands[name].dtype).store_row(name, f"{name}_row", value)
        return f"if (EG_FIRST_COLUMN) {stored}"

    def kernel(self, helpers: tuple[str, ...] = ()) -> Kernel:
        """The finished kernel."""
        shape = (*self.layout.rows, *self.layout.columns)
        strides = [(*each.rows, *each.columns) for each in self.operands.values()]
        body = "\n".join([f"EG_ROWS(row, {self.layout.count})", *self.lines, "EG_END"])
        return Kernel(f"eg_{self.name}", tuple(self.parameters), body, self.layout.count, *self.block,
                      waits=self.block[0] > 1, wide=address.is_wide(shape, *strides), helpers=helpers)
