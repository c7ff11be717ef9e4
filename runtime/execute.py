"""One node on arrays: the kernel with its run-time attributes resolved, nested execution, or `onnx.reference`.

Values are NumPy arrays; sequences are lists of them; an absent input and an empty optional are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from graphs.canonical import attribute_kind
from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, Operator, find, is_pure
from graphs.types import Type

from . import kernels

Values = Sequence[Any]
NodeFunction = Callable[[Values], Values]  # input values (then captured ones) -> output values
_NUMBERS = (OpSchema.AttrType.INT, OpSchema.AttrType.FLOAT)
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
FUSED_DOMAIN = "egraft"  # of nodes that stand for several: `fusion` is loaded where there are any
_BATCHED_SCAN = 8  # the opset
MOST_TURNS = 10_000  # of a Loop that only its condition ends: values drawn at random may never end it


@dataclass(slots=True)
class Hooks:
    """How a run differs from a plain one; validation runs graphs widened, perturbed or with pinned nodes.

    `constant(name, constant)` gives the array to use, when it is first needed; `node(node)` gives the node to
    execute instead; `function(node, plain)` may return another function to run in the place of a node, where
    `plain()` prepares the ordinary one.
    """

    constant: Callable[[str, Any], np.ndarray] | None = None
    node: Callable[[Node], Node] | None = None
    function: Callable[[Node, Callable[[], NodeFunction]], NodeFunction | None] | None = None


@dataclass(slots=True)
class Context:
    """What the nodes of one session share: the outermost graph, the random generator, hooks, and a log."""

    model: Graph
    generator: np.random.Generator
    hooks: Hooks = field(default_factory=Hooks)
    by_reference: list[str] = field(default_factory=list)  # labels of the nodes that onnx.reference runs
    threads: int = 1  # that one fused kernel may use
    most_turns: int | None = MOST_TURNS  # of a Loop that only its condition ends
    around: Graph | None = None  # the graph whose nodes are prepared, with what it sees of graphs around it

    @staticmethod
    def of(model: Graph, seed: int | None = None, hooks: Hooks | None = None) -> Context:
        """A context with its own generator."""
        return Context(model, np.random.default_rng(seed), hooks or Hooks())


def evaluate(node: Node, inputs: Values, *, model: Graph | None = None,
             captured: Mapping[str, object] | None = None, seed: int | None = None) -> list[Any]:
    """Run one node on arrays and return one value for each output that the node names ('' included).

    `captured` gives the outer values that nested graphs read; `model` the operator sets and functions that a node
    without a kernel is written with. Raises NotExecutable where no kernel and no reference exists.
    """
    outer = captured or {}
    names = [name for graph in node.graphs for name in graph.captured()]
    function = prepare(node, Context.of(model or Graph(), seed), {})
    with np.errstate(all="ignore"):
        found = function([*inputs, *(outer[name] for name in dict.fromkeys(names))])
    return [as_value(value) for value in found][: len(node.outputs)]


def as_value(value: object) -> object:
    """NumPy scalars, which ufuncs return for 0-d arrays, as arrays."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def prepare(node: Node, context: Context, types: Mapping[str, Type]) -> NodeFunction:
    """The function of one node. `types` are those of the graph around it.

    The function takes the node's input values, then the values that its nested graphs capture.
    """
    found = replaced(node, context, types)
    return _prepare(node, context, types) if found is None else found


def replaced(node: Node, context: Context, types: Mapping[str, Type]) -> NodeFunction | None:
    """What a hook puts in the place of a node's function, None where it leaves the node alone."""
    hook = context.hooks.function
    return None if hook is None else hook(node, lambda: _prepare(node, context, types))


def _prepare(node: Node, context: Context, types: Mapping[str, Type]) -> NodeFunction:
    if context.hooks.node is not None:
        node = context.hooks.node(node)
    if node.op in CONTROL_FLOW and not node.domain and (not node.is_opaque or is_batched_scan(node, context.model)):
        from .control_flow import prepare_control_flow

        return prepare_control_flow(node, context)
    if node.domain == FUSED_DOMAIN:
        from .fusion import is_fused, prepare_fused

        if is_fused(node):
            return prepare_fused(node, context)
    kernel = None if node.is_opaque else kernels.find(node.op, node.domain)
    if kernel is not None:
        return _or_reference(node, _with_kernel(node, kernel, context), context, types)
    return _called(node, context, types) or _by_reference(node, context, types)


def _called(node: Node, context: Context, types: Mapping[str, Type]) -> NodeFunction | None:
    """The body of the model-local function that a node calls; None where it calls none, or one that stays a call."""
    if (node.domain, node.op, node.overload) not in context.model.functions:
        return None
    from graphs.onnx_io.functions import inline_functions

    from .fusion import fused_function, is_exact_call, is_fused_call
    from .program import Program
    from .reference import single_node_graph

    graph = single_node_graph(node, context.model, types)
    inline_functions(graph)
    if graph.functions:
        return None
    # Nodes of a body are no nodes of the model: none of them is replaced.
    inner = replace(context, hooks=replace(context.hooks, function=None))
    if is_fused_call(node):
        run = fused_function(graph, is_exact_call(node), inner, graph.inputs)
    else:
        run = Program(graph, inner).run
    positions = [node.inputs.index(name) for name in graph.inputs]

    def call(values: Values) -> Values:
        found = dict(zip(graph.outputs, run([values[position] for position in positions])))
        return [found.get(name) for name in node.outputs]

    return call


def is_batched_scan(node: Node, model: Graph) -> bool:
    """A Scan of opset 8, which has no canonical form: with a batch axis, and the lengths of the sequences first."""
    return node.op == "Scan" and not node.domain and node.is_opaque and model.opsets.get("") == _BATCHED_SCAN


def _by_reference(node: Node, context: Context, types: Mapping[str, Type]) -> NodeFunction:
    from .reference import ReferenceNode

    function = ReferenceNode(node, context.model, types)
    context.by_reference.append(node.label)
    return function


def _or_reference(node: Node, function: NodeFunction, context: Context, types: Mapping[str, Type]) -> NodeFunction:
    """A kernel raises NotImplementedError for the variants that it leaves to onnx.reference."""
    other: list[NodeFunction] = []

    def call(inputs: Values) -> Values:
        if other:
            return other[0](inputs)
        try:
            return function(inputs)
        except NotImplementedError:
            other.append(_by_reference(node, context, types))
            return other[0](inputs)

    return call


def _with_kernel(node: Node, kernel: kernels.Kernel, context: Context) -> NodeFunction:
    attrs: dict[str, object] = dict(node.attrs)
    attrs[kernels.OUTPUTS] = len(node.outputs)
    record = find(node.op, node.domain)
    if not is_pure(node):
        seed = attrs.get("seed")
        # A node with a seed has a stream of its own, which goes on from run to run as in other runtimes.
        attrs[kernels.GENERATOR] = context.generator if seed is None else seeded(seed)
    if record is None:
        return lambda inputs: kernel(attrs, inputs)
    late = [(name, index) for name, index in record.static.items() if attrs.get(name) is RUNTIME]
    if not late:
        return lambda inputs: kernel(attrs, inputs)
    return _with_runtime_attributes(record, kernel, attrs, late)


def seeded(seed: object) -> np.random.Generator:
    """The generator that a node's `seed` attribute (a float in ONNX) stands for."""
    return np.random.default_rng(int(np.float32(seed).view(np.uint32)))  # type: ignore[arg-type]


def _with_runtime_attributes(record: Operator, kernel: kernels.Kernel, attrs: dict[str, object],
                             late: list[tuple[str, int]]) -> NodeFunction:
    numbers = {name for name, _ in late if _is_number(record.name, record.domain, name)}

    def call(inputs: Values) -> Values:
        resolved = dict(attrs)
        for name, index in late:
            resolved[name] = _unpacked(runtime_attribute(inputs[index]), name in numbers)
        return kernel(resolved, inputs)

    return call


def runtime_value(op: str, domain: str, name: str, array: np.ndarray) -> object:
    """The value that an attribute of an operator takes from the content of its static input."""
    return _unpacked(runtime_attribute(array), _is_number(op, domain, name))


def _is_number(op: str, domain: str, name: str) -> bool:
    return attribute_kind(op, domain, name) in _NUMBERS


def _unpacked(value: object, is_number: bool) -> object:
    return value[0] if is_number and isinstance(value, tuple) and len(value) == 1 else value


def runtime_attribute(array: np.ndarray) -> object:
    """The attribute value that the content of a static input stands for: a number at rank 0, else a tuple."""
    if array.dtype.kind not in "biufO":  # bfloat16 and its kin
        array = array.astype(np.float32)
    if array.ndim == 0:
        return array.item()
    return tuple(array.reshape(-1).tolist()) if array.ndim == 1 else array
