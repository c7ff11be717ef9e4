"""The one way in which egraft measures time.

*One thing* (`measure_one`): between samples of a reference, because a shared machine may be 1.5 times
slower for a while; what counts is the ratio to it. Warm-up, as many repetitions inside a sample that it
lasts long enough for the clock, several samples, all kept. *Several things* (`compare`): in every round
each is sampled twice, in changing order; what counts is the ratio of their means within a round, so that a
machine that becomes slower as a whole changes nothing. The two samples of the baseline (A/A) tell
which ratio is still noise.

CPU time decides where the work runs in one thread: being preempted does not count then. What a device runs
is timed by the device's own events, with caches flushed before each run. Wall time decides elsewhere. All
are kept.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median as median_of
from typing import Literal, Protocol, runtime_checkable

from .comparison import Comparison, SampleLists, judge
from .records import spread_of
from .resting import wait_until_others_rest

ClockName = Literal["cpu", "wall", "device"]
Run = Callable[[], None]


@dataclass(frozen=True)
class Clocks:
    """Sources of seconds; tests put fake ones here."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time


REAL = Clocks()
MOST_WAITED = 2.0  # budgets: so much longer than its budget a comparison may take for pauses
SHORT = 0.01  # seconds: to wake a thread takes some 50 us
STEADY = 0.5  # median absolute deviation by the median, beyond which samples tell nothing but that others ran
MOST_FLUSHES = 20  # runs of a device in one sample: each waits until its caches hold other data


@dataclass(frozen=True)
class Settings:
    """How to measure. Times in seconds.

    `floor` is the smallest relative difference that is ever called one. `budget` limits a comparison, warm-up
    included, pauses until threads rest (`resting`) not; it is checked between rounds. `min_rounds` is for things so
    slow that these take 5 % of the budget; others run `quick_rounds` before a comparison may end early. `confidence` is
    that of each interval.
    """

    sample: float = 200e-6
    warm_up_runs: int = 2
    warm_up_seconds: float = 0.2
    min_rounds: int = 5
    quick_rounds: int = 15
    max_rounds: int = 100
    budget: float = 10.0
    confidence: float = 0.99
    floor: float = 0.02  # two sessions of one graph may differ so much for good, by where their memory lies
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds per run, by each clock; `device` is 0 where no device has a clock of its own."""

    wall: float
    cpu: float
    device: float = 0.0

    @property
    def alone(self) -> float:
        """Seconds per run without what measuring adds: of the device, else wall time."""
        return self.device or self.wall

    def mean(self, other: Sample) -> Sample:
        """The geometric mean of two."""
        return Sample(*(math.sqrt(a * b) for a, b in ((self.wall, other.wall), (self.cpu, other.cpu),
                                                      (self.device, other.device))))


@dataclass(frozen=True)
class Samples:
    """All samples of one thing. `inner` runs made one sample; `clock` is the one to go by.

    `references`, if any, are samples of a reference that takes `nominal` seconds: one before each sample
    and one after the last.
    """

    samples: tuple[Sample, ...]
    inner: int
    clock: ClockName
    references: tuple[Sample, ...] = ()
    nominal: float = 0.0

    @property
    def raw(self) -> tuple[float, ...]:
        """Seconds per run as the clock that decides showed them."""
        return tuple(getattr(each, self.clock) for each in self.samples)

    @property
    def around(self) -> tuple[float, ...]:
        """Seconds per run of the reference around each sample, empty without one."""
        times = [max(getattr(each, self.clock), 1e-12) for each in self.references]
        return tuple((before + after) / 2 for before, after in itertools.pairwise(times))

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds per run, each scaled by what the reference around it showed."""
        if not self.references:
            return self.raw
        return tuple(each * self.nominal / beside for each, beside in zip(self.raw, self.around))

    @property
    def median(self) -> float:
        """Median seconds per run."""
        return float(median_of(self.seconds))

    @property
    def spread(self) -> float:
        """Median absolute deviation in seconds."""
        return spread_of(self.seconds)


def clock_for(threads: int) -> ClockName:
    """CPU time for one thread; with more it would add up what runs at the same time."""
    return "cpu" if threads == 1 else "wall"


@contextmanager
def _no_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@runtime_checkable
class DeviceRun(Protocol):
    """A run whose work a device times itself."""

    def __call__(self) -> None:
        """Run once and wait."""

    def timed(self, count: int) -> list[float]:
        """Seconds on the device of each of `count` runs, caches flushed before each."""


def take_sample(run: Run, inner: int, clocks: Clocks = REAL) -> Sample:
    """Run `inner` times, back to back; seconds per run."""
    if isinstance(run, DeviceRun):
        wall, cpu = clocks.wall(), clocks.cpu()
        times = run.timed(inner)
        return Sample((clocks.wall() - wall) / inner, (clocks.cpu() - cpu) / inner, sum(times) / inner)
    with _no_collector():
        repetitions = itertools.repeat(None, inner)
        wall, cpu = clocks.wall(), clocks.cpu()
        for _ in repetitions:
            run()
        cpu, wall = clocks.cpu() - cpu, clocks.wall() - wall
    return Sample(wall / inner, cpu / inner)


def warm_up(run: Run, settings: Settings, clocks: Clocks = REAL) -> int:
    """Run until caches, pages and clocks have settled; answers how many runs make one sample.

    At least `warm_up_runs` and one run that is timed; more while a sample's worth of time has not passed.
    """
    start = clocks.wall()
    best = math.inf
    for done in itertools.count(1):
        sample = take_sample(run, 1, clocks)
        best = min(best, max(sample.alone, 1e-9))
        passed = clocks.wall() - start
        if done > settings.warm_up_runs and (passed >= settings.sample or done >= 50):
            break
        if passed >= settings.warm_up_seconds and done >= 2:
            break
    most = MOST_FLUSHES if isinstance(run, DeviceRun) else 100_000
    return max(1, min(most, math.ceil(settings.sample / best)))


@dataclass(frozen=True)
class Reference:
    """Known work that is sampled beside what is measured: a run of it takes `nominal` seconds on a quiet
    machine.
    """

    run: Run
    nominal: float
    inner: int


def measure_one(
    run: Run,
    threads: int = 1,
    budget: float = 0.02,
    settings: Settings | None = None,
    clocks: Clocks = REAL,
    reference: Reference | None = None,
    inner: int | None = None,
) -> Samples:
    """Time one thing: at least 3 samples, then more until `budget` seconds are over or the median is known.

    It counts as known after 7 samples or more, when its error as the deviations tell it is below 1 %. With a
    `reference`, sampled before and after each sample, seconds are those of a machine on which the reference
    takes its nominal time.
    """
    settings = settings or Settings()
    start = clocks.wall()
    if inner is None:  # else it has been warmed up, and so many runs make a sample
        inner = warm_up(run, settings, clocks)
    samples: list[Sample] = []
    references: list[Sample] = []
    if reference is not None:
        references.append(take_sample(reference.run, reference.inner, clocks))
    while True:
        samples.append(take_sample(run, inner, clocks))
        if reference is not None:
            references.append(take_sample(reference.run, reference.inner, clocks))
        count = len(samples)
        clock = _trusted(clock_for(threads), [*samples, *references])
        nominal = reference.nominal if reference is not None else 0.0
        found = Samples(tuple(samples), inner, clock, tuple(references), nominal)
        if count >= settings.max_rounds or (count >= 3 and clocks.wall() - start >= budget):
            return found
        if count >= 7 and 1.25 * found.spread <= 0.01 * found.median * math.sqrt(count):
            return found


def measure_steady(run: Run, threads: int, budget: float, reference: Reference, inner: int) -> Samples:
    """`measure_one`, and once more where the samples disagree wildly: then the one that scatters less, in seconds.

    Others only ever add time: an LSTM of 22 ms with two BLAS threads beside a busy core took 5.8 s +- 5.46 s.
    """
    first = measure_one(run, threads, budget, reference=reference, inner=inner)
    if first.spread <= STEADY * first.median:
        return first
    again = measure_one(run, threads, budget, reference=reference, inner=inner)
    return min(first, again, key=lambda each: each.spread)


def _trusted(clock: ClockName, samples: Sequence[Sample]) -> ClockName:
    """The device's clock if all have one. Wall time where CPU time does not move: its clock is too coarse, or
    another process does the work.
    """
    if samples and all(each.device > 0 for each in samples):
        return "device"
    return "wall" if clock == "cpu" and any(each.cpu <= 0 for each in samples) else clock


@dataclass
class _Contest:
    """A comparison under way."""

    runners: Mapping[str, Run]
    baseline: str
    threads: int
    settings: Settings
    clocks: Clocks
    started: float
    inner: dict[str, int] = field(default_factory=dict)
    samples: dict[str, list[Sample | None]] = field(default_factory=dict)
    twin: list[Sample] = field(default_factory=list)
    retired: set[str] = field(default_factory=set)
    rounds: int = 0
    last: str = ""  # what ran last
    alone: bool = True  # no other thread of this process has work of its own
    waited: float = 0.0  # seconds, which are none of the budget
    paused: bool = False  # something had to wait: from then on every short run is warmed up, whoever ran before it

    def passed(self) -> float:
        return self.clocks.wall() - self.started - self.waited

    def is_over(self) -> bool:
        return self.passed() >= self.settings.budget or self.waited >= MOST_WAITED * self.settings.budget

    def order(self) -> list[str]:
        """Everything twice: what runs more often than the rest finds more of its weights in the caches (ppocr_cls in a
        second session, sampled half as often as in the first, was 3 to 5 % slower than itself; 1 to 2 % if as often).
        The order changes from round to round, the same for the same seed.
        """
        order = 2 * [name for name in self.runners if name not in self.retired]
        random.Random(self.settings.seed * 1_000_003 + self.rounds).shuffle(order)
        return order

    def part(self, name: str) -> None:
        """Nothing runs twice in a row: caches would hold its weights the second time (1.5 % for a model of 1.2 MB and
        3 ms, among seven).
        """
        if name == self.last:
            other = next((each for each in self.runners if each != name and each not in self.retired), None)
            if other is not None:
                self.runners[other]()
        self.last = name
        self.rest()
        known = next((each.wall for each in reversed(self.samples[name]) if each is not None), 0.0)
        if self.paused and known < SHORT:  # its own threads may sleep now, as those of a caller in a loop do not
            self.runners[name]()

    def rest(self) -> None:
        """With several threads, those of what ran before rest before the next is timed."""
        if self.threads < 2 or not self.alone:
            return
        start = self.clocks.wall()
        waited = wait_until_others_rest()
        self.waited += self.clocks.wall() - start
        self.alone = waited is not None
        self.paused |= bool(waited)

    def round(self) -> None:
        first: dict[str, Sample] = {}
        for name in self.order():
            self.part(name)
            sample = take_sample(self.runners[name], self.inner[name], self.clocks)
            if name not in first:
                first[name] = sample
            elif name == self.baseline:
                self.samples[name].append(first[name])
                self.twin.append(sample)
            else:
                self.samples[name].append(first[name].mean(sample))
        for name in self.retired:
            self.samples[name].append(None)
        self.rounds += 1

    def result(self, stopped: str) -> Comparison:
        everything = [each for row in self.samples.values() for each in row if each is not None] + self.twin
        clock = _trusted(clock_for(self.threads), everything)
        lists = {name: SampleLists.of(row) for name, row in self.samples.items()}
        return judge(
            self.baseline,
            lists,
            SampleLists.of(self.twin),
            clock=clock,
            threads=self.threads,
            inner=dict(self.inner),
            stopped=stopped,
            confidence=self.settings.confidence,
            floor=self.settings.floor,
        )


def compare(
    runners: Mapping[str, Run],
    baseline: str,
    threads: int = 1,
    settings: Settings | None = None,
    clocks: Clocks = REAL,
) -> Comparison:
    """Measure several things against `baseline` (one of the names), in turns.

    Ends as soon as the answer is clear for all, or with the budget of seconds or rounds; `stopped` tells
    which. At least three rounds are always run. What is clearly slower than the baseline drops out early.
    """
    if baseline not in runners:
        raise ValueError(f"the baseline {baseline!r} is not among {sorted(runners)}")
    settings = settings or Settings()
    contest = _Contest(runners, baseline, threads, settings, clocks, clocks.wall())
    for name, run in runners.items():
        contest.rest()
        contest.inner[name] = warm_up(run, settings, clocks)
        contest.samples[name] = []
    stopped = ""
    while not stopped:
        contest.round()
        if contest.rounds >= settings.max_rounds:
            stopped = "rounds"
        elif contest.rounds >= 3 and contest.is_over():
            stopped = "budget"
        elif contest.rounds >= settings.min_rounds and (
            contest.rounds >= settings.quick_rounds or contest.passed() >= 0.05 * settings.budget
        ):
            so_far = contest.result("")
            contest.retired |= {name for name, each in so_far.results.items() if each.verdict == "slower"}
            if so_far.is_clear():
                stopped = "clear"
    return contest.result(stopped)
