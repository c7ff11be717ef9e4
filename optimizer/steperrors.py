"""How far each step of a trace moves the values that it replaces, on one run of the original graph.

Every value of the original is kept. A step computes its new nodes from values as they are in the original (what earlier
steps replaced stands in with the value that it replaced), so that an error is of that step alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from cost_model.roofline import graph_roofline
from graphs.ir import Graph, Node
from runtime.execute import evaluate
from runtime.feeds import default_sizes, draw
from search.steps import Patch

from . import journal
from .context import Context

# So that a trace costs little more than the run: what is beyond has no errors in its trace (validation is separate).
MOST_OPERATIONS = 8e9
MOST_BYTES = 1 << 29


def run_of(graph: Graph, context: Context) -> Run | None:
    """The run that errors are of: on the user's inputs, or random ones of few elements, else of the sizes that are
    measured. None where all that run need too many operations."""
    if context.feeds is not None:
        choices: list[dict[str, int]] = [context.sizes]
    else:
        choices = [default_sizes(graph), context.sizes]
    for sizes in choices:
        if graph_roofline(graph, sizes, context.costs.peaks()).flops <= MOST_OPERATIONS:
            run = Run(graph, context.feeds if context.feeds is not None else draw(graph, context.options.seed, sizes))
            if all(name in run.values or name in graph.constants for name in graph.outputs):
                return run
    return None


class Run:
    """The values of one run, by name; a name that is missing could not be computed."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        self.bytes = 0
        self.keep({name: feeds[name] for name in graph.inputs if name in feeds})
        self.keep(self._computed(graph, graph.nodes))

    def keep(self, values: Mapping[str, Any]) -> None:
        """Keep values, as long as there is room. A name may have been that of another value, which is gone."""
        self.forget(values)
        for name, value in values.items():
            size = getattr(value, "nbytes", 0)
            if self.bytes + size <= MOST_BYTES:
                self.values[name] = value
                self.bytes += size

    def forget(self, names: Iterable[str]) -> None:
        """These values are gone."""
        for name in names:
            self.bytes -= getattr(self.values.pop(name, None), "nbytes", 0)

    def patched(self, graph: Graph, patch: Patch) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The error of a patch, and what its new nodes compute: where they replace a value, that value."""
        made = self._computed(graph, patch.add, {name: each.array for name, each in patch.constants.items()})
        rows = []
        for old, new in patch.replace.items():
            known = self._value(graph, old)
            rows.append(_moved(old, known, made[new] if new in made else self._value(graph, new)))
            if known is not None and new in made:
                made[new] = known
        return _largest(rows), made

    def difference(self, before: Graph, after: Graph, removed: Set[str]) -> dict[str, Any] | None:
        """The error of going to another graph, where nodes were removed and others put in. A name is one value."""
        stayed = {journal.node_key(node) for node in before.nodes} - removed
        made = self._computed(after, [node for node in after.nodes if journal.node_key(node) not in stayed])
        made.update({name: each.array for name, each in after.constants.items() if name not in before.constants})
        there = {*before.inputs, *(name for node in before.nodes for name in node.outputs)}
        rows = [_moved(name, self.values[name], value) for name, value in made.items()
                if name in there and name in self.values]
        self.keep({name: value for name, value in made.items() if name not in there or name not in self.values})
        return _largest(rows)

    def _value(self, graph: Graph, name: str) -> Any:
        constant = graph.constants.get(name)
        return self.values.get(name) if constant is None else constant.array

    def _computed(self, graph: Graph, nodes: Iterable[Node],
                  constants: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What nodes compute, in their order; those that lack an input, or that cannot run, compute nothing."""
        found: dict[str, Any] = dict(constants or {})
        total = self.bytes
        for node in nodes:
            inputs = {name: found[name] if name in found else self._value(graph, name) for name in node.uses}
            if any(value is None for value in inputs.values()):
                continue
            try:
                results = evaluate(node, [inputs[name] if name else None for name in node.inputs], model=graph,
                                   captured=inputs, seed=0)
            except Exception:  # whatever a kernel raises that gets what it does not accept: the value stays unknown
                continue
            found.update({name: value for name, value in zip(node.outputs, results, strict=False) if name})
            total += sum(getattr(value, "nbytes", 0) for value in results)
            if total > MOST_BYTES:
                break
        for name in constants or ():
            del found[name]
        return found


def _moved(name: str, old: Any, new: Any) -> dict[str, Any] | None:
    """How far a value moved; None where there is nothing to compare."""
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray) or old.shape != new.shape:
        return None
    if old.dtype.kind in "OUS" or new.dtype != old.dtype:
        same = old.dtype == new.dtype and bool(np.array_equal(old, new))
        return {"value": name, "absolute": None, "relative": None, "changed": 0 if same else old.size}
    with np.errstate(all="ignore"):
        left, right = (np.asarray(each, np.complex128 if each.dtype.kind == "c" else np.float64) for each in (old, new))
        equal = (left == right) | (np.isnan(left) & np.isnan(right))
        apart = np.where(equal, 0.0, np.abs(left - right))
    changed = int(old.size - np.count_nonzero(equal))
    if not np.isfinite(apart).all():
        return {"value": name, "absolute": None, "relative": None, "changed": changed}
    largest = float(np.max(apart, initial=0.0))
    scale = float(np.max(np.abs(left), initial=0.0, where=np.isfinite(left)))
    relative = 0.0 if largest == 0.0 else largest / scale if scale else None
    return {"value": name, "absolute": float(f"{largest:.3g}"), "changed": changed,
            "relative": None if relative is None else float(f"{relative:.3g}")}


def _largest(rows: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    known = [row for row in rows if row is not None]
    return max(known, key=lambda row: (row["changed"] > 0, row["relative"] is None, row["relative"] or 0.0),
               default=None)
