"""A graph planned for inputs of known sizes: what is launched in order, and where every tensor lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.ir import Graph, Node
from graphs.types import TensorType
from runtime.codegen import Kernel

from .device import Gemm
from .emitter import NeedsValue, Recorder
from .lower import Values, lower_node
from .tensor import Storage, Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on tensors."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product."""

    gemm: Gemm
    tensors: tuple[Tensor, ...]  # a, b, c


@dataclass(frozen=True, slots=True)
class OnHost:
    """A node that NumPy runs: inputs come down, outputs go up."""

    node: Node
    call: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that lie on the device."""
        return tuple(each for each in (*self.inputs, *self.outputs) if each is not None and each.storage is not None)


Instruction = Launch | Product | OnHost


@dataclass
class Plan(Recorder):
    """Instructions, and the storages that they use. Values of the host are laid into `constants` once."""

    instructions: list[Instruction] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)  # by id of the array
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[Tensor | None] = field(default_factory=list)
    on_host: list[str] = field(default_factory=list)  # labels of nodes that NumPy runs, and why
    views: int = 0

    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        """Append a kernel."""
        self.instructions.append(Launch(kernel, tuple(tensors)))

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Append a matrix product."""
        self.instructions.append(Product(gemm, (a, b, c)))

    def on_device(self, tensor: Tensor) -> Tensor:
        """Give a value of the host a storage."""
        if tensor.storage is not None:
            return tensor
        assert tensor.host is not None
        found = self.constants.get(id(tensor.host))
        if found is None:
            array = np.ascontiguousarray(tensor.host)
            storage = Storage(array.nbytes, array, kept=True)
            found = Tensor(tensor.dtype, tensor.shape, Tensor.known(array).strides, 0, storage, tensor.host)
            self.constants[id(tensor.host)] = found
        return found

    def fetch(self, tensor: Tensor) -> np.ndarray:
        """Raises NeedsValue: nothing has run yet."""
        raise NeedsValue("a value that only the run gives")

    def run_on_host(self, node: Node, call: Callable[..., Any], inputs: Sequence[Tensor | None],
                    types: Sequence[TensorType | None]) -> list[Tensor | None]:
        """Append a node for NumPy. Raises NeedsValue where the sizes of its outputs are not known."""
        made: list[Tensor | None] = []
        for name, type_ in zip(node.outputs, types):
            if name and (type_ is None or not type_.is_static or type_.dtype == "string"):
                raise NeedsValue(f"the size of output {name!r} of {node.label}")
            made.append(Tensor.new(type_.dtype, type_.shape) if name and type_ is not None else None)  # type: ignore[arg-type]
        self.instructions.append(OnHost(node, call, tuple(inputs), tuple(made)))
        return made


def plan_graph(graph: Graph, shapes: Mapping[str, tuple[str, tuple[int, ...]]], values: Values) -> Plan:
    """Plan a graph for inputs of these dtypes and shapes. Raises NeedsValue where sizes depend on data."""
    plan = Plan()
    environment: dict[str, Any] = {"": None}
    for name, (dtype, shape) in shapes.items():
        tensor = Tensor.new(dtype, shape)
        assert tensor.storage is not None
        tensor.storage.kept = True
        plan.inputs[name] = environment[name] = tensor
    for name, constant in graph.constants.items():
        environment[name] = values.constant(name, constant)
    for node in graph.nodes:
        lower_node(node, environment, plan, values)
    for name in graph.outputs:
        plan.outputs.append(environment[name])
    return plan


def output_dtype(tensor: Tensor) -> np.dtype:
    """The NumPy dtype of a tensor."""
    return dtypes.numpy_dtype(tensor.dtype)
