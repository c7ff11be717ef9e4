"""Two graphs compared in several pairs of fresh sessions: what a speed-up is worth beyond one session of each.

Where the memory of a session lies shifts its times for as long as it lives, so that rounds within one session of each
graph agree with each other and not with the next two sessions. Here each pair has a session of either graph, made anew
while those of earlier pairs live (else they would get the same memory again). Runs are timed as a caller of the runtime
makes them, many in a row: a loop that finds its weights in the caches, values handed over with each run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np

from graphs.ir import Graph

from . import protocol
from .comparison import Comparison, SampleLists, judge, of_pairs
from .signature import graph_digest
from .statistics import median_interval
from .timings import Timings

if TYPE_CHECKING:
    from .targets.base import Runner, Target

MOST_PAIRS, LEAST_PAIRS = 8, 3  # the range of eight values holds the median with 99 %, that of three with 75 %
SAMPLE = 2e-3  # seconds: the first runs of a sample find what the other graph left in the caches
PAIR_SECONDS = 0.02  # of sampling in each pair; three rounds at least
PATIENCE = 3.0  # times the seconds may the fewest pairs take, as the first one tells
HELD_BYTES = 256 << 20  # of weights in sessions that live at one time


def sessions_key(digests: Mapping[str, str], baseline: str, feeds: Mapping[str, np.ndarray], threads: int) -> str:
    """Under which name such a comparison is filed."""
    from .targets.verdicts import verdict_key

    return f"{verdict_key(digests, baseline, feeds, threads)} in pairs of sessions"


def compare_sessions(
    target: Target,
    graphs: Mapping[str, Graph],
    baseline: str,
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int,
    seconds: float,
    settings: protocol.Settings,
    timings: Timings,
    held: int = 0,
) -> Comparison | None:
    """From the database, else measured now and stored; None where `seconds` are none or far too few, the database is
    frozen, or both graphs are one.

    After three pairs another one is begun if it fits into `seconds` (of processor time with one thread) as the earlier
    ones did. `held`: bytes of weights in a session. Raises Unsupported where the target runs one of the two graphs not.
    """
    from .targets.verdicts import for_names, from_record, renamed

    digests = {name: graph_digest(graph) for name, graph in graphs.items()}
    if len(set(digests.values())) < len(graphs):
        return None
    key = sessions_key(digests, baseline, feeds, threads)
    record = timings.peek(key, target.name, target.fingerprint)
    if record is None:
        if timings.frozen or seconds <= 0:
            return None
        measured = _measured(target, graphs, baseline, feeds, threads, seconds, settings, held)
        if measured is None:
            return None
        found = renamed(measured, digests)
        samples = [each for each in found.samples[digests[baseline]].by(found.clock) if each is not None]
        note = {"comparison": found.to_dict()}
        record = timings.add(key, target.name, target.fingerprint, "verdict", samples, median(samples), note)
        if record.note["comparison"] == note["comparison"]:  # else another process was first: its numbers count
            return for_names(found, digests, baseline)
    return from_record(timings.get(key, target.name, target.fingerprint) or record, digests, baseline)


def _measured(target: Target, graphs: Mapping[str, Graph], baseline: str, feeds: Mapping[str, np.ndarray], threads: int,
              seconds: float, settings: protocol.Settings, held: int) -> Comparison | None:
    from .targets.base import prepared

    most = max(LEAST_PAIRS, min(MOST_PAIRS, HELD_BYTES // max(2 * held, 1)))
    once = dataclasses.replace(settings, sample=SAMPLE, budget=PAIR_SECONDS, min_rounds=settings.max_rounds)
    living: list[Runner] = []
    pairs: list[Comparison] = []
    took: list[float] = []
    clock = target.clocks.cpu if threads == 1 else target.clocks.wall
    try:
        while len(pairs) < most and (len(pairs) < LEAST_PAIRS or sum(took) + mean(took) <= seconds):
            start = clock()
            runs: dict[str, protocol.Run] = {}
            for name in graphs if len(pairs) % 2 else reversed(list(graphs)):
                living.append(prepared(target, graphs[name], feeds, threads))
                runs[name] = living[-1].call or living[-1].run
            once = dataclasses.replace(once, seed=settings.seed + len(pairs))
            pairs.append(protocol.compare(runs, baseline, threads, once, target.clocks))
            took.append(clock() - start)
            if LEAST_PAIRS * took[0] > PATIENCE * seconds:
                return None
    finally:
        for runner in living:
            runner.close()
    return over_pairs(pairs, threads, settings)


def over_pairs(pairs: Sequence[Comparison], threads: int, settings: protocol.Settings) -> Comparison:
    """One comparison of what each pair found: median and interval of the ratios of the pairs, each the median of its
    rounds; noise and threshold of all rounds."""
    baseline = pairs[0].baseline
    clock = next((each.clock for each in pairs if each.clock == "wall"), pairs[0].clock)
    whole = judge(baseline, {name: _one_list(each.samples[name] for each in pairs) for name in pairs[0].samples},
                  _one_list(each.twin for each in pairs), clock=clock, threads=threads, inner=pairs[0].inner,
                  stopped="pairs", confidence=settings.confidence, floor=settings.floor)
    ratios = {name: median_interval([each.results[name].ratio for each in pairs], settings.confidence)
              for name in whole.results}
    return of_pairs(whole, ratios, len(pairs))


def _one_list(lists: Iterable[SampleLists]) -> SampleLists:
    """The samples of all pairs as those of one comparison."""
    rows = list(lists)
    return SampleLists(*(tuple(chain.from_iterable(each)) for each in (
        [row.wall for row in rows], [row.cpu for row in rows], [row.device for row in rows])))
