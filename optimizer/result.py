"""What `optimize` returns: the graph, the report, the trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from graphs import save
from graphs.errors import InvalidInput, InvalidOption, UnreadableFile
from graphs.ir import Graph, is_fused
from graphs.onnx_io.files import replacing
from graphs.wording import counted

from .manifest import is_manifest, save_manifest
from .number_text import moved_text
from .piecewise import Variant

TRACE_VERSION = 1
STEP_KEYS = frozenset({"index", "rule", "exactness", "before", "after"})


@dataclass
class Trace:
    """Ordered steps from the input to the output graph; `replay` applies them.

    Each step is a dict: index, rule, exactness, meaning, where, before, after (lines of the text form), patch (what
    `replay` applies), and predicted cost, measured cost and numeric error where they are known. `refusals` says for
    each rule why it did not fire (reason -> count, and a place).
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    refusals: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"egraft_trace": TRACE_VERSION, "model": self.model, "steps": self.steps, "refusals": self.refusals}

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "trace") -> Trace:
        """Read the JSON document; InvalidInput if it is none, which says `where` it was found."""
        if "egraft_trace" not in data:
            found = "a report, not a trace" if "egraft_report" in data else "not a trace"
            raise InvalidInput(where, found, "give a file written by egraft optimize --trace")
        if data["egraft_trace"] != TRACE_VERSION:
            raise InvalidInput(where, f"version {data['egraft_trace']!r} of the trace format",
                               f"write it again with this egraft (version {TRACE_VERSION})")
        steps, refusals, model = (data.get(key) for key in ("steps", "refusals", "model"))
        whole = isinstance(steps, list) and all(isinstance(step, dict) and step.keys() >= STEP_KEYS for step in steps)
        if not whole or not _is_table(refusals) or not isinstance(model, dict):
            raise InvalidInput(where, "its steps, refusals or model are not those of a trace",
                               "give a file written by --trace")
        return Trace(list(steps or ()), dict(refusals or {}), dict(model))

    def save(self, path: str | Path) -> None:
        """Write the JSON document."""
        write_text(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a file that `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UnreadableFile.of(path, error) from None
        except (ValueError, RecursionError):
            raise InvalidInput(str(path), "not a JSON document", "give a file written by --trace") from None
        if not isinstance(data, dict):
            raise InvalidInput(str(path), "not a trace", "give a file written by --trace")
        return Trace.from_dict(data, str(path))

    def replay(self, graph: Graph) -> Graph:
        """Apply all steps to the input graph."""
        from .replay import replay

        return replay(graph, self.steps)


def _is_table(found: object) -> bool:
    return isinstance(found, dict) and all(isinstance(row, dict) for row in found.values())


@dataclass
class Result:
    """The optimized graph with its report (a JSON-able dict, see docs/report.md) and trace."""

    graph: Graph
    report: dict[str, Any]
    trace: Trace
    original: Graph
    variants: list[Variant] = field(default_factory=list)  # with buckets in the form of a manifest

    def save(self, path: str | Path) -> None:
        """Write the graph as ONNX (or .json, .txt), atomically, at the opset that was asked for. In an ONNX file Fused
        nodes are calls of model-local functions, which any runtime can run. With buckets, `manifest.json` or
        `NAME.manifest.json` names several files beside it (`runtime.buckets.BucketSession` runs them)."""
        if self.report.get("options", {}).get("bucket_form") == "manifest" and is_manifest(path):
            save_manifest(self.graph, self.variants, path)
            return
        save(self.graph if Path(path).suffix in (".json", ".txt") else _with_functions(self.graph), path)

    def summary(self) -> str:
        """A few lines for a terminal."""
        from .report import summary

        return summary(self.report)


def _with_functions(graph: Graph) -> Graph:
    if not any(is_fused(node) for each in graph.walk() for node in each.nodes):
        return graph
    from runtime.fusion import as_functions

    return as_functions(graph)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file so that either the old or the whole new one is there."""
    target = Path(path)
    try:
        _write_text(target, text)
    except OSError as error:
        raise InvalidOption(str(target), f"the file cannot be written ({error.strerror})",
                            "choose another place") from error


def _write_text(target: Path, text: str) -> None:
    with replacing(target) as file:
        file.write(text.encode())


def steps_text(steps: Sequence[Mapping[str, Any]]) -> str:
    """All steps as text, each with its lines before and after."""
    return "\n".join(step_text(step) for step in steps)


def step_text(step: Mapping[str, Any]) -> str:
    """One step as text."""
    lines = [f"step {step['index']}: {step['rule']} ({step['exactness']})"]
    if step.get("meaning"):
        lines.append(f"  {step['meaning']}")
    if step.get("where"):
        where = list(step["where"])
        more = f" and {len(where) - 6} more" if len(where) > 6 else ""
        lines.append(f"  at {', '.join(where[:6])}{more}")
    if step.get("cost_before") is not None:
        lines.append(f"  predicted {step['cost_before'] * 1e6:.2f} us -> {step['cost_after'] * 1e6:.2f} us "
                     f"({step['cost_source']}){_change_text(step)}")
    if step.get("error") is not None:
        lines.append(f"  {moved_text(step['error'])}")
    lines += _fusion_text(step["fusion"]) if "fusion" in step else []
    return "\n".join([*lines, *_sides(step, "  "), *_inside(step.get("inside", ()))])


def _sides(step: Mapping[str, Any], indent: str) -> list[str]:
    """What a step takes away and puts in: of nodes with nested graphs no more than their first lines."""
    return [f"{indent}{mark} {line}" for mark, texts in (("-", step["before"]), ("+", step["after"]))
            for text in texts for line in shortened(text)]


def shortened(text: str, most: int = 6) -> list[str]:
    """The lines of a text, and of one with more than `most` the first ones and how many are missing."""
    lines = text.splitlines() or [""]
    left = len(lines) - most
    return lines if left <= 0 else [*lines[:most], f"... and {counted(left, 'more line')}"]


def _inside(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The steps in nested graphs, under the place of each graph."""
    lines: list[str] = []
    for body, found in groupby(steps, key=lambda step: step["body"]):
        rows = list(found)
        lines.append(f"  in {body}: {counted(len(rows), 'step')}")
        for step in rows:
            lines.append(f"    {step['rule']} ({step['exactness']}): {step['meaning']}")
            lines += _sides(step, "      ")
    return lines


def _change_text(step: Mapping[str, Any]) -> str:
    """Where the times of the nodes come from that a step changes, which may be better known than those of all."""
    source = step.get("change_source")
    if not step.get("comparable", True):
        return f"; not comparable, of its own nodes: {source}"
    return f"; of its own nodes: {source}" if source else ""


def _fusion_text(fusion: Mapping[str, Any]) -> list[str]:
    """What a Fused node gains, and its kernel."""
    before, after = (fusion["intensity"][key] for key in ("before", "after"))
    old, new = (fusion[key] * 1e6 for key in ("unfused_seconds", "fused_seconds"))
    kernel = fusion["kernel"] or "// the trace holds no text of this kernel"  # those of earlier versions
    return [f"  measured {old:.2f} us -> {new:.2f} us in one place; "
            f"operations per byte moved {before:.3g} -> {after:.3g}",
            *(f"  | {line}" for line in kernel.splitlines())]
