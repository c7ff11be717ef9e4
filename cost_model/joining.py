"""Comparisons with one baseline as one: of models so large that not all of their sessions fit into memory at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from .comparison import Comparison, Result, SampleLists

Value = TypeVar("Value")


def joined(parts: Sequence[Comparison]) -> Comparison:
    """One comparison that holds what each of the parts found; all have the same baseline, and no other name twice.

    Ratios, intervals and verdicts against the baseline stay as they are. Samples are scaled by what the baseline took
    in the same round of either part, so that two things which never ran side by side can be told apart by their ratios
    to it; such an interval holds the noise of both baselines. The noise is that of the noisiest part.
    """
    longest = max(parts, key=lambda part: part.rounds)
    if len(parts) == 1:
        return longest
    noisiest = max(parts, key=lambda part: part.threshold)
    sampled = all(part.samples for part in parts)
    results: dict[str, Result] = {}
    samples: dict[str, SampleLists] = {}
    for part in parts:
        for name, found in part.results.items():
            if name == part.baseline:
                continue
            results[name] = found
            if sampled:
                samples[name] = lists = _scaled(part, longest, name)
                kept = [each for each in lists.by(longest.clock) if each is not None]
                if kept:
                    results[name] = dataclasses.replace(found, seconds=lists.median(longest.clock),
                                                        spread=lists.spread(longest.clock))
    baseline = longest.baseline
    return dataclasses.replace(
        longest,
        results={baseline: longest.results[baseline], **results},
        samples={baseline: longest.samples[baseline], **samples} if sampled else {},
        noise=noisiest.noise,
        threshold=noisiest.threshold,
        stopped=next((part.stopped for part in parts if part.stopped != "clear"), "clear"),
        kind=next((part.kind for part in parts if part.kind != "database"), "database"),
        inner=_union([part.inner for part in parts]),
        unsupported=_union([part.unsupported for part in parts]),
        note=longest.note or f"in {len(parts)} parts, each with the input",
    )


def _scaled(part: Comparison, longest: Comparison, name: str) -> SampleLists:
    """The samples of a part as they would be beside the baseline of another."""
    if part is longest:
        return part.samples[name]
    rows = []
    for clock in ("wall", "cpu", "device"):
        own, other = _middle(part, clock), _middle(longest, clock)
        row: list[float | None] = [
            None if value is None or not mine or not theirs else value / mine * theirs
            for value, mine, theirs in zip(part.samples[name].by(clock) if own else (), own, other)]
        rows.append(tuple(row + [None] * (longest.rounds - len(row))))
    return SampleLists(rows[0], rows[1], rows[2] if part.samples[name].device else ())


def _middle(part: Comparison, clock: str) -> tuple[float | None, ...]:
    """What the baseline took in each round: the geometric mean of both of its samples, as for ratios to it."""
    base, twin = part.samples[part.baseline].by(clock), part.twin.by(clock)
    return tuple(math.sqrt(a * b) if a and b else None for a, b in zip(base, twin))


def _union(maps: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    return {name: value for each in maps for name, value in each.items()}
