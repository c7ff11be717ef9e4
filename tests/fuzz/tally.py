"""What a run of the fuzzer counts and prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from .jobs import Record

SHARES = ("rewritten", "changed", "compared", "replayed")
NUMBERS = ("different", "other faults", "dropped by validation", "ended ONNX Runtime", "invalid",
           "invalid for ONNX Runtime alone")


def symptom(record: Record) -> str:
    """Failures of the same kind are shown once."""
    return " ".join((record["fault"] or record.get("dropped", "")).split()[:5])[:90]


class Tally:
    """Counts by kind of graph. A record of a case that is there already takes its place."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: dict[tuple[int, str], Record] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Count a record."""
        self.records[record["seed"], record["kind"]] = record

    @property
    def failed(self) -> bool:
        """Something is wrong with a result (what validation dropped never was one)."""
        return any(record["fault"] for record in self.records.values())

    def counts(self) -> dict[str, Counter[str]]:
        """Counts of all graphs and of each kind. Graphs that ONNX itself or all runtimes refuse count as `invalid`
        alone."""
        found = defaultdict[str, Counter[str]](Counter)
        for record in self.records.values():
            fault = record["fault"].split(":")[0]
            again = record.get("again")
            for count in (found["all"], found[record["kind"] or "plain"]):
                count["invalid"] += bool(record.get("invalid"))
                count["invalid for ONNX Runtime alone"] += bool(record.get("one_refusal"))
                count["graphs"] += not record.get("invalid")
                count["different"] += fault == "wrong"
                count["other faults"] += bool(fault) and fault != "wrong"
                count["ended ONNX Runtime"] += bool(record.get("careful"))
                count["dropped by validation"] += bool(record.get("dropped"))
                count["tried again"] += again is not None
                count["stable"] += again == []
                for name in SHARES:
                    count[name] += bool(record.get(name))
        return found

    def line(self, kind: str) -> str:
        """Counts of a kind, or of all, in one line."""
        count = self.counts()[kind]
        total, again = max(1, count["graphs"]), max(1, count["tried again"])
        parts = [f"{kind}: {count['graphs']} graphs", *(f"{name} {count[name] / total:.2%}" for name in SHARES),
                 *(f"{name} {count[name]}" for name in NUMBERS),
                 f"optimized again stays {count['stable'] / again:.1%} of {count['tried again']}"]
        return ", ".join(parts)

    def table(self) -> str:
        """A line for each kind, then how many rules fired, then each symptom with how often it was seen."""
        counts = self.counts()
        rules = {rule for record in self.records.values() for rule in record.get("rules", ())}
        symptoms = Counter(symptom(record) for record in self.records.values() if symptom(record))
        unstable = Counter(rule for record in self.records.values() for rule in set(record.get("again") or ()))
        return "\n".join([*(self.line(kind) for kind in counts), f"{len(rules)} rules fired",
                          *(f"{count:5} {text}" for text, count in symptoms.most_common()),
                          *(f"{count:5} changed its own result: {rule}" for rule, count in unstable.most_common())])

    def first_failures(self) -> list[Record]:
        """One record of each symptom."""
        found: dict[str, Record] = {}
        for record in self.records.values():
            if symptom(record):
                found.setdefault(symptom(record), record)
        return list(found.values())
