"""Which weights and float attributes differ between two graphs.

Only those carry rounding of their own when both graphs are compared in float64: a bias that both share is no excuse
for a difference, a weight that was multiplied by a scale is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from graphs import dtypes
from graphs.canonical import round_float
from graphs.constants import Constant
from graphs.errors import EgraftError
from graphs.ir import Graph, Node
from graphs.operators import is_pure

from ..execute import Context
from ..program import Program

FOLDED_BYTES = 256 << 20
_SCALAR_ELEMENTS = 4096
_COMPARED_ELEMENTS = 1 << 23  # beyond this a rearranged weight counts as a new one
_HALF = ("float16", "bfloat16")
_FEW = 16  # distinct values: another constant has them by chance


@dataclass(frozen=True, slots=True)
class Changes:
    """Constants (by identity) and float attributes (node identity, name) that the other graph does not have.

    `new` are those of the optimized graph: in half precision they were rounded, whatever numbers they are.
    """

    constants: frozenset[int] = frozenset()
    attributes: frozenset[tuple[int, str]] = frozenset()
    new: bool = False


@dataclass(slots=True)
class _Floats:
    constants: dict[int, Constant] = field(default_factory=dict)
    attributes: dict[tuple[int, str], float] = field(default_factory=dict)


def fold(graph: Graph) -> Graph:
    """The graph with what depends on constants alone computed at its own dtypes. It shares nodes and constants."""
    known = set(graph.constants)
    ready: list[Node] = []
    for node in graph.nodes:
        if all(name in known for name in node.inputs if name) and is_pure(node) and next(node.graphs, None) is None:
            ready.append(node)
            known.update(name for name in node.outputs if name)
    if not ready:
        return graph
    moved = {id(node) for node in ready}
    rest = [node for node in graph.nodes if id(node) not in moved]
    read = {name for node in rest for name in node.uses} | set(graph.outputs)
    wanted = [name for node in ready for name in node.outputs if name and name in read]
    part = Graph(graph.name, [], wanted, ready, graph.constants, graph.types, opsets=graph.opsets,
                 functions=graph.functions)
    try:
        with np.errstate(all="ignore"):
            found = Program(part, Context.of(graph)).run([])
    except EgraftError:
        return graph  # the run of the whole graph will say why
    if any(not isinstance(value, np.ndarray | np.generic) for value in found) or (
            sum(value.nbytes for value in found) > FOLDED_BYTES):
        return graph
    constants = {**graph.constants, **{name: Constant.of(value) for name, value in zip(wanted, found)}}
    return Graph(graph.name, graph.inputs, graph.outputs, rest, constants, graph.types, graph.declared, graph.defaults,
                 graph.opsets, graph.functions, graph.ir_version)


def changes(a: Graph, b: Graph) -> tuple[Changes, Changes]:
    """What the original `a` has and `b` lacks, and the reverse."""
    left, right = _floats(a), _floats(b)
    shared = left.constants.keys() & right.constants.keys()
    lost, new = ([constant for key, constant in side.constants.items() if key not in shared]
                 for side in (left, right))
    both = {constant.digest for constant in lost} & {constant.digest for constant in new}
    lost, new = ([constant for constant in side if constant.digest not in both] for side in (lost, new))
    lost_alone, new_alone = _not_rearranged(lost, list(right.constants.values())), _not_rearranged(
        new, list(left.constants.values()))
    new_alone |= _moved_elsewhere(a, b, right)
    scalars_a, scalars_b = _scalars(left), _scalars(right)
    return (Changes(lost_alone, frozenset(k for k, v in left.attributes.items() if v not in scalars_b)),
            Changes(new_alone, frozenset(k for k, v in right.attributes.items() if v not in scalars_a), True))


def _moved_elsewhere(a: Graph, b: Graph, floats: _Floats) -> frozenset[int]:
    """Constants of half precision in `b` of few distinct values that a node reads which `a` does not have: they look
    like constants of `a` by chance (a scale of 0.9998 is 1 in float16)."""
    few = {key for key, constant in floats.constants.items()
           if constant.dtype in _HALF and len(np.unique(constant.array.reshape(-1)[:4096])) <= _FEW}
    if not few:
        return frozenset()
    known = {_signature(each, node) for each in a.walk() for node in each.nodes}
    return frozenset(id(each.constants[name]) for each in b.walk() for node in each.nodes
                     if any(id(each.constants.get(name)) in few for name in node.inputs)
                     and _signature(each, node) not in known
                     for name in node.inputs if id(each.constants.get(name)) in few)


def _signature(graph: Graph, node: Node) -> tuple[object, ...]:
    read = (graph.constants.get(name) for name in node.inputs)
    return (node.op, node.domain, str(sorted(node.attrs.items(), key=str)),
            *(None if constant is None else constant.digest for constant in read))


def _floats(graph: Graph) -> _Floats:
    found = _Floats()
    for each in graph.walk():
        for constant in each.constants.values():
            if constant.dtype in dtypes.FLOATS and constant.size:
                found.constants[id(constant)] = constant
        for node in each.nodes:
            for name, value in node.attrs.items():
                if isinstance(value, float) and not value.is_integer():
                    found.attributes[id(node), name] = value
    return found


def _scalars(floats: _Floats) -> set[float]:
    """Numbers that an attribute may have taken from the graph: as float32, which a larger double cannot be."""
    values = set(floats.attributes.values())
    for constant in floats.constants.values():
        splat = constant.facts.splat if constant.size <= _SCALAR_ELEMENTS else None
        if splat is not None and math.isinf(held := round_float(splat)) == math.isinf(splat):
            values.add(held)
    return values


def _values(constants: list[Constant]) -> Iterator[np.ndarray]:
    for constant in constants:
        yield np.asarray(constant.array, np.float64).reshape(-1)


def _not_rearranged(mine: list[Constant], theirs: list[Constant]) -> frozenset[int]:
    """Constants with an element that no constant of the other graph has: not a transposed, sliced or joined one."""
    if not mine:
        return frozenset()
    total = sum(constant.size for constant in (*mine, *theirs))
    if total > _COMPARED_ELEMENTS:
        return frozenset(map(id, mine))
    pool = np.unique(np.concatenate([np.zeros(1), *_values(theirs)]))
    alike = [constant for constant, values in zip(mine, _values(mine)) if _all_in(values[:64], pool)]
    if not alike or not _all_in(np.concatenate([*_values(alike)]), pool):  # one look for all is nearly always enough
        alike = [constant for constant, values in zip(alike, _values(alike)) if _all_in(values, pool)]
    return frozenset(map(id, mine)) - frozenset(map(id, alike))


def _all_in(values: np.ndarray, pool: np.ndarray) -> bool:
    """Every value is in the sorted pool (NaN never is)."""
    values = np.sort(values)  # neighbours are then looked up in the same part of the pool, which is in the cache
    places = np.minimum(np.searchsorted(pool, values), pool.size - 1)
    return bool((pool[places] == values).all())
