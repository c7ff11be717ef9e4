"""`Emitter`: what the lowering of a node works with. It reads the node's inputs and emits launches and views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from graphs.ir import Node
from graphs.operators import RUNTIME, find
from runtime.codegen import Kernel
from runtime.codegen.movement import copy_kernel
from runtime.codegen.scalar import DTYPES
from runtime.execute import runtime_value

from .device import Gemm
from .tensor import Tensor


class NoKernel(Exception):
    """There is no lowering for this node or this variant of it: NumPy runs it, with copies that the report counts.
    The text says what is missing."""


class NeedsValue(Exception):
    """Lowering needs the value of a tensor that only running gives (a size that depends on data): the graph
    cannot be planned ahead, its nodes are lowered one by one while it runs."""


class Recorder(ABC):
    """Where emitted work goes: into a plan, or straight to the device."""

    @abstractmethod
    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        """A kernel."""

    @abstractmethod
    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """A matrix product."""

    @abstractmethod
    def on_device(self, tensor: Tensor) -> Tensor:
        """The tensor with a storage: a value of the host is uploaded, once."""

    @abstractmethod
    def fetch(self, tensor: Tensor) -> np.ndarray:
        """The value. Raises NeedsValue where it is not known yet."""


class Attributes(Mapping[str, Any]):
    """The attributes of a node; those that are inputs at run time are fetched when they are read."""

    def __init__(self, node: Node, host: Callable[[int], np.ndarray]) -> None:
        self.node, self.host = node, host

    def __getitem__(self, name: str) -> Any:
        value = self.node.attrs[name]
        record = find(self.node.op, self.node.domain)
        if value is not RUNTIME or record is None:
            return value
        return runtime_value(record.name, record.domain, name, self.host(record.static[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.node.attrs)

    def __len__(self) -> int:
        return len(self.node.attrs)

    def is_late(self, name: str) -> bool:
        """The attribute is an input at run time."""
        return self.node.attrs.get(name) is RUNTIME


class Emitter:
    """One node being lowered. Outputs are set with `output` or `view`, one for each that the node names.

    `attrs` are the node's attributes, those that are inputs at run time included: reading such a one raises
    NeedsValue where the input is not known before the run.
    """

    def __init__(self, node: Node, inputs: Sequence[Tensor | None], recorder: Recorder) -> None:
        self.node = node
        self.inputs = list(inputs)
        self.recorder = recorder
        self.outputs: list[Tensor | None] = [None] * len(node.outputs)
        self.attrs = Attributes(node, self.host)


    def has(self, index: int) -> bool:
        """The input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """The node names this output."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def tensor(self, index: int) -> Tensor:
        """An input on the device, with any strides."""
        value = self.inputs[index]
        if value is None:
            raise NoKernel(f"input {index} is absent")
        if value.dtype == "string":
            raise NoKernel("strings stay on the host")
        found = self.recorder.on_device(value)
        self.inputs[index] = found
        return found

    def dense(self, index: int) -> Tensor:
        """An input on the device, row-major; a strided one is copied."""
        return self.as_dense(self.tensor(index))

    def as_dense(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is row-major, else a copy."""
        if tensor.is_dense:
            return tensor
        copied = self.temporary(tensor.shape, tensor.dtype)
        self.copy(tensor, copied)
        return copied

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy elements between two tensors of one shape and dtype, whatever their strides."""
        if source.dtype not in DTYPES:
            raise NoKernel(f"element type {source.dtype}")
        if source.size:
            self.launch(copy_kernel(source.dtype, source.shape, source.strides, target.strides), source, target)

    def host(self, index: int) -> np.ndarray:
        """The value of an input. Raises NeedsValue where it is not known before the run."""
        value = self.inputs[index]
        if value is None:
            raise NoKernel(f"input {index} is absent")
        return value.host if value.host is not None else self.recorder.fetch(value)

    def constant(self, array: np.ndarray) -> Tensor:
        """A small table that the lowering needs on the device."""
        return self.recorder.on_device(Tensor.known(np.ascontiguousarray(array)))

    def temporary(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A row-major tensor that only this node uses."""
        return Tensor.new(dtype, tuple(shape))

    def output(self, index: int, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """A new row-major tensor as output; without `dtype` it has that of the first input."""
        made = self.temporary(shape, dtype or self._first_dtype())
        if self.wants(index):
            self.outputs[index] = made
        return made

    def view(self, index: int, tensor: Tensor) -> None:
        """The output is a tensor that is there already."""
        if self.wants(index):
            self.outputs[index] = tensor

    def launch(self, kernel: Kernel, *tensors: Tensor) -> None:
        """Queue a kernel; nothing where it has nothing to do."""
        if kernel.items and all(prod(each.shape) for each, parameter in zip(tensors, kernel.parameters)
                                if parameter.output):
            self.recorder.launch(kernel, tensors)

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Queue a matrix product."""
        self.recorder.gemm(gemm, a, b, c)

    def _first_dtype(self) -> str:
        return next(each.dtype for each in self.inputs if each is not None)
