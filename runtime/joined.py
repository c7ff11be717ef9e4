"""Fused nodes that follow each other as one call of the engine, with what only moves their operands.

The first time that such a stretch of a program runs on arrays of some sizes it runs step by step, and it is noted where
each value lay: in what comes in, in a constant, or in memory that a kernel wrote. Its kernels then run one after the
other in one call; values that nobody needs behind the stretch share an arena by when they are needed. Sizes inside of a
stretch follow from those of what comes in: its steps are kernels planned for sizes, views by constants, and what
follows from sizes alone (`runtime.settled`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from .arena import Span, aligned, arrange
from .codegen.c.launch import address_of, at, first_line, workspace
from .codegen.c.native import engine
from .program import SOLE, Environment, owners, references
from .settled import MOST_BYTES

PLAIN, FUSED, SETTLED, VIEW = range(4)  # what a step is here
MOST_RECORDS = 8  # sets of sizes
LEAST = 2  # kernels that are worth it
MOST_WASTED, LEAST_WASTED = 1.03, 1 << 14  # times the bytes needed at one time, and bytes: so much parts no stretch
_UNUSED = np.zeros(1, np.int64)
# Arguments of the engine: a zero (bytes into it are an address), where faults are told, the arena, what comes in.
_ZERO, _FAULT, _ARENA, _FIRST = range(4)

Place = tuple[str, int, int]  # what it lies in ("fixed", "in" or "made"), its number, bytes


@dataclass(frozen=True)
class Planned:
    """A step of a program: the slots that it reads, writes and frees. `function`: of a fused node."""

    index: int
    run: Callable[[Environment], None]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    kind: int = PLAIN
    function: Any = None


@dataclass
class Value:
    """What a slot holds after the stretch: an array in memory that the stretch made, at the `number` of those."""

    slot: int
    number: int
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass
class Record:
    """A stretch for arrays of given sizes: the words that the engine reads and what they point to."""

    steps: array[int]
    count: int
    made: list[int]  # bytes of memory that outlives the stretch
    arena: int
    indexed: bool
    values: list[Value]
    fixed: list[tuple[int, np.ndarray]]
    views: list[Callable[[Environment], None]]
    keeps: list[Any]

    def run(self, env: Environment, data: Sequence[np.ndarray]) -> bool:
        """False where an index was outside of its axis: nothing is to be used then."""
        made = [np.empty(size, np.uint8) for size in self.made]
        memory = workspace(self.arena)
        start, fault = first_line(memory), np.zeros(1, np.int64) if self.indexed else _UNUSED
        arguments = array("q", [0, address_of(fault), start, *map(address_of, data), *map(address_of, made)])
        engine().eg_follow(at(self.steps), self.count, at(arguments), start)
        if self.indexed and fault[0]:
            return False
        for value in self.values:
            env[value.slot] = np.ndarray(value.shape, value.dtype, made[value.number], value.start, value.strides)
        for slot, known in self.fixed:
            env[slot] = known
        for view in self.views:
            view(env)
        return True


class Stretch:
    """Planned steps that run as one where they can; `fail(index, reason)` raises what tells of a failing step. `whole`:
    it was parted for its memory already."""

    def __init__(self, steps: Sequence[Planned], constants: set[int], settled: set[int],
                 fail: Callable[[int, Exception], Any], whole: bool = False) -> None:
        self.steps, self.constants, self.settled, self.fail = list(steps), constants, settled, fail
        self.whole = whole
        written = {slot for step in steps for slot in step.writes}
        read = dict.fromkeys(slot for step in steps for slot in step.reads if slot not in written | constants)
        self.data, self.known = list(read), [slot for slot in read if slot in settled]
        self.dead = tuple(dict.fromkeys(slot for step in steps for slot in step.frees))
        self.left = written - set(self.dead)
        self.records: dict[Any, Record | list[Stretch | Planned]] = {}

    def __call__(self, env: Environment) -> None:
        """Run it."""
        data, key = self._given(env)
        record = self.records.get(key)
        if isinstance(record, list):
            del data  # nothing is kept longer than it is needed
            for part in record:
                if isinstance(part, Stretch):
                    part(env)
                else:
                    self._plainly(env, [part])
        elif not all(each.flags.aligned for each in data):
            self._plainly(env, self.steps)
        elif record is None:
            del data
            self._note(env, key)
        elif record.run(env, data):
            for slot in self.dead:
                env[slot] = None
        else:
            self._plainly(env, self.steps)

    def _given(self, env: Environment) -> tuple[list[np.ndarray], Any]:
        """What comes in, and by what its record is found."""
        data = [each if isinstance(each := env[slot], np.ndarray) else np.asarray(each) for slot in self.data]
        return data, (*[(each.shape, each.strides, each.dtype) for each in data],
                      *[id(env[slot]) for slot in self.known if env[slot].nbytes <= MOST_BYTES])

    def _plainly(self, env: Environment, steps: Sequence[Planned]) -> None:
        for step in steps:
            try:
                step.run(env)
            except Exception as reason:
                self.fail(step.index, reason)
            for slot in step.frees:
                env[slot] = None

    def _note(self, env: Environment, key: Any) -> None:
        """Run it step by step, and note what runs as one from now on; or in which parts, where a step cannot."""
        part, parts = self, list[Stretch | Planned]()
        while True:
            taken = part._noted(env)
            if taken == len(part.steps):
                parts.append(part)
                break
            parts += [*part._part(0, taken), part.steps[taken]]
            rest = part._part(taken + 1, len(part.steps))
            if not rest or not isinstance(rest[0], Stretch):
                self._plainly(env, part.steps[taken + 1:])
                parts += rest
                break
            part = rest[0]  # what follows each other stays together
        if part is not self:
            self.records[key] = parts

    def _noted(self, env: Environment) -> int:
        """Run and note steps, as far as they can be noted, and the one that cannot: the number of those that were."""
        data, key = self._given(env)
        notes = Notes(self, data, [each for slot in self.known if (each := env[slot]).nbytes <= MOST_BYTES])
        del data
        notes.count_in(env)
        if len(self.records) >= MOST_RECORDS:
            self.records.clear()
        for number, step in enumerate(self.steps):
            read = [env[slot] for slot in step.reads]
            try:
                step.run(env)
            except Exception as reason:
                self.fail(step.index, reason)
            noted = notes.take(number, read, [env[slot] for slot in step.writes])
            del read
            for slot in step.frees:
                env[slot] = None
            if not noted:
                return number
        record = notes.record()
        limit = int(MOST_WASTED * notes.peak()) + LEAST_WASTED
        if self.whole or record.arena + sum(record.made) + notes.given() <= limit:
            self.records[key] = record
        else:
            ends = notes.cuts(limit)
            self.records[key] = [part for first, end in zip([0, *ends], [*ends, len(self.steps)])
                                 for part in self._part(first, end, True)]
        return len(self.steps)

    def _part(self, first: int, end: int, whole: bool = False) -> list[Stretch | Planned]:
        return joined(self.steps[first:end], self.constants, self.settled, self.fail, whole)


@dataclass
class Notes:
    """Where the values of a stretch lie, while it runs for the first time. Of arrays only those are kept that stay:
    constants, and what follows from sizes."""

    stretch: Stretch
    data: Sequence[np.ndarray]
    known: Sequence[np.ndarray]  # by whose ids the record is found: they stay
    places: dict[int, Place] = field(default_factory=dict)  # of slots
    layouts: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)  # of what was made, in numbers of steps
    dying: dict[int, Span] = field(default_factory=dict)  # what came in (before step 0) for nobody else, by owners
    holders: dict[int, int] = field(default_factory=dict)  # owners of what comes in, of those, by slots' numbers
    calls: list[tuple[Any, list[Place], int]] = field(default_factory=list)  # kernel, arguments, memory of its own
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
        dead = set(self.stretch.dead)
        slots: dict[int, list[int]] = {}
        for slot, value in enumerate(env):
            if isinstance(value, np.ndarray):
                slots.setdefault(id(owners(value)[0]), []).append(slot)
        for number, slot in enumerate(self.stretch.data):
            if not isinstance(env[slot], np.ndarray):
                continue
            owner = owners(env[slot])[0]
            held = slots[id(owner)]
            if dead.issuperset(held) and references(owner) == SOLE + len(held):
                self.holders[number] = id(owner)
                self.dying[id(owner)] = Span(aligned(owner.nbytes), -1, 0)

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
        return self._view(step, read[0], written) if step.kind == VIEW else self._kernel(number, read, written)

    def _view(self, step: Planned, source: np.ndarray, written: Sequence[np.ndarray]) -> bool:
        kind, number, start = self.places[step.reads[0]]
        if any(owners(each)[0] is not owners(source)[0] for each in written):
            return False
        for slot, each in zip(step.writes, written):
            self._put(slot, each, (kind, number, start + address_of(each) - address_of(source)))
        if kind == "in":
            self.views.append(step)
        return True

    def _kernel(self, now: int, read: Sequence[np.ndarray], written: Sequence[np.ndarray]) -> bool:
        step = self.stretch.steps[now]
        call = step.function.call_of(read)
        if call is None:
            return False
        places = [self.places[slot] for slot in step.reads]
        for kind, number, _ in places:
            if kind == "made":
                self.spans[number] = replace(self.spans[number], last=now)
            elif kind == "in" and number in self.holders:
                self.dying[self.holders[number]] = replace(self.dying[self.holders[number]], last=now)
        places += [("fixed", 0, address) for address in step.function.kernel.held]  # which the kernel keeps
        for slot, each in zip(step.writes, written):
            self._put(slot, each, ("made", len(self.spans), 0))
            places.append(self.places[slot])
            self.spans.append(Span(aligned(each.nbytes), now, now))
        places.append(("fault", 0, 0))
        for size in call.plan.rooms:
            places.append(("made", len(self.spans), 0))
            self.spans.append(Span(aligned(size), now, now))
        self.calls.append((call, places, len(self.spans)))
        self.spans.append(Span(aligned(max(each.room for each in call.made)), now, now))
        return True

    def record(self) -> Record:
        """The stretch, once all of its steps were taken."""
        left = [slot for slot in self.stretch.left if slot in self.places]
        outliving = list(dict.fromkeys(self.places[slot][1] for slot in left if self.places[slot][0] == "made"))
        first = _FIRST + len(self.stretch.data)  # of what outlives the stretch, among the arguments
        where = {number: (first + position, 0) for position, number in enumerate(outliving)}
        for number in outliving:
            where |= {each: (where[number][0], offset) for each, offset in self._before(number, where).items()}
        inside = [number for number in range(len(self.spans)) if number not in where]
        offsets, arena = arrange([self.spans[number] for number in inside])
        where |= {number: (_ARENA, offset) for number, offset in zip(inside, offsets)}

        def found(place: Place) -> tuple[int, int]:
            kind, number, start = place
            if kind == "made":
                argument, offset = where[number]
                return argument, offset + start
            return {"fixed": _ZERO, "fault": _FAULT, "in": _FIRST + number}[kind], start

        made = [each.moved([found(place) for place in places], found(("made", memory, 0))[1])
                for call, places, memory in self.calls for each in call.made]
        position = {number: index for index, number in enumerate(outliving)}
        values = [Value(slot, position[number], start, *self.layouts[slot]) for slot in left
                  for kind, number, start in [self.places[slot]] if kind == "made"]
        views = self._needed(set(left))
        wanted = {*left, *(slot for step in views for slot in step.reads)} - self.stretch.constants
        fixed = [(slot, value) for slot, value in self.kept.items() if slot in wanted]
        return Record(array("q", [word for each in made for word in each.words]), len(made),
                      [self.spans[number].size for number in outliving], arena,
                      any(call.plan.indexed for call, _, _ in self.calls), values, fixed, [step.run for step in views],
                      [*self.kept.values(), *self.known, *(call for call, _, _ in self.calls), *made])

    def peak(self) -> int:
        """Bytes that are needed at one time at most."""
        return max(self._live(0, len(self.stretch.steps)))

    def given(self) -> int:
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

    def _before(self, number: int, where: Collection[int]) -> dict[int, int]:
        """What can lie in the memory of a value until that is written: offsets."""
        whole, taken, offsets = self.spans[number], list[int](), list[int]()
        kernels = {memory for _, _, memory in self.calls}  # theirs begins at a line of the cache
        for other in sorted(range(len(self.spans)), key=lambda each: -self.spans[each].size):
            span = self.spans[other]
            if (other not in where and other not in kernels and span.last < whole.first
                    and span.size <= whole.size):
                found, size = arrange([self.spans[each] for each in (*taken, other)])
                if size <= whole.size:
                    taken, offsets = [*taken, other], found
        return dict(zip(taken, offsets))

    def _needed(self, slots: set[int]) -> list[Planned]:
        """Views of what came in that are needed behind the stretch."""
        found = []
        for step in reversed(self.views):
            if not slots.isdisjoint(step.writes):
                found.append(step)
                slots.update(step.reads)
        return found[::-1]


def joined(steps: Sequence[Planned], constants: set[int], settled: set[int],
           fail: Callable[[int, Exception], Any], whole: bool = False) -> list[Stretch | Planned]:
    """The steps with stretches of several kernels as one."""
    found: list[Stretch | Planned] = []
    open_: list[Planned] = []

    def close() -> None:
        if sum(step.kind == FUSED for step in open_) >= LEAST:
            found.append(Stretch(open_, constants, settled, fail, whole))
        else:
            found.extend(open_)
        open_.clear()

    for step in steps:
        if step.kind:
            open_.append(step)
        else:
            close()
            found.append(step)
    close()
    return found
