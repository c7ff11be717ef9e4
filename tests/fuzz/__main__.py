"""`make fuzz`: many random graphs, original against optimized. `--log` keeps the record of each and goes on from there;
the first of each kind of failure is made smaller and printed as text at the end."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnx

from graphs.ir import Graph

from . import jobs
from .checking import Outcome, examine
from .generator import generate
from .kinds import KINDS, kind_of
from .shrink import shrink
from .tally import Tally, symptom

PRECISIONS = ("rounding", "exact", "rounding", "exact", "finite")
OBJECTIVES = ("nodes", "time")
AGAIN = 5  # of so many seeds one has its results optimized once more
SAY_SECONDS = 60.0


def case(seed: int, kind: str = "") -> tuple[Graph, str, str]:
    """(graph, precision, objective) of a seed; `kind` is one of `KINDS`, nothing is the plain one."""
    precision = PRECISIONS[seed % len(PRECISIONS)]
    return generate(seed, precision != "exact", kind), precision, OBJECTIVES[seed // len(PRECISIONS) % 2]


def cases(first: int, count: int, kind: str) -> Iterator[tuple[int, str]]:
    """(seed, kind) of so many graphs: the plain one and another of each seed (`new`: only this), or the kind given."""
    made = 0
    for seed in range(first, first + count):
        for each in ["", kind_of(seed)] if kind == "all" else [
                kind_of(seed) if kind == "new" else "" if kind == "plain" else kind]:
            if made < count:
                made += 1
                yield seed, each


def examine_case(seed: int, kind: str, timings: str, careful: bool = False) -> jobs.Record:
    """One line of the log. `careful`: the case ended a process."""
    start = time.process_time()
    try:
        outcome = _outcome(seed, kind, timings, careful)
    except Exception as error:  # a defect of the fuzzer is counted too, and no reason to stop
        return {"seed": seed, "kind": kind, "fault": f"fuzzer: {type(error).__name__}: {error}"}
    return {"seed": seed, "kind": kind, "precision": outcome.precision, "fault": outcome.fault,
            "dropped": outcome.dropped, "again": outcome.again, "rules": sorted(set(outcome.rules)),
            "steps": 0 if outcome.result is None else len(outcome.result.trace.steps),
            **{name: getattr(outcome, name) for name in (
                "rewritten", "changed", "compared", "invalid", "one_refusal", "replayed")},
            "careful": careful, "seconds": round(time.process_time() - start, 3)}


def _outcome(seed: int, kind: str, timings: str, careful: bool) -> Outcome:
    graph, precision, objective = case(seed, kind)
    return examine(graph, precision, timings, objective, seed, seed // len(PRECISIONS) % AGAIN == 0, careful)


def main() -> int:
    """Exit status 1 if a result differed, did not replay, or anything else failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="of graphs")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--kind", choices=["all", "plain", "new", *KINDS], default="all")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no further graph begins")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--log", type=Path, help="a file of records; what is in it is not run again")
    parser.add_argument("--retry", action="store_true", help="run what failed in the log again, and nothing else")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log: Path = options.log or folder / "log"
        known = jobs.read(log)
        wanted = list(cases(options.seed, options.count, options.kind))
        tally = Tally(known[each] for each in wanted if each in known)
        again = {each for each, record in known.items() if symptom(record)}
        todo = [each for each in wanted if (each in again if options.retry else each not in known)]
        _run(todo, log, tally, folder, options.jobs, 60 * options.minutes)
        print(tally.table())
        if not options.no_shrink:
            for record in tally.first_failures():
                _show(record, str(folder / "timings.db"))
    return 1 if tally.failed else 0


def _run(todo: list[jobs.Case], log: Path, tally: Tally, folder: Path, processes: int, seconds: float) -> None:
    said = time.monotonic()
    with log.open("a", encoding="utf-8") as file:
        for record in jobs.run(todo, examine_case, folder, processes, seconds):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            tally.add(record)
            if symptom(record):
                print(f"seed {record['seed']} {record['kind'] or 'plain'}: {symptom(record)}", flush=True)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                print(tally.line("all"), flush=True)


def _show(record: jobs.Record, timings: str) -> None:
    """A failing graph as text, made smaller."""
    seed, kind = record["seed"], record["kind"]
    said = record["fault"] or record["dropped"]
    print(f"\nseed {seed} {kind or 'plain'}: {said[:2000]}")
    if record["fault"].startswith(("died", "fuzzer")):
        return  # it would do so here, perhaps while the graph is made
    graph, precision, objective = case(seed, kind)
    print(f"{precision}, {objective}")

    def found(candidate: Graph) -> str:
        try:
            outcome = examine(candidate, precision, timings, objective, seed)
        except onnx.checker.ValidationError:
            return ""  # what was cut away made it one
        return outcome.fault or outcome.dropped

    first = found(graph)
    if not first:
        print("it does not fail here")
        return
    graph = shrink(graph, lambda candidate: found(candidate).split(":")[0] == first.split(":")[0])
    final = examine(graph, precision, timings, objective, seed)
    print((final.fault or final.dropped)[:2000], "rules:", final.rules)
    print(graph)
    if final.result is not None:
        print(final.result.graph, flush=True)


if __name__ == "__main__":
    sys.exit(main())
