"""Measurements of the device itself: made once per process, stored in each database that needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .fingerprint import Fingerprint
from .records import Record
from .timings import Timings

Calibration = tuple[Sequence[float], float, dict[str, float]]  # samples in seconds, the value, a note
_made: dict[tuple[str, str, str], Calibration] = {}


def calibrated(
    timings: Timings, key: str, target: str, fingerprint: Fingerprint, measure: Callable[[], Calibration]
) -> Record:
    """The record of kind `peak` under this key: from the database, else as this process measured it before,
    else measured now. Raises FrozenMiss where a frozen database lacks it."""
    record = timings.get(key, target, fingerprint)
    if record is not None:
        return record
    place = (key, target, fingerprint.digest)
    if place not in _made:
        _made[place] = measure()
    samples, value, note = _made[place]
    return timings.add(key, target, fingerprint, "peak", samples, value, dict(note))
