"""Where candidates are tried, and where what came out is kept: on this machine's processor, on its GPU, or in the
records of a GPU that is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cost_model.fingerprint import Fingerprint
from cost_model.records import Record
from cost_model.targets import Target, find_target
from cost_model.targets.cuda import EgraftCuda
from cost_model.timings import Timings
from graphs.errors import InvalidOption
from graphs.ir import Graph
from runtime.codegen.c import REFUSED, plan_of, unavailable
from runtime.fusion import signature

from .apart import Apart, Trial, Try
from .budget import GPU_TARGET, TARGET, TARGETS
from .gpu import kernel_text, measured_on
from .measure import Measured, fingerprint, shapes_of

CHILD = "search.fusions.gpu_child"


@dataclass(frozen=True)
class Trials:
    """`attempt` tries a candidate, `missing` says why none can be. Records are those of `target` on the device of
    `place`, in `database` if that is another machine's; where `threads` count they are of so many."""

    target: str
    place: Callable[[], Fingerprint | str]
    attempt: Try
    text: Callable[[Graph, bool, str], str]  # of a kernel: body, exact, variant
    threads: bool = True
    missing: str | None = None
    database: Timings | None = None

    def recorded(self, body: Graph, exact: bool, threads: int, timings: Timings) -> Measured | None:
        """What is known of a candidate."""
        known, key, place = self.database or timings, self._key(body, exact, threads), self.place()
        record = known.peek(key, self.target, place)
        found = None if record is None else _from_record(record)
        if found is not None:
            known.get(key, self.target, place)  # it counts as used
        return found

    def record(self, body: Graph, exact: bool, threads: int, timings: Timings, found: Measured,
               samples: Sequence[float]) -> Measured:
        """Store what came out; answers what is in force. What `recorded` does not believe gives way."""
        place, note = self.place(), {"unfused": found.unfused, "verdict": found.verdict, "note": found.note}
        assert isinstance(place, Fingerprint), "nothing is measured on another machine"
        if found.variant:
            note["variant"] = found.variant
        stored = timings.add(self._key(body, exact, threads), self.target, place, "fusion", samples, found.fused, note,
                             lambda old: _from_record(old) is None)
        return _from_record(stored) or found

    def _key(self, body: Graph, exact: bool, threads: int) -> str:
        how = f"threads={threads} among others" if self.threads else "and its variants"
        return f"fusion {signature(body)} exact={int(exact)} {how}"

    @property
    def note(self) -> str:
        """Why nothing is tried; empty if something is."""
        return self.missing or (self.attempt.note if isinstance(self.attempt, Apart) else "")

    @property
    def untried(self) -> str:
        """Why some were not tried, though others may have been; empty if there were none."""
        return self.attempt.untried if isinstance(self.attempt, Apart) else ""

    def close(self) -> None:
        """End the process that tries candidates."""
        if isinstance(self.attempt, Apart):
            self.attempt.close()


def trials_for(target: Target | str, attempt: Try | None = None) -> Trials:
    """Those of a target, with another way to try candidates if one is given. Raises InvalidOption for targets that run
    no fused nodes."""
    plain, at, _ = (target if isinstance(target, str) else target.name).partition("@")
    if plain not in TARGETS or (at and plain == TARGET):
        raise InvalidOption(f"target {target if isinstance(target, str) else target.name}",
                            "no fusions are discovered for it", f"choose {' or '.join(TARGETS)}")
    if plain == TARGET:
        return Trials(TARGET, fingerprint, attempt or Apart(), _c_text, missing=unavailable())
    found = find_target(target) if isinstance(target, str) else target
    if found.database is not None:
        assert found.place is not None
        digest = found.place[1]
        return Trials(GPU_TARGET, lambda: digest, _nothing, kernel_text, threads=False, database=found.database)
    assert isinstance(found, EgraftCuda)
    if attempt is None and found.is_given:
        attempt = partial(_here, found)
    missing = None if attempt is not None else found.available()
    return Trials(GPU_TARGET, lambda: found.fingerprint, attempt or Apart(CHILD), kernel_text, threads=False,
                  missing=missing)


def trials_on_host(target: Target) -> Trials:
    """Those of what a GPU's target runs on the processor: nested graphs. They are filed with the GPU's records, so that
    these tell all of a result."""
    if target.database is not None:
        assert target.place is not None
        digest = target.place[1]
        return Trials(GPU_TARGET, lambda: digest, _nothing, _c_text, database=target.database)
    return Trials(GPU_TARGET, lambda: target.fingerprint, Apart(), _c_text, missing=unavailable())


def _here(target: EgraftCuda, body: Graph, exact: bool, threads: int) -> Trial | None:
    """In this process, on a device that no other process can open."""
    return measured_on(target, body, exact)


def _nothing(body: Graph, exact: bool, threads: int) -> Trial | None:
    """On a device that is elsewhere nothing is tried."""
    return None


def _c_text(body: Graph, exact: bool, variant: str) -> str:
    return plan_of(body, shapes_of(body), exact=exact).told if unavailable() is None else ""


def _from_record(record: Record) -> Measured | None:
    """None for what this egraft would not have written: a miss. So is what a compiler refused, which it may have done
    for a full disk; another one is asked then."""
    note = record.note
    unfused, verdict = note.get("unfused"), note.get("verdict")
    if not isinstance(unfused, int | float) or not 0 <= unfused < math.inf or not isinstance(verdict, str):
        return None
    if verdict == "impossible" and REFUSED in str(note.get("note", "")):
        return None
    return Measured(record.median, float(unfused), verdict, str(note.get("note", "")), str(note.get("variant", "")))
