"""Fused nodes on a device: generated kernels of whole bodies, and matrix products by the library between them.

A body is cut at its products (matrix products, convolutions, windows that overlap, Resize): those have lowerings of
their own. What stands before and behind one becomes a kernel. What has no kernel, at these sizes or at all, is lowered
node by node, so that it stays on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.errors import EgraftError
from graphs.ir import Graph, Node
from graphs.types import TensorType, Type
from runtime.codegen.c.cuda import Variant
from runtime.codegen.c.lanes import RESIZED, overlaps
from runtime.codegen.c.lowering import Values as Sizes
from runtime.codegen.c.lowering import rules
from runtime.codegen.c.product import PRODUCTS
from runtime.codegen.c.readings import Readings, readings_of
from runtime.codegen.c.views import NotFusable
from runtime.fusion import BODY, EXACT, VARIANT, is_movement, is_splat

from . import lowering
from .lower import Constants, Values, lower_node
from .lowering._product import LIBRARY
from .tensor import Tensor

_VERSION = 18  # of the operators that are written here
MOST_KEPT = 64  # kernels of a body that are kept, for other sizes and parts


def lower_fused(node: Node, inputs: Sequence[Any], recorder: Any, values: Values) -> list[Any] | None:
    """The outputs of a Fused node; None where an input is no tensor of numbers."""
    body = node.attrs[BODY]
    assert isinstance(body, Graph)
    if not all(isinstance(each, Tensor) and each.dtype != "string" for each in inputs):
        return None
    mark, views = recorder.mark(), recorder.views
    found = _Body(body, node, inputs, recorder, values).outputs()
    recorder.views = views + (recorder.mark() == mark)
    return found


class Parts:
    """The nodes of a body, with what its products add to them as nodes of its own, so that a kernel does that. `like`
    names, for each new value, one of the same type. `types` are those of the body's values."""

    def __init__(self, body: Graph, types: Mapping[str, Type], exact: bool) -> None:
        self.types, self.constants = types, dict(body.constants)
        self.names = {*body.inputs, *body.constants, *(name for node in body.nodes for name in node.outputs)}
        self.nodes: list[Node] = []
        self.like: dict[str, str] = {}
        self.kernels: dict[tuple[Any, ...], Readings | NotFusable] = {}
        for node in body.nodes:
            added = not node.domain and len(node.inputs) > 2 and bool(node.inputs[2]) and not exact
            if added and node.op == "Gemm" and self._dtype(node) in LIBRARY:
                self._gemm(node)
            elif added and node.op == "Conv" and self._dtype(node) in LIBRARY and not self._is_depthwise(node):
                self._convolution(node)
            else:
                self.nodes.append(node)

    def _dtype(self, node: Node) -> str:
        type_ = self.types.get(node.inputs[0])
        return type_.dtype if isinstance(type_, TensorType) and type_.shape is not None else ""

    def _is_depthwise(self, node: Node) -> bool:
        """It has a kernel of its own, which adds what there is to add."""
        type_ = self.types.get(node.inputs[1])
        shape = type_.shape if isinstance(type_, TensorType) else None
        return shape is None or shape[1] == 1

    def _new(self, text: str, like: str) -> str:
        while text in self.names:
            text += "'"
        self.names.add(text)
        self.like[text] = like
        return text

    def _add(self, op: str, inputs: tuple[str, ...], output: str, attrs: dict[str, object] | None = None,
             version: int = _VERSION) -> str:
        self.nodes.append(Node(op, inputs, (output,), dict(attrs or {}), version=version))
        return output

    def _gemm(self, node: Node) -> None:
        (a, b, c), (y,), beta = node.inputs, node.outputs, float(node.attrs["beta"])  # type: ignore[arg-type]
        if beta == 0:
            self._add("Gemm", (a, b), y, node.attrs, node.version)
            return
        made = self._add("Gemm", (a, b), self._new(f"{y}/product", y), node.attrs, node.version)
        if beta != 1:
            factor = self._new(f"{y}/beta", "")
            self.constants[factor] = Constant.of(np.asarray(beta, dtypes.numpy_dtype(self._dtype(node))))
            c = self._add("Mul", (c, factor), self._new(f"{y}/added", c))
        self._add("Add", (made, c), y)

    def _convolution(self, node: Node) -> None:
        (x, w, b), (y,) = node.inputs, node.outputs
        type_ = self.types[x]
        assert isinstance(type_, TensorType) and type_.shape is not None
        made = self._add("Conv", (x, w), self._new(f"{y}/product", y), node.attrs, node.version)
        axes = tuple(range(1, len(type_.shape) - 1))
        added = self._add("Unsqueeze", (b,), self._new(f"{y}/bias", ""), {"axes": axes}) if axes else b
        self._add("Add", (made, added), y)


class _Body:
    """A body that is being lowered: what is known by name, and how the rest is computed."""

    def __init__(self, body: Graph, node: Node, inputs: Sequence[Tensor], recorder: Any, values: Values) -> None:
        self.body, self.recorder = body, recorder
        self.exact, self.variant = bool(node.attrs.get(EXACT)), Variant.of(str(node.attrs.get(VARIANT, "")))
        self.known: dict[str, Any] = {"": None, **dict(zip(body.inputs, inputs))}
        constants: Constants = values.constants.of_body(body)
        types = _types(body, inputs)
        if id(body) not in constants.parts:  # kept, since constants know nodes by their ids
            constants.parts[id(body)] = Parts(body, types, self.exact)
        self.parts: Parts = constants.parts[id(body)]
        types.update({new: types[like] for new, like in self.parts.like.items() if like in types})
        self.values = Values(Graph(body.name, types=types), values.sizes, values.context, constants)
        for name, constant in self.parts.constants.items():
            self.known[name] = self.values.constant(name, constant)

    def outputs(self) -> list[Any]:
        """The values of the body's outputs."""
        self.compute(self.parts.nodes, self.body.outputs)
        return [self.known[name] for name in self.body.outputs]

    def compute(self, nodes: Sequence[Node], wanted: Sequence[str]) -> None:
        """Put values that these nodes make among the known ones."""
        nodes = _needed(nodes, wanted, self.known)
        while (place := next((index for index, node in enumerate(nodes) if _stands_alone(node)), None)) is not None:
            for name in nodes[place].inputs:
                if name not in self.known:
                    self.compute(nodes[:place], [name])
            self._lower(nodes[place])
            nodes = _needed(nodes, wanted, self.known)
        if nodes and not self._fused(nodes, [name for name in dict.fromkeys(wanted) if name not in self.known]):
            for node in nodes:
                self._lower(node)

    def _lower(self, node: Node) -> None:
        lower_node(node, self.known, self.recorder, self.values)

    def _fused(self, nodes: Sequence[Node], wanted: Sequence[str]) -> bool:
        """Launch these nodes as kernels; False where there are none, or more than the nodes alone would take. Nodes
        that NumPy would run are worth any number of them."""
        work = sum(1.0 if lowering.find(node.op, node.domain) else inf for node in nodes if not is_movement(node))
        splats = {name for name, each in self.parts.constants.items() if is_splat(each)}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name in self.known and name)
        given = {name: self.known[name] for name in read if name not in splats}
        if not work or not all(isinstance(each, Tensor) for each in given.values()):
            return False
        tensors = {name: self.recorder.on_device(each) for name, each in given.items()}
        readings = self._readings(nodes, wanted, tensors, [name for name in read if name in splats])
        if isinstance(readings, NotFusable) or len(readings.kernels) > work:
            return False
        for name, (dtype, shape) in {**readings.rooms, **readings.outputs}.items():
            tensors[name] = Tensor.new(dtype, shape)
        for each in readings.kernels:
            self.recorder.launch(each.kernel, [tensors[name] for name in each.tensors])
        self.known.update({name: tensors[name] for name in wanted})
        return True

    def _readings(self, nodes: Sequence[Node], wanted: Sequence[str], tensors: Mapping[str, Tensor],
                  splats: Sequence[str]) -> Readings | NotFusable:
        """The kernels of these nodes, or why there are none."""
        kept = self.parts.kernels
        layouts = tuple((name, each.dtype, each.shape, each.strides) for name, each in tensors.items())
        key = self.variant, tuple(map(id, nodes)), tuple(wanted), layouts
        if key not in kept:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            graph = Graph("fused", [*tensors], [*wanted], [*nodes],
                          {name: self.parts.constants[name] for name in splats},
                          {name: TensorType(each.dtype, each.shape) for name, each in tensors.items()})
            try:
                kept[key] = readings_of(graph, {name: each.shape for name, each in tensors.items()},
                                        {name: each.strides for name, each in tensors.items()}, self.exact,
                                        self.variant)
            except NotFusable as reason:
                kept[key] = reason
        return kept[key]


def _types(body: Graph, inputs: Sequence[Tensor]) -> dict[str, Type]:
    """The types of a body's values at the sizes of its inputs, as far as they are known before it runs."""
    typed = body.copy()
    typed.types.update({name: TensorType(each.dtype, each.shape) for name, each in zip(body.inputs, inputs)})
    try:
        sizes = Sizes.of(typed, {name: each.shape for name, each in zip(body.inputs, inputs)}, {})
    except (NotFusable, EgraftError):  # sizes that depend on data, or that no node takes: whoever needs one tells
        return dict(typed.types)
    return {name: TensorType(sizes.dtypes[name], shape) for name, shape in sizes.shapes.items()}


def _needed(nodes: Sequence[Node], wanted: Sequence[str], known: Collection[str]) -> list[Node]:
    """The nodes that make what is wanted and not known, in their order."""
    missing, found = {name for name in wanted if name not in known}, []
    for node in reversed(nodes):
        if not missing.isdisjoint(node.outputs):
            missing.update(name for name in node.uses if name not in known)
            found.append(node)
    return found[::-1]


def _stands_alone(node: Node) -> bool:
    """It has a lowering of its own, and is part of no kernel."""
    return (node.is_opaque or (node.domain, node.op) not in rules() or node.op in PRODUCTS | RESIZED or overlaps(node))


def why_not(constants: Constants) -> list[str]:
    """Why parts of fused nodes that were lowered with these constants are no kernels."""
    every = [kept for inner in constants.bodies.values() for part in inner.parts.values()
             for kept in part.kernels.values()]
    return list(dict.fromkeys(str(each) for each in every if isinstance(each, NotFusable)))
