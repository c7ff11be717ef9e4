"""`make fuzz`: many random graphs; the first of each kind of failure is made smaller and printed as text."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import onnx

from graphs.ir import Graph

from .checking import Outcome, examine
from .generator import generate
from .kinds import KINDS, kind_of
from .shrink import shrink

PRECISIONS = ("rounding", "exact", "rounding", "exact", "finite")
OBJECTIVES = ("nodes", "time")


def case(seed: int, kind: str = "") -> tuple[Graph, str, str]:
    """(graph, precision, objective) of a seed; `kind` is one of `KINDS`, nothing is the plain one."""
    precision = PRECISIONS[seed % len(PRECISIONS)]
    return generate(seed, precision != "exact", kind), precision, OBJECTIVES[seed // len(PRECISIONS) % 2]


def cases(first: int, count: int, kind: str) -> Iterator[tuple[int, str]]:
    """(seed, kind) of each graph: the plain one and another of a seed (`new`: only this), or the kind given."""
    for seed in range(first, first + count):
        if kind in ("all", "plain"):
            yield seed, ""
        if kind != "plain":
            yield seed, kind_of(seed) if kind in ("all", "new") else kind


def symptom(outcome: Outcome) -> str:
    """Failures of the same kind are shown once."""
    return " ".join(outcome.fault.split()[:5])[:90]


def main() -> int:
    """Exit status 1 if a graph failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--kind", choices=["all", "plain", "new", *KINDS], default="all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    start, counts, rules = time.monotonic(), defaultdict[str, Counter[str]](Counter), Counter[str]()
    shown: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        timings = str(Path(folder) / "timings.db")
        for seed, kind in cases(options.seed, options.count, options.kind):
            if time.monotonic() - start > 60 * options.minutes:
                break
            graph, precision, objective = case(seed, kind)
            outcome = examine(graph, precision, timings, objective, seed, again=seed % 5 == 0)
            for count in (counts["all"], counts[kind or "plain"]):
                count.update(graphs=1, rewritten=outcome.rewritten, changed=outcome.changed, compared=outcome.compared,
                             failed=bool(outcome.fault), invalid=outcome.invalid)
            rules.update(set(outcome.rules))
            if outcome.fault:
                shown[symptom(outcome)] += 1
                first = shown[symptom(outcome)] == 1 and not options.no_shrink
                _show(outcome, f"seed {seed} {kind}".strip(), seed, objective, timings, first)
            if counts["all"]["graphs"] % 100 == 0:
                print(_summary("all", counts["all"]), flush=True)
    print("\n".join(_summary(kind, count) for kind, count in counts.items()), f"{len(rules)} rules fired", sep=", ")
    print("\n".join(f"{count:5} {kind}" for kind, count in shown.most_common()))
    return 1 if counts["all"]["failed"] else 0


def _summary(kind: str, counts: Counter[str]) -> str:
    total = max(1, counts["graphs"] - counts["invalid"])
    return (f"{kind}: {counts['graphs']} graphs, rewritten {counts['rewritten'] / total:.0%}, changed "
            f"{counts['changed'] / total:.0%}, compared {counts['compared'] / total:.0%}, failed {counts['failed']}")


def _show(outcome: Outcome, label: str, seed: int, objective: str, timings: str, smaller: bool) -> None:
    print(f"\n{label} ({outcome.precision}, {objective}): {outcome.fault[:2000]}")
    graph = outcome.graph
    if smaller:
        kind = outcome.fault.split(":")[0]

        def fails(candidate: Graph) -> bool:
            try:
                found = examine(candidate, outcome.precision, timings, objective, seed)
            except onnx.checker.ValidationError:
                return False  # what was cut away made it one
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
