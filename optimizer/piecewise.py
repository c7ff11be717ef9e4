"""Several graphs in one: a guard on the sizes of the inputs chooses, the last one is for every other size.

    sizes = Concat(Gather(Shape(x), axes), ...)
    y = If(sizes == bucket 1, graph of bucket 1, If(sizes == bucket 2, graph of bucket 2, ... the general graph))

The guard asks for every dimension of every input that the bucket's symbols decide, so that inputs which do not agree
with each other reach the general graph, as they did before. Large constants that the general graph has, and those
that several graphs share, stand once in the outer graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphs.builder import Builder, Value
from graphs.canonical import version_at
from graphs.constants import Constant
from graphs.dims import DimLike, evaluate, symbols
from graphs.errors import InvalidOption
from graphs.inference import infer
from graphs.ir import Graph, Node

from .bodies import make_names_unique

LEAST_OPSET = 11  # before, both branches of an If must give the same shapes
SHARED_BYTES = 1024  # smaller constants stay in each branch, where runtimes fold them
Variant = tuple[Mapping[str, int], Graph]


def check_opset(graph: Graph) -> None:
    """Raise InvalidOption where the graph's opset is too old for branches of different shapes."""
    if graph.opset < LEAST_OPSET:
        raise InvalidOption("--buckets", f"opset {graph.opset} has no If whose branches give different shapes",
                            f"add --opset {LEAST_OPSET} or more")


def piecewise(general: Graph, variants: Sequence[Variant]) -> Graph:
    """A graph that does what `general` does, by the first variant whose sizes the inputs have.

    Each variant is (symbol -> size, the graph for these sizes, with the same inputs and outputs); all name the same
    symbols.
    """
    check_opset(general)
    result = general.copy()
    result.nodes, result.constants, result.outputs = [], {}, []
    for _, graph in variants:
        result.opsets = {**graph.opsets, **result.opsets}
    result.types = {name: general.types[name] for name in general.inputs if name in general.types}
    builder = Builder.continuing(result)
    for name in general.outputs:
        builder.fresh(name)  # kept for the outermost If
    shared = {constant: builder.constant(constant, name).name
              for constant, name in _shared(general, [graph for _, graph in variants]).items()}
    assembly = _Assembly(general, variants, shared, _read_sizes(builder, general, variants))
    chosen = assembly.choose(builder, 0)
    renaming = {value.name: name for value, name in zip(chosen, general.outputs)}
    result.nodes[-1].outputs = tuple(general.outputs)
    for old, new in renaming.items():
        result.types[new] = result.types.pop(old)
    result.outputs = list(general.outputs)
    make_names_unique(result)
    infer(result)
    return result


def places(general: Graph, names: set[str]) -> list[tuple[str, int, DimLike]]:
    """(input, axis, dimension) of every dimension that the symbols of these names decide."""
    return [(name, axis, dim) for name in general.inputs
            if (type_ := general.type_of(name)) is not None and type_.shape is not None
            for axis, dim in enumerate(type_.shape) if symbols(dim) and set(symbols(dim)) <= names]


def _read_sizes(builder: Builder, general: Graph, variants: Sequence[Variant]) -> tuple[Value, list[DimLike]]:
    """(the sizes that the inputs have, the dimensions that they are of)."""
    found = places(general, {name for sizes, _ in variants for name in sizes})
    parts, dims = [], []
    for name in dict.fromkeys(name for name, _, _ in found):
        axes = [axis for each, axis, _ in found if each == name]
        dims += [dim for each, _, dim in found if each == name]
        parts.append(builder.value("Gather", builder.value("Shape", Value(builder, name)),
                                   np.asarray(axes, np.int64), axis=0))
    return parts[0] if len(parts) == 1 else builder.value("Concat", *parts, axis=0), dims


def _shared(general: Graph, others: Sequence[Graph]) -> dict[Constant, str]:
    """Large constants of the general graph, and those that several graphs have, with a name each."""
    counts: Counter[Constant] = Counter()
    found: dict[Constant, str] = {}
    for graph in (general, *others):
        large = {constant: name for name, constant in graph.constants.items() if constant.nbytes >= SHARED_BYTES}
        counts.update(large.keys())
        for constant, name in large.items():
            found.setdefault(constant, name)
    own = set(general.constants.values())
    return {constant: name for constant, name in found.items() if constant in own or counts[constant] > 1}


@dataclass(frozen=True)
class _Assembly:
    """What the choices are made of. `sizes` are those that the inputs have, with the dimensions that they are of."""

    general: Graph
    variants: Sequence[Variant]
    shared: Mapping[Constant, str]
    sizes: tuple[Value, list[DimLike]]

    def choose(self, builder: Builder, index: int) -> tuple[Value, ...]:
        """The outputs, chosen among the variants from `index` on and the general graph."""
        bucket, graph = self.variants[index]
        value, dims = self.sizes
        wanted = np.asarray([evaluate(dim, bucket) for dim in dims], np.int64)
        condition = builder.value("Equal", Value(builder, value.name), wanted)
        if len(dims) > 1:
            number = builder.value("Cast", condition, to=TensorProto.INT64)
            condition = builder.value("Cast", builder.value("ReduceMin", number, keepdims=0), to=TensorProto.BOOL)
        then = self.branch(builder, graph, ", ".join(f"{name}={size}" for name, size in bucket.items()))
        if index + 1 == len(self.variants):
            otherwise = self.branch(builder, self.general, "other sizes")
        else:
            inner = builder.nested("other sizes")
            for each in self.choose(inner, index + 1):
                inner.output(each)
            otherwise = inner.graph()
        made = builder.op("If", condition, outputs=len(self.general.outputs), then_branch=then,
                          else_branch=otherwise)
        return made if isinstance(made, tuple) else (made,)

    def branch(self, builder: Builder, graph: Graph, name: str) -> Graph:
        """A graph without inputs: it reads those of the graph around it, and shared constants."""
        inner = graph.copy()
        renaming = {old: self.shared[constant] for old, constant in inner.constants.items() if constant in self.shared}
        own = [old for old in inner.constants if old not in renaming]
        renaming |= {old: builder.fresh(old) for old in [*own, *(out for node in inner.nodes for out in node.outputs)]
                     if old}
        inner.rename_uses(renaming, outputs=True)
        for node in inner.nodes:
            node.outputs = tuple(renaming.get(out, out) for out in node.outputs)
        made = {out for node in inner.nodes for out in node.outputs}
        outputs: list[str] = []
        version = version_at("Identity", "", self.general.opset)
        for old in inner.outputs:  # an input or a constant handed out, or one value twice, by a node of its own
            new = old
            if old not in made or old in outputs:
                new = builder.fresh(old)
                inner.nodes.append(Node("Identity", (old,), (new,), version=version))
            outputs.append(new)
        return Graph(name, [], outputs, inner.nodes, {renaming[old]: inner.constants[old] for old in own})
