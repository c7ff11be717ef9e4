"""What the report says a result is worth: the winner against the input alone, in several pairs of fresh sessions.

The race has one session of each finalist, and the winner is the one whose times came out smallest: sessions of one file
differ by some percent for as long as they live, so the winner's is more likely one that lay well. What the winner is
worth is therefore measured once more, where sessions are cheap beside the run; what does not hold then is not handed
back.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from cost_model.comparison import Comparison, Result
from cost_model.sessions import LEAST_PAIRS
from cost_model.targets import Unsupported
from graphs.wording import counted

from .context import Context
from .finalists import (
    INPUT,
    TOGETHER_BYTES,
    Finalist,
    Outcome,
    as_good,
    by_simplicity,
    is_large,
    measuring_feeds,
)
from .report import constant_bytes

SHARE, LEAST_SECONDS = 0.08, 0.3  # of the run so far, that pairs of sessions may take; so much in any case
EXCESS = 1.5  # times that much may the fewest pairs take that count
MOST_CONFIRMED = 3  # finalists that are compared alone, one after the other, until one holds
RUNS = 24  # of both graphs in a pair: three rounds of two samples each, warm-up, and what runs in between
NODE_SECONDS, BYTE_SECONDS = 2e-4, 1e-9  # to load a session, for each node and each byte of its constants


def confirmed(original: Finalist, outcome: Outcome, context: Context,
              predicted_input: float | None = None) -> Outcome:
    """The outcome with the headline of its first finalist, which is another one than before where that is slower than
    the input after all, or a gain of the race is none and it is not simpler than the input."""
    race, ranked = outcome.comparison, list(outcome.ranked)
    if race is None or not race.samples:
        return outcome
    decides = context.options.objective == "time"
    doubtful: list[tuple[Finalist, Comparison]] = []
    refused = dict[str, str]()
    for _ in range(MOST_CONFIRMED):
        entry = ranked[0] if ranked else original
        raced = None if entry.name == INPUT else race.results.get(entry.name)
        found = None
        if raced is not None and raced.verdict == "faster":  # else it did not win by its time
            found = afresh(original, entry, context, context.sizes, race, predicted_input)
        if found is None or not decides or _holds(found.results[entry.name], race):
            break
        if found.results[entry.name].verdict != "slower":
            doubtful.append((entry, found))
        refused[entry.name] = _why_not(found.results[entry.name], found)
        del ranked[0]
    else:
        entry, found = original, None
    if entry.name == INPUT:
        entry, found = next(((each, said) for each, said in doubtful if as_good(
            each, said.results[each.name], said, predicted_input) and by_simplicity([original, each])[0] is each),
            (original, None))
        ranked = [entry, *([original] if entry.name != INPUT and original in outcome.ranked else [])]
    refused.pop(entry.name, None)  # it is taken after all, as the simpler one of two equals
    return dataclasses.replace(outcome, ranked=ranked, headline=found, not_taken={**outcome.not_taken, **refused})


def _why_not(alone: Result, found: Comparison) -> str:
    """What the comparison with the input alone showed of a finalist that the race called faster."""
    how = f"in {counted(found.pairs, 'pair')} of fresh sessions" if found.pairs else "alone"
    return (f"not taken: measured again {how}, it was {1 / alone.ratio:.3f}x "
            f"[{1 / alone.high:.3f}, {1 / alone.low:.3f}] of the input's speed, {alone.verdict}")


def _holds(alone: Result, race: Comparison) -> bool:
    """Was it measured faster both times? In the race at 99 % of certainty; here the median must say so."""
    return alone.verdict == "faster" or (alone.verdict == "equal" and alone.ratio < 1 / (1 + race.floor))


def afresh(original: Finalist, entry: Finalist, context: Context, sizes: Mapping[str, int], race: Comparison,
           predicted_input: float | None = None) -> Comparison | None:
    """The finalist against the input in pairs of fresh sessions; None where that was not done (`race`: what one session
    of each showed). What the database holds costs nothing and counts in any case."""
    if context.late("to compare the result in fresh sessions", 0.7):
        return None
    feeds = measuring_feeds(original.graph, context, sizes)
    try:
        return context.target.compare_sessions(
            {INPUT: original.graph, entry.name: entry.graph}, INPUT, feeds, threads=context.threads,
            seconds=_seconds(original, entry, context, race, predicted_input), settings=context.effort.compare,
            timings=context.timings, held=max(constant_bytes(each.graph) for each in (original, entry)))
    except Unsupported as error:  # both ran before: one with a Loop may take too long this time
        context.warn(f"the result was not compared with the input in fresh sessions: {error}")
        return None


def _seconds(original: Finalist, entry: Finalist, context: Context, race: Comparison,
             predicted_input: float | None) -> float:
    """How long pairs of sessions may take; 0 where the fewest that count would take longer."""
    budget = max(LEAST_SECONDS, SHARE * (time.monotonic() - context.started))
    one_pair = 0.0
    for each in (original, entry):
        held = constant_bytes(each.graph)
        one_pair += (RUNS / 2 * race.results[each.name].seconds + NODE_SECONDS * each.opened.node_count()
                     + BYTE_SECONDS * held)
        if 4 * held > TOGETHER_BYTES:
            return 0.0
    return budget if not is_large(original, predicted_input) and LEAST_PAIRS * one_pair <= EXCESS * budget else 0.0
