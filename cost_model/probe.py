"""A graph of one node, with data for it: what a single-node measurement runs."""

from __future__ import annotations

import hashlib

import numpy as np

from graphs import dtypes
from graphs.canonical import version_at
from graphs.constants import Constant
from graphs.errors import InferenceError
from graphs.inference import contents_of, infer, infer_node
from graphs.ir import Graph, Node
from graphs.types import TensorType
from runtime.constraints import TABLES

from .costs import NodeInput, NodeSpec

_BLOCK = 1 << 16  # elements drawn; larger tensors repeat them (drawing 100 MB of weights would take a second)
# Operators whose floating-point inputs must be, or usually are, positive; NaN and division by 0 would not
# be typical.
_POSITIVE = frozenset({"Log", "Sqrt", "Pow", "Reciprocal", "Div", "Acosh", "BatchNormalization"})
_LARGE = 4 << 20  # bytes
_NOT_PREPARED = frozenset({"Gather", "GatherElements", "GatherND"})  # a large table as input takes the same time
_INDEXED = frozenset({"Gather", "GatherElements", "ScatterElements", "Scatter"})


class Unmeasurable(Exception):
    """This node cannot be measured alone; the text says why."""


def node_graph(spec: NodeSpec) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph that holds the node alone, with types inferred, and feeds for it.

    Constants hold random elements where the description does not give them. The same description gives the
    same graph and data. Raises Unmeasurable where a type is unknown or the node holds a graph.
    """
    if _holds_graph(spec):
        raise Unmeasurable("it holds a nested graph")
    opsets = {**spec.opsets, "": spec.opset}
    if spec.domain:
        opsets.setdefault(spec.domain, 1)
    graph = Graph("probe", opsets=opsets)
    feeds: dict[str, np.ndarray] = {}
    names = []
    for position, each in enumerate(spec.inputs):
        if each.absent:
            names.append("")
            continue
        if each.type is None or not each.type.is_static:
            raise Unmeasurable(f"the shape of input {position} is unknown")
        name = f"x{position}"
        names.append(name)
        array = draw(spec, position, each)
        if each.constant and not (spec.op in _NOT_PREPARED and array.nbytes > _LARGE):
            graph.constants[name] = Constant(each.type, lambda array=array: array)  # type: ignore[misc]
        else:
            graph.inputs.append(name)
            graph.types[name] = graph.declared[name] = each.type
            feeds[name] = array
    graph.outputs = [f"y{index}" for index in range(spec.output_count)]
    graph.nodes = [
        Node(
            spec.op,
            tuple(names),
            tuple(graph.outputs),
            dict(spec.attrs),
            spec.domain,
            "probe",
            _version(spec),
        )
    ]
    infer(graph)
    return graph, feeds


def draw(spec: NodeSpec, position: int, each: NodeInput) -> np.ndarray:
    """Elements for one input: the given ones, else random ones that the operator can take."""
    assert each.type is not None
    if each.array is not None:
        return each.array
    seed = hashlib.sha256(f"{spec.op} {position} {each.type}".encode()).digest()
    return _random(each.type, np.random.default_rng(int.from_bytes(seed[:8], "little")), spec, position)


def _random(type_: TensorType, rng: np.random.Generator, spec: NodeSpec, position: int) -> np.ndarray:
    shape: tuple[int, ...] = type_.shape  # type: ignore[assignment]
    count = int(np.prod(shape, dtype=np.int64))
    block: np.ndarray
    if type_.dtype == "string":
        block = np.array([f"word{number}" for number in range(16)], dtype=object)
    elif type_.dtype == "bool":
        block = rng.integers(0, 2, min(count, _BLOCK)).astype(np.bool_)
    elif dtypes.is_float(type_.dtype) or type_.dtype.startswith(("float", "complex")):
        positive = (spec.op in _POSITIVE and not _whole_power(spec)) or "Quant" in spec.op or "QLinear" in spec.op
        low, high = (0.25, 1.25) if positive else (-1.0, 1.0)
        block = rng.uniform(low, high, min(count, _BLOCK)).astype(dtypes.numpy_dtype(type_.dtype))
    else:
        low, high = _integer_range(spec, position, type_.dtype)
        block = rng.integers(low, high, min(count, _BLOCK)).astype(dtypes.numpy_dtype(type_.dtype))
        if spec.op in ("GatherND", "ScatterND") and position == 1:
            return _nd_indices(spec, shape, rng).astype(block.dtype)
    return np.resize(block, shape) if count else np.zeros(shape, block.dtype)


def _whole_power(spec: NodeSpec) -> bool:
    """A cube or the like, as a rule of a value of either sign (GELU): where it is negative NumPy takes 100 times as
    long."""
    if spec.op != "Pow" or spec.domain or len(spec.inputs) < 2 or spec.inputs[1].array is None:
        return False
    exponent = spec.inputs[1].array
    return exponent.dtype.kind in "iuf" and bool(np.all((exponent >= 0) & (exponent == np.floor(exponent))))


def _integer_range(spec: NodeSpec, position: int, dtype: str) -> tuple[int, int]:
    data = spec.inputs[0].type
    if spec.op in _INDEXED and position == 1 and data is not None and data.shape:
        axis = spec.attrs.get("axis", 0)
        size = data.shape[axis if isinstance(axis, int) else 0]
        return 0, max(1, int(size)) if isinstance(size, int) else 1
    table = TABLES.get((spec.domain, spec.op), {}).get(position, len(spec.inputs))
    rows = spec.inputs[table].type if table < len(spec.inputs) else None
    if rows is not None and rows.shape and isinstance(rows.shape[0], int):
        return 0, max(1, rows.shape[0])
    if spec.op == "GroupQueryAttention" and position in (5, 6):
        return _cache_length(spec, position)
    if dtype in ("int8", "uint8"):
        return 0, 100
    return (0, 2) if dtype in ("int4", "uint4", "int2", "uint2") else (1, 4)


def _cache_length(spec: NodeSpec, position: int) -> tuple[int, int]:
    """The lengths of sequences that fill their caches: those of the keys less one (input 5), and their most."""
    query, past = spec.inputs[0].type, spec.inputs[3].type
    sizes = [type_.shape[axis] for type_, axis in ((query, 1), (past, 2)) if type_ is not None and type_.shape]
    total = sum(size for size in sizes if isinstance(size, int)) - (position == 5)
    return total, total + 1


def _nd_indices(spec: NodeSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    data = spec.inputs[0].type
    sizes = [size for size in (data.shape or ()) if isinstance(size, int)] if data is not None else []
    skip = spec.attrs.get("batch_dims", 0)
    sizes = sizes[skip if isinstance(skip, int) else 0 :]
    columns = [rng.integers(0, max(1, size), shape[:-1]) for size in sizes[: shape[-1]]]
    return np.stack(columns, axis=-1) if columns else np.zeros(shape, np.int64)


def output_types(spec: NodeSpec) -> list[TensorType | None] | None:
    """Types of the node's outputs, None where none can be told."""
    if _holds_graph(spec):
        return None
    constants = [
        Constant.of(each.array, each.type.dtype) if each.array is not None and each.type is not None else None
        for each in spec.inputs
    ]
    contents = [contents_of(constant) if constant is not None else None for constant in constants]
    names = tuple("" if each.absent else f"x{position}" for position, each in enumerate(spec.inputs))
    outputs = tuple(f"y{index}" for index in range(spec.output_count))
    node = Node(spec.op, names, outputs, dict(spec.attrs), spec.domain, "probe", _version(spec))
    try:
        found = infer_node(node, [each.type for each in spec.inputs], contents, constants, "probe").types
    except InferenceError:  # an estimate needs no certainty; measuring the node will tell what is wrong
        return None
    types = [type_ if isinstance(type_, TensorType) and type_.is_static else None for type_ in found]
    return types if any(types) else None


def _holds_graph(spec: NodeSpec) -> bool:
    values = [item for value in spec.attrs.values() for item in (value if isinstance(value, tuple) else (value,))]
    return any(isinstance(item, Graph) for item in values)


def _version(spec: NodeSpec) -> int:
    return spec.version if spec.version >= 0 else version_at(spec.op, spec.domain, spec.opset)
