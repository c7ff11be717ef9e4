"""A record of the timing database, and its text forms."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median as median_of
from typing import Any, Literal, get_args

from .fingerprint import version_of

Kind = Literal["node", "graph", "verdict", "peak", "fusion", "neighbourhood", "kernels", "sizes"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Record:
    """One measurement: what (`key`), on which target and device (`fingerprint` digest), its samples in
    seconds.

    `median` is infinite, with no samples, for what a target cannot run. `spread` is the median absolute
    deviation. For kind `peak`, `median` is a rate or a latency as the key says. `created` is seconds since
    1970; `version` is egraft's. `note` holds whatever else belongs to it, in JSON types.
    """

    key: str
    target: str
    fingerprint: str
    kind: Kind
    samples: tuple[float, ...]
    median: float
    spread: float
    created: float = 0.0
    version: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str, str]:
        """What a database holds at most one record for."""
        return self.key, self.target, self.fingerprint

    @property
    def failed(self) -> bool:
        """Measuring was tried and did not work; the note says why."""
        return not self.samples and self.median == 0

    @property
    def digest(self) -> str:
        """SHA-256 of what was measured; not of when, or by which version."""
        parts = [
            self.key,
            self.target,
            self.fingerprint,
            self.kind,
            list(self.samples),
            repr(self.median),
            repr(self.spread),
            self.note,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON types only (`median` is null where infinite)."""
        finite = self.median if math.isfinite(self.median) else None
        return {
            "key": self.key,
            "target": self.target,
            "fingerprint": self.fingerprint,
            "kind": self.kind,
            "samples": list(self.samples),
            "median": finite,
            "spread": self.spread,
            "created": self.created,
            "version": self.version,
            "note": dict(self.note),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Record:
        """The reverse of `to_dict`. Raises ValueError where a field is missing or makes no sense."""
        try:
            median = math.inf if data["median"] is None else float(data["median"])
            record = Record(
                str(data["key"]),
                str(data["target"]),
                str(data["fingerprint"]),
                data["kind"],
                tuple(float(each) for each in data["samples"]),
                median,
                float(data["spread"]),
                float(data.get("created", 0.0)),
                str(data.get("version", "")),
                dict(data.get("note") or {}),
            )
        except KeyError as error:
            raise ValueError(f"not a timing record: it lacks {error}") from error
        except TypeError as error:
            raise ValueError(f"not a timing record: {error}") from error
        numbers = (*record.samples, record.spread, record.created)
        if record.kind not in KINDS or not all(math.isfinite(each) and each >= 0 for each in numbers):
            raise ValueError("not a timing record: unknown kind, or a time that is negative or not finite")
        if math.isnan(record.median) or record.median < 0:
            raise ValueError("not a timing record: the median is negative or not a number")
        return record


def spread_of(samples: Sequence[float]) -> float:
    """Median absolute deviation from the median, 0 for less than two samples."""
    if len(samples) < 2:
        return 0.0
    middle = median_of(samples)
    return float(median_of(abs(each - middle) for each in samples))


@lru_cache(maxsize=1)
def own_version() -> str:
    """egraft's version, as records name it."""
    return version_of("egraft") or "unknown"
