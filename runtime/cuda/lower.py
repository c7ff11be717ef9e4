"""One node at a time: computed on the host where its inputs are known there, lowered, or left to NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from graphs import dims, operators
from graphs.constants import Constant
from graphs.dims import Expr
from graphs.errors import EgraftError, ExecutionFailed, InferenceError
from graphs.inference import infer_node
from graphs.ir import Graph, Node, is_fused
from graphs.operators import is_pure
from graphs.types import TensorType
from runtime.execute import Context, as_value, prepare

from . import lowering
from .emitter import Emitter, NoKernel, Recorder
from .tensor import Tensor

# What lowerings raise at sizes that their operator does not take: NumPy, which gets the node then, tells of it.
_NOT_TAKEN = (ValueError, IndexError, ZeroDivisionError, OverflowError)


class Lowered(Protocol):
    """A recorder that NumPy's nodes can be handed to."""

    views: int

    def mark(self) -> int:
        """How much was emitted so far."""

    def rollback(self, mark: int) -> None:
        """Take back what was emitted after a mark."""

    def run_on_host(self, node: Node, call: Callable[..., Any], inputs: Sequence[Any],
                    types: Sequence[TensorType | None], reason: str) -> Sequence[Any]:
        """Run the node on NumPy: input values in, one value for each output out."""


@dataclass
class Constants:
    """The constants of a graph and what its nodes compute from them alone: the same for inputs of all sizes."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    folded: dict[int, list[Any]] = field(default_factory=dict)  # by id of the node
    arrays: set[int] = field(default_factory=set)  # ids of all their arrays, which the two above keep alive
    parts: dict[int, Any] = field(default_factory=dict)  # what a Fused node's body is made of, by id of its node
    bodies: dict[int, Constants] = field(default_factory=dict)  # those of a Fused node, by id of its body

    def of_body(self, body: Graph) -> Constants:
        """The constants of a Fused node's body, which the graph around it keeps alive."""
        return self.bodies.setdefault(id(body), Constants(arrays=self.arrays))

    def add(self, values: Sequence[Any]) -> None:
        """Enter values that do not depend on the inputs."""
        self.arrays.update(id(each.host) for each in values if isinstance(each, Tensor))

    def hold(self, value: Any) -> bool:
        """The value is one of them."""
        return value is None or (isinstance(value, Tensor) and id(value.host) in self.arrays)


@dataclass
class Values:
    """What lowering knows of a graph: types at the sizes of this run, constants, and NumPy's functions of nodes."""

    graph: Graph
    sizes: Mapping[str, int]
    context: Context
    constants: Constants = field(default_factory=Constants)

    def constant(self, name: str, constant: Constant) -> Any:
        """A constant of the graph as a value of the host."""
        if name not in self.constants.tensors:
            self.constants.tensors[name] = Tensor.known(constant.array)
            self.constants.add([self.constants.tensors[name]])
        return self.constants.tensors[name]

    def function(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """NumPy's function of a node."""
        return prepare(node, self.context, self.graph.types)

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value with the sizes of this run put in, as far as they are known."""
        type_ = self.graph.types.get(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            return None
        shape = tuple(dims.evaluate(dim, self.sizes) if isinstance(dim, Expr) else dim for dim in type_.shape)
        return None if any(dim is None for dim in shape) else TensorType(type_.dtype, shape)  # type: ignore[arg-type]


def lower_node(node: Node, environment: dict[str, Any], recorder: Any, values: Values) -> None:
    """Put the node's outputs into the environment (name -> Tensor, another value of the host, or None).

    Raises NeedsValue where a size depends on data and the recorder cannot tell it.
    """
    inputs = [environment[name] for name in reads(node)]
    found: Sequence[Any] | None = _known(node, inputs, values)
    if found is None and is_fused(node):
        from .fused import lower_fused

        found = lower_fused(node, inputs, recorder, values)
    if found is None:
        found = _lowered(node, inputs, recorder, values)
    for name, value in zip(node.outputs, found):
        if name:
            environment[name] = value


def reads(node: Node) -> list[str]:
    """Names that a node reads: its inputs, then what its bodies capture (the order of `prepare`)."""
    captured = dict.fromkeys(name for graph in node.graphs for name in graph.captured())
    return [*node.inputs, *captured]


def _known(node: Node, inputs: Sequence[Any], values: Values) -> list[Any] | None:
    """The outputs, where every input is known on the host: arithmetic on sizes, and nodes of constants."""
    if not is_pure(node) or not inputs or (any(True for _ in node.graphs) and not is_fused(node)):
        return None
    arrays: list[Any] = []
    for each in inputs:
        if isinstance(each, Tensor) and each.host is None:
            return None
        arrays.append(each.host if isinstance(each, Tensor) else each)
    constants = values.constants
    if id(node) in constants.folded:
        return constants.folded[id(node)]
    with np.errstate(all="ignore"):
        found = [to_value(each) for each in called(node, values.function(node), arrays)]
    if all(constants.hold(each) for each in inputs) and all(isinstance(each, Tensor) for each in found):
        constants.folded[id(node)] = found
        constants.add(found)
    return found


def called(node: Node, call: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]) -> Sequence[Any]:
    """What NumPy computes. What it raises says which node does not take its inputs."""
    try:
        with np.errstate(all="ignore"):
            return call(inputs)
    except EgraftError:
        raise
    except Exception as reason:
        raise ExecutionFailed(node.label, f"{type(reason).__name__}: {reason}",
                              "check that sizes and values of the inputs suit this node") from reason


def to_value(value: object) -> Any:
    """What NumPy gave, as a value of the environment."""
    array = as_value(value)
    return Tensor.known(array) if isinstance(array, np.ndarray) else array


def _must_fit(node: Node, inputs: Sequence[Any]) -> None:
    """Sizes that the operator does not take must not reach a kernel, which would read outside of a tensor."""
    types = [None if each is None else TensorType(each.dtype, each.shape) for each in inputs]
    nothing = [None] * len(inputs)
    try:
        infer_node(node, types, nothing, nothing, node.label)
    except InferenceError as error:
        raise NoKernel(error.found) from error


def _lowered(node: Node, inputs: Sequence[Any], recorder: Recorder, values: Values) -> Sequence[Any]:
    # A node is opaque in versions that the lowering does not know; contrib operators have no record at all.
    known = not node.is_opaque or operators.find(node.op, node.domain) is None
    lower = lowering.find(node.op, node.domain) if known and not any(True for _ in node.graphs) else None
    reason = "no GPU kernel"
    target: Lowered = recorder  # type: ignore[assignment]
    if lower is not None and all(each is None or isinstance(each, Tensor) for each in inputs):
        mark = target.mark()
        try:
            _must_fit(node, inputs)
            emitter = Emitter(node, inputs, recorder)
            lower(emitter)
            target.views += target.mark() == mark
            return emitter.outputs
        except NoKernel as error:
            reason = str(error)
            target.rollback(mark)
        except _NOT_TAKEN as error:
            reason = f"{type(error).__name__}: {error}"
            target.rollback(mark)
    types = [values.type_of(name) if name else None for name in node.outputs]
    return target.run_on_host(node, values.function(node), inputs, types, reason)
