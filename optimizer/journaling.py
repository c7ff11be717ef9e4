"""The journal of a run: the steps that normalization and bodies contribute, in the form of the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from graphs.ir import Graph

from . import journal
from .normalize import Named, exactness

FUSION = "fusion"  # the kind of steps that make Fused nodes
REGION, REGION_MEANING = "region", "Several changes as one step: their order could not be rebuilt"
SHOWN = 12  # lines of a step's before and after


@dataclass
class Journal:
    """Steps so far, as dicts (see `optimizer.result.Trace`)."""

    steps: list[dict[str, Any]] = field(default_factory=list)

    def event(self, named: Named, before: Graph, after: Graph, places: list[str]) -> None:
        """Record what a pass changed."""
        self.add(named.name, named.meaning, before, after, places, exactness(named, before, places))

    def add(self, rule: str, meaning: str, before: Graph, after: Graph, places: list[str],
            exactness: str = "exact") -> None:
        """Record a change from one version of a graph to the next."""
        self.steps.append(step(rule, meaning, before, after, places, exactness))


def after(first: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps behind others, with their new indices."""
    moved = [{**row, "copy_of": row["copy_of"] + len(first)} if "copy_of" in row else row for row in steps]
    return [{**row, "index": index} for index, row in enumerate([*first, *moved])]


def step(rule: str, meaning: str, before: Graph, after: Graph, places: list[str], exactness: str) -> dict[str, Any]:
    """One step that carries a patch between two versions of a graph."""
    patch = journal.diff(before, after)
    gone = set(patch["remove"])
    removed = [journal.print_node(node) for node in before.nodes if journal.node_key(node) in gone]
    return {"index": -1, "rule": rule, "exactness": exactness, "meaning": meaning, "where": places,
            "before": _short(removed), "after": _short(patch["add"] + _constants(patch)), "patch": patch,
            "kind": "normalize"}


def region(before: Graph, after: Graph, exactness: str, reason: str = "") -> dict[str, Any]:
    """All that lies between two versions of a graph as one step, and perhaps why."""
    made = step(REGION, f"{REGION_MEANING}{reason}.", before, after, [], exactness)
    return {**made, "region": True}


def _constants(patch: dict[str, Any]) -> list[str]:
    return [f"{name} = constant {row.get('value', row.get('type'))}" for name, row in patch["constants"].items()]


def _short(lines: list[str]) -> list[str]:
    if len(lines) <= SHOWN:
        return lines
    return [*lines[:SHOWN], f"... and {len(lines) - SHOWN} more"]
