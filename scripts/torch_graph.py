"""A graph as a PyTorch module: what `torch` would run of a zoo model, eager or compiled, and its own gradients of it.

Sizes are fixed when the module is made; arithmetic on shapes is done then, so that what runs are the tensor operators
that a hand-written module would have. Only the operators of the zoos are known; others raise KeyError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from graphs.dims import Expr, evaluate
from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, find
from graphs.types import TensorType
from runtime.execute import evaluate as run_node
from runtime.execute import runtime_value
from scripts.torch_operators import CALLS, Call


def _shape_of(graph: Graph, name: str, sizes: Mapping[str, int]) -> np.ndarray | None:
    type_ = graph.types.get(name)
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = [evaluate(dim, sizes) if isinstance(dim, Expr) else dim for dim in type_.shape]
    return None if None in shape else np.array(shape, np.int64)


class TorchGraph(nn.Module):
    """The graph at sizes of its symbols. `forward` takes the inputs in order and returns the outputs in order.

    `leaves`: constants that are parameters, nothing that is computed from them is computed beforehand.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, int], leaves: Collection[str] = ()) -> None:
        super().__init__()
        self.inputs, self.outputs = list(graph.inputs), list(graph.outputs)
        known: dict[str, np.ndarray] = {name: constant.array for name, constant in graph.constants.items()
                                        if name not in leaves}
        self.steps: list[tuple[Call, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = []
        for node in graph.nodes:
            if node.op == "Shape" and (shape := _shape_of(graph, node.inputs[0], sizes)) is not None:
                known[node.outputs[0]] = shape[node.attrs.get("start") or 0 : node.attrs.get("end")]  # type: ignore[misc]
            elif all(name in known for name in node.inputs if name):
                arrays = [known[name] if name else None for name in node.inputs]
                known.update(zip(node.outputs, run_node(node, arrays, model=graph)))
            else:
                attrs = _attributes(node, known)
                used = tuple(name for name in node.inputs if not _is_static(node, name))
                self.steps.append((CALLS[node.op], attrs, used, node.outputs))
        wanted = {name for _, _, used, _ in self.steps for name in used} | set(self.outputs)
        arrays = {name: torch.from_numpy(np.array(graph.constants[name].array)) for name in leaves}
        self.leaves = nn.ParameterDict({str(place): nn.Parameter(each) for place, each in enumerate(arrays.values())})
        self.leaf_names = list(leaves)
        self.buffer_names: dict[str, str] = {}
        for index, name in enumerate(sorted(wanted & set(known))):
            self.buffer_names[name] = f"constant{index}"
            value = np.array(known[name])  # read-only memory maps are no good for torch
            self.register_buffer(f"constant{index}", torch.from_numpy(value))

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the steps."""
        values: dict[str, Any] = dict(zip(self.inputs, arguments))
        for name, buffer in self.buffer_names.items():
            values[name] = getattr(self, buffer)
        values.update(zip(self.leaf_names, self.leaves.values()))
        for call, attrs, used, outputs in self.steps:
            found = call(attrs, [values[name] if name else None for name in used])
            values.update(zip(outputs, found if isinstance(found, tuple) else (found,)))
        return tuple(values[name] for name in self.outputs)


def _is_static(node: Node, name: str) -> bool:
    record = find(node.op, node.domain)
    return record is not None and any(node.inputs[index] == name for index in record.static.values()
                                      if index < len(node.inputs))


def _attributes(node: Node, known: Mapping[str, np.ndarray]) -> dict[str, Any]:
    attrs: dict[str, Any] = dict(node.attrs)
    record = find(node.op, node.domain)
    for name, index in (record.static.items() if record is not None else ()):
        if attrs.get(name) is RUNTIME:
            attrs[name] = runtime_value(node.op, node.domain, name, known[node.inputs[index]])
    return attrs
