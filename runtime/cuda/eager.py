"""Nodes one by one: each is lowered when its inputs are there, so that sizes may depend on what was computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphs.ir import Graph, Node
from graphs.types import TensorType
from runtime.codegen import Kernel
from runtime.execute import as_value

from .device import Device, Gemm
from .emitter import Recorder
from .lower import Values, called, lower_node, reads, to_value
from .tensor import Storage, Tensor, item_size
from .transfer import download, place
from .weights import Weights


class Eager(Recorder):
    """Work goes straight to the device. Memory is given back when the last tensor in it is forgotten."""

    def __init__(self, device: Device, weights: Weights) -> None:
        self.device, self.weights = device, weights
        self.on_host: list[str] = []
        self.kernels = self.products = self.views = self.copied_bytes = 0
        self.uploaded: dict[int, Tensor] = {}

    def run(self, graph: Graph, feeds: Mapping[str, Any], values: Values) -> list[Any]:
        """The output values."""
        environment: dict[str, Any] = {"": None}
        for name, value in feeds.items():
            environment[name] = self._up(value)
        for name, constant in graph.constants.items():
            environment[name] = values.constant(name, constant)
        last = {name: index for index, node in enumerate(graph.nodes) for name in reads(node)}
        for index, node in enumerate(graph.nodes):
            lower_node(node, environment, self, values)
            for name in {*reads(node), *node.outputs}:
                if name and last.get(name, index) == index and name not in graph.outputs:
                    environment.pop(name, None)
            self.uploaded.clear()
        return [download(self.device, environment[name]) for name in graph.outputs]

    def mark(self) -> int:
        """How much was launched so far."""
        return self.kernels + self.products

    def rollback(self, mark: int) -> None:
        """What was launched is done: nobody reads it."""

    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        """Run a kernel."""
        self.kernels += 1
        self.device.launch(kernel, [place(self._settled(each)) for each in tensors])

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Run a matrix product."""
        self.products += 1
        self.device.gemm(gemm, *(place(self._settled(each)) for each in (a, b, c)))

    def on_device(self, tensor: Tensor) -> Tensor:
        """Upload a value of the host: once for a node, once for a session where it is a constant."""
        if tensor.storage is not None:
            return self._settled(tensor)
        assert tensor.host is not None
        key = id(tensor.host)
        if key not in self.uploaded:
            array = np.ascontiguousarray(tensor.host)
            storage = Storage(array.nbytes, array, memory=self.weights.upload(key, array))
            strides = Tensor.known(array.reshape(tensor.shape)).strides
            self.uploaded[key] = Tensor(tensor.dtype, tensor.shape, strides, 0, storage, tensor.host)
        return self.uploaded[key]

    def fetch(self, tensor: Tensor) -> np.ndarray:
        """The value, brought down."""
        return download(self.device, tensor)

    def run_on_host(self, node: Node, call: Callable[..., Any], inputs: Sequence[Any],
                    types: Sequence[TensorType | None], reason: str) -> list[Any]:
        """Run the node on NumPy now."""
        self.on_host.append(f"{node.label}: {reason}")
        self.copied_bytes += sum(_moved(each) for each in inputs)
        found = called(node, call, [download(self.device, each) for each in inputs])
        made = [self._up(as_value(value)) for value in list(found)[: len(node.outputs)]]
        self.copied_bytes += sum(_moved(each) for each in made)
        return made

    def _up(self, value: Any) -> Any:
        """A value as it is computed with: tensors of numbers on the device, all else on the host."""
        made = to_value(value)
        if not isinstance(made, Tensor) or made.dtype == "string":
            return made
        there = self.on_device(made)
        return there.viewed(there.shape, there.strides)  # its value is the host's, what comes of it the device's

    def _settled(self, tensor: Tensor) -> Tensor:
        storage = tensor.storage
        assert storage is not None
        if storage.memory is None:
            storage.memory = self.device.allocate(max(storage.size, 1))
        return tensor


def _moved(value: Any) -> int:
    """Bytes that crossed the bus for a value."""
    if isinstance(value, Tensor) and value.host is None:
        return value.size * item_size(value.dtype)
    return 0
