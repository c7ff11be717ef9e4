"""Runs of a graph that differ from the plain one: in float64, with inputs and weights moved by one ulp.

The float64 twin says what a graph means in (nearly) real arithmetic; the moved twin says how much the graph amplifies
the smallest change that its dtypes can express.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.types import TensorType

from ..execute import Context, Hooks, NodeFunction, Values
from ..program import Program
from .changes import Changes

NARROW = ("float32", "float16", "bfloat16")
_WIDE_NUMBER = dtypes.ONNX_NUMBER["float64"]
_NARROW_NUMBERS = {dtypes.ONNX_NUMBER[name] for name in NARROW}
_DTYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "softmax_precision", "output_datatype", "precision")
_PATTERN = 65_537  # elements of the repeated random pattern: a prime, so that it does not line up with rows
_KEPT_SIGNS = 1024
_CACHED_BYTES = 1 << 20
_TABLE_ELEMENTS = 1 << 20  # of a constant in which rows are looked up: only those rows are varied
_EPSILON32 = 2.0**-23
LOST, NEW = 6.0, float("inf")  # `chance` of constants that the other graph lacks: folded ones; those of rules
TINY = 2.0**-42  # far below what float32 resolves, far above the rounding of float64


@dataclass(frozen=True, slots=True)
class Twin:
    """Which variation: in float64, and moved by the random pattern of a seed (None: not moved).

    `changed` moves only what the other graph does not have (see `changes`); `step` replaces the ulp by a relative
    step of its own. `extended` has float64 in NumPy's longdouble: it shows where float64 itself overflowed inside.
    """

    wide: bool = False
    moved: int | None = None
    changed: bool = False
    step: float | None = None
    extended: bool = False


EXTENDS = np.finfo(np.longdouble).max > np.finfo(np.float64).max  # not so on every platform


def has_any(graph: Graph, names: Collection[str]) -> bool:
    """Some value is of one of these element types."""
    for each in graph.walk():
        types = [*each.types.values(), *(constant.type for constant in each.constants.values())]
        if any(isinstance(type_, TensorType) and type_.dtype in names for type_ in types):
            return True
    return False


def coarsest_epsilon(graph: Graph) -> float:
    """Epsilon of the narrowest float type that the graph computes in. Casts there and back do not count: they are
    meant to round."""
    found = 2.0**-52
    for each in graph.walk():
        for node in each.nodes:
            type_ = each.types.get(node.outputs[0]) if node.outputs else None
            if node.op != "Cast" and isinstance(type_, TensorType) and type_.dtype in dtypes.FLOATS:
                found = max(found, _epsilon(dtypes.numpy_dtype(type_.dtype)))
    return found


def widen(value: Any) -> Any:
    """Narrow floats as float64; everything else as it is."""
    if isinstance(value, list):
        return [widen(item) for item in value]
    if isinstance(value, np.ndarray) and dtypes.name_of(value.dtype) in NARROW:
        return value.astype(np.float64)
    return value


def extend(value: Any) -> Any:
    """float64 as longdouble; everything else as it is."""
    if isinstance(value, list):
        return [extend(item) for item in value]
    return value.astype(np.longdouble) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


def widen_node(node: Node) -> Node:
    """The node with float64 wherever an attribute names a narrower float type or holds such a tensor."""
    changed: dict[str, object] = {}
    for name, value in node.attrs.items():
        if name in _DTYPE_ATTRIBUTES and value in _NARROW_NUMBERS:
            changed[name] = _WIDE_NUMBER
        elif isinstance(value, Constant) and value.dtype in NARROW:
            changed[name] = Constant.of(value.array, "float64")
    if not changed:
        return node
    return Node(node.op, node.inputs, node.outputs, {**node.attrs, **changed}, node.domain, node.name,
                node.version, node.doc, node.metadata, node.origins)


def moved(value: Any, seed: int, key: str, step: float | None = None, chance: float = 0.0) -> Any:
    """Each float element one ulp up or down, at random. Zeros stay what they are.

    A tensor of integers (a 1 in `1 - mask`, a -10000) stays too: such numbers are exact, and moving them would
    make a graph look far more sensitive than it is. In float16 and bfloat16 rounding itself gives integers: there they
    must be so many that chance makes one such tensor in 2 ** `chance`.
    """
    if isinstance(value, list):
        return [moved(item, seed, f"{key}[{index}]", step, chance) for index, item in enumerate(value)]
    if not isinstance(value, np.ndarray) or dtypes.name_of(value.dtype) not in dtypes.FLOATS or not value.size:
        return value
    with np.errstate(all="ignore"):
        if _is_exact(value, chance):
            return value
        return _scaled(value, _factors(value, seed, key, step), _moved_dtype(value, step))


def _factors(value: np.ndarray, seed: int, key: str, step: float | None) -> np.ndarray:
    """What the elements are multiplied with; it repeats."""
    return 1 + _signs(seed, key, min(value.size, _PATTERN)) * (_epsilon(value.dtype) if step is None else step)


def _signs(seed: int, key: str, size: int) -> np.ndarray:
    """1.0 and -1.0 at random, the same for the same arguments."""
    if size <= _KEPT_SIGNS:
        return _kept_signs(seed, key, size).astype(np.float64)
    return np.random.default_rng((seed, zlib.crc32(key.encode()))).integers(0, 2, size) * 2.0 - 1.0


@lru_cache(1 << 15)
def _kept_signs(seed: int, key: str, size: int) -> np.ndarray:
    """As bytes. To begin a generator takes longer than to draw a few numbers, and several variations want the same."""
    return (np.random.default_rng((seed, zlib.crc32(key.encode()))).integers(0, 2, size) * 2 - 1).astype(np.int8)


def _moved_dtype(value: np.ndarray, step: float | None) -> np.dtype:
    return value.dtype if step is None else np.dtype(np.float64)


def moved_rows(table: np.ndarray, indices: np.ndarray, rows: np.ndarray, seed: int, key: str,
               step: float | None = None, chance: float = 0.0) -> np.ndarray:
    """`moved(table, ...)[indices]` without moving the rest of the table; `rows` is `table[indices]`."""
    with np.errstate(all="ignore"):
        exact = _is_exact(table, chance)
        if exact or not rows.size:
            return rows if exact else rows.astype(_moved_dtype(table, step))
        factors, dtype = _factors(table, seed, key, step), _moved_dtype(table, step)
        width = table[0].size
        starts = np.where(indices < 0, indices + len(table), indices).astype(np.int64).reshape(-1, 1) * width
        work = _work_dtype(table, dtype)
        factors = factors.astype(work)[(starts + np.arange(width)) % factors.size]
        return np.multiply(rows.astype(work).reshape(factors.shape), factors).astype(dtype).reshape(rows.shape)


def _work_dtype(value: np.ndarray, dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if np.float64 in (dtype, value.dtype) else np.dtype(np.float32)


def looked_up(graph: Graph) -> frozenset[str]:
    """Large float constants of which nodes read nothing but whole rows."""
    large = {name for name, constant in graph.constants.items()
             if constant.size >= _TABLE_ELEMENTS and constant.dtype in dtypes.FLOATS} - set(graph.outputs)
    for node in graph.nodes if large else ():
        rows = node.op == "Gather" and not node.domain and not node.is_opaque and node.attrs.get("axis") == 0
        large.difference_update(node.inputs[1:] if rows else node.uses)
    return frozenset(large)


def _is_exact(value: np.ndarray, chance: float) -> bool:
    """Integers; where `chance` is asked for only those that rounding could hardly have made: the type has fractions
    beside them, and all integers."""
    if not _is_integral(value):
        return False
    epsilon = _epsilon(value.dtype)
    if not chance or epsilon <= _EPSILON32:
        return True
    sizes = np.abs(value.astype(np.float64)[value != 0])
    if not sizes.size:
        return True
    steps = epsilon * 2.0 ** np.floor(np.log2(sizes))  # the distance to the next number of the type
    return bool(steps.max() <= 1) and -float(np.log2(steps).sum()) >= chance


def _is_integral(value: np.ndarray) -> bool:
    flat = value.reshape(-1)
    for part in (flat[:1024], flat) if flat.size > 1024 else (flat,):
        wide = part if part.dtype in (np.float32, np.float64) else part.astype(np.float32)
        if not bool((wide == np.rint(wide)).all()):
            return False
    return True


def _scaled(value: np.ndarray, pattern: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Value times the repeated pattern, block by block: a whole array of factors would not stay in the cache."""
    flat, found = np.ascontiguousarray(value).reshape(-1), np.empty(value.size, dtype)
    work = _work_dtype(value, dtype)
    factors = pattern.astype(work)
    for start in range(0, flat.size, factors.size):
        part = flat[start: start + factors.size].astype(work, copy=False)
        found[start: start + part.size] = np.multiply(part, factors[: part.size])
    return found.reshape(value.shape)


def moved_node(node: Node, names: list[str], seed: int) -> Node:
    """The node with some float attributes one float32 ulp up or down."""
    sign = 1 if (seed + len(node.outputs[0])) % 2 else -1
    attrs = dict(node.attrs)
    for name in names:
        attrs[name] = float(attrs[name]) * (1 + sign * 2.0**-23)  # type: ignore[arg-type]
    return Node(node.op, node.inputs, node.outputs, attrs, node.domain, node.name, node.version, node.doc,
                node.metadata, node.origins)


def _epsilon(dtype: np.dtype) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def vary(twin: Twin, value: Any, key: str, chance: float = 0.0) -> Any:
    """A value as a variation has it."""
    if twin.moved is not None:
        value = moved(value, twin.moved, key, twin.step, chance)
    return widened(twin, value)


def widened(twin: Twin, value: Any) -> Any:
    """A value in the dtypes of a variation."""
    return widen(value) if twin.wide else extend(value) if twin.extended else value


class TwinProgram:
    """A graph prepared for one variation. `node_function` may replace single nodes (see `pins`). `others`: programs for
    other variations; one of the same graph in the same dtypes lends what both have in common."""

    def __init__(self, graph: Graph, twin: Twin,
                 node_function: Callable[[Node, Callable[[], NodeFunction]], NodeFunction | None] | None,
                 seed: int, fixed_inputs: frozenset[str] = frozenset(), changes: Changes | None = None,
                 others: Iterable[TwinProgram] = ()) -> None:
        self.graph, self.twin, self.fixed = graph, twin, fixed_inputs
        self.changes = changes or Changes()
        self.peak_bytes = self.written_bytes = 0
        self._chance = (NEW if self.changes.new else LOST) if twin.changed else 0.0
        self._cache: dict[int, np.ndarray] = {}
        plain = self._is_plain = not (twin.wide or twin.extended) and twin.moved is None
        like = None if plain else next(filter(self._is_like, others), None)
        self._tables: frozenset[str] = like._tables if like is not None else frozenset() if plain else looked_up(graph)
        self._replaced = node_function
        hooks = Hooks(constant=None if plain else self._constant, node=self._node if twin.wide else None,
                      function=self._function if self._tables else node_function)
        self.context = Context.of(graph, seed, hooks)
        if like is None:
            self.program = Program(graph, self.context)
        else:
            self.program = like.program.variant(self.context, self._has_changed_attributes)

    def _is_like(self, other: TwinProgram) -> bool:
        """Nodes do the same in both, but for changed attributes; constants are loaded one by one in both."""
        return (other.graph is self.graph and not other._is_plain and other.changes == self.changes
                and (other.twin.wide, other.twin.extended) == (self.twin.wide, self.twin.extended))

    def _has_changed_attributes(self, node: Node) -> bool:
        return any((id(node), name) in self.changes.attributes for name in node.attrs)

    def _node(self, node: Node) -> Node:
        if self.twin.changed and self.twin.moved is not None:
            names = [name for name in node.attrs if (id(node), name) in self.changes.attributes]
            if names:
                node = moved_node(node, names, self.twin.moved)
        return widen_node(node)

    def _function(self, node: Node, plain: Callable[[], NodeFunction]) -> NodeFunction | None:
        name = node.inputs[0] if node.inputs else ""
        if name not in self._tables:
            return self._replaced(node, plain) if self._replaced is not None else None
        gather, stays = plain(), self._stays(self.graph.constants[name])

        def rows(values: Values) -> Values:
            found = np.asarray(gather(values)[0])
            if self.twin.moved is not None and not stays:
                found = moved_rows(values[0], np.asarray(values[1]), found, self.twin.moved, name, self.twin.step,
                                   self._chance)
            return [self._widened(found)]

        return rows

    def _stays(self, constant: Constant) -> bool:
        return self.twin.changed and id(constant) not in self.changes.constants

    def _constant(self, name: str, constant: Constant) -> np.ndarray:
        if name in self._tables:
            return constant.array
        found = self._cache.get(id(constant))
        if found is None:
            stays = self._stays(constant)
            key = constant.digest if constant.size < 4096 else name
            found = self._widened(constant.array) if stays else self._vary(constant.array, key)
            if found.nbytes <= _CACHED_BYTES:
                self._cache[id(constant)] = found
        return found

    def _widened(self, value: Any) -> Any:
        return widened(self.twin, value)

    def _vary(self, value: Any, key: str) -> Any:
        return vary(self.twin, value, key, self._chance)

    def run(self, values: Mapping[str, Any], counting: bool = False) -> dict[str, Any]:
        """Output name -> value, for checked values of all inputs. `counting` measures `peak_bytes`."""
        arguments = [
            self._widened(value) if self.twin.changed or name in self.fixed else self._vary(value, name)
            for name, value in values.items()
        ]
        with np.errstate(all="ignore"):
            if counting:
                found, self.peak_bytes, self.written_bytes = self.program.run_counting(arguments)
            else:
                found = self.program.run(arguments)
        return dict(zip(self.graph.outputs, found))
