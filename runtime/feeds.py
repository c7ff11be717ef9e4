"""Random inputs inside inferred constraints: `draw(graph, seed, sizes)`, and sizes of symbols that a graph runs at."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from graphs import dims, dtypes
from graphs.dims import DimLike
from graphs.errors import InvalidInput, InvalidOption
from graphs.ir import Graph
from graphs.types import OtherType, TensorType

from .constraints import FREE, Constraint, bounds, constraints
from .session import input_type

__all__ = ["Constraint", "constraints", "default_sizes", "draw", "input_symbols", "size_candidates"]

BATCH, SEQUENCE, SPACE, OTHER = 2, 16, 32, 8
_BATCH = re.compile(r"batch|^(b|n|bs|bsz|batch_?size)$|^(unk|dynamic).*0$")
_SEQUENCE = re.compile(r"seq|len|time|tok|step|frame|word|^(t|l|s)$")
_SPACE = re.compile(r"height|width|^(h|w|hh|ww)$|size")
_PAST = re.compile(r"past|cache")
_WORDS = ("", "a", "b", "ab", "A", "egraft", "a b", "ä")
SPECIAL_SHARE = 0.15
MAX_DRAWN = 1 << 30  # elements of one random input
MAX_GUESSED = 1 << 25  # elements of the largest value at sizes that nobody asked for
UNKNOWN_SHAPE = (2, 3)
NOT_NEGATIVE = "not negative"  # floats are normal, free integers at least 0
# How floats are spread that were drawn from the normal distribution: a model may be defined on some numbers only.
SPREADS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": lambda values: values,
    NOT_NEGATIVE: lambda values: values,
    "positive": np.abs,
    "small": lambda values: values / 16,
    "fraction": lambda values: np.abs(values) / (1 + np.abs(values)),
    "above one": lambda values: 1 + np.abs(values),
}


def _tensor_inputs(graph: Graph) -> Iterator[tuple[str, TensorType]]:
    for name in graph.inputs:
        type_ = input_type(graph, name)
        if isinstance(type_, TensorType):
            yield name, type_


def input_symbols(graph: Graph) -> list[str]:
    """Names of all symbolic sizes of the inputs, in order of appearance."""
    found: dict[str, None] = {}
    for _, type_ in _tensor_inputs(graph):
        for dim in type_.shape or ():
            found.update(dict.fromkeys(sorted(dims.symbols(dim))))
    return list(found)


def unknown_dim(name: str, known: Iterable[str]) -> InvalidOption:
    """The error of a size that is asked for under a name that no input has."""
    listed = ", ".join(sorted(known)) or "none: all sizes are fixed"
    return InvalidOption(f"--dim {name}", f"the model's inputs have no dimension {name!r}", f"known: {listed}")


def single_sizes(graph: Graph, wanted: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The sizes of a single run. Raises InvalidOption for a name that no input has, or several sizes of one name."""
    known = input_symbols(graph)
    for name, sizes in wanted.items():
        if name not in known:
            raise unknown_dim(name, known)
        if len(sizes) > 1:
            raise InvalidOption(f"--dim {name}", f"{len(sizes)} sizes, and this runs at one", "give one size")
    return {name: sizes[0] for name, sizes in wanted.items()}


def default_sizes(graph: Graph) -> dict[str, int]:
    """A plausible size of every symbol: by its name, else by its place among the dimensions."""
    sizes: dict[str, int] = {}
    for _, type_ in _tensor_inputs(graph):
        for axis, dim in enumerate(type_.shape or ()):
            for name in dims.symbols(dim):
                sizes.setdefault(name, _plausible(name, axis, len(type_.shape or ())))
    return sizes


def _plausible(name: str, axis: int, rank: int) -> int:
    plain = name.lower()
    if _BATCH.search(plain):
        return BATCH
    if _PAST.search(plain):
        return OTHER
    if _SEQUENCE.search(plain):
        return SEQUENCE
    if _SPACE.search(plain) or (rank >= 4 and axis >= 2):
        return SPACE
    return BATCH if axis == 0 else OTHER


def size_candidates(graph: Graph, base: dict[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Sizes to try in turn until the graph runs: the defaults, those that follow a given size, a symbol that is 1 in
    truth (a batch that the exporter wrote into a Reshape), larger spaces, every symbol the same.

    Behind the first ones, which are what was asked for, come none that make a value of the graph too large to try.
    """
    found = _all_candidates(graph, base or {})
    start = next(found)
    yield start
    shapes = {type_.shape for name in graph.types if (type_ := graph.type_of(name)) is not None and type_.shape}
    shapes |= {type_.shape for _, type_ in _tensor_inputs(graph) if type_.shape}
    limit = max(MAX_GUESSED, _largest(shapes, start))
    yield from (sizes for sizes in found if _largest(shapes, sizes) <= limit)


def _largest(shapes: Iterable[tuple[DimLike, ...]], sizes: Mapping[str, int]) -> int:
    """Elements of the largest of these arrays; what only data decide counts as 1."""
    known = ([dims.evaluate(dim, sizes) for dim in shape] for shape in shapes)
    return max((math.prod(1 if size is None else size for size in shape) for shape in known), default=0)


def _all_candidates(graph: Graph, given: dict[str, int]) -> Iterator[dict[str, int]]:
    defaults = default_sizes(graph)
    usual = {name: defaults[name] for name in input_symbols(graph)}
    yield {**usual, **given}
    asked: dict[int, int] = {}
    for name in usual:
        if name in given:
            asked.setdefault(usual[name], given[name])
    # What would have been equal by default follows: the batch of another input.
    alike = {name: asked[size] for name, size in usual.items() if name not in given and asked.get(size, size) != size}
    if alike:
        yield {**usual, **alike, **given}
        yield from _variants(usual, {**alike, **given})
    yield from _variants(usual, given)


def _variants(usual: dict[str, int], fixed: dict[str, int]) -> Iterator[dict[str, int]]:
    start = {**usual, **fixed}
    if len(start) > 1:
        for name in usual:
            if name not in fixed:
                yield {**start, name: 1}
    for space in (64, 128, 224, 16, 512):
        changed = {name: space if size == SPACE else size for name, size in start.items()}
        if changed != start:
            yield {**changed, **fixed}
    for same in (1, 2, 4, 8, 16, 3, 32, 64, 256, 0):
        yield {**dict.fromkeys(usual, same), **fixed}
    for many in (80, 160, 256, 512, 1024, 4096, 16000):
        yield {**{name: BATCH if size == BATCH else many for name, size in start.items()}, **fixed}


def smaller_sizes(graph: Graph, base: dict[str, int]) -> Iterator[dict[str, int]]:
    """Other sizes than `base`, each with a size 1 in it: what runs at one size must run alike at another."""
    ordered = input_symbols(graph)
    batches = [name for name in ordered if base[name] == BATCH]
    others = [name for name in ordered if name not in batches]
    odd = {name: max(1, base[name] - base[name] // 2 - 1) for name in others}
    yield {**base, **odd, **dict.fromkeys(batches, 1)} if batches else {**base, **dict.fromkeys(others[:1], 1)}
    yield {**base, **{name: 2 * base[name] for name in others}, **dict.fromkeys(batches, 1)}
    yield {**base, **dict.fromkeys(batches, 1)}
    yield dict.fromkeys(ordered, 1)
    for name in others:
        yield {**base, name: 1}
    yield {**base, **dict.fromkeys(batches, 3)}


def draw(graph: Graph, seed: int, sizes: dict[str, int] | None = None, special: bool = False,
         huge: bool = True, spread: str = "normal",
         known: Mapping[str, Constraint] | None = None) -> dict[str, Any]:
    """Random feeds for chosen sizes of the symbols (others take their defaults), the same for the same arguments.

    Floats are normally distributed, or as `spread` makes of that (see `SPREADS`; one is for integers). `special` mixes
    NaN, infinities, -0.0, tiny and subnormal numbers and (with `huge`) numbers near the limits of the dtype into some
    elements, and extreme integers where nothing forbids them. `known`: the graph's `constraints`, where they are known
    already.
    """
    sizes = {**default_sizes(graph), **(sizes or {})}
    found = constraints(graph) if known is None else known
    feeds = {}
    for position, name in enumerate(graph.inputs):
        rng = np.random.default_rng((seed, position))
        feeds[name] = _draw_input(graph, name, rng, sizes, found.get(name), special, huge, spread)
        if name in found and found[name].values:
            feeds[name] = _chosen(feeds[name], _possible(found[name], sizes), seed)
    return feeds


def _possible(constraint: Constraint, sizes: Mapping[str, int]) -> list[float]:
    """The values of a choice that the constraint leaves."""
    if constraint.kind == "structural":
        return []
    if constraint.kind == "mask":
        return [value for value in constraint.values if value in (0, 1)]
    if constraint.kind == "index":
        low, high = bounds(constraint, sizes)
        return [value for value in constraint.values if low <= value < high]
    return list(constraint.values)


def _chosen(other: np.ndarray, values: Sequence[float], seed: int) -> np.ndarray:
    """One of the values that a branch depends on, or another one: the seeds take turns, so that each has its round. Of
    several elements the first one: an input of equal numbers would hide what is wrong."""
    turn = seed % (len(values) + 1)
    if turn == len(values) or not other.size:
        return other
    number, found = values[turn], other.copy()
    if other.dtype.kind in "iu":
        limits = np.iinfo(other.dtype)
        found.flat[0] = min(max(int(number), int(limits.min)), int(limits.max))
    else:
        found.flat[0] = np.asarray(float(number)).astype(other.dtype)
    return found


def _draw_input(graph: Graph, name: str, rng: np.random.Generator, sizes: dict[str, int],
                constraint: Constraint | None, special: bool, huge: bool, spread: str) -> Any:
    type_ = input_type(graph, name)
    if isinstance(type_, OtherType):
        return _draw_other(name, type_, rng)
    if type_ is None:
        raise InvalidInput(f"input {name!r}", "its type is not declared", "give data with --inputs")
    if constraint is not None and constraint.kind == "structural" and name in graph.defaults:
        return graph.defaults[name].array
    shape = tuple(_size(dim, sizes) for dim in type_.shape) if type_.shape is not None else UNKNOWN_SHAPE
    if math.prod(shape) > MAX_DRAWN:
        raise InvalidInput(f"input {name!r}", f"a random {type_.dtype}{list(shape)} is larger than egraft draws",
                           "give smaller sizes (--dim), or data with --inputs")
    return draw_array(rng, type_.dtype, shape, constraint, sizes, special, huge, spread)


def _size(dim: DimLike, sizes: dict[str, int]) -> int:
    known = dims.evaluate(dim, sizes)
    return max(0, known) if known is not None else BATCH


def _draw_other(name: str, type_: OtherType, rng: np.random.Generator) -> Any:
    proto = onnx.TypeProto.FromString(type_.proto)
    if proto.HasField("optional_type"):
        proto = proto.optional_type.elem_type
    is_sequence = proto.HasField("sequence_type")
    tensor = (proto.sequence_type.elem_type if is_sequence else proto).tensor_type
    dtype = dtypes.FROM_ONNX.get(tensor.elem_type)
    if dtype is None:
        raise InvalidInput(f"input {name!r}", f"egraft draws no values of type {type_}", "give data with --inputs")
    shape = tuple(dim.dim_value or 2 for dim in tensor.shape.dim) if tensor.HasField("shape") else (2, 3)
    if is_sequence:
        return [draw_array(rng, dtype, shape) for _ in range(3)]
    return draw_array(rng, dtype, shape)


def draw_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], constraint: Constraint | None = None,
               sizes: dict[str, int] | None = None, special: bool = False, huge: bool = True,
               spread: str = "normal") -> np.ndarray:
    """A random array of an element type inside a constraint."""
    kind = dtypes.numpy_dtype(dtype)
    if dtype == "string":
        return np.array([_WORDS[i] for i in rng.integers(0, len(_WORDS), int(np.prod(shape)))],
                        object).reshape(shape)
    if constraint is not None and constraint.kind == "structural":
        return _structural(rng, constraint, shape, sizes or {}).astype(kind)
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.6)
    if constraint is not None and constraint.kind == "mask":
        return _mask(rng, shape).astype(kind)
    if constraint is not None and constraint.kind == "index":
        low, high = bounds(constraint, sizes or {})
        return np.asarray(rng.integers(low, high, shape)).astype(kind)
    if np.dtype(kind).kind in "iu" or dtype in ("int4", "uint4", "int2", "uint2"):
        least = 0 if spread == NOT_NEGATIVE else None
        if constraint is not None and constraint.kind == "count":
            least = dims.evaluate(constraint.low, sizes or {})
        values = _integers(rng, dtype, kind, shape, special, least)
        nonzero = constraint is not None and constraint.kind == "nonzero"
        return np.where(values == 0, np.ones((), kind), values) if nonzero else values
    if dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    values = np.asarray(SPREADS[spread](np.asarray(rng.standard_normal(shape)))).astype(kind)
    return with_special(rng, values, dtype, huge) if special and dtype in dtypes.FLOATS else values


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.asarray(rng.random(shape) < 0.75)
    if mask.ndim:
        mask[..., :1] = True  # a row that is masked altogether has no meaning in most models
    return mask


def _integers(rng: np.random.Generator, dtype: str, kind: np.dtype, shape: tuple[int, ...],
              special: bool, least: int | None = None) -> np.ndarray:
    """Small integers, from `least` where that is given; extreme ones, whatever they are, if `special`."""
    if dtype in ("int8", "uint8"):
        whole = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
        return _from(least, whole)
    signed = not dtype.startswith("u")
    if ("4" in dtype[-1:] and dtype not in dtypes.INTEGERS) or (dtype[-1:] == "2" and len(dtype) <= 5 and (
            dtype not in dtypes.INTEGERS)):
        width = int(dtype[-1])
        low = -(1 << (width - 1)) if signed else 0
        return rng.integers(low, low + (1 << width), shape).astype(kind)
    values = _from(least, np.asarray(rng.integers(-8 if signed else 0, 17, shape).astype(kind)))
    if special:
        limits = np.iinfo(kind)
        extremes = np.array([limits.min, limits.max, limits.max // 2 + 1, limits.min + 1, limits.max - 1, 1], kind)
        chosen = rng.random(shape) < 0.4
        values = np.where(chosen, extremes[rng.integers(0, len(extremes), shape)], values)
    return values


def _from(least: int | None, values: np.ndarray) -> np.ndarray:
    """What is below `least` as far above it."""
    if least is None:
        return values
    above = least + np.abs(values.astype(np.int64) - least)
    return np.asarray(np.minimum(above, np.iinfo(values.dtype).max).astype(values.dtype))


def spreads(graph: Graph, known: Mapping[str, Constraint]) -> list[str]:
    """Those of `SPREADS` that draw other numbers for the graph than the first one, which comes first."""
    types = dict(_tensor_inputs(graph))
    floats = any(type_.dtype in dtypes.FLOATS for type_ in types.values())
    integers = any(type_.dtype in dtypes.INTEGERS and (name not in known or known[name].kind in FREE)
                   for name, type_ in types.items())
    return [name for position, name in enumerate(SPREADS)
            if position == 0 or (integers if name == NOT_NEGATIVE else floats)]


def with_special(rng: np.random.Generator, values: np.ndarray, dtype: str, huge: bool = True) -> np.ndarray:
    """The values with special ones in some places (at least one, if there is any element)."""
    import ml_dtypes

    limits = ml_dtypes.finfo(values.dtype)
    choices = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(limits.tiny), -float(limits.tiny),
               float(limits.smallest_subnormal)]
    if huge:
        choices += [float(limits.max), -float(limits.max), float(limits.max) / 3, float(np.sqrt(float(limits.max)))]
    chosen = np.asarray(rng.random(values.shape) < SPECIAL_SHARE)
    if values.size and not chosen.any():
        chosen.reshape(-1)[rng.integers(0, values.size)] = True
    with np.errstate(over="ignore"):
        table = np.asarray(choices, np.float64).astype(values.dtype)
    return np.where(chosen, table[rng.integers(0, len(table), values.shape)], values)


def _structural(rng: np.random.Generator, constraint: Constraint, shape: tuple[int, ...],
                sizes: dict[str, int]) -> np.ndarray:
    """Values that keep shapes possible: the target of a Reshape is [-1, 1, ...], of an Expand [1, ...], and so on."""
    operator, role = constraint.role.split(".", 1)
    count = int(np.prod(shape))
    if role == "sequence_lens":
        return rng.integers(*bounds(constraint, sizes), shape)
    if role == "axes" or role == "axis":
        return np.arange(count).reshape(shape)
    if operator == "Reshape" and constraint.direct and count:
        return np.array([-1] + [1] * (count - 1)).reshape(shape)
    fixed = {"starts": 0, "start": 0, "ends": 2, "limit": 4, "steps": 1, "delta": 1, "M": 3, "depth": 4, "pads": 1,
             "min": -1, "max": 1, "ratio": 0, "training_mode": 0, "k": 1}.get(role, 1)
    if operator == "ConstantOfShape":
        fixed = 2
    return np.full(shape, fixed)
