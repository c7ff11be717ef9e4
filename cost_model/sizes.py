"""At which sizes symbolic dimensions are measured, and types with those sizes put in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from graphs.dims import Call, DimLike, Expr, Symbol, evaluate, symbols
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.types import TensorType
from runtime.feeds import unknown_dim

# By the name of a symbol, first match counts; names are split at anything but letters.
BY_NAME: tuple[tuple[frozenset[str], int], ...] = (
    (frozenset({"batch", "bs", "n", "b", "samples", "batchsize", "nbatch"}), 1),
    (frozenset({"past", "cache", "kv"}), 128),
    (
        frozenset({"seq", "sequence", "length", "len", "time", "t", "tokens", "token", "steps", "frames", "seqlen"}),
        128,
    ),
    (frozenset({"height", "width", "h", "w"}), 224),
)
DATA_DEPENDENT = 16  # what only running the graph tells (NonZero)
OTHER = 16
BY_POSITION_BATCH, BY_POSITION_IMAGE, BY_POSITION_IDS = 1, 224, 128
MAX_SETS = 16


def default_measure_sizes(graph: Graph, dims: Mapping[str, int | Sequence[int]] | None = None) -> dict[str, int]:
    """Symbol -> size for every symbol of the graph's inputs; of several sizes asked for, the first.

    Without a size in `dims`: by name batch 1, sequence-like 128, height and width 224; a name that tells
    nothing counts by its place: first dimension 1, third and later of a rank-4 or rank-5 input 224, second
    of integer ids 128; anything else 16. Raises InvalidOption for a name that no input has, or a size below
    1.
    """
    return measure_size_sets(graph, dims)[0]


def measure_size_sets(graph: Graph, dims: Mapping[str, int | Sequence[int]] | None = None) -> list[dict[str, int]]:
    """Every combination of the sizes asked for (at most 16), the first sizes first; see
    `default_measure_sizes`.
    """
    base = _defaults(graph)
    asked: dict[str, list[int]] = {}
    for name, sizes in (dims or {}).items():
        values = [sizes] if isinstance(sizes, int) else list(sizes)
        if name not in base:
            raise unknown_dim(name, base)
        if not values or any(size < 1 for size in values):
            raise InvalidOption(f"--dim {name}", f"impossible size in {values}", "give sizes of at least 1")
        asked[name] = values
    combinations = list(itertools.product(*asked.values()))
    if len(combinations) > MAX_SETS:
        raise InvalidOption("--dim", f"{len(combinations)} combinations of sizes", f"ask for at most {MAX_SETS}")
    return [{**base, **dict(zip(asked, chosen))} for chosen in combinations]


def _defaults(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in graph.inputs:
        type_ = graph.type_of(name)
        for position, dim in enumerate((type_.shape or ()) if type_ is not None else ()):
            for symbol in sorted(symbols(dim)):
                found.setdefault(symbol, _default_size(symbol, type_, position))
    return found


def _default_size(name: str, type_: TensorType | None = None, position: int | None = None) -> int:
    words = set(re.findall(r"[a-z]+", name.lower()))
    for names, size in BY_NAME:
        if words & names:
            return size
    if type_ is None or position is None:
        return OTHER
    rank = type_.rank or 0
    if position == 0:
        return BY_POSITION_BATCH
    if rank in (4, 5) and position >= 2:
        return BY_POSITION_IMAGE
    if rank == 2 and position == 1 and type_.dtype in ("int32", "int64"):
        return BY_POSITION_IDS
    return OTHER


def size_of(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The size of a dimension; a symbol without a size gets its default by name, a size that data decide
    16.
    """
    if not isinstance(dim, Expr):
        return int(dim)
    complete = {name: sizes.get(name) or _default_size(name) for name in symbols(dim)}
    found = evaluate(dim, complete)
    if found is None:
        found = evaluate(_without_data(dim), complete)
    return max(0, DATA_DEPENDENT if found is None else found)


def _without_data(dim: DimLike) -> DimLike:
    """The dimension with each size that data decide replaced by the stated default."""
    if not isinstance(dim, Expr):
        return dim
    total: DimLike = 0
    for monomial, factor in dim.terms:
        term: DimLike = factor
        for atom in monomial:
            if isinstance(atom, Symbol):
                value: DimLike = Expr((((atom,), 1),))
            elif atom.function == "data":
                value = DATA_DEPENDENT
            else:
                value = Expr((((Call(atom.function, tuple(map(_without_data, atom.args))),), 1),))
            term = term * value
        total = total + term
    return total


def static_type(type_: TensorType | None, sizes: Mapping[str, int]) -> TensorType | None:
    """The type with sizes put in, None where the rank is unknown."""
    if type_ is None or type_.shape is None:
        return None
    return type_ if type_.is_static else type_.with_shape(tuple(size_of(dim, sizes) for dim in type_.shape))


def sizes_of_feeds(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes of symbols that feeds decide: a dimension that is a symbol alone takes the array's size."""
    found = _defaults(graph)
    for name, array in feeds.items():
        type_ = graph.type_of(name)
        if type_ is None or type_.shape is None:
            continue  # a sequence has no sizes of its own
        for dim, size in zip(type_.shape, array.shape):
            if isinstance(dim, Expr) and len(names := symbols(dim)) == 1 and str(dim).strip("`") in names:
                found[next(iter(names))] = size
    return found
