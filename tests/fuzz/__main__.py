"""`make fuzz`: many random graphs; the first of each kind of failure is made smaller and printed as text."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from graphs.ir import Graph

from .checking import Outcome, examine
from .generator import generate
from .shrink import shrink

PRECISIONS = ("rounding", "exact", "rounding", "exact", "finite")
OBJECTIVES = ("nodes", "time")


def case(seed: int) -> tuple[Graph, str, str]:
    """(graph, precision, objective) of a seed."""
    precision = PRECISIONS[seed % len(PRECISIONS)]
    return generate(seed, smooth=precision != "exact"), precision, OBJECTIVES[seed // len(PRECISIONS) % 2]


def kind_of(outcome: Outcome) -> str:
    """Failures of the same kind are shown once."""
    return " ".join(outcome.fault.split()[:5])[:90]


def main() -> int:
    """Exit status 1 if a graph failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    start, counts, rules = time.monotonic(), Counter[str](), Counter[str]()
    shown: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        timings = str(Path(folder) / "timings.db")
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() - start > 60 * options.minutes:
                break
            graph, precision, objective = case(seed)
            outcome = examine(graph, precision, timings, objective, seed, again=seed % 5 == 0)
            counts.update(graphs=1, rewritten=outcome.rewritten, changed=outcome.changed, compared=outcome.compared,
                          failed=bool(outcome.fault), invalid=outcome.invalid)
            rules.update(set(outcome.rules))
            if outcome.fault:
                shown[kind_of(outcome)] += 1
                _show(outcome, seed, objective, timings, shown[kind_of(outcome)] == 1 and not options.no_shrink)
            if counts["graphs"] % 100 == 0 and counts["graphs"] < options.count:
                print(_summary(counts), flush=True)
    print(_summary(counts), f"{len(rules)} rules fired", sep=", ")
    print("\n".join(f"{count:5} {kind}" for kind, count in shown.most_common()))
    return 1 if counts["failed"] else 0


def _summary(counts: Counter[str]) -> str:
    total = max(1, counts["graphs"] - counts["invalid"])
    return (f"{counts['graphs']} graphs, rewritten {counts['rewritten'] / total:.0%}, changed "
            f"{counts['changed'] / total:.0%}, compared {counts['compared'] / total:.0%}, failed {counts['failed']}")


def _show(outcome: Outcome, seed: int, objective: str, timings: str, smaller: bool) -> None:
    print(f"\nseed {seed} ({outcome.precision}, {objective}): {outcome.fault[:2000]}")
    graph = outcome.graph
    if smaller:
        kind = outcome.fault.split(":")[0]

        def fails(candidate: Graph) -> bool:
            found = examine(candidate, outcome.precision, timings, objective, seed)
            return found.fault.split(":")[0] == kind

        graph = shrink(graph, fails)
        final = examine(graph, outcome.precision, timings, objective, seed)
        print(final.fault[:2000], "rules:", final.rules)
        print(graph)
        if final.result is not None:
            print(final.result.graph)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
