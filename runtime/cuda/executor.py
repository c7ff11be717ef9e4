"""A graph on a device: planned once for each set of input sizes, or node by node where sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.ir import Graph, Node
from graphs.types import TensorType
from runtime.codegen import Kernel
from runtime.execute import Context, as_value

from .device import Device, Gemm, Place
from .emitter import NeedsValue, Recorder
from .lower import Values, lower_node, to_value
from .plan import Launch, OnHost, Plan, Product, plan_graph
from .tensor import Storage, Tensor


@dataclass
class Executor:
    """A graph ready to run on a device. `report` tells what it does with its nodes."""

    graph: Graph
    device: Device
    context: Context
    prepared: dict[Any, Prepared] = field(default_factory=dict)
    unplannable: str = ""  # why nodes are lowered one by one
    on_host: list[str] = field(default_factory=list)  # of the last run: nodes that NumPy ran, and why

    def run(self, feeds: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> list[Any]:
        """The output values, arrays of their own."""
        if not self.unplannable:
            try:
                prepared = self.prepare(feeds, sizes)
            except NeedsValue as reason:
                self.unplannable = str(reason)
            else:
                self.on_host = prepared.plan.on_host
                return prepared.run(feeds)
        eager = Eager(self.device)
        found = eager.run(self.graph, feeds, Values(self.graph, sizes, self.context))
        self.on_host = eager.on_host
        return found

    def prepare(self, feeds: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Prepared:
        """The plan for inputs of these sizes. Raises NeedsValue where there is none."""
        shapes = {name: (dtypes.name_of(array.dtype), tuple(array.shape)) for name, array in feeds.items()}
        key = tuple(sorted(shapes.items()))
        if key not in self.prepared:
            plan = plan_graph(self.graph, shapes, Values(self.graph, sizes, self.context))
            self.prepared[key] = Prepared(plan, self.device)
        return self.prepared[key]


class Prepared:
    """A plan with its memory on a device."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan, self.device = plan, device
        device.prepare([each.kernel for each in plan.instructions if isinstance(each, Launch)])
        for each in self._storages():
            each.memory = device.allocate(max(each.size, 1))
            if each.array is not None:
                device.write(each.memory, each.start, each.array)

    def _storages(self) -> list[Storage]:
        tensors = [*self.plan.inputs.values(), *(each for each in self.plan.outputs if isinstance(each, Tensor))]
        for instruction in self.plan.instructions:
            tensors.extend(instruction.tensors)
        return list({each.storage.number: each.storage for each in tensors if each.storage is not None}.values())

    def upload(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Lay the inputs where the plan reads them."""
        for name, tensor in self.plan.inputs.items():
            assert tensor.storage is not None
            self.device.write(tensor.storage.memory, tensor.storage.start, np.ascontiguousarray(feeds[name]))

    def queue(self) -> None:
        """Queue every instruction."""
        for each in self.plan.instructions:
            if isinstance(each, Launch):
                self.device.launch(each.kernel, [place(tensor) for tensor in each.tensors])
            elif isinstance(each, Product):
                self.device.gemm(each.gemm, *(place(tensor) for tensor in each.tensors))
            else:
                _on_host(self.device, each)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Upload, queue, and bring the results down."""
        self.upload(feeds)
        self.queue()
        return [download(self.device, each) for each in self.plan.outputs]


def place(tensor: Tensor) -> Place:
    """Where a tensor lies."""
    storage = tensor.storage
    assert storage is not None and storage.memory is not None
    size = dtypes.numpy_dtype(tensor.dtype).itemsize
    return Place(storage.memory, storage.start + tensor.offset * size, tensor.dtype, tensor.shape, tensor.strides)


def download(device: Device, value: Any) -> Any:
    """A value as an array of its own (or whatever else NumPy made it)."""
    if not isinstance(value, Tensor):
        return value
    if value.host is not None:
        return value.host.copy()
    dtype = dtypes.numpy_dtype(value.dtype)
    if not value.size:
        return np.empty(value.shape, dtype)
    assert value.storage is not None
    whole = device.read(value.storage.memory, value.storage.start, np.dtype(np.uint8), (value.storage.size,))
    flat = whole.view(dtype)[value.offset :]
    strides = [stride * dtype.itemsize for stride in value.strides]
    return np.array(np.lib.stride_tricks.as_strided(flat, value.shape, strides), copy=True, order="C")


def _on_host(device: Device, step: OnHost) -> None:
    device.synchronize()
    with np.errstate(all="ignore"):
        found = step.call([download(device, each) for each in step.inputs])
    for made, value in zip(step.outputs, found):
        if made is not None and made.storage is not None:
            device.write(made.storage.memory, made.storage.start, np.asarray(value))


class Eager(Recorder):
    """Work goes straight to the device, so that sizes may depend on what was computed before."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.on_host: list[str] = []
        self.views = 0
        self.uploaded: dict[int, Tensor] = {}

    def run(self, graph: Graph, feeds: Mapping[str, np.ndarray], values: Values) -> list[Any]:
        """The output values."""
        environment: dict[str, Any] = {"": None}
        for name, array in feeds.items():
            environment[name] = to_value(array)
            if isinstance(environment[name], Tensor) and environment[name].dtype != "string":
                # Its value is the host's, but what is computed from it belongs on the device.
                environment[name] = _without_host(self.on_device(environment[name]))
        for name, constant in graph.constants.items():
            environment[name] = values.constant(name, constant)
        for node in graph.nodes:
            lower_node(node, environment, self, values)
        return [download(self.device, environment[name]) for name in graph.outputs]

    def _settled(self, tensor: Tensor) -> Tensor:
        storage = tensor.storage
        assert storage is not None
        if storage.memory is None:
            storage.memory = self.device.allocate(max(storage.size, 1))
        return tensor

    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        """Run a kernel."""
        self.device.launch(kernel, [place(self._settled(each)) for each in tensors])

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Run a matrix product."""
        self.device.gemm(gemm, *(place(self._settled(each)) for each in (a, b, c)))

    def on_device(self, tensor: Tensor) -> Tensor:
        """Upload a value of the host, once."""
        if tensor.storage is not None:
            return self._settled(tensor)
        assert tensor.host is not None
        found = self.uploaded.get(id(tensor.host))
        if found is None:
            array = np.ascontiguousarray(tensor.host)
            storage = Storage(array.nbytes, array)
            found = self._settled(Tensor(tensor.dtype, tensor.shape, Tensor.known(array).strides, 0, storage, array))
            self.device.write(storage.memory, 0, array)
            self.uploaded[id(tensor.host)] = Tensor(found.dtype, found.shape, found.strides, 0, storage, tensor.host)
        return self.uploaded[id(tensor.host)]

    def fetch(self, tensor: Tensor) -> np.ndarray:
        """The value, brought down."""
        self.device.synchronize()
        return download(self.device, tensor)

    def run_on_host(self, node: Node, call: Callable[..., Any], inputs: Sequence[Any],
                    types: Sequence[TensorType | None]) -> list[Any]:
        """Run the node on NumPy now."""
        self.device.synchronize()
        with np.errstate(all="ignore"):
            found = call([download(self.device, each) for each in inputs])
        made: list[Any] = []
        for value in list(found)[: len(node.outputs)]:
            array = as_value(value)
            if isinstance(array, np.ndarray) and array.dtype.kind not in "OUS":
                made.append(_without_host(self.on_device(Tensor.known(array))))
            else:
                made.append(to_value(array))
        return made


def _without_host(tensor: Tensor) -> Tensor:
    return tensor.viewed(tensor.shape, tensor.strides)
