"""Constant folding within a size budget."""

from __future__ import annotations

import math

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.operators import find, is_pure
from graphs.spill import is_mapped, spilled
from graphs.types import TensorType
from graphs.unpacking import stays
from runtime.execute import evaluate
from runtime.reproducible import is_reproducible

from .cleanup import reader_counts
from .memory import LEAST_BYTES, Place

# All that is folded may make the file larger than what it replaces by this much; more where the model is large anyway.
GROWTH_BYTES = 65536
GROWTH_SHARE = 0.01
# Copies of what the file already holds (a transposed table that is also used as it is), and what is computed from
# weights that are stored in few bits, are worth less: so much for each.
COPY_BYTES = 1024
GROWN = "folding_grew"  # the key of `Graph.extras` that says by how many bytes a graph grew so far
# Results on the way to a small one may be this large while they are computed.
SCRATCH_BYTES = 512 << 20
UNPACKS = "weights stay stored in few bits: the file would grow, and runtimes could not use their quantized kernels"
FROM_UNPACKED = "it is computed from weights stored in few bits, and the file would grow"
GROWS = "the file would grow by more than it may (1 KiB for a copy; 64 KiB or 1 % of the constants for all together)"
UNKNOWN_SIZE = "its type or shape is not known"
NOT_COMPUTED = "it cannot be computed here: no kernel takes these values, or it needs too much memory on the way"
# Runtimes differ in what the largest of some numbers and NaN is.
UNDEFINED_OF_NAN = {"MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"}


def fold_reproducible(graph: Graph) -> list[str]:
    """`fold_constants` without what another runtime may compute to other bits; for class `exact`."""
    return fold_constants(graph, exact=True)


def fold_constants(graph: Graph, exact: bool = False) -> list[str]:
    """Replace values that depend on constants alone by constants, where the file does not grow too much.

    A value that would be too large stays a node; what is computed from it is still folded if it is small.
    """
    state = _State(graph, exact)
    changed: list[str] = []
    values: dict[str, np.ndarray] = {}
    done: set[int] = set()
    for name in _frontier(graph, state.foldable):
        node = state.producers[name]
        if id(node) in done or state.refusal(node) is not None:
            continue
        folded = _folded(graph, node, state.producers, values)
        if folded is None:
            continue
        done.add(id(node))
        state.grow(node)
        for out, constant in folded.items():
            graph.constants[out] = constant
            graph.types.pop(out, None)
            changed.append(out)
    if done:
        graph.nodes = [node for node in graph.nodes if id(node) not in done]
    return changed


def why_not_folded(graph: Graph, exact: bool = False) -> dict[str, dict[str, object]]:
    """For what a normalized graph still computes from constants alone: reason -> how often, and one such value."""
    state = _State(graph, exact)
    found: dict[str, dict[str, object]] = {}
    nodes = {id(state.producers[name]): (name, state.producers[name]) for name in _frontier(graph, state.foldable)}
    for name, node in nodes.values():
        row = found.setdefault(state.refusal(node) or NOT_COMPUTED, {"count": 0, "where": name})
        row["count"] = int(str(row["count"])) + 1
    return found


class _State:
    """What decides about folding: which values could be, how much the file grew and may still grow."""

    def __init__(self, graph: Graph, exact: bool) -> None:
        self.graph, self.foldable = graph, _foldable(graph, exact)
        self.producers = graph.producers() if self.foldable else {}
        self.readers = reader_counts(graph) if self.foldable else {}
        self.unpacked = _unpacked(graph, self.foldable)
        total = sum(constant.nbytes for constant in graph.constants.values()) if self.foldable else 0
        self._limit = max(GROWTH_BYTES, GROWTH_SHARE * total)

    @property
    def _left(self) -> float:
        return self._limit - float(self.graph.extras.get(GROWN, 0.0))  # type: ignore[arg-type]

    def refusal(self, node: Node) -> str | None:
        """Why a node is not folded; None where the size of the file is no reason."""
        graph = self.graph
        if stays(graph, node):
            return UNPACKS
        growth = self._growth(node)
        if growth is None:
            return UNKNOWN_SIZE
        if growth > COPY_BYTES and any(out in self.unpacked for out in node.outputs):
            return FROM_UNPACKED
        limit = min(COPY_BYTES, self._left) if _is_copy(node) else self._left
        return GROWS if growth > max(limit, 0.0) else None

    def grow(self, node: Node) -> None:
        """Note that a node is folded."""
        growth = max(self._growth(node) or 0.0, 0.0)
        if growth:
            self.graph.extras[GROWN] = float(self.graph.extras.get(GROWN, 0.0)) + growth  # type: ignore[arg-type]

    def _growth(self, node: Node) -> float | None:
        return _growth(self.graph, node, self.producers, self.foldable, self.readers)


def _unpacked(graph: Graph, foldable: set[str]) -> set[str]:
    """Foldable values that are computed from what is unpacked (`graphs.unpacking`)."""
    found: set[str] = set()
    for node in graph.nodes:
        computed = any(out in foldable for out in node.outputs)
        if computed and (not found.isdisjoint(node.inputs) or stays(graph, node)):
            found.update(node.outputs)
    return found - {""}


def _constant(array: np.ndarray) -> Constant:
    kept = spilled(array)
    return Constant.of(np.array(kept, copy=True) if kept.base is not None and not is_mapped(kept) else kept)


def _foldable(graph: Graph, exact: bool) -> set[str]:
    """Values that pure nodes compute from constants alone; with `exact` only reproducible ones."""
    known = set(graph.constants)
    found: set[str] = set()
    for node in graph.nodes:
        if node.is_opaque or not is_pure(node) or any(True for _ in node.graphs):
            continue
        if find(node.op, node.domain) is None or not all(name in known for name in node.inputs if name):
            continue
        if exact and not is_reproducible(graph, node):
            continue
        outs = [out for out in node.outputs if out]
        if all(isinstance(graph.types.get(out), TensorType) for out in outs):
            known.update(outs)
            found.update(outs)
    return found


def _frontier(graph: Graph, foldable: set[str]) -> list[str]:
    """Foldable values that something not foldable reads come first (last computed first), then what is below."""
    outer: dict[str, None] = {}
    for node in graph.nodes:
        if not any(out in foldable for out in node.outputs):
            outer.update(dict.fromkeys(name for name in node.uses if name in foldable))
    outer.update(dict.fromkeys(name for name in graph.outputs if name in foldable))
    inner = [out for node in reversed(graph.nodes) for out in node.outputs if out in foldable and out not in outer]
    return list(outer) + inner


def _bytes(graph: Graph, name: str) -> float | None:
    type_ = graph.type_of(name)
    return None if type_ is None else type_.static_bytes


def _growth(graph: Graph, node: Node, producers: dict[str, Node], foldable: set[str],
            readers: dict[str, int]) -> float | None:
    """Bytes that the file gains: the new constants less the constants that nobody else reads any more."""
    gained = 0.0
    for out in node.outputs:
        if out:
            size = _bytes(graph, out)
            if size is None:
                return None
            gained += size
    released: set[str] = set()
    stack, seen = [node], {id(node)}
    while stack:
        current = stack.pop()
        for name in current.inputs:
            if name in graph.constants and readers[name] == 1 and name not in graph.outputs:
                released.add(name)
            elif name in foldable and readers[name] == 1 and id(producers[name]) not in seen:
                seen.add(id(producers[name]))
                stack.append(producers[name])
    return gained - sum(graph.constants[name].nbytes for name in released)


def _is_copy(node: Node) -> bool:
    record = find(node.op, node.domain)
    return record is not None and (record.movement or node.op in ("Range", "ConstantOfShape", "EyeLike"))


def _folded(graph: Graph, node: Node, producers: dict[str, Node],
            values: dict[str, np.ndarray]) -> dict[str, Constant] | None:
    """The outputs of a node over constants; None where it cannot be computed within the scratch budget."""
    order = _order(graph, node, producers, values)
    if order is None:
        return None
    names = [out for out in node.outputs if out]
    places = {out: Place(graph, out, producers) for out in names if (_bytes(graph, out) or 0) >= LEAST_BYTES}
    recalled = {out: place.recall() for out, place in places.items()}
    known = {out: constant for out, constant in recalled.items()
             if constant is not None and _as_inferred(graph, out, constant.array)}
    if len(known) == len(names):
        values.update((out, constant.array) for out, constant in known.items())
        return known
    if not _compute(graph, order, values):
        return None
    found = {out: _constant(values[out]) for out in names}
    for out, place in places.items():
        place.keep(found[out])
    return found


def _order(graph: Graph, node: Node, producers: dict[str, Node],
           values: dict[str, np.ndarray]) -> list[Node] | None:
    """The nodes to compute, a node itself last; None where they need more than the scratch budget."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            order.append(current)
            continue
        if id(current) in seen:
            continue
        seen.add(id(current))
        stack.append((current, True))
        stack += [(producers[name], False) for name in current.inputs
                  if name and name not in graph.constants and name not in values]
    scratch = 0.0
    for current in order:
        sizes = [_bytes(graph, out) for out in current.outputs if out]
        scratch += sum(size if size is not None else math.inf for size in sizes)
    return None if scratch > SCRATCH_BYTES else order


def _compute(graph: Graph, order: list[Node], values: dict[str, np.ndarray]) -> bool:
    """Add what some nodes give to `values`; False where one cannot be computed."""
    for current in order:
        arrays = [None if not name else graph.constants[name].array if name in graph.constants else values[name]
                  for name in current.inputs]
        if current.op in UNDEFINED_OF_NAN and any(map(_holds_nan, arrays)):
            return False
        try:
            with np.errstate(all="ignore"):
                results = evaluate(current, arrays)
        except Exception:  # whatever a kernel raises that gets what it does not accept (an index out of range)
            return False  # no kernel, or an ill-formed node: it stays in the graph and fails where the user sees it
        for out, result in zip(current.outputs, results, strict=False):
            if out:
                if not _as_inferred(graph, out, result):
                    return False
                values[out] = spilled(result)
    return True


def _holds_nan(array: np.ndarray | None) -> bool:
    return array is not None and dtypes.name_of(array.dtype) in dtypes.FLOATS and bool(np.isnan(array).any())


def _as_inferred(graph: Graph, name: str, result: np.ndarray) -> bool:
    type_ = graph.type_of(name)
    return (type_ is not None and isinstance(result, (np.ndarray, np.generic))
            and dtypes.name_of(np.asarray(result).dtype) == type_.dtype)
