"""Comparing whole graphs on a target, with verdicts kept in the timing database."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from graphs.ir import Graph

from .. import protocol
from ..comparison import Comparison, contest_digest
from ..records import Record
from ..signature import graph_digest
from ..timings import Timings
from .base import Runner, Unsupported, prepared

if TYPE_CHECKING:
    from .base import Target


def digest_of(feeds: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits of the values of all inputs, in order."""
    hasher = hashlib.sha256()
    for array in feeds.values():
        if array.dtype.hasobject:
            hasher.update(repr(array.tolist()).encode())
        else:
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()[:16]


def verdict_key(
    digests: Mapping[str, str], baseline: str, feeds: Mapping[str, np.ndarray], threads: int, look: int = 1
) -> str:
    """Names the comparison of these graphs on these inputs, whose values may decide which branch runs; names and order
    of the other graphs do not matter."""
    shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in feeds.values())
    whole = contest_digest(digests[baseline], digests.values())
    again = f" look={look}" if look > 1 else ""
    rested = " rested" if threads > 1 else ""  # earlier ones were measured beside threads that looked for work
    return f"verdict {whole} ({shapes}) inputs={digest_of(feeds)} threads={threads}{rested}{again}"


def compare_graphs(
    target: Target,
    graphs: Mapping[str, Graph],
    baseline: str,
    feeds: Mapping[str, np.ndarray],
    threads: int,
    settings: protocol.Settings | None,
    timings: Timings | None,
    look: int = 1,
) -> Comparison:
    """From the database if the same graphs were compared there, else measured now and stored.

    A graph that the target cannot run is left out; Unsupported is raised for the baseline only. A further `look`
    prepares the graphs in the other order, so that what follows from where their memory lies is drawn anew.
    """
    digests = {name: graph_digest(graph) for name, graph in graphs.items()}
    key = verdict_key(digests, baseline, feeds, threads, look)
    if timings is not None:
        record = timings.get(key, target.name, target.fingerprint)
        if record is not None:
            return from_record(record, digests, baseline)
    one_each = {digest: name for name, digest in reversed(digests.items())}  # the first name of each graph
    one_each[digests[baseline]] = baseline
    runners: dict[str, Runner] = {}
    unsupported: dict[str, str] = {}
    try:
        for name in graphs if look % 2 else reversed(list(graphs)):
            if one_each[digests[name]] == name:
                try:
                    runners[name] = prepared(target, graphs[name], feeds, threads)
                except Unsupported as error:
                    if name == baseline:
                        raise
                    unsupported[name] = str(error)
        settings = settings or protocol.Settings()
        settings = dataclasses.replace(settings, seed=settings.seed + look - 1)
        runs = {name: runners[name].run for name in graphs if name in runners}
        found = protocol.compare(runs, baseline, threads, settings, target.clocks)
    finally:
        for runner in runners.values():
            runner.close()
    found = dataclasses.replace(found, unsupported=unsupported)
    filed = renamed(found, {name: digests[name] for name in graphs})
    if timings is not None:
        seconds = [each for each in filed.samples[digests[baseline]].by(found.clock) if each is not None]
        record = timings.add(
            key,
            target.name,
            target.fingerprint,
            "verdict",
            seconds,
            median(seconds),
            {"comparison": filed.to_dict()},
        )
        if record.note["comparison"] != filed.to_dict():  # another process was first: go on with its verdict
            return from_record(record, digests, baseline)
    return for_names(filed, digests, baseline)


def from_record(record: Record, digests: Mapping[str, str], baseline: str, recorded: bool = False) -> Comparison:
    """The stored comparison under the names of today."""
    stored = Comparison.from_dict(record.note["comparison"], "recorded" if recorded else "database")
    return for_names(stored, digests, baseline)


def renamed(found: Comparison, names: Mapping[str, str]) -> Comparison:
    """The same under other names."""
    return dataclasses.replace(
        found,
        baseline=names[found.baseline],
        results={names[name]: each for name, each in found.results.items()},
        samples={names[name]: each for name, each in found.samples.items()},
        inner={names[name]: each for name, each in found.inner.items()},
        unsupported={names[name]: each for name, each in found.unsupported.items()},
    )


def for_names(found: Comparison, digests: Mapping[str, str], baseline: str) -> Comparison:
    """Digests back to names; graphs that are equal share one result."""
    lost = {name: found.unsupported[digest] for name, digest in digests.items() if digest in found.unsupported}
    digests = {name: digest for name, digest in digests.items() if name not in lost}
    return dataclasses.replace(
        found,
        baseline=baseline,
        results={name: found.results[digest] for name, digest in digests.items()},
        samples={name: found.samples[digest] for name, digest in digests.items()},
        inner={name: found.inner[digest] for name, digest in digests.items()},
        unsupported=lost,
    )
