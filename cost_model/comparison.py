"""What a comparison found: ratios, their intervals, verdicts, and every sample."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median as median_of
from typing import Any, Literal, Protocol

from .records import spread_of
from .statistics import Interval, median_interval

# Confidence of the A/A interval that sets the threshold. Simulated with the noise of a shared machine
# (log-normal 2 and 6 %, outliers, slow phases; 900 comparisons of equal things): no false verdict. 0.99
# gave none either but saw 64 % of gains of 5 % after 30 rounds at 2 % noise, this one 99 %. The A/A median
# alone gave 2 to 3 % false verdicts.
NOISE_CONFIDENCE = 0.5
Verdict = Literal["faster", "slower", "equal"]
Kind = Literal["measured", "database", "recorded", "estimated"]


class _Timed(Protocol):
    @property
    def wall(self) -> float: ...
    @property
    def cpu(self) -> float: ...
    @property
    def device(self) -> float: ...


@dataclass(frozen=True)
class SampleLists:
    """Seconds per run by round and clock; None in rounds that were left out."""

    wall: tuple[float | None, ...]
    cpu: tuple[float | None, ...]
    device: tuple[float | None, ...] = ()

    @staticmethod
    def of(samples: Iterable[_Timed | None]) -> SampleLists:
        """From samples in the order of rounds."""
        kept = list(samples)
        return SampleLists(
            tuple(None if each is None else each.wall for each in kept),
            tuple(None if each is None else each.cpu for each in kept),
            tuple(None if each is None else each.device for each in kept)
            if any(each is not None and each.device for each in kept)
            else (),
        )

    def by(self, clock: str) -> tuple[float | None, ...]:
        """The list of one clock."""
        return {"cpu": self.cpu, "device": self.device}.get(clock, self.wall)

    def to_dict(self) -> dict[str, list[float | None]]:
        """JSON types; the device's clock only where there is one."""
        kept = {"wall": list(self.wall), "cpu": list(self.cpu)}
        return {**kept, "device": list(self.device)} if any(self.device) else kept

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> SampleLists:
        """The reverse of `to_dict`. Raises KeyError or TypeError where fields lack."""
        return SampleLists(tuple(data["wall"]), tuple(data["cpu"]), tuple(data.get("device", ())))

    def median(self, clock: str) -> float:
        """Median seconds per run."""
        return float(median_of([each for each in self.by(clock) if each is not None]))

    def spread(self, clock: str) -> float:
        """Median absolute deviation, seconds."""
        return spread_of([each for each in self.by(clock) if each is not None])


@dataclass(frozen=True)
class Result:
    """One thing against the baseline.

    `ratio` is its time by the baseline's, the median over rounds (below 1 is faster), within [`low`,
    `high`] at `confidence`. `seconds` and `spread` are of its own samples. `looks`: how often it was measured, each
    time with sessions of its own.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    verdict: Verdict
    seconds: float
    spread: float
    looks: int = 1

    @property
    def speed_up(self) -> float:
        """Baseline's time by its own (above 1 is faster)."""
        return 1.0 / self.ratio if self.ratio > 0 else float("inf")


@dataclass(frozen=True)
class Comparison:
    """Several things measured in turns against `baseline`.

    `noise` is the interval of the baseline against itself, `threshold` the relative difference that counts
    as one here (`floor` or what the noise shows, whichever is larger): a ratio above 1 + threshold or below
    1 / (1 + threshold), so that a and b differ as b and a do. `clock` decided. `kind` is
    `measured` (now), `database` (measured before on this device), `recorded` (on another device) or
    `estimated` (nothing measured). `stopped` is `clear`, `rounds`, `budget` or `pairs`. `unsupported`: what the
    target cannot run, with its reason; it has no result. `pairs`: ratios and intervals are over so many pairs of
    sessions; 0 where they are over the rounds of one session of each.
    """

    baseline: str
    results: Mapping[str, Result]
    noise: Interval
    threshold: float
    floor: float
    clock: str
    threads: int
    rounds: int
    stopped: str
    kind: Kind = "measured"
    samples: Mapping[str, SampleLists] = field(default_factory=dict)
    twin: SampleLists = SampleLists((), ())
    inner: Mapping[str, int] = field(default_factory=dict)
    confidence: float = 0.99
    note: str = ""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    pairs: int = 0

    def ratio(self, name: str, other: str) -> Interval | None:
        """Time of `name` by that of `other` over the rounds that both ran, None if there are none."""
        ratios = _ratios(self.samples[name].by(self.clock), self.samples[other].by(self.clock))
        return median_interval(ratios, self.confidence) if ratios else None

    def verdict(self, name: str, other: str) -> Verdict:
        """Is `name` faster or slower than `other`, beyond noise?"""
        if name == other:
            return "equal"
        if not self.samples:  # an estimate has no samples: every difference beyond the floor counts
            return _verdict_of_estimates(self.results[name].seconds, self.results[other].seconds, self.floor)
        interval = self.ratio(name, other)
        return "equal" if interval is None else _verdict(interval, self.threshold)

    def is_clear(self) -> bool:
        """More rounds would hardly change a verdict: all are decided, or equal within 1.5 times the floor."""
        limit = 1.5 * self.floor
        others = [result for name, result in self.results.items() if name != self.baseline]
        return all(each.verdict != "equal" or (each.low > 1 / (1 + limit) and each.high < 1 + limit) for each in others)

    def choose(self, preference: Sequence[str]) -> str:
        """The name to take: the fastest; of those not told apart from it, the first in `preference`
        (simplest first).

        The baseline is always a candidate, and nothing that is not faster than it beyond noise beats it on
        speed.
        """
        order = [*preference, *(name for name in (self.baseline, *self.results) if name not in preference)]
        fit = [name for name in order if self.results[name].verdict != "slower"]
        ahead = [name for name in fit if self.results[name].verdict == "faster"]
        if not ahead:
            return fit[0]
        fastest = min(ahead, key=lambda name: self.results[name].ratio)
        return next(name for name in order if name in ahead and self.verdict(name, fastest) != "slower")

    def to_dict(self) -> dict[str, Any]:
        """JSON types, every sample included."""
        return {
            "baseline": self.baseline,
            "clock": self.clock,
            "threads": self.threads,
            "rounds": self.rounds,
            "stopped": self.stopped,
            "kind": self.kind,
            "threshold": self.threshold,
            "floor": self.floor,
            "confidence": self.confidence,
            "note": self.note,
            "unsupported": dict(self.unsupported),
            "inner": dict(self.inner),
            "noise": [self.noise.median, self.noise.low, self.noise.high, self.noise.confidence],
            "results": {
                name: {
                    "ratio": each.ratio,
                    "low": each.low,
                    "high": each.high,
                    "confidence": each.confidence,
                    "verdict": each.verdict,
                    "seconds": each.seconds,
                    "spread": each.spread,
                }
                for name, each in self.results.items()
            },
            "samples": {name: each.to_dict() for name, each in self.samples.items()},
            "twin": self.twin.to_dict(),
            **({"pairs": self.pairs} if self.pairs else {}),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any], kind: Kind | None = None) -> Comparison:
        """The reverse of `to_dict`, with another `kind` if given. Raises KeyError or TypeError where fields
        lack.
        """
        lists = {name: SampleLists.from_dict(each) for name, each in data["samples"].items()}
        twin = SampleLists.from_dict(data["twin"])
        return Comparison(
            data["baseline"],
            {name: Result(**each) for name, each in data["results"].items()},
            Interval(*data["noise"]),
            data["threshold"],
            data["floor"],
            data["clock"],
            data["threads"],
            data["rounds"],
            data["stopped"],
            kind or data["kind"],
            lists,
            twin,
            dict(data["inner"]),
            data["confidence"],
            data["note"],
            dict(data["unsupported"]),
            data.get("pairs", 0),
        )


def contest_digest(baseline: str, names: Iterable[str]) -> str:
    """SHA-256 that names what is compared with what, by the digests of graphs; their order does not matter."""
    others = sorted(set(names) - {baseline})
    return hashlib.sha256("\n".join([baseline, *others]).encode()).hexdigest()


def _ratios(values: Sequence[float | None], base: Sequence[float | None]) -> list[float]:
    return [max(a, 1e-12) / max(b, 1e-12) for a, b in zip(values, base) if a is not None and b is not None]


def _verdict(interval: Interval, threshold: float) -> Verdict:
    if interval.high < 1 / (1 + threshold):
        return "faster"
    return "slower" if interval.low > 1 + threshold else "equal"


def _verdict_of_estimates(seconds: float, base: float, floor: float) -> Verdict:
    if seconds < base / (1 + floor):
        return "faster"
    return "slower" if seconds > base * (1 + floor) else "equal"


def judge(
    baseline: str,
    samples: Mapping[str, SampleLists],
    twin: SampleLists,
    *,
    clock: str,
    threads: int,
    inner: Mapping[str, int],
    stopped: str,
    confidence: float,
    floor: float,
) -> Comparison:
    """Verdicts from samples.

    Something is faster (slower) only if its whole interval lies beyond 1 by more than the threshold, as a factor.
    """
    base = samples[baseline].by(clock)
    noise = median_interval(_ratios(twin.by(clock), base), confidence)
    usual = median_interval(_ratios(twin.by(clock), base), NOISE_CONFIDENCE)
    threshold = max(floor, 1 / usual.low - 1, usual.high - 1)
    # Both samples of the baseline are used: their geometric mean scatters less than either.
    both = [math.sqrt(max(a, 1e-12) * max(b, 1e-12)) for a, b in zip(base, twin.by(clock)) if a and b]
    middle = both if len(both) == len(base) else base
    results = {}
    for name, lists in samples.items():
        interval = (
            Interval(1.0, 1.0, 1.0, 1.0)
            if name == baseline
            else median_interval(_ratios(lists.by(clock), middle), confidence)
        )
        results[name] = Result(
            interval.median,
            interval.low,
            interval.high,
            interval.confidence,
            _verdict(interval, threshold),
            lists.median(clock),
            lists.spread(clock),
        )
    return Comparison(
        baseline,
        results,
        noise,
        threshold,
        floor,
        clock,
        threads,
        len(base),
        stopped,
        "measured",
        dict(samples),
        twin,
        dict(inner),
        confidence,
    )


def of_pairs(whole: Comparison, ratios: Mapping[str, Interval], pairs: int) -> Comparison:
    """A comparison with the ratios of `pairs` pairs of sessions in the place of those of rounds."""
    results = {
        name: replace(found, ratio=ratios[name].median, low=ratios[name].low, high=ratios[name].high,
                      confidence=ratios[name].confidence, verdict=_verdict(ratios[name], whole.threshold))
        for name, found in whole.results.items()
    }
    return replace(whole, results=results, pairs=pairs)


def estimated(
    seconds: Mapping[str, float], baseline: str, kind: Kind, threads: int, note: str, floor: float = 0.02
) -> Comparison:
    """A comparison of estimates: nothing was measured and `kind` says so."""
    base = max(seconds[baseline], 1e-12)
    results = {}
    for name, value in seconds.items():
        ratio = value / base
        results[name] = Result(ratio, ratio, ratio, 0.0, _verdict_of_estimates(value, base, floor), value, 0.0)
    return Comparison(
        baseline,
        results,
        Interval(1.0, 1.0, 1.0, 0.0),
        floor,
        floor,
        "none",
        threads,
        0,
        "estimated",
        kind,
        note=note,
    )


def pooled(first: Result, second: Result) -> Result:
    """What two independent looks tell together.

    How memory lies shifts a session's times for good, so the looks differ by more than their intervals say: together
    they span both. What is slower in both is slower, and the same with faster.
    """
    verdict: Verdict = first.verdict if first.verdict == second.verdict else "equal"
    return Result(
        math.sqrt(first.ratio * second.ratio),
        min(first.low, second.low),
        max(first.high, second.high),
        min(first.confidence, second.confidence),
        verdict,
        math.sqrt(first.seconds * second.seconds),
        max(first.spread, second.spread),
        first.looks + second.looks,
    )
