"""A matrix product with a kernel behind it, which runs on each tile while that is still in the cache."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from graphs import dtypes

from .laid import held_in, in_groups, is_moved_only, laid
from .launch import NAME, PRODUCT, Launch, Made, address_of, at, launch_of, panels
from .lowering import Lowering, Values
from .native import engine
from .operands import Operands, operands_of
from .text import Writer
from .views import NotFusable

FLOAT = 4  # bytes
_IMAGE_WORDS = 6  # of a step
_PLANNED = (0,) * 18  # memory, and what `eg_plan` sets
_GIVEN, _ACROSS = -6, -1  # of those: whether A, and B, is read as it lies
THREAD_WORK = 1 << 21  # products of numbers that a thread has to get at least: 20 to 40 us, as waking it up takes


@dataclass
class Packs:
    """What a caller knows of a kernel's arguments: those at `fixed` are the same arrays, with the same content, in all
    its calls. They are packed once; `made` keeps that."""

    fixed: frozenset[int] = frozenset()
    made: dict[tuple[Hashable, ...], np.ndarray] = field(default_factory=dict)
    calls: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)  # of the kernel, by sizes and threads
    copies: dict[int, np.ndarray] = field(default_factory=dict)  # of those that a kernel cannot read as they lie

    @property
    def nbytes(self) -> int:
        """Of what is packed."""
        return sum(each.nbytes for each in self.made.values())


@dataclass(frozen=True)
class Then:
    """The kernel behind a product. `moves` are the bytes that its pointers move by for each batch, `rows` and `columns`
    for a row and a column; `row_size` and `column_size` are the places of both among its sizes."""

    launch: Launch
    moves: np.ndarray
    rows: array[int]
    columns: array[int]
    row_size: int
    column_size: int
    whole_rows: bool

    def exchanged(self) -> Then:
        """For rows as columns."""
        return replace(self, rows=self.columns, columns=self.rows, row_size=self.column_size,
                       column_size=self.row_size)


class Product:
    """A product as a step of a plan. `target` is the argument that it is written to."""

    def __init__(self, operands: Operands, place: Mapping[str, int], target: int, then: Then | None) -> None:
        self.transformed: Product | None = None  # the same with constant weights
        if operands.image and operands.winograd and not (then and then.whole_rows):
            self.transformed = Product(replace(operands, image=None), place, target, then)
        # The image of a convolution with few positions is A: its maps fill whole vectors, and weights are read once.
        self.turned = operands.image is not None and operands.m > operands.n and not (then and then.whole_rows)
        if self.turned:
            operands, then = operands.exchanged(), then and then.exchanged()
        image = operands.image
        self.padding = array("q")  # an `eg_padding`
        self._phases = array("q", image.phases if image else ())
        if image is not None and image.padded is not None:
            self.padding = array("q", [image.channels // image.groups, *image.sizes, *image.begins, *image.padded,
                                       image.stride, len(image.phases), at(self._phases), *image.band])
            if self.turned:  # one padded image at a time
                starts = tuple(number % image.groups * image.elements for number in range(len(operands.starts)))
                operands = replace(operands, left=replace(operands.left, batches=starts))
        self.operands, self.target, self.then = operands, target, then
        self.left, self.right = place[operands.left.tensor], place[operands.right.tensor]
        self.image = self.right if operands.lanes or operands.winograd else None
        if operands.image is not None:
            self.image = self.left if self.turned else self.right
        self.lanes = array("q", operands.lanes.words() if operands.lanes else ())
        self._tables: dict[tuple[bool, bool], np.ndarray] = {}
        self.before: Product | None = None  # of a chain: makes what lies at `image`

    @property
    def text(self) -> str:
        """Those of the kernels behind it, and behind the product before."""
        texts = [self.before.text] if self.before else []
        return "\n".join(filter(None, [*texts, self.then.launch.written.text if self.then else ""]))

    def makes_planes(self) -> bool:
        """Whether it may be the first product of a chain: one pixel of all planes makes one of its own."""
        image = self.operands.image
        return (image is not None and not self.turned and not self.padding and image.groups == 1
                and len(image.places) == image.channels and self.operands.m > 1
                and (self.then is None or (self.then.row_size >= 0 and not self.then.whole_rows)))

    def slides_along_lines(self) -> bool:
        """Whether it may be the last one: a depthwise convolution of long lines."""
        return bool(self.lanes) and bool(engine().eg_is_by_lines(at(self.lanes))) and not (
            self.then and self.then.whole_rows)

    def chained(self, before: Product) -> Product | None:
        """The same behind a product that makes its planes, some at a time; None where it cannot be."""
        mine, other = self.operands, before.operands
        if not (before.makes_planes() and self.slides_along_lines() and len(mine.starts) == len(other.starts)
                and mine.m == other.m and mine.lanes is not None and prod(mine.lanes.sizes) == other.n == other.step):
            return None
        self.before = before
        return self

    def step(self, addresses: Sequence[int], threads: int, packs: Packs) -> Made:
        """As a step of a call. `addresses` of the arguments: of those that `packs` calls fixed they stay."""
        if self.transformed is not None and self.transformed.left in packs.fixed:
            sums = self.transformed._packed("a", packs, addresses)
            if is_plain(sums):
                return self.transformed.step(addresses, threads, packs)
        each, image, then = self.operands, self.operands.image, self.then
        alone = image is not None and self.turned and bool(self.padding)  # one image at a time
        packed = {side: self._packed(side, packs, addresses) for side in self._sides(packs.fixed)}
        work = each.work + (self.before.operands.work if self.before else 0)
        threads = max(1, min(threads, work // THREAD_WORK))
        before = self.before.step(addresses, 1, packs) if self.before else None
        table = self._table("a" in packed, "b" in packed)
        launch = then.launch.template() if then else None
        squares = array("q")  # an `eg_winograd`
        if image is None and each.winograd:
            squares.extend(each.winograd.words(addresses[self.left] + each.left.start * FLOAT))
        plain = bool(packed) and all(map(is_plain, packed.values()))
        job = self._job(packed, plain, table, launch, squares, threads, before.words[PRODUCT] if before else 0)
        room = int(engine().eg_plan(at(job))) * threads
        sides: list[int] = []
        for side, place, operand in (("a", self.left, each.left), ("b", self.right, each.right)):
            sides += (-1, address_of(packed[side])) if side in packed else (place, operand.start * FLOAT)
        images = [0] * _IMAGE_WORDS
        if image is not None and alone:
            images = [len(each.starts) // image.groups, room, image.channels * prod(image.sizes) * FLOAT,
                      image.groups * table.shape[1], image.channels, at(self.padding)]
            room += image.groups * image.elements * FLOAT
        sources = then.launch.pointers if then else array("q")
        words = array("q", [at(launch) if launch else 0, at(sources), at(job), *sides, self.target, 0, *images,
                            0, 0, 0, 0])
        made = Made(words, sources, (self, launch, job, table, packed, squares), room)
        return made.behind(before) if before else made

    def _sides(self, fixed: Collection[int]) -> list[str]:
        """Which of A and B are panels, where the arguments at `fixed` are."""
        return [side for side, place in (("a", self.left), ("b", self.right)) if place in fixed and place != self.image]

    def _job(self, packed: Collection[str], plain: bool, table: np.ndarray, launch: array[int] | None,
             squares: array[int], threads: int, before: int = 0) -> array[int]:
        """An `eg_product`, but for where things lie. `before`: the address of another one."""
        each, image, then = self.operands, self.operands.image, self.then
        alone = image is not None and self.turned and bool(self.padding)
        return array("q", [
            0, 0, 0, image.groups if image and alone else len(each.starts), each.m, each.n, each.k, address_of(table),
            each.left.row, each.left.column, each.right.row, each.right.column, each.step,
            "a" in packed, "b" in packed, self.turned, plain,
            address_of(image.places) if image else 0, address_of(image.positions) if image else 0,
            image.elements if image else 0, image.run if image else 0,
            at(self.padding) if self.padding and not self.turned else 0, at(self.lanes) if self.lanes else 0,
            at(squares) if squares else 0, bool(then and then.whole_rows), at(launch) if launch else 0,
            at(then.rows) if then else 0, at(then.columns) if then else 0, then.row_size if then else -1,
            then.column_size if then else -1, before, threads, *_PLANNED])

    def ways(self, fixed: Collection[int]) -> tuple[bool, ...]:
        """Whether one thread reads A, and B, as it lies, where the arguments at `fixed` are panels."""
        if self.lanes or (self.operands.winograd and self.operands.image is None):
            return ()
        packed = self._sides(fixed)
        table, launch = self._table("a" in packed, "b" in packed), self.then.launch.template() if self.then else None
        job = self._job(packed, True, table, launch, array("q"), 1)
        engine().eg_plan(at(job))
        return job[_GIVEN] != 0, job[_ACROSS] != 0

    def _packed(self, side: str, packs: Packs, addresses: Sequence[int]) -> np.ndarray:
        """Panels of A or B, one after the other for each batch that has its own."""
        each, one = self.operands, self._block(side)
        operand, argument = (each.left, self.left) if side == "a" else (each.right, self.right)
        sizes = (each.m, each.k) if side == "a" else (each.k, each.n)
        pack = getattr(engine(), f"eg_pack_{self._layout(side)}")
        own = tuple(dict.fromkeys(operand.batches))
        key = self._layout(side), argument, operand.start, operand.row, operand.column, own, sizes
        if key not in packs.made:
            room = panels(len(own) * one)
            for number, start in enumerate(own):
                pack(addresses[argument] + (operand.start + start) * FLOAT, operand.row, operand.column, *sizes,
                     address_of(room) + number * one * FLOAT)
            packs.made[key] = room
        return packs.made[key]

    def _layout(self, side: str) -> str:
        """How A or B is packed: the end of the name of the function that does it."""
        if self.operands.lanes:
            return "w"
        return "t" if self.operands.winograd and self.operands.image is None else side

    def _block(self, side: str) -> int:
        """Elements of one packed A or B."""
        each = self.operands
        if each.winograd and each.image is None:
            return each.winograd.packed(each.m, engine().eg_width(), engine().eg_lane())
        height = engine().eg_lane() if each.lanes else engine().eg_height(each.m)
        size, unit = (each.m, height) if side == "a" else (each.n, engine().eg_width())
        return -(-size // unit) * unit * each.k

    def _table(self, a: bool, b: bool) -> np.ndarray:
        """For each batch the bytes that A, B, C and the pointers of the kernel behind are moved by."""
        if (a, b) not in self._tables:
            each = self.operands
            starts = [self._numbered(each.left.batches, "a") if a else each.left.batches,
                      self._numbered(each.right.batches, "b") if b else each.right.batches, each.starts]
            table = np.array(starts, np.int64).T * FLOAT
            moves = self.then.moves if self.then else np.empty((len(table), 0), np.int64)
            self._tables[a, b] = np.ascontiguousarray(np.concatenate([table, moves], axis=1))
        return self._tables[a, b]

    def _numbered(self, batches: Sequence[int], side: str) -> list[int]:
        number = {start: index for index, start in enumerate(dict.fromkeys(batches))}
        return [number[start] * self._block(side) for start in batches]


def is_plain(packed: np.ndarray) -> bool:
    """Whether panels are finite, with nothing subnormal."""
    return bool(engine().eg_is_plain(address_of(packed), packed.size))


def product_of(values: Values, piece: Lowering, place: Mapping[str, int], exact: bool) -> tuple[Product, bool]:
    """The product that a lowered kernel reads, and whether that kernel is done with it as well."""
    node = piece.product
    assert node is not None
    operands, name = operands_of(values, node), node.outputs[0]
    if min(operands.m, operands.n, operands.k) < 1:
        raise NotFusable("a tensor without elements")
    (output, *others) = values.graph.outputs
    held = held_in(piece, output) if not others and values.dtypes[output] == "float32" else None
    if held and operands.image and operands.image.groups > 1:
        piece = Lowering(values, in_groups(piece, operands, held), exact)
        held = held_in(piece, output)
    for exchanged in (False, True) if not operands.image and not operands.lanes else (False,):
        there = laid(piece, operands, held, exchanged) if held else None
        if held is None or there is None:
            continue
        if is_moved_only(piece):
            return Product(there.operands, place, place[output], None), True
        if there.loops == list(piece.domain.loops):
            then = _then(Lowering(values, piece.domain, exact, held), there.operands, place, exact)
            if then is not None:
                return Product(there.operands, place, place[output], then), True
    return Product(operands, place, place[name], None), False


def _then(lowered: Lowering, operands: Operands, place: Mapping[str, int], exact: bool) -> Then | None:
    """The kernel over one tile, if its loops are batches, rows and columns of the product."""
    parts = _parted(lowered, operands)
    if parts is None:
        return None
    batches, rows, columns = parts
    folds = lowered.columns is not None
    if folds and set(lowered.columns or ()) != set(columns):
        return None
    tile = copy(lowered)
    tile.trips = {**lowered.trips, **dict.fromkeys(batches, 1)}
    writer = Writer(NAME, [tile], rows, whole=lowered)
    if len(writer.row_sizes) > 1 or len(writer.pieces[0].trips) > 1:
        return None
    launch = launch_of(writer.made, place, exact)
    sizes = [dtypes.numpy_dtype(dtype).itemsize for dtype in writer.made.dtypes]
    steps = [dict(each.place.terms) for each in sorted(writer.pointers, key=writer.pointers.__getitem__)]
    steps += [{}] * (len(sizes) - len(steps))  # row buffers

    def moved(loops: Sequence[int]) -> array[int]:
        return array("q", [own.get(loops[-1], 0) * size if loops else 0 for own, size in zip(steps, sizes)])

    names = list(writer.made.sizes)
    place_of = {name: names.index(name) for name in ("nr0", "nc0") if name in names}
    counts = product(*(range(lowered.trips[loop]) for loop in batches))
    moves = [[sum(own.get(loop, 0) * at_ for loop, at_ in zip(batches, each)) * size
              for own, size in zip(steps, sizes)] for each in counts]
    return Then(launch, np.array(moves, np.int64), moved(rows), moved(columns), place_of.get("nr0", -1),
                place_of.get("nc0", -1), folds)


def _parted(lowered: Lowering, operands: Operands) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """The loops that are batches, rows and columns of the product."""
    loops, found = list(lowered.domain.loops), []
    for wanted in (operands.n, operands.m):
        own: list[int] = []
        while loops and prod(lowered.trips[each] for each in own) < wanted:
            own.insert(0, loops.pop())
        if prod(lowered.trips[each] for each in own) != wanted:
            return None
        found.append(tuple(own))
    if prod(lowered.trips[each] for each in loops) != len(operands.starts):
        return None
    return tuple(loops), found[1], found[0]
