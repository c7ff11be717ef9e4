"""Putting the report together."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from cost_model.comparison import Comparison
from cost_model.memory import peak_live_bytes
from graphs.ir import Graph, fused_count
from runtime.validation import Validation
from search.candidates import fusion_candidates

from .candidates import Improved
from .context import Context
from .finalists import INPUT, NORMALIZED, UNSTATED, Finalist, Outcome, single_values
from .progress import Clock
from .report import REPORT_VERSION, describe, of_the_file
from .result import Trace
from .roofline_report import roofline_section
from .stepcosts import ESTIMATED, Total

GAIN_NOTE = ("seconds of a place, its nodes one by one and its kernel timed in turns, as the machine was then, each "
             "finding data where the other left them; `predicted` and the costs of the trace sum up nodes timed alone, "
             "their data in the caches, scaled to the quiet machine: another number, larger or smaller")
NOTHING = "nothing was measured"
NOT_PRICED = "neither the search nor the trace priced this graph"


def assemble(original: Graph, winner: Finalist, outcome: Outcome, validation: Validation | None,
             dropped: list[dict[str, Any]], improved: Improved, context: Context, clock: Clock,
             trace: Trace) -> dict[str, Any]:
    """The whole report as JSON types."""
    from importlib.metadata import version

    used = _rules_used(trace)
    measured = _measured(winner, outcome)
    if measured["speed_up"] is not None:
        measured["against"] = f"the input on {context.target.name}"
    predicted = _predicted(original, winner, improved, trace, context)
    return {
        "egraft_report": REPORT_VERSION,
        "egraft": version("egraft"),
        "target": {**context.describe_target(),
                   "values": single_values(original, context) if measured.get("speed_up") else {}},
        "model": {"name": original.name, "opset": original.opset, **of_the_file(original)},
        "options": context.options.model_dump(),
        "before": describe(original),
        "after": describe(winner.graph),
        "chosen": winner.name,
        "unchanged": winner.name == INPUT,
        "predicted": predicted,
        "predicted_note": "" if predicted else "the input is handed back" if winner.name == INPUT else NOT_PRICED,
        "measured": measured,
        "finalists": _finalists(outcome, improved),
        "finalists_left_out": {**outcome.left_out, **{name: text for name, text in outcome.not_taken.items()
                                                      if name != winner.name}},
        "other_sizes": outcome.other_sizes,
        "validation": None if validation is None else {**validation.to_dict(), "summary": validation.summary()},
        "steps": len(trace.steps),
        "rules_used": used,
        "not_used": [row for row in improved.not_used if row["rule"] not in used],
        "fusions": _fusions(original, winner, improved),
        "fusion_candidates": [row.to_dict() for row in fusion_candidates(winner.graph, context.sizes)[:50]],
        "peak_live_bytes": {"before": peak_live_bytes(original, context.sizes),
                            "after": peak_live_bytes(winner.graph, context.sizes)},
        "memory": outcome.memory,
        "roofline": roofline_section(original, winner.graph, context.costs, measured),
        "search": improved.statistics,
        "costs": context.costs.sources(),
        "timings_hash": context.timings.content_hash(),
        "dropped": dropped,
        "warnings": list(context.warnings),
        "stages": clock.stages,
        "seconds": round(clock.seconds, 3),
        "peak_memory_bytes": peak_memory(),
        "remembered": None,
    }


def peak_memory() -> dict[str, int]:
    """Largest resident size so far of this process and of the largest child (the search process), in bytes."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "largest_child": max([ended, *_running_children()])}


def _running_children() -> list[int]:
    """Peak resident sizes of children that still run, where the system tells (Linux)."""
    sizes: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it ended in between; then it is counted among the ended ones
            sizes += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return sizes


def _predicted(original: Graph, winner: Finalist, improved: Improved, trace: Trace,
               context: Context) -> dict[str, Any] | None:
    """What the search says of the winner; of one that is none of its own (`normalized`), what the trace says. Sources
    and estimates are those of the nodes that make up these sums: the search does not price the file as it is."""
    if winner.name == INPUT:
        return None
    if improved.predicted_input is not None and winner.predicted is not None:
        seconds, before = (improved.predicted_input, winner.predicted), improved.input_sources
    else:
        priced = [step for step in trace.steps if step.get("cost_before") is not None]
        if not priced:
            return None
        seconds, before = (priced[0]["cost_before"], priced[-1]["cost_after"]), Total(original, context.costs).counts
    after = Total(winner.graph, context.costs).counts
    return {"before": seconds[0], "after": seconds[1],
            "estimated": {"before": before[ESTIMATED], "after": after[ESTIMATED]},
            "source": "/".join(sorted({*before, *after}))}


def _measured(winner: Finalist, outcome: Outcome) -> dict[str, Any]:
    race, comparison = outcome.comparison, headline_of(winner, outcome)
    if race is None or comparison is None or winner.name not in comparison.results:
        return {"speed_up": None, "note": outcome.note, "unsupported": outcome.unsupported}
    if comparison.stopped == "estimated":  # also from times of nodes that were recorded elsewhere
        return {"speed_up": None, "note": f"{NOTHING}: {comparison.note.removesuffix('; ' + NOTHING)}",
                "unsupported": outcome.unsupported}
    others = [{"name": name, **{key: row[key] for key in ("speed_up", "low", "high", "verdict", "after")}}
              for name in race.results if name not in (INPUT, winner.name)
              for row in [measured_row(name, race)]]
    return {**measured_row(winner.name, comparison), "unsupported": outcome.unsupported, "note": outcome.note,
            "others": others}


def headline_of(winner: Finalist, outcome: Outcome) -> Comparison | None:
    """What the winner is said to be worth: as compared with the input alone, if it was, else as in the race."""
    found = outcome.headline
    told = found is not None and winner.name != INPUT and winner.name in found.results
    return found if told else outcome.comparison


def measured_row(name: str, comparison: Comparison) -> dict[str, Any]:
    """A finalist against the baseline of a comparison, as reports tell it."""
    found, base = comparison.results[name], comparison.results[comparison.baseline]
    return {
        "speed_up": _inverse(found.ratio), "low": _inverse(found.high), "high": _inverse(found.low),
        "verdict": found.verdict,
        "confidence": found.confidence, "before": base.seconds, "after": found.seconds, "spread": found.spread,
        "noise": comparison.threshold, "rounds": comparison.rounds, "pairs": comparison.pairs, "looks": found.looks,
        "clock": comparison.clock, "kind": comparison.kind, "stopped": comparison.stopped,
        "threads": comparison.threads,
    }  # fmt: skip


def _inverse(ratio: float) -> float | None:
    """None where nothing is left to do: a graph of constants alone is estimated at no time at all."""
    return 1.0 / ratio if ratio > 0 else None


def _finalists(outcome: Outcome, improved: Improved) -> list[dict[str, Any]]:
    """A row for each, best first. What the search predicted for its input is what it predicts for the normalized graph,
    which that is."""
    rows = []
    ranked = {entry.name for entry in outcome.ranked}
    shown = {} if outcome.comparison is None else outcome.comparison.results
    others = [each for each in outcome.measured if each.name not in ranked and each.name in shown]
    for place, entry in enumerate([*outcome.ranked, *others]):
        row: dict[str, Any] = {"name": entry.name, "place": place, "nodes": entry.graph.shown_count(),
                               "predicted": improved.predicted_input if entry.name in (NORMALIZED, UNSTATED)
                               else entry.predicted}
        comparison = outcome.comparison
        if comparison is not None and entry.name in comparison.results:
            row.update(measured_row(entry.name, comparison))
        rows.append(row)
    return rows


def _fusions(original: Graph, winner: Finalist, improved: Improved) -> dict[str, Any] | None:
    """What was tried, what the result has, and how many kernels the input `held`; None for targets without fusions."""
    if not improved.fusions:
        return None
    chosen = next((each.fusions for each in improved.candidates if each.name == (winner.made_of or winner.name)), [])
    return {**improved.fusions, "held": fused_count(original), "chosen": [each.to_dict() for each in chosen],
            "gain_seconds": sum(each.count * (each.unfused - each.fused) for each in chosen), "gain_note": GAIN_NOTE}


def _rules_used(trace: Trace) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in trace.steps:
        counts[step["rule"]] = counts.get(step["rule"], 0) + 1
    return counts

