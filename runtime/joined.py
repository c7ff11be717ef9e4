"""Fused nodes that follow each other as one call of the engine, with what only moves their operands.

The first time that such a stretch of a program runs on arrays of some sizes it runs step by step, and it is noted where
each value lay: in what comes in, in a constant, or in memory that a kernel wrote. Its kernels then run one after the
other in one call; values that nobody needs behind the stretch share an arena by when they are needed. Sizes inside of a
stretch follow from those of what comes in: its steps are kernels planned for sizes, views by constants (or copies,
where a Reshape is none), and what follows from sizes alone (`runtime.settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .noted import FUSED, LONE, PLAIN, SETTLED, VIEW, Notes, Planned, Record
from .program import Environment
from .settled import MOST_BYTES

MOST_RECORDS = 8  # sets of sizes
LEAST = 2  # kernels that are worth it
# What a stretch may take without being parted, beside the bytes that are needed at one time: a sixtieth of those, or
# where that is little what a few more calls are not worth, less the more it is in proportion.
MOST_WASTED, LEAST_WASTED = 1 / 64, 1 << 17


class Stretch:
    """Planned steps that run as one where they can; `fail(index, reason)` raises what tells of a failing step. `whole`:
    it was parted for its memory already."""

    def __init__(self, steps: Sequence[Planned], constants: set[int], settled: set[int],
                 fail: Callable[[int, Exception], Any], whole: bool = False) -> None:
        self.steps, self.constants, self.settled, self.fail = list(steps), constants, settled, fail
        self.whole, self.threads = whole, next((step.function.threads for step in steps if step.kind == FUSED), 1)
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
        if parts[0] is not self:
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
        peak = notes.peak()
        limit = peak + max(int(MOST_WASTED * peak), LEAST_WASTED - peak // 14)
        if self.whole or record.size + notes.held() <= limit:
            self.records[key] = record
        else:
            ends = notes.cuts(limit)
            self.records[key] = [part for first, end in zip([0, *ends], [*ends, len(self.steps)])
                                 for part in self._part(first, end, True)]
        return len(self.steps)

    def _part(self, first: int, end: int, whole: bool = False) -> list[Stretch | Planned]:
        return joined(self.steps[first:end], self.constants, self.settled, self.fail, whole)


def joined(steps: Sequence[Planned], constants: set[int], settled: set[int],
           fail: Callable[[int, Exception], Any], whole: bool = False) -> list[Stretch | Planned]:
    """The steps with stretches of several kernels as one."""
    found: list[Stretch | Planned] = []
    open_: list[Planned] = []

    def close() -> None:
        kernels = [step.kind for step in open_ if step.kind in (FUSED, LONE)]
        if len(kernels) >= LEAST and FUSED in kernels:
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


__all__ = ["FUSED", "LONE", "PLAIN", "SETTLED", "VIEW", "Planned", "Record", "Stretch", "joined"]
