"""Which types the outputs of operators have that egraft does not know: tried out in ONNX Runtime, else guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from graphs import dims, dtypes
from graphs.dims import DimLike
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.types import TensorType, Type

from ..feeds import draw_array, input_symbols

FIRST, SECOND, STEP = 16, 25, 3  # two sets of sizes; no size is in both
MAX_ELEMENTS = 1 << 24  # of one input, drawn or constant, of a node that is tried out
Sizes = dict[str, int]


def types_of_all(graph: Graph, nodes: Iterable[Node]) -> dict[str, Type]:
    """A plausible type, with a shape, of each output of these opaque nodes, in their order. What is known stays."""
    found: dict[str, Type] = {}
    tried: dict[tuple[object, ...], list[TensorType | None]] = {}  # nodes that are alike are tried once
    typed, sizes = graph, set(input_symbols(graph))
    for node in nodes:
        if found and not all(_follows(typed.type_of(name), sizes) for name in node.inputs if name):
            typed = _typed(graph, found)  # it reads what comes after an opaque node
        names = [name for name in node.outputs if name]
        if any(_lacks_shape(typed.types.get(name)) for name in names):
            reads = tuple((str(typed.type_of(name)), name in typed.constants) for name in node.inputs)
            key = (node.domain, node.op, str(sorted(node.attrs.items(), key=str)), reads, len(names))
            if key not in tried:
                answer = _tried(typed, node)
                tried[key] = [answer.get(name) for name in names]
            found.update((name, type_) for name, type_ in zip(names, tried[key]) if type_ is not None)
        for name in names:
            known = typed.types.get(name)
            if known is not None and not _lacks_shape(known):
                found[name] = known
            elif name not in found:
                found[name] = _guessed(typed, node, name, known)
    return found


def _typed(graph: Graph, found: Mapping[str, Type]) -> Graph:
    """The graph with the types that follow from those of opaque nodes, which stand as inputs for that."""
    cut = graph.copy()
    cut.nodes = [node for node in cut.nodes if found.keys().isdisjoint(node.outputs)]
    cut.inputs += found
    cut.types |= found
    infer(cut)
    typed = graph.copy()
    typed.types = {**typed.types, **cut.types}
    return typed


def _follows(type_: Type | None, sizes: set[str]) -> bool:
    """Is it a shape that the sizes of the inputs decide?"""
    return isinstance(type_, TensorType) and type_.shape is not None and all(
        sizes.issuperset(dims.symbols(dim)) for dim in type_.shape)


def _lacks_shape(type_: Type | None) -> bool:
    return type_ is None or (isinstance(type_, TensorType) and type_.shape is None)


# ---------------------------------------------------------------- tried out


def _tried(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Types that two runs of the node alone, at different sizes, agree with. Empty where it does not run."""
    inputs = [type_ for name in node.inputs if (type_ := graph.type_of(name)) is not None]
    symbols = sorted({name for type_ in inputs for dim in type_.shape or () for name in dims.symbols(dim)})
    both = []
    for start in (FIRST, SECOND):
        sizes = {name: start + STEP * index for index, name in enumerate(symbols)}
        arrays = _run_alone(graph, node, sizes)
        if arrays is None:
            return {}
        both.append((sizes, arrays))
    (first, a), (second, b) = both
    known = [dim for type_ in inputs for dim in type_.shape or ()]
    found = {}
    for name, value in a.items():
        if isinstance(value, np.ndarray) and np.ndim(value) == np.ndim(b[name]):
            shape = tuple(_dim(name, axis, here, there, known, first, second)
                          for axis, (here, there) in enumerate(zip(value.shape, b[name].shape)))
            found[name] = TensorType(dtypes.name_of(value.dtype), shape)
    return found


def _dim(name: str, axis: int, here: int, there: int, known: list[DimLike], first: Sizes, second: Sizes) -> DimLike:
    if here == there:
        return here
    for dim in known:
        if (dims.evaluate(dim, first), dims.evaluate(dim, second)) == (here, there):
            return dim
    return dims.symbol(f"?{name} {axis}")


def _run_alone(graph: Graph, node: Node, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Outputs of the node on random inputs, None where ONNX Runtime is not there or does not run it."""
    try:
        import onnxruntime
    except ImportError:
        return None
    from graphs.onnx_io import proto_bytes

    alone = Graph("alone", opsets=dict(graph.opsets), ir_version=graph.ir_version, functions=graph.functions,
                  nodes=[node], outputs=[name for name in node.outputs if name])
    feeds = {}
    for position, name in enumerate(dict.fromkeys(name for name in node.uses if name)):
        if name in graph.constants:
            alone.constants[name] = graph.constants[name]
            if graph.constants[name].size > MAX_ELEMENTS:
                return None
            continue
        type_ = graph.type_of(name)
        shape = None if type_ is None or type_.shape is None else tuple(dims.evaluate(d, sizes) for d in type_.shape)
        if type_ is None or shape is None or None in shape or math.prod(shape) > MAX_ELEMENTS:  # type: ignore[arg-type]
            return None
        alone.inputs.append(name)
        alone.types[name] = alone.declared[name] = type_.with_shape(shape)  # type: ignore[arg-type]
        feeds[name] = draw_array(np.random.default_rng(position), type_.dtype, shape)  # type: ignore[arg-type]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto_bytes(alone), options, providers=["CPUExecutionProvider"])
        return dict(zip(alone.outputs, session.run(alone.outputs, feeds)))
    except Exception:  # ONNX Runtime's classes differ by release; whatever it says, the types are guessed then
        return None


# ---------------------------------------------------------------- guessed


def _guessed(graph: Graph, node: Node, name: str, known: Type | None) -> TensorType:
    """Like the first input with a shape, as far as the nodes that read the output allow it."""
    inputs = [type_ for each in node.inputs if (type_ := graph.type_of(each)) is not None and type_.shape is not None]
    first = inputs[0] if inputs else TensorType("float32", (2, 3))
    shape = list(first.shape or ())
    for reader in graph.nodes:
        if name in reader.inputs and not reader.domain:
            shape = _demanded(graph, reader, reader.inputs.index(name), shape)
    return TensorType(known.dtype if isinstance(known, TensorType) else first.dtype, tuple(shape))


def _demanded(graph: Graph, reader: Node, position: int, shape: list[DimLike]) -> list[DimLike]:
    """The shape, made to fit a node that reads it."""
    perm = reader.attrs.get("perm")
    if reader.op == "Transpose" and isinstance(perm, tuple):
        return _of_rank(shape, len(perm))
    other = graph.type_of(reader.inputs[1]) if position == 0 and len(reader.inputs) > 1 else None
    if other is None or other.shape is None or reader.inputs[1] not in graph.constants:
        return shape
    if reader.op == "MatMul" and len(other.shape) >= 2:
        return [*(shape if len(shape) > 1 else [2, 3])[:-1], other.shape[-2]]
    if reader.op == "Gemm" and not reader.attrs.get("transA"):
        return [*_of_rank(shape, 2)[:1], other.shape[1 if reader.attrs.get("transB") else 0]]
    if reader.op == "Conv":
        spread = _of_rank(shape, len(other.shape))
        return [spread[0], dims.mul(other.shape[1], int(reader.attrs.get("group", 1))), *spread[2:]]  # type: ignore[call-overload]
    return shape


def _of_rank(shape: list[DimLike], rank: int) -> list[DimLike]:
    ones: list[DimLike] = [1] * max(0, rank - len(shape))
    return ones + shape[max(0, len(shape) - rank):]
