"""A graph as a PyTorch module, for benchmarks: what `torch` would run of a zoo model, eager or compiled.

Sizes are fixed when the module is made; arithmetic on shapes is done then, so that what runs are the tensor operators
that a hand-written module would have. Only the operators of the zoo are known; others raise KeyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from graphs.dims import Expr, evaluate
from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, find
from graphs.types import TensorType
from runtime.execute import evaluate as run_node
from runtime.execute import runtime_value

Values = list[Any]
Call = Callable[[Mapping[str, Any], Values], Any]
TORCH_DTYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64,
                16: torch.bfloat16}  # fmt: skip


def _shape_of(graph: Graph, name: str, sizes: Mapping[str, int]) -> np.ndarray | None:
    type_ = graph.types.get(name)
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = [evaluate(dim, sizes) if isinstance(dim, Expr) else dim for dim in type_.shape]
    return None if None in shape else np.array(shape, np.int64)


class TorchGraph(nn.Module):
    """The graph at sizes of its symbols. `forward` takes the inputs in order and returns the outputs in order."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.inputs, self.outputs = list(graph.inputs), list(graph.outputs)
        known: dict[str, np.ndarray] = {name: constant.array for name, constant in graph.constants.items()}
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


def _slice(attrs: Mapping[str, Any], v: Values) -> Any:
    axes = attrs["axes"] or range(len(attrs["starts"]))
    index = [slice(None)] * v[0].dim()
    for axis, start, end, step in zip(axes, attrs["starts"], attrs["ends"], attrs["steps"]):
        index[axis] = slice(start, min(end, 1 << 62), step)
    return v[0][tuple(index)]


def _reshape(attrs: Mapping[str, Any], v: Values) -> Any:
    shape = [v[0].shape[axis] if size == 0 and not attrs["allowzero"] else int(size)
             for axis, size in enumerate(attrs["shape"])]
    return v[0].reshape(shape)


def _pads(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    pads = attrs.get("pads") or (0, 0, 0, 0)
    half = len(pads) // 2
    if attrs.get("auto_pad", "NOTSET") != "NOTSET" or pads[:half] != pads[half:]:
        raise KeyError("padding that torch's convolution does not take")
    return tuple(pads[:half])


def _conv(attrs: Mapping[str, Any], v: Values) -> Any:
    rank = v[0].dim() - 2
    bias = v[2] if len(v) > 2 else None
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](v[0], v[1], bias, attrs["strides"] or 1, _pads(attrs),
                                                    attrs["dilations"] or 1, attrs["group"])


def _max_pool(attrs: Mapping[str, Any], v: Values) -> Any:
    return F.max_pool2d(v[0], attrs["kernel_shape"], attrs["strides"] or 1, _pads(attrs), attrs["dilations"] or 1,
                        bool(attrs["ceil_mode"]))


def _gather(attrs: Mapping[str, Any], v: Values) -> Any:
    axis = attrs["axis"] % v[0].dim()
    shape = (*v[0].shape[:axis], *v[1].shape, *v[0].shape[axis + 1 :])
    return torch.index_select(v[0], axis, v[1].reshape(-1)).reshape(shape)


def _gemm(attrs: Mapping[str, Any], v: Values) -> Any:
    a, b = v[0].T if attrs["transA"] else v[0], v[1].T if attrs["transB"] else v[1]
    return torch.addmm(v[2], a, b, beta=attrs["beta"], alpha=attrs["alpha"]) if len(v) > 2 else attrs["alpha"] * (a @ b)


def _unsqueeze(attrs: Mapping[str, Any], v: Values) -> Any:
    found, rank = v[0], v[0].dim() + len(attrs["axes"])
    for axis in sorted(axis % rank for axis in attrs["axes"]):
        found = found.unsqueeze(axis)
    return found


def _expand(attrs: Mapping[str, Any], v: Values) -> Any:
    return v[0].expand(torch.broadcast_shapes(v[0].shape, tuple(attrs["shape"])))


def _lstm(attrs: Mapping[str, Any], v: Values) -> Any:
    """ONNX orders the gates i, o, f, c and torch i, f, c, o."""
    v = [*v, *[None] * (8 - len(v))]
    if v[4] is not None or v[7] is not None:
        raise KeyError("LSTM with lengths or peepholes")
    directions, hidden = v[1].shape[0], attrs["hidden_size"]
    flat = []
    for direction in range(directions):
        biases = v[3][direction].chunk(2)
        for part in (v[1][direction], v[2][direction], *biases):
            i, o, f, c = part.chunk(4)
            flat.append(torch.cat([i, f, c, o]))
    states = tuple(v[0].new_zeros(directions, v[0].shape[1], hidden) if each is None else each for each in v[5:7])
    found, h, c = torch.lstm(v[0], states, flat, True, 1, 0.0, False, directions == 2, False)
    steps, batch = v[0].shape[:2]
    return found.reshape(steps, batch, directions, hidden).permute(0, 2, 1, 3), h, c


def _batch_norm(attrs: Mapping[str, Any], v: Values) -> Any:
    if not attrs["training_mode"]:
        return F.batch_norm(v[0], v[3], v[4], v[1], v[2], eps=attrs["epsilon"])
    mean, variance = v[3].clone(), v[4].clone()  # torch writes into them
    found = F.batch_norm(v[0], mean, variance, v[1], v[2], True, 1 - attrs["momentum"], attrs["epsilon"])
    return found, mean, variance


CALLS: dict[str, Call] = {
    "Add": lambda a, v: v[0] + v[1], "Sub": lambda a, v: v[0] - v[1], "Mul": lambda a, v: v[0] * v[1],
    "Div": lambda a, v: v[0] / v[1], "Pow": lambda a, v: torch.pow(v[0], v[1]), "Sqrt": lambda a, v: torch.sqrt(v[0]),
    "Neg": lambda a, v: -v[0], "Relu": lambda a, v: F.relu(v[0]), "Sigmoid": lambda a, v: torch.sigmoid(v[0]),
    "Tanh": lambda a, v: torch.tanh(v[0]), "Erf": lambda a, v: torch.erf(v[0]), "Cos": lambda a, v: torch.cos(v[0]),
    "Sin": lambda a, v: torch.sin(v[0]), "MatMul": lambda a, v: v[0] @ v[1], "Gemm": _gemm, "Conv": _conv,
    "Cast": lambda a, v: v[0].to(TORCH_DTYPES[a["to"]]), "Concat": lambda a, v: torch.cat(v, a["axis"]),
    "Transpose": lambda a, v: v[0].permute(a["perm"]), "Reshape": _reshape,
    "Split": lambda a, v: torch.split(v[0], list(a["split"]), a["axis"]), "Slice": _slice, "Gather": _gather,
    "Unsqueeze": _unsqueeze, "Expand": _expand, "Where": lambda a, v: torch.where(v[0], v[1], v[2]),
    "Softmax": lambda a, v: torch.softmax(v[0], a["axis"]), "BatchNormalization": _batch_norm, "LSTM": _lstm,
    "ReduceMean": lambda a, v: v[0].mean(tuple(a["axes"]), bool(a["keepdims"])), "MaxPool": _max_pool,
    "GlobalAveragePool": lambda a, v: v[0].mean(tuple(range(2, v[0].dim())), True),
    "Flatten": lambda a, v: v[0].reshape(prod(v[0].shape[: a["axis"]]), -1),
}  # fmt: skip
