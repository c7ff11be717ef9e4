"""Where the values of a stretch of fused nodes lie (`runtime.joined`), noted while its steps run one by one, and the
words by which the engine runs them as one.

A value lies in what comes in, in a constant, or in memory that a kernel wrote. What is needed behind the stretch has
memory of its own; until it is written others lie there, and so they do in what came in for nobody else, once that is
not needed any more. All other values, and what kernels need while they run, share an arena.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from .arena import Region, Span, in_regions
from .codegen.c import FusedKernel
from .codegen.c.fused import Call, copying
from .codegen.c.launch import address_of, at, first_line, workspace
from .codegen.c.native import engine
from .program import GROWTH, SOLE, Environment, owners, references
from .settled import MOST_BYTES

PLAIN, FUSED, SETTLED, VIEW, LONE = range(5)  # what a step is; LONE: a node that is a kernel among others
_UNUSED = np.zeros(1, np.int64)
# Arguments of the engine: a zero (bytes into it are an address), where faults are told, the arena, what comes in.
_ZERO, _FAULT, _ARENA, _FIRST = range(4)

Place = tuple[str, int, int]  # what it lies in ("fixed", "in" or "made"), its number, bytes


@dataclass(frozen=True)
class Planned:
    """A step of a program: the slots that it reads, writes and frees. `function`: of a fused or lone node."""

    index: int
    run: Callable[[Environment], None]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    kind: int = PLAIN
    function: Any = None


class Steps(Protocol):
    """What is noted of: steps, slots of what comes in, of constants, of what dies inside and of what is left behind."""

    constants: set[int]
    dead: tuple[int, ...]
    left: set[int]
    threads: int

    @property
    def steps(self) -> Sequence[Planned]:
        """In the order of the program."""

    @property
    def data(self) -> Sequence[int]:
        """Slots."""


@dataclass
class Value:
    """What a slot holds after the stretch: an array in memory that the stretch made, at the `number` of those."""

    slot: int
    number: int
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Given:
    """Memory of `size` bytes that came in for nobody else: all that refers to it are `slots`. `read`: those of them
    that the stretch reads."""

    slots: tuple[int, ...]
    size: int
    read: frozenset[int] = frozenset()

    def owner(self, env: Environment) -> np.ndarray | None:
        """The array whose memory it is, if that is so in this run too: then it may be overwritten once it is read."""
        owner = env[self.slots[0]]
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is not None or owner.nbytes != self.size or not owner.flags.writeable or not owner.flags.owndata:
            return None
        if owner.dtype.hasobject:  # strings: references, which are given up with the array
            return None
        direct = 0  # references of what is read to the array itself: those to its views are counted with them
        for slot in self.slots:
            value = env[slot]
            if value is owner:
                direct += slot in self.read
            elif owners(value)[0] is not owner or references(value) != SOLE + 1 + (slot in self.read):
                return None
            del value
        found: np.ndarray = owner
        del owner
        return found if references(found) == SOLE + len(self.slots) + direct else None


@dataclass
class Record:
    """A stretch for arrays of given sizes: the words that the engine reads and what they point to. Where what is
    `given` is not free in a run, `otherwise` is that of the same stretch without it."""

    steps: array[int]
    count: int
    made: list[int]  # bytes of memory that outlives the stretch
    arena: int
    indexed: bool
    values: list[Value]
    fixed: list[tuple[int, np.ndarray]]
    views: list[Callable[[Environment], None]]
    keeps: list[Any]
    given: list[Given] = field(default_factory=list)
    otherwise: Record | None = None

    @property
    def size(self) -> int:
        """Bytes that a run takes."""
        return self.arena + sum(self.made)

    def run(self, env: Environment, data: Sequence[np.ndarray]) -> bool:
        """False where an index was outside of its axis: nothing is to be used then."""
        given = [each.owner(env) for each in self.given]
        if self.otherwise is not None and any(each is None for each in given):
            return self.otherwise.run(env, data)
        made = [workspace(size) for size in self.made]
        memory = workspace(self.arena)
        starts, fault = list(map(first_line, made)), np.zeros(1, np.int64) if self.indexed else _UNUSED
        arguments = array("q", [0, address_of(fault), first_line(memory), *map(address_of, data), *starts,
                                *map(address_of, given)])  # type: ignore[arg-type]
        engine().eg_follow(at(self.steps), self.count, at(arguments), _FAULT)
        if self.indexed and fault[0]:
            return False
        for value in self.values:
            memory = made[value.number]
            start = starts[value.number] - address_of(memory) + value.start
            env[value.slot] = np.ndarray(value.shape, value.dtype, memory, start, value.strides)
        for slot, known in self.fixed:
            env[slot] = known
        for view in self.views:
            view(env)
        return True


@dataclass
class Notes:
    """Where the values of a stretch lie, while it runs for the first time. Of arrays only those are kept that stay:
    constants, and what follows from sizes."""

    stretch: Steps
    data: Sequence[np.ndarray]
    known: Sequence[np.ndarray]  # by whose ids the record is found: they stay
    places: dict[int, Place] = field(default_factory=dict)  # of slots
    layouts: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)  # of what was made, in numbers of steps
    dying: dict[int, Span] = field(default_factory=dict)  # what came in (before step 0) for nobody else, by owners
    holders: dict[int, int] = field(default_factory=dict)  # owners of what comes in, of those, by slots' numbers
    given: dict[int, Given] = field(default_factory=dict)  # the same, by owners
    calls: list[tuple[Call, list[Place], int]] = field(default_factory=list)  # kernel, arguments, memory of its own
    views: list[Planned] = field(default_factory=list)  # of what came in

    def __post_init__(self) -> None:
        for number, (slot, each) in enumerate(zip(self.stretch.data, self.data)):
            self._put(slot, each, ("in", number, 0))
        self.data = ()

    def _put(self, slot: int, value: np.ndarray, place: Place) -> None:
        self.places[slot], self.layouts[slot] = place, (value.shape, value.strides, value.dtype)
        if place[0] == "fixed":
            self.kept[slot] = value

    def count_in(self, env: Environment) -> None:
        """Find what comes in that is given up in this stretch: what nobody but slots that die in it refers to."""
        dead, read = set(self.stretch.dead), frozenset(self.stretch.data)
        slots: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for slot, value in enumerate(env):
            if isinstance(value, np.ndarray):
                for owner in owners(value):
                    slots.setdefault(id(owner), []).append(slot)
                    sizes[id(owner)] = owner.nbytes
                del owner
            del value  # nothing but slots refers to them
        for key, held in slots.items():
            given = Given(tuple(held), sizes[key])
            if not read.isdisjoint(held) and dead.issuperset(held) and given.owner(env) is not None:
                self.dying[key] = Span(sizes[key], -1, 0)
                self.given[key] = replace(given, read=read & frozenset(held))
        self.holders = {number: key for key, each in self.given.items() for number, slot in enumerate(self.stretch.data)
                        if slot in each.slots}

    def take(self, number: int, read: Sequence[Any], written: Sequence[Any]) -> bool:
        """Note a step that has run; False where it can be no part of this."""
        step = self.stretch.steps[number]
        if not all(isinstance(each, np.ndarray) for each in (*read, *written)):
            return False
        for slot, each in zip(step.reads, read):
            if slot not in self.places:  # a constant
                self._put(slot, each, ("fixed", 0, address_of(each)))
        if step.kind == SETTLED:
            # A large one is not kept: it is no part of the key, and another array in each run.
            if any(each.nbytes > MOST_BYTES for slot, each in zip(step.reads, read)
                   if slot not in self.stretch.constants):
                return False
            for slot, each in zip(step.writes, written):
                self._put(slot, each, ("fixed", 0, address_of(each)))
            return all(each.nbytes <= MOST_BYTES for each in written)
        if step.kind == VIEW:
            return self._view(number, read[0], written)
        return self._kernel(number, step.function.call_of(read), step.function.kernel, step.reads, written)

    def _view(self, now: int, source: np.ndarray, written: Sequence[np.ndarray]) -> bool:
        step = self.stretch.steps[now]
        kind, number, start = self.places[step.reads[0]]
        if any(owners(each)[0] is not owners(source)[0] for each in written):
            kernel = copying(source, written)
            return kernel is not None and self._kernel(now, kernel.call_of([source], self.stretch.threads), kernel,
                                                       step.reads[:1], written)
        for slot, each in zip(step.writes, written):
            self._put(slot, each, (kind, number, start + address_of(each) - address_of(source)))
        if kind == "in":
            self.views.append(step)
        return True

    def _kernel(self, now: int, call: Call | None, kernel: FusedKernel, reads: Sequence[int],
                written: Sequence[np.ndarray]) -> bool:
        if call is None or [shape for shape, _ in call.plan.outputs] != [each.shape for each in written]:
            return False
        places = [self.places[slot] for slot in reads]
        for kind, number, _ in places:
            if kind == "made":
                self.spans[number] = replace(self.spans[number], last=now)
            elif kind == "in" and number in self.holders:
                self.dying[self.holders[number]] = replace(self.dying[self.holders[number]], last=now)
        places += [("fixed", 0, address) for address in kernel.held]  # which the kernel keeps
        for slot, each in zip(self.stretch.steps[now].writes, written):
            self._put(slot, each, ("made", len(self.spans), 0))
            places.append(self.places[slot])
            self.spans.append(Span(each.nbytes, now, now))
        places.append(("fault", 0, 0))
        for size in call.plan.rooms:
            places.append(("made", len(self.spans), 0))
            self.spans.append(Span(size, now, now))
        self.calls.append((call, places, len(self.spans)))
        self.spans.append(Span(max(each.room for each in call.made), now, now))
        return True

    def record(self) -> Record:
        """The stretch, once all of its steps were taken."""
        indexed = any(call.plan.indexed for call, _, _ in self.calls)
        self._keep_what_is_left()
        found = self._recorded(indexed, {})
        if not self.given:
            return found
        again = self._recorded(indexed, self.given)
        return replace(again, otherwise=found) if again.size < found.size else found

    def _keep_what_is_left(self) -> None:
        """What came in lasts where a view of it, made in the stretch, does."""
        for slot in self.stretch.left:
            kind, number, _ = self.places.get(slot, ("", 0, 0))
            key = self.holders.get(number) if kind == "in" else None
            if key is not None and key in self.given:
                del self.given[key], self.dying[key]

    def _recorded(self, indexed: bool, given: Mapping[int, Given]) -> Record:
        left = [slot for slot in self.stretch.left if slot in self.places]
        outliving = list(dict.fromkeys(self.places[slot][1] for slot in left if self.places[slot][0] == "made"))
        first = _FIRST + len(self.stretch.data)  # of what outlives the stretch, among the arguments
        where = {number: (first + position, 0) for position, number in enumerate(outliving)}
        inside, arena, sizes = self._placed(first, outliving, given)
        where |= inside

        def found(place: Place) -> tuple[int, int]:
            kind, number, start = place
            if kind == "made":
                argument, offset = where[number]
                return argument, offset + start
            return {"fixed": _ZERO, "fault": _FAULT, "in": _FIRST + number}[kind], start

        made = [each.moved([found(place) for place in places], found(("made", memory, 0)))
                for call, places, memory in self.calls for each in call.made]
        position = {number: index for index, number in enumerate(outliving)}
        values = [Value(slot, position[number], start, *self.layouts[slot]) for slot in left
                  for kind, number, start in [self.places[slot]] if kind == "made"]
        views = self._needed(set(left))
        wanted = {*left, *(slot for step in views for slot in step.reads)} - self.stretch.constants
        fixed = [(slot, value) for slot, value in self.kept.items() if slot in wanted]
        return Record(array("q", [word for each in made for word in each.words]), len(made),
                      sizes, arena, indexed, values, fixed,
                      [step.run for step in views],
                      [*self.kept.values(), *self.known, *(call for call, _, _ in self.calls), *made],
                      [*given.values()])

    def _placed(self, first: int, outliving: Sequence[int],
                given: Mapping[int, Given]) -> tuple[dict[int, tuple[int, int]], int, list[int]]:
        """The argument and the bytes into it of what does not outlive the stretch, the size of the arena, and those of
        what outlives it: a little larger than they have to be where more lies in them then. What is given is not
        overwritten before all indices are known to be inside of their axes: else the steps run again, one by one."""
        rest = [number for number in range(len(self.spans)) if number not in set(outliving)]
        spans, end = [self.spans[number] for number in rest], len(self.stretch.steps)
        sizes = [self.spans[number].size for number in outliving]
        regions = [Region(size, 0, self.spans[number].first - 1, size // GROWTH)
                   for number, size in zip(outliving, sizes)]
        checked = max((self.spans[memory].first for call, _, memory in self.calls if call.plan.indexed), default=-1)
        regions += [Region(each.size, max(self.dying[key].last, checked) + 1, end) for key, each in given.items()]
        memory = {number for _, _, number in self.calls}  # of kernels, which begins at a line: what is given may not
        places, arena = in_regions(regions, spans,
                                   [len(outliving) if number in memory else len(regions) for number in rest])
        for (region, offset), span in zip(places, spans):
            if region < len(outliving):
                sizes[region] = max(sizes[region], offset + span.size)
        return {number: (_ARENA if region == len(regions) else first + region, offset)
                for number, (region, offset) in zip(rest, places)}, arena, sizes

    def peak(self) -> int:
        """Bytes that are needed at one time at most."""
        return max(self._live(0, len(self.stretch.steps)))

    def held(self) -> int:
        """Bytes of what comes in and is given up in the stretch: it is there until the end."""
        return sum(each.size for each in self.dying.values())

    def _outliving(self) -> set[int]:
        return {self.places[slot][1] for slot in self.stretch.left if self.places.get(slot, ("",))[0] == "made"}

    def _lasting(self) -> list[Span]:
        """All spans, with those that outlive the stretch until behind its end."""
        end, outliving = len(self.stretch.steps), self._outliving()
        return [replace(span, last=end) if number in outliving else span for number, span in enumerate(self.spans)]

    def _live(self, first: int, end: int) -> list[int]:
        """Bytes that each of some steps needs."""
        change = [0] * (end + 1)
        for span in (*self._lasting(), *self.dying.values()):
            if span.first < end and span.last >= first:
                change[max(span.first, first)] += span.size
                change[min(span.last + 1, end)] -= span.size
        return list(accumulate(change))[first:end]

    def cuts(self, limit: int) -> list[int]:
        """Where the stretch is parted so that no part takes more, as far as that is possible with parts as long as they
        can be. A part holds all that comes into it, and all that outlives it, from its beginning to its end."""
        spans, ends, first, count = [*self._lasting(), *self.dying.values()], list[int](), 0, len(self.stretch.steps)
        for end in range(2, count + 1):
            within = [span for span in spans if span.first < end and span.last >= first]
            always = sum(span.size for span in within if span.first < first or span.last >= end)
            change = [0] * (count + 2)
            for span in within:
                if first <= span.first and span.last < end:
                    change[span.first] += span.size
                    change[span.last + 1] -= span.size
            if always + max(accumulate(change)) > limit and end - 1 > first:
                ends.append(end - 1)
                first = end - 1
        return ends

    def _needed(self, slots: set[int]) -> list[Planned]:
        """Views of what came in that are needed behind the stretch."""
        found = []
        for step in reversed(self.views):
            if not slots.isdisjoint(step.writes):
                found.append(step)
                slots.update(step.reads)
        return found[::-1]
