"""Losses, built from differentiable operators."""

from __future__ import annotations

from collections.abc import Callable

from graphs.builder import Builder, Value
from graphs.dtypes import INTEGERS
from graphs.errors import InvalidOption
from graphs.ir import Graph

from ..gradients.tape import free_name

REDUCTIONS = ("mean", "sum", "none")


def mean_squared_error(b: Builder, prediction: Value, target: Value, reduction: str = "mean") -> Value:
    """(prediction - target)^2; the mean over all elements, their sum, or (`none`) each element."""
    difference = prediction - target
    return _reduced(b, difference * difference, reduction)


def softmax_cross_entropy(b: Builder, logits: Value, target: Value, axis: int = -1, reduction: str = "mean") -> Value:
    """-sum over `axis` of target * log softmax(logits); over the rest the mean, the sum, or (`none`) nothing.

    `target` has the shape of `logits` (probabilities, or any weights), or holds integer labels: then it lacks the
    axis, and a label must lie in [0, size of the axis). Stable: it never takes the logarithm of a Softmax.
    """
    logs = b.LogSoftmax(logits, axis=axis)
    if target.dtype in INTEGERS:
        each = -b.Squeeze(b.GatherElements(logs, b.Unsqueeze(target, axes=[axis]), axis=axis), axes=[axis])
    else:
        each = -b.ReduceSum(target * logs, axes=[axis], keepdims=0)
    return _reduced(b, each, reduction)


def _reduced(b: Builder, each: Value, reduction: str) -> Value:
    if reduction not in REDUCTIONS:
        raise InvalidOption(f"reduction {reduction!r}", "it is unknown", f"use one of {', '.join(REDUCTIONS)}")
    if reduction == "none":
        return each
    return b.ReduceMean(each, keepdims=0) if reduction == "mean" else b.ReduceSum(each, keepdims=0)


LOSSES: dict[str, Callable[[Builder, Value, Value], Value]] = {
    "mse": mean_squared_error,
    "softmax-cross-entropy": softmax_cross_entropy,
}


def add_loss(graph: Graph, loss: str, output: str = "", labels: bool = False) -> Graph:
    """A copy of a graph with one more input, `target`, and one more output, `loss`.

    `loss` is `mse` or `softmax-cross-entropy` of an output (default: the first). The target has the type of that
    output, or with `labels` int64 and its shape without the last axis. Raises InvalidOption for an unknown loss or
    output, or an output of unknown shape.
    """
    if loss not in LOSSES:
        raise InvalidOption(f"loss {loss!r}", "it is unknown", f"use one of {', '.join(LOSSES)}")
    name = output or graph.outputs[0]
    if name not in graph.outputs:
        raise InvalidOption(f"output {name!r}", "the graph has no such output",
                            f"use one of {', '.join(graph.outputs)}")
    type_ = graph.type_of(name)
    if type_ is None or type_.shape is None:
        raise InvalidOption(f"output {name!r}", "its type is not known", "give the model input shapes")
    b = Builder.continuing(graph.copy())
    shape, dtype = (type_.shape[:-1], "int64") if labels else (type_.shape, type_.dtype)
    target = b.input(free_name(graph.names(), "target"), dtype, shape)
    made = LOSSES[loss](b, Value(b, name), target)
    b.output(made, free_name(b.unfinished.names(), "loss"))
    return b.graph()
