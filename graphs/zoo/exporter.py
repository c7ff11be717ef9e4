"""A builder that names values and writes modules the way PyTorch's TorchScript exporter does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..builder import Builder, Operand, Value
from ..constants import Constant
from ..ir import Graph
from .weights import Weights

IR_VERSION = 8
PRODUCER = "egraft zoo"


class Exporter:
    """Builds a graph inside nested modules: `/encoder/layer.0/Add` makes `/encoder/layer.0/Add_output_0`.

    `net("Add", x, y)` adds a node; `with net.module("layer.0"):` enters a module.
    """

    def __init__(self, name: str, opset: int = 17, seed: int = 0) -> None:
        self.builder = Builder(name, opset=opset, ir_version=IR_VERSION)
        self.weights = Weights(seed)
        self._modules: list[str] = []
        self._used: dict[str, int] = {}

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Names of nodes and weights made inside are prefixed with this module."""
        self._modules.append(name)
        yield
        self._modules.pop()

    def __call__(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """A node with one output."""
        return self.several(op, 1, *inputs, **attrs)[0]

    def several(self, op: str, outputs: int, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        """A node with this many outputs."""
        name = self._fresh("/".join(["", *self._modules, op]))
        names = [f"{name}_output_{index}" for index in range(outputs)]
        made = self.builder.op(op, *inputs, outputs=names, name=name, **attrs)
        return made if isinstance(made, tuple) else (made,)

    def _fresh(self, stem: str) -> str:
        count = self._used.get(stem, 0)
        self._used[stem] = count + 1
        return f"{stem}_{count}" if count else stem

    def label(self, name: str) -> str:
        """The dotted name of a weight of the present module."""
        return ".".join([*self._modules, name])

    def constant(self, name: str, constant: Constant | np.ndarray) -> Value:
        """A weight under its dotted name."""
        return self.builder.constant(constant, self.label(name))

    def normal(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Value:
        """A weight of normally distributed values."""
        return self.constant(name, self.weights.normal(self.label(name), shape, scale, mean))

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Value:
        """A weight of uniformly distributed values."""
        return self.constant(name, self.weights.uniform(self.label(name), shape, low, high))

    def finish(self, **outputs: Value) -> Graph:
        """The graph with these outputs."""
        for name, value in outputs.items():
            self.builder.output(value, name)
        graph = self.builder.graph()
        graph.extras["producer_name"] = PRODUCER
        return graph

    # What exporters write for common expressions

    def size(self, value: Value, axis: int) -> Value:
        """`value.shape[axis]` as a tensor of one element."""
        scalar = self("Gather", self("Shape", value), np.array(axis, np.int64), axis=0)
        return self("Unsqueeze", scalar, axes=[0])

    def view(self, value: Value, sizes: Sequence[Value | int]) -> Value:
        """`value.view(...)` with sizes that are computed."""
        parts = [each if isinstance(each, Value) else np.array([each], np.int64) for each in sizes]
        return self("Reshape", value, shape=self("Concat", *parts, axis=0))

    def linear(self, value: Value, inner: int, outer: int, bias: bool = True) -> Value:
        """`nn.Linear` on three-dimensional input: MatMul and Add."""
        product = self("MatMul", value, self.normal("weight", (inner, outer), inner**-0.5))
        return self("Add", self.normal("bias", (outer,), 0.1), product) if bias else product

    def layer_norm(self, value: Value, size: int, epsilon: float) -> Value:
        """`nn.LayerNorm` over the last axis as opsets before 17 write it."""
        centered = self("Sub", value, self("ReduceMean", value, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centered, 2.0), axes=[-1])
        normal = self("Div", centered, self("Sqrt", self("Add", variance, epsilon)))
        scaled = self("Mul", normal, self.normal("weight", (size,), 0.1, 1.0))
        return self("Add", scaled, self.normal("bias", (size,), 0.1))
