"""One graph for a training step: forward pass, gradients and the update of all parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from graphs.builder import Builder, Value
from graphs.dtypes import ONNX_NUMBER, is_float, numpy_dtype
from graphs.errors import InvalidOption
from graphs.ir import Graph

from ..gradients import gradients
from ..gradients.shapes import static_shape
from ..gradients.site import float_dtype
from ..gradients.tape import free_name
from .optimizers import Optimizer, check_numbers

STATE = "egraft.training_state"  # metadata: JSON, input -> the output that holds its next value
STEP = "step"


def training_step(graph: Graph, loss: str, optimizer: Optimizer, parameters: Sequence[str] | None = None) -> Graph:
    """The graph of one training step on a scalar `loss` of `graph`.

    `parameters` names the initializers or inputs to train (default: `trainable(graph, loss)`). Each initializer
    among them becomes an input that has it as its default value. Inputs of the result: those of the graph, the
    parameters, their state (`w_momentum`, ...; zeros by default), and, where the optimizer counts, `step` (int64, the
    number of steps done). Outputs: those of the graph, then for each of these inputs its next value, `next_w`.
    `next_state(result)` tells which belongs to which, `initial_state(result)` gives the first values.

    Raises InvalidOption where the loss is no scalar or a parameter no initializer or input, where the name of a
    learning rate is taken, or a parameter's type does not hold a number of the optimizer; NotDifferentiable.
    """
    names = trainable(graph, loss) if parameters is None else list(parameters)
    _check(graph, loss, names)
    opened = _opened(graph, names)
    with_gradients = gradients(opened, loss, names)
    found = with_gradients.outputs[len(graph.outputs):]
    with_gradients.outputs = with_gradients.outputs[: len(graph.outputs)]
    b = Builder.continuing(with_gradients)
    taken, following = with_gradients.names(), dict[str, Value]()
    step = _counted(b, following, taken) if optimizer.counts else None
    rates = {name: b.input(_free_input(taken, name), "float32", []) for name in dict.fromkeys(optimizer.inputs())}
    for name, gradient in zip(names, found):
        w = Value(b, name)
        check_numbers(optimizer, w)
        state = {slot: _slot(b, w, slot, fill, taken) for slot, fill in optimizer.slots(w).items()}
        count = None if step is None else b.Cast(step, to=ONNX_NUMBER[w.dtype or "float32"])
        new, new_state = optimizer.update(b, w, Value(b, gradient), state, count, rates)
        following[name] = new
        following.update({state[slot].name: value for slot, value in new_state.items()})
    taken = b.unfinished.names()
    outputs = {name: free_name(taken, f"next_{name}") for name in following}
    b.outputs({outputs[name]: value for name, value in following.items()})
    result = b.graph()
    result.metadata[STATE] = json.dumps(outputs)
    return result


def next_state(step: Graph) -> dict[str, str]:
    """Of a training step: input -> the output that holds its next value."""
    return dict(json.loads(step.metadata.get(STATE, "{}")))


def initial_state(step: Graph) -> dict[str, np.ndarray]:
    """Of a training step: the first values of parameters and state; what was an input of the model has none."""
    return {name: step.defaults[name].array for name in next_state(step) if name in step.defaults}


def trainable(graph: Graph, loss: str) -> list[str]:
    """The initializers that training moves by default.

    Floats of at least one axis that the loss depends on, but not the running statistics of a BatchNormalization.
    """
    fixed = {name for node in graph.nodes if node.op == "BatchNormalization" for name in node.inputs[3:5]}
    names = [name for name, constant in graph.constants.items()
             if is_float(constant.dtype) and constant.shape and name not in fixed]
    b, needed = Builder.continuing(graph.copy()), {loss}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.uses if float_dtype(b, name) is not None)
    return [name for name in names if name in needed]


def _check(graph: Graph, loss: str, names: Sequence[str]) -> None:
    type_ = graph.type_of(loss)
    if type_ is None or type_.elements != 1:
        raise InvalidOption(f"loss {loss!r}", f"it is {type_ or 'unknown'}", "name a value of one element")
    for name in names:
        if name not in graph.constants and name not in graph.inputs:
            raise InvalidOption(f"parameter {name!r}", "it is no initializer and no input", "name what can be stored")
    if not names:
        raise InvalidOption("parameters", "there is nothing to train", "name initializers or inputs")


def _opened(graph: Graph, names: Sequence[str]) -> Graph:
    """A copy in which the initializers are inputs that have them as defaults."""
    copy = graph.copy()
    for name in names:
        constant = copy.constants.pop(name, None)
        if constant is not None:
            copy.inputs.append(name)
            copy.types[name] = copy.declared[name] = constant.type
            copy.defaults[name] = constant
    return copy


def _counted(b: Builder, following: dict[str, Value], taken: set[str]) -> Value:
    done = b.input(free_name(taken, STEP), "int64", [], default=np.zeros((), np.int64))
    following[done.name] = b.Add(done, b.constant(1))
    return following[done.name]


def _free_input(taken: set[str], name: str) -> str:
    """The name of an input that the user chose: it may mean nothing else, since it is fed under it."""
    if not name.strip() or name in taken:
        found = "a value of the training step has this name" if name.strip() else "it is empty"
        raise InvalidOption(f"learning rate {name!r}", found, "give its input (--lr) another name")
    taken.add(name)
    return name


def _slot(b: Builder, w: Value, slot: str, fill: float, taken: set[str]) -> Value:
    """An input for a state tensor of a parameter; it starts filled where the sizes are known."""
    sizes = static_shape(w)
    default = None if sizes is None else np.full(sizes, fill, numpy_dtype(w.dtype or "float32"))
    return b.input(free_name(taken, f"{w.name}_{slot}"), w.dtype or "float32", w.shape, default)
