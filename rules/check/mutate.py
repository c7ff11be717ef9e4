"""Random variations of a rule's example: sizes, element types, constants, attributes, opsets, ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.canonical import DEFAULT_OPSET, complete, newest_opset, version_at
from graphs.constants import Constant
from graphs.dims import DimLike, symbol
from graphs.dtypes import FLOATS, INTEGERS, numpy_dtype
from graphs.errors import EgraftError
from graphs.inference import infer
from graphs.ir import Graph
from graphs.operators import accepts, find
from graphs.types import TensorType

Rng = np.random.Generator
Step = Callable[[Graph, Rng], None]
_FLOATS = ("float32", "float16", "float64", "bfloat16")
_NUMBERS = (*_FLOATS, "int32", "int64", "int8", "uint8")
_SWITCHES = frozenset({"keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "noop_with_empty_axes",
                       "training_mode", "allowzero", "flatten", "select_last_index", "saturate", "exclude_outside",
                       "antialias", "stash_type"})
INT64 = np.iinfo(np.int64)
_SIZES: tuple[DimLike, ...] = (1, 2, 3, 4, 5, 7, 0, symbol("k"))


def mutated(graph: Graph, rng: Rng) -> Graph | None:
    """A well-typed variation of a graph, None where the attempt is not well-typed."""
    new = graph.copy()
    steps = [_constants, *(step for step, chance in _STEPS if rng.random() < chance)]
    try:
        for step in steps:
            step(new, rng)
        return _finished(new)
    except (EgraftError, ValueError, TypeError, OverflowError, IndexError):
        return None


def _finished(graph: Graph) -> Graph | None:
    graph.types = {name: graph.types[name] for name in graph.inputs}
    graph.declared = {**dict(graph.types)}
    for node in graph.nodes:
        if node.attrs.get("auto_pad", "NOTSET") != "NOTSET" and "pads" in node.attrs:
            node.attrs["pads"] = None  # ONNX forbids both, and each runtime makes something else of them
    infer(graph)
    for node in graph.nodes:
        record = find(node.op, node.domain)
        node.version = version_at(node.op, node.domain, graph.opset)
        if record is None or node.version == 0:
            return None
        node.attrs = complete(record, node.attrs)
        types = [graph.type_of(name) if name else None for name in node.inputs]
        if node.domain == "" and any(type_ is not None and not accepts(node.op, graph.opset, type_.dtype, position)
                                     for position, type_ in enumerate(types)):
            return None
        if record.write is not None and record.write(dict(node.attrs), node.version) is None:
            return None
    return graph if all(graph.type_of(name) is not None for name in graph.outputs) else None


def _shape(graph: Graph, name: str) -> tuple[DimLike, ...]:
    type_ = graph.type_of(name)
    assert type_ is not None and type_.shape is not None
    return type_.shape


def _reshape(graph: Graph, name: str, shape: tuple[DimLike, ...], rng: Rng) -> None:
    """Give an input or a constant another shape."""
    if name in graph.constants:
        old = graph.constants[name]
        if not all(isinstance(dim, int) for dim in shape):
            raise ValueError("a constant has no symbolic size")
        count = int(np.prod(shape, dtype=np.int64))  # type: ignore[arg-type]
        array = np.resize(old.array.reshape(-1), count) if old.size else np.zeros(count, old.array.dtype)
        graph.constants[name] = Constant.of(np.asarray(array, old.array.dtype).reshape(shape))  # type: ignore[arg-type]
    else:
        graph.types[name] = TensorType(graph.types[name].dtype, shape)  # type: ignore[union-attr]


def _leaves(graph: Graph) -> list[str]:
    return [*graph.inputs, *graph.constants]


def _sizes(graph: Graph, rng: Rng) -> None:
    """Replace sizes alike everywhere."""
    known = {dim for name in _leaves(graph) for dim in _shape(graph, name) if dim != 1}
    table = {dim: _SIZES[rng.integers(0, len(_SIZES))] for dim in sorted(known, key=str) if rng.random() < 0.6}
    for name in _leaves(graph):
        _reshape(graph, name, tuple(table.get(dim, dim) for dim in _shape(graph, name)), rng)


def _one_dim(graph: Graph, rng: Rng) -> None:
    """Change a single size of a single input or constant."""
    names = [name for name in _leaves(graph) if _shape(graph, name)]
    if names:
        name = names[rng.integers(0, len(names))]
        shape = list(_shape(graph, name))
        shape[rng.integers(0, len(shape))] = int(rng.choice([1, 1, 2, 3, 4]))
        _reshape(graph, name, tuple(shape), rng)


def _rank(graph: Graph, rng: Rng) -> None:
    """Give one input or constant an axis more or less in front."""
    names = _leaves(graph)
    if names:
        name = names[rng.integers(0, len(names))]
        shape = _shape(graph, name)
        more = rng.random() < 0.6
        _reshape(graph, name, (int(rng.choice([1, 1, 2])), *shape) if more else shape[1:], rng)


def _types(graph: Graph, rng: Rng) -> None:
    """Replace the element type that most values have."""
    types = [graph.type_of(name) for name in _leaves(graph)]
    found = [type_.dtype for type_ in types if type_ is not None and type_.dtype in FLOATS | INTEGERS]
    if not found:
        return
    old = max(sorted(set(found)), key=found.count)
    choices = _FLOATS if old in FLOATS and rng.random() < 0.7 else _NUMBERS
    new = choices[rng.integers(0, len(choices))]
    for name in graph.inputs:
        type_ = graph.types[name]
        if isinstance(type_, TensorType) and type_.dtype == old:
            graph.types[name] = TensorType(new, type_.shape)
    for name, constant in graph.constants.items():
        if constant.dtype == old:
            with np.errstate(all="ignore"):
                graph.constants[name] = Constant.of(constant.array.astype(numpy_dtype(new)))


def _constants(graph: Graph, rng: Rng) -> None:
    """Keep most constants; let others be other numbers, one number, or hold special values."""
    for name, constant in graph.constants.items():
        kind, array = rng.integers(0, 10), np.array(constant.array)
        if kind < 5 or constant.dtype == "string" or not array.size:
            continue
        if constant.dtype == "bool":
            graph.constants[name] = Constant.of(rng.random(array.shape) < 0.5)
            continue
        graph.constants[name] = Constant.of(_values(array, constant.dtype, int(kind), rng).astype(array.dtype))


def _values(array: np.ndarray, dtype: str, kind: int, rng: Rng) -> np.ndarray:
    wide = array.astype(np.float64)
    if kind == 5:
        return np.full(array.shape, float(rng.choice([0, 1, 2, -1, 0.5, 4, -0.0, 3, 6])))
    if kind == 6:
        return wide * float(rng.choice([-1, 2, 1e3, 1e-3]))
    if kind == 7 and dtype in FLOATS:
        flat = wide.reshape(-1)
        flat[rng.integers(0, len(flat))] = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e30, 1e-30, 1e-40])
        return flat.reshape(array.shape)
    if kind == 8:
        return wide + rng.integers(-2, 3, array.shape)
    return rng.standard_normal(array.shape) * 3


def _attributes(graph: Graph, rng: Rng) -> None:
    """Change one attribute of one node."""
    node = graph.nodes[rng.integers(0, len(graph.nodes))]
    names = [name for name, value in node.attrs.items() if value is None or isinstance(value, (int, float, tuple))]
    if names:
        name = names[rng.integers(0, len(names))]
        value = node.attrs[name]
        node.attrs[name] = int(not value) if name in _SWITCHES else _varied(value, rng)


def _varied(value: object, rng: Rng) -> object:
    if isinstance(value, tuple) and value:
        items = list(value)
        place = rng.integers(0, len(items))
        if rng.random() < 0.5:
            other = rng.integers(0, len(items))
            items[place], items[other] = items[other], items[place]
        else:
            items[place] = _varied(items[place], rng)
        return tuple(items)
    if isinstance(value, int):
        near = int(value) + int(rng.choice([-1, 1, 1])) if rng.random() < 0.7 else int(not value)
        return min(max(near, INT64.min), INT64.max)  # an attribute of ONNX is an int64
    if isinstance(value, float):
        return float(value) * float(rng.choice([2, -1, 0, 1.5, 0.25]))
    return value


def _groups(graph: Graph, rng: Rng) -> None:
    """Let all convolutions work in groups, with weights to fit."""
    done = set()
    for node in graph.nodes:
        if node.op not in ("Conv", "ConvTranspose") or node.attrs["group"] != 1 or node.inputs[1] in done:
            continue
        shape = _shape(graph, node.inputs[1])
        known = [dim for dim in shape[:2] if isinstance(dim, int)]
        common = [count for count in (2, 3, 4) if len(known) == 2 and not any(dim % count for dim in known)]
        if common:
            group = common[rng.integers(0, len(common))]
            _reshape(graph, node.inputs[1], (shape[0], known[1] // group, *shape[2:]), rng)
            done.add(node.inputs[1])
            for other in graph.nodes:
                if other.op == node.op and other.inputs[1] == node.inputs[1]:
                    other.attrs["group"] = group


def _windows(graph: Graph, rng: Rng) -> None:
    """Give windows other pads, strides and dilations."""
    for node in graph.nodes:
        if "auto_pad" not in node.attrs or "kernel_shape" not in node.attrs:
            continue
        rank = len(_shape(graph, node.inputs[0]) if node.inputs[0] in _leaves(graph) else (1, 1, 1, 1)) - 2
        if rng.random() < 0.4:
            node.attrs["auto_pad"] = str(rng.choice(["VALID", "SAME_UPPER", "SAME_LOWER", "NOTSET"]))
        for name, count, low in (("pads", 2 * rank, 0), ("strides", rank, 1), ("dilations", rank, 1)):
            if name in node.attrs and rng.random() < 0.3:
                node.attrs[name] = tuple(int(n) for n in rng.integers(low, low + 2, count))
        if "count_include_pad" in node.attrs:
            node.attrs["count_include_pad"] = int(rng.integers(0, 2))


def _opset(graph: Graph, rng: Rng) -> None:
    graph.opsets[""] = int(rng.integers(9, min(newest_opset(), DEFAULT_OPSET + 3) + 1))


def _one_value(graph: Graph, rng: Rng) -> None:
    """Let two inputs be one."""
    alike = [(a, b) for a in graph.inputs for b in graph.inputs if a < b and graph.types[a] == graph.types[b]]
    if alike:
        kept, gone = alike[rng.integers(0, len(alike))]
        graph.rename_uses({gone: kept})


_STEPS: tuple[tuple[Step, float], ...] = (
    (_sizes, 0.6), (_types, 0.5), (_one_dim, 0.4), (_attributes, 0.3), (_rank, 0.25), (_opset, 0.3), (_one_value, 0.15),
    (_groups, 0.3), (_windows, 0.4),
)  # fmt: skip
