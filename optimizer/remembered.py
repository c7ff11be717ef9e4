"""Results of earlier runs, kept in the timing database: the same model with the same options on the same machine.

Kept are the trace and the report, not the graph: the trace is replayed on the model that is there, the graph must be
the one it led to before, and it is validated again like any other result. So whatever stands in the database, a wrong
entry costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cost_model.signature import graph_digest
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.text import print_graph
from search.steps import same_graph

from .context import Context
from .replay import replay
from .result import Trace
from .validating import check_everywhere

LARGEST = 8 << 20  # bytes of a compressed document: traces that are longer are not kept
_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("graphs", "runtime", "cost_model", "rules", "search", "optimizer")
# They say how to look at the result, or where times and inputs are (whose content counts); none of them changes what is
# handed back.
_BESIDE = {"timings", "fresh", "frozen", "strict", "inputs"}


@dataclass
class Remembered:
    """What an earlier run handed back, validated again (the input itself needs no validation)."""

    graph: Graph
    report: dict[str, Any]
    trace: Trace


def recall(original: Graph, context: Context) -> Remembered | None:
    """The result of an earlier run, None where there is none that holds."""
    if not _applies(context):
        return None
    body = context.timings.document(_key(original, context))
    if body is None:
        return None
    try:
        data = json.loads(zlib.decompress(body))
        trace, report = Trace.from_dict(data["trace"]), dict(data["report"])
        graph = _with_functions(replay(original, trace.steps), {tuple(key) for key in data["functions"]})
        if _digest(graph) != data["graph"] or report["unchanged"] != (not trace.steps):
            return None
    except (EgraftError, zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # damaged, or of another model: a miss, and the run that follows writes it anew
    report["remembered"] = data["created"]
    if report["unchanged"]:
        return Remembered(original, report, trace)
    validation = check_everywhere(original, graph, context)
    report["validation"] = {**validation.to_dict(), "summary": validation.summary()}
    return Remembered(graph, report, trace) if validation.ok else None


def as_traced(original: Graph, graph: Graph, trace: Trace, traced: Graph | None = None) -> Graph:
    """The graph that the trace leads to, which is this one up to names inside: so a result has the same names when it
    is found again. This one where it is not. `traced`: what the trace leads to, where it was replayed already."""
    if not trace.steps:
        return graph
    try:
        traced = replay(original, trace.steps) if traced is None else traced
    except EgraftError:
        return graph
    same = same_graph(traced, graph) and _around(traced) == _around(graph)
    return _with_functions(traced, graph.functions) if same else graph


def _with_functions(graph: Graph, keys: Collection[tuple[str, ...]]) -> Graph:
    """With those functions alone: steps say what becomes of calls, not that nobody calls any more."""
    graph.functions = {key: function for key, function in graph.functions.items() if key in keys}
    return graph


def keep(original: Graph, graph: Graph, report: dict[str, Any], trace: Trace, context: Context) -> None:
    """Remember a result that nothing is to be said against."""
    if not _applies(context) or report["warnings"] or report["dropped"] or (
            report["unchanged"] != (not trace.steps)):
        return
    document = {"graph": _digest(graph), "functions": list(graph.functions), "report": report, "trace": trace.to_dict(),
                "created": datetime.now(UTC).isoformat(timespec="seconds")}
    body = zlib.compress(json.dumps(document).encode(), 1)
    if len(body) <= LARGEST:
        context.timings.keep_document(_key(original, context), body)


def device_of(body: bytes) -> str | None:
    """The fingerprint of the device that a kept result was chosen on, None where it cannot be read."""
    try:
        return str(json.loads(zlib.decompress(body))["report"]["target"]["fingerprint"])
    except (zlib.error, ValueError, LookupError, TypeError, RecursionError):
        return None


def _applies(context: Context) -> bool:
    """A run that depends on the clock, on another machine's database, or that is asked to be made, is made. A frozen
    one takes what the run that filled the database handed back: where that ran out of time for measuring, it would
    lack records otherwise."""
    options = context.options
    return not (options.fresh or options.timeout is not None or options.stages != "all"
                or context.target.database is not None)


def _key(original: Graph, context: Context) -> str:
    inputs = context.options.inputs
    functions = sorted(hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()  # type: ignore[attr-defined]
                       for proto in original.functions.values())
    parts = [print_graph(original), graph_digest(original), str(sorted(original.opsets.items())), *functions,
             context.options.model_dump_json(exclude=_BESIDE),
             hashlib.sha256(Path(inputs).read_bytes()).hexdigest() if inputs else "", context.target.name,
             context.target.fingerprint.digest, str(context.threads), " ".join(rule.name for rule in context.rules),
             _code()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _around(graph: Graph) -> tuple[object, ...]:
    """What a file holds beside nodes and constants, and steps say nothing of."""
    return (sorted(graph.opsets.items()), graph.ir_version, graph.doc, graph.metadata, graph.declared.keys(),
            graph.defaults.keys())


def _digest(graph: Graph) -> str:
    parts = [print_graph(graph), *map(str, sorted(graph.opsets.items())), *map(str, sorted(graph.functions))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """What may decide otherwise: egraft itself, and the libraries that search and extract."""
    libraries = [f"{name} {version(name)}" for name in ("egraft", "egglog", "highspy", "numpy", "onnx")]
    found = hashlib.sha256(" ".join(libraries).encode())
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
