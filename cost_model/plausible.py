"""What a stored record must look like to be believed. What does not is a miss, and refused by an import."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .comparison import Comparison, contest_digest
from .records import Record

LONGEST = 86_400.0  # seconds: nothing that egraft measures runs for a day
_SLACK = 1e-6  # relative: what the value of a record may differ from the one that its samples give
# Fields of notes that costs are worked out with, in seconds.
_SECONDS = ("call", "launch", "chain")


def read_record(data: Mapping[str, Any]) -> Record:
    """`Record.from_dict`, and a look at whether its numbers can be times. Raises ValueError with the reason if not."""
    record = Record.from_dict(data)
    reason = implausible(record)
    if reason:
        raise ValueError(f"not a timing record: {reason}")
    return record


def implausible(record: Record) -> str:
    """Why the record cannot have been measured, empty where nothing speaks against it."""
    if not all(0 < each <= LONGEST for each in record.samples):
        return f"a sample is not between 0 and {LONGEST:g} seconds"
    for name in _SECONDS:
        value = record.note.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
            return f"{name} is {value!r}"
    if not record.samples:
        measured = record.kind in ("peak", "verdict") or record.median not in (0.0, math.inf)
        return "it has no samples" if measured else ""
    if "amount" in record.note:  # a rate: so much in the shortest sample
        return _other_rate(record)
    if not min(record.samples) * (1 - _SLACK) <= record.median <= max(record.samples) * (1 + _SLACK):
        return f"the median {record.median:g} lies outside the samples"
    return _no_comparison(record.key, record.note.get("comparison")) if record.kind == "verdict" else ""


def _other_rate(record: Record) -> str:
    amount = record.note["amount"]
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < math.inf:
        return f"the amount of work is {amount!r}"
    rate = amount / min(record.samples)
    return "" if math.isclose(rate, record.median, rel_tol=_SLACK) else f"the rate {record.median:g} is not {rate:g}"


def _no_comparison(key: str, found: object) -> str:
    """Why a verdict cannot be used: parts that lack, numbers that are none, other graphs than the key names."""
    try:
        if not isinstance(found, Mapping):
            raise TypeError("it lacks")
        comparison = Comparison.from_dict(found)
        rows = [(each.ratio, each.low, each.high, each.seconds) for each in comparison.results.values()]
        whole = comparison.baseline in comparison.results and comparison.results.keys() == comparison.samples.keys()
        sane = all(_positive(row) and row[1] <= row[0] <= row[2] for row in rows)
        sane = sane and _positive((comparison.threshold, comparison.noise.low, comparison.noise.high))
        sane = sane and all(_samples_of(comparison, name) for name in comparison.results)
    except (KeyError, TypeError, ValueError) as error:
        return f"the comparison cannot be read: {error!r}"
    if contest_digest(comparison.baseline, {*comparison.results, *comparison.unsupported}) not in key:
        return "the comparison is one of other graphs than its key names"
    return "" if whole and sane else "the comparison holds numbers that are no times"


def _samples_of(comparison: Comparison, name: str) -> bool:
    found = [each for each in comparison.samples[name].by(comparison.clock) if each is not None]
    return bool(found) and _positive(found)


def _positive(numbers: Sequence[float]) -> bool:
    return all(not isinstance(each, bool) and 0 < each < math.inf for each in numbers)
