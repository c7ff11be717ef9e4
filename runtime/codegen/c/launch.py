"""A compiled fused kernel with its sizes, and how it is called: whole, or in parts that threads share."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from graphs import dtypes

from ..scalar import Scalar
from .compiler import Function, compiled
from .strided import Turned, trips_of_a_row
from .text import BUFFER, Written
from .views import NotFusable

NAME = "eg_fused"
STEP_WORDS = 19
CHAINED = -2  # in the place of an argument: what lies in a tile's memory only
_TURNED_WORDS = 9
_SOURCES, PRODUCT, _ARGUMENTS, _MEMORY, _BEFORE = 1, 2, (3, 5, 7), 15, 18  # among the words of a step
PARTS = 4  # for each thread, so that one that is held up leaves work to the others
_ALIGNED = 64
_COMPUTED = {"double": 8, "long long": 8, "unsigned long long": 8, "bool": 1}  # bytes of C types; of others 4
_NOTHING = np.empty(0, np.uint8)
_MOST_POINTERS, _MOST_SIZES = 96, 512  # as in engine.c


@dataclass(frozen=True)
class Made:
    """An `eg_step` (`native/calls.c`), the sources of its kernel's pointers, what it points to beside them, and the
    bytes of memory that it needs. `before`: the step of the product that makes what this one reads."""

    words: array[int]
    sources: array[int]
    keeps: tuple[object, ...]
    room: int
    before: Made | None = None

    def moved(self, places: Sequence[tuple[int, int]], memory: tuple[int, int]) -> Made:
        """With each argument, and its own memory, at a place in others: an argument, and bytes into that."""
        sources, words = self.sources[:], self.words[:]
        for pairs, begins in ((sources, range(0, len(sources), 2)), (words, _ARGUMENTS if words[PRODUCT] else ())):
            for begin in begins:
                if pairs[begin] >= 0:
                    argument, start = places[pairs[begin]]
                    pairs[begin], pairs[begin + 1] = argument, start + pairs[begin + 1]
        words[_SOURCES] = at(sources)
        made = replace(self, words=words, sources=sources)
        return (made.behind(self.before.moved(places, memory)) if self.before else made).with_memory(*memory)

    def behind(self, before: Made) -> Made:
        """With another step before it, which uses its memory."""
        words = self.words[:]
        words[_BEFORE] = at(before.words)
        return replace(self, words=words, before=before)

    def with_memory(self, argument: int, start: int = 0) -> Made:
        """With its own memory so many bytes into an argument."""
        words = self.words[:]
        words[_MEMORY], words[_MEMORY + 1] = argument, start
        return replace(self, words=words)


@dataclass(frozen=True)
class Launch:
    """`sources` are, for each pointer, (argument, -1 for a row buffer, or CHAINED; bytes into it)."""

    written: Written
    function: Function
    sizes: array[int]
    sources: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]  # bytes that each pointer moves with the loop that is split
    room: int  # bytes of row buffers
    turned: array[int] = field(default_factory=lambda: array("q"))  # an `eg_turning` for each pointer that has one

    def step(self, threads: int) -> Made:
        """As a step that up to so many threads share."""
        split = self.written.split
        parts = 1 if split is None or threads < 2 else min(threads * PARTS, self.sizes[split])
        words = self.template(parts, threads)
        return Made(array("q", [at(words), at(self.pointers), *[0] * (STEP_WORDS - 2)]), self.pointers, (self, words),
                    self.room * max(min(threads, parts), 1))

    def template(self, parts: int = 1, threads: int = 1) -> array[int]:
        """An `eg_launch` without addresses. Whoever uses it has to keep this launch."""
        kernel = ctypes.cast(self.function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
        split = self.written.split
        return array("q", [kernel, len(self.sources), len(self.sizes), self.room, at(self.buffers), 0, at(self.moves),
                           at(self.sizes), -1 if split is None else split, parts, threads, 0,
                           at(self.turned) if self.turned else 0, len(self.turned) // _TURNED_WORDS])

    @cached_property
    def pointers(self) -> array[int]:
        """Where each pointer begins: argument and bytes."""
        return array("q", [number for source in self.sources for number in source])

    @cached_property
    def buffers(self) -> array[int]:
        """1 for each pointer to a row buffer, 2 for what lies in a tile's memory."""
        return array("q", [max(-argument, 0) for argument, _ in self.sources])

    @cached_property
    def moves(self) -> array[int]:
        """`steps` as the engine reads them."""
        return array("q", self.steps)


def launch_of(written: Written, place: Mapping[str, int], exact: bool,
              turned: Mapping[str, Turned] = MappingProxyType({})) -> Launch:
    """A written kernel compiled. `place` numbers the arguments; `turned` are those that are read in rows of other names
    (`strided.trips_of_a_row` is known). Raises NotFusable where it is too large."""
    sources, steps, room, turnings = [], [], 0, array("q")
    trips = trips_of_a_row(turned.values(), written) if turned else None
    for number, ((tensor, start), dtype) in enumerate(zip(written.pointers, written.dtypes)):
        size = dtypes.numpy_dtype(dtype).itemsize
        if tensor == BUFFER:
            size = _COMPUTED.get(Scalar.of(dtype).compute, 4)
            sources.append((-1, room))
            room += -(-start * size // _ALIGNED) * _ALIGNED
        elif tensor in turned:
            own = turned[tensor]
            sources.append((place[own.tensor], own.start * size))
            assert trips is not None
            turnings.extend([number, own.batches, own.batch, own.rows, own.columns, own.step, trips, own.at_once, room])
            room += lines(own.room)
        else:
            sources.append((place[tensor], start * size))
        steps.append(written.shares.get(number, 0) * size)
    if len(sources) > _MOST_POINTERS or len(written.sizes) > _MOST_SIZES:
        raise NotFusable(f"a kernel with {len(sources)} pointers and {len(written.sizes)} sizes")
    return Launch(written, compiled(NAME, written.text, exact), array("q", written.sizes.values()), tuple(sources),
                  tuple(steps), room, turnings)


def workspace(size: int) -> np.ndarray:
    """Memory that a call needs while it runs: `size` bytes from its first line on."""
    return np.empty(size + _ALIGNED, np.uint8) if size else _NOTHING


def first_line(memory: np.ndarray) -> int:
    """The address of the first whole line of a cache."""
    return -(-address_of(memory) // _ALIGNED) * _ALIGNED


def panels(count: int) -> np.ndarray:
    """Memory for so many floats, from the first line of a cache on: of vectors that lie in two lines half as many are
    read in the same time."""
    memory = workspace(count * 4)
    start = first_line(memory) - address_of(memory)
    found: np.ndarray = memory[start:start + count * 4].view(np.float32)
    return found


def lines(size: int) -> int:
    """Bytes as whole lines of a cache."""
    return -(-size // _ALIGNED) * _ALIGNED


def at(words: array[int]) -> int:
    """Where an array of words lies."""
    return words.buffer_info()[0]


_pointer_at = ctypes.c_void_p.from_address
_DATA = object.__basicsize__  # of an array object: where the pointer to its elements is


def _told_address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _read_address(array: np.ndarray) -> int:
    return _pointer_at(id(array) + _DATA).value or 0


def _reader() -> Callable[[np.ndarray], int]:
    """Reading the pointer takes an eighth of the time of asking; where it lies is part of NumPy's C interface."""
    samples: list[np.ndarray] = [np.zeros(3), np.zeros((2, 3), np.float32)[1:, ::2]]
    right = all(_read_address(each) == _told_address(each) for each in samples)
    return _read_address if right else _told_address


address_of = _reader()
