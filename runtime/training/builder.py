"""Training programs written as the first dataflow systems had them: a graph is declared, then run with a feed.

    net = TrainingBuilder()
    x, label = net.placeholder("x", "float32", ["batch", 64]), net.placeholder("label", "int64", ["batch"])
    w, b = net.variable("w", np.zeros((64, 10))), net.variable("b", np.zeros(10))
    loss = net.softmax_cross_entropy(net.matmul(x, w) + b, label)
    grad_w, grad_b = net.gradients(loss, [w, b])
    train = [net.assign(w, w - 0.5 * grad_w), net.assign(b, b - 0.5 * grad_b)]

    session = net.session()
    for images, labels in batches:
        found, *_ = session.run([loss, *train], {x: images, label: labels})

It is a layer over `graphs.Builder` (every ONNX operator is a method here too) and `runtime.Session`. All that one call
of `run` computes is one graph: it reads the variables as they were before the call, and assigns at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.builder import Builder, Value
from graphs.canonical import DEFAULT_OPSET
from graphs.constants import Constant
from graphs.dims import DimLike
from graphs.dtypes import ONNX_NUMBER
from graphs.errors import InvalidInput, InvalidOption
from graphs.ir import Graph
from graphs.types import TensorType

from ..gradients.reverse import accumulate, reverse
from ..gradients.shapes import full_like, zeros_like
from ..gradients.site import float_dtype
from ..gradients.tape import free_name
from ..gradients.tidy import tidy
from ..session import Session
from .losses import mean_squared_error, softmax_cross_entropy
from .optimizers import Optimizer, State, check_numbers
from .step import STATE, STEP

Feeds = Mapping[Any, Any]  # a placeholder or its name -> an array
Execution = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Assignment:
    """A variable and the value that it gets at the end of a run. Fetched, it is that value."""

    variable: str
    value: Value


Fetch = Value | Assignment


class TrainingBuilder(Builder):
    """Builds graphs with variables. Values have the operators of `Value` (`+`, `@`, ...); see the module's example."""

    def __init__(self, name: str = "program", opset: int = DEFAULT_OPSET) -> None:
        super().__init__(name, opset)
        self.variables: dict[str, np.ndarray] = {}  # name -> first value

    # What a program declares

    def placeholder(self, name: str, dtype: str = "float32", shape: Sequence[DimLike | str] | None = None) -> Value:
        """A value that each run feeds."""
        return self.input(name, dtype, shape)

    def variable(self, name: str, first: np.ndarray | float | int, dtype: str = "float32") -> Value:
        """A value that a session keeps from run to run; it starts as `first`."""
        constant = Constant.of(np.asarray(first), dtype)
        value = self.input(name, dtype, constant.shape, default=constant.array)
        self.variables[value.name] = constant.array
        return value

    def assign(self, variable: Value, value: Value) -> Assignment:
        """What gives a variable a new value when it is fetched. Raises InvalidOption where types do not agree."""
        if variable.name not in self.variables:
            raise InvalidOption(f"assign {variable.name!r}", "it is no variable", "make it with variable(...)")
        new, old = value.type, variable.type
        if not isinstance(new, TensorType) or not isinstance(old, TensorType) or new.dtype != old.dtype or (
                new.is_static and new.shape != old.shape):
            raise InvalidOption(f"assign {variable.name!r}", f"it is {old}, the value is {new}",
                                "assign a value of the same type")
        return Assignment(variable.name, value)

    # Values

    def matmul(self, a: Value, b: Value) -> Value:
        """The product of matrices."""
        return self.value("MatMul", a, b)

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """exp(x) over its sum along an axis."""
        return self.value("Softmax", x, axis=axis)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self.value("Relu", x)

    def softmax_cross_entropy(self, logits: Value, target: Value) -> Value:
        """The mean over all but the last axis: see `runtime.training.softmax_cross_entropy`."""
        return softmax_cross_entropy(self, logits, target)

    def mean_squared_error(self, prediction: Value, target: Value) -> Value:
        """The mean of (prediction - target)^2."""
        return mean_squared_error(self, prediction, target)

    def accuracy(self, logits: Value, label: Value) -> Value:
        """The share of rows whose largest entry is at the label."""
        hits = self.value("Equal", self.value("ArgMax", logits, axis=-1, keepdims=0), label)
        return self.value("ReduceMean", self.value("Cast", hits, to=ONNX_NUMBER["float32"]), keepdims=0)

    # Derivatives and updates

    def gradients(self, output: Value, wrt: Sequence[Value]) -> list[Value]:
        """dy/dw for each w, of the sum of y where it is no scalar; zeros where y does not depend on w.

        Raises NotDifferentiable where an operator on the way has no gradient row.
        """
        for value in (output, *wrt):
            if float_dtype(self, value.name) is None:
                raise InvalidOption(f"gradients {value.name!r}", f"it is {value.type}", "only floats have derivatives")
        graph, names = self.unfinished, [w.name for w in wrt]
        nodes = list(graph.nodes)
        adjoints: dict[str, Value] = {}
        accumulate(adjoints, output.name, full_like(self, output, 1.0))
        reverse(self, nodes, adjoints, names)
        tidy(graph, len(nodes))
        self._names.taken.update(graph.constants)  # those that tidying made
        return [adjoints.get(name) or zeros_like(self, w) for name, w in zip(names, wrt)]

    def minimize(self, loss: Value, optimizer: Optimizer, variables: Sequence[Value] | None = None) -> list[Assignment]:
        """One step of an optimizer on variables (default: all floats there are so far), with its state as variables.

        A learning rate that is given by name becomes a placeholder of that name.
        """
        if variables is None:
            variables = [Value(self, name) for name in self.variables if float_dtype(self, name) is not None]
        found = self.gradients(loss, variables)
        made: list[Assignment] = []
        step: Value | None = None
        if optimizer.counts:
            done = self.variable(self._free(STEP), 0, "int64")
            step = self.value("Add", done, 1)
            made.append(self.assign(done, step))
        rates = {name: self.placeholder(name, "float32", []) for name in dict.fromkeys(optimizer.inputs())}
        for w, gradient in zip(variables, found):
            check_numbers(optimizer, w)
            dtype, shape = str(w.dtype), self.variables[w.name].shape
            slots = {slot: self.variable(self._free(f"{w.name}_{slot}"), np.full(shape, fill), dtype)
                     for slot, fill in optimizer.slots(w).items()}
            count = None if step is None else self.value("Cast", step, to=ONNX_NUMBER[dtype])
            state: State = dict(slots)
            new, following = optimizer.update(self, w, gradient, state, count, rates)
            made.append(self.assign(w, new))
            made += [self.assign(slots[slot], value) for slot, value in following.items()]
        return made

    def _free(self, stem: str) -> str:
        return free_name(self.unfinished.names(), stem)

    # Running

    def graph_of(self, fetches: Sequence[Fetch]) -> Graph:
        """The graph that computes values and assignments, with the variables that it reads as inputs.

        Outputs are named as the values, those of assignments `next_` and the variable; `next_state` and
        `initial_state` of `runtime.training` read the result as they read a `training_step`. Raises InvalidOption
        where one variable is assigned twice.
        """
        assigned: dict[str, Value] = {}
        for each in fetches:
            if isinstance(each, Assignment) and assigned.setdefault(each.variable, each.value) is not each.value:
                raise InvalidOption(f"variable {each.variable!r}", "it is assigned twice in one run",
                                    "fetch one of both")
        b = Builder.continuing(_part(self.unfinished, [each.name if isinstance(each, Value) else each.value.name
                                                       for each in fetches], set(assigned)))
        taken = b.unfinished.names()
        outputs = {variable: free_name(taken, f"next_{variable}") for variable in assigned}
        plain = dict.fromkeys(each.name for each in fetches if isinstance(each, Value))
        kept = [name for name in plain if name not in b.unfinished.inputs and name not in b.unfinished.constants]
        b.outputs({name: Value(b, name) for name in kept})
        b.outputs({outputs[name]: Value(b, value.name) for name, value in assigned.items()})
        graph = b.graph()
        graph.metadata[STATE] = json.dumps(outputs)
        return graph

    def session(self, execute: Callable[[Graph], Execution] | None = None) -> TrainingSession:
        """Variables with their first values, and a way to run. `execute` prepares a graph (default: `Session`)."""
        return TrainingSession(self, execute or (lambda graph: Session(graph).run))


def _part(graph: Graph, wanted: Sequence[str], variables: set[str]) -> Graph:
    """A copy with the nodes that values need, and the inputs that these read; `variables` stay inputs in any case."""
    needed, part = {*wanted, *variables}, graph.copy()
    nodes = []
    for node in reversed(part.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed.update(node.uses)
    part.nodes = nodes[::-1]
    part.inputs = [name for name in part.inputs if name in needed]
    part.defaults = {name: value for name, value in part.defaults.items() if name in needed}
    return part


class TrainingSession:
    """The variables of a program and the graphs that were run on them. `values` holds the variables, by name."""

    def __init__(self, builder: TrainingBuilder, execute: Callable[[Graph], Execution]) -> None:
        self.builder, self.execute = builder, execute
        self.values: dict[str, np.ndarray] = {}
        self._prepared: dict[tuple[object, ...], tuple[Graph, Execution, dict[str, str]]] = {}

    def run(self, fetches: Fetch | Sequence[Fetch], feed: Feeds | None = None) -> Any:
        """The fetched values: one array for one fetch, a list for several. Assignments then take effect.

        `feed` has an array for each placeholder that the fetches need, by value or by name. Raises InvalidInput for
        one that is missing, unknown, or of another type.
        """
        wanted = list(fetches) if isinstance(fetches, Sequence) else [fetches]
        graph, execution, following = self._prepare(wanted)
        given = {key if isinstance(key, str) else key.name: value for key, value in (feed or {}).items()}
        places = set(self.builder.unfinished.inputs) - self.builder.variables.keys()
        for name in given:
            if name not in places:
                raise InvalidInput(f"feed {name!r}", "the program has no such placeholder",
                                   f"its placeholders are {', '.join(sorted(places)) or 'none'}")
        feeds = {**self._current(), **given}
        found = execution({name: feeds[name] for name in graph.inputs if name in feeds})
        results = [self._result(each, feeds, found, following) for each in wanted]
        self.values.update({name: found[output] for name, output in following.items()})
        return results if isinstance(fetches, Sequence) else results[0]

    def _current(self) -> dict[str, np.ndarray]:
        """All variables; those declared since the last run have their first values."""
        for name, first in self.builder.variables.items():
            self.values.setdefault(name, first)
        return dict(self.values)

    def _prepare(self, fetches: Sequence[Fetch]) -> tuple[Graph, Execution, dict[str, str]]:
        key = tuple(each.name if isinstance(each, Value) else (each.variable, each.value.name) for each in fetches)
        if key not in self._prepared:
            graph = self.builder.graph_of(fetches)
            self._prepared[key] = (graph, self.execute(graph), json.loads(graph.metadata[STATE]))
        return self._prepared[key]

    def _result(self, fetch: Fetch, feeds: Mapping[str, Any], found: Mapping[str, np.ndarray],
                following: Mapping[str, str]) -> np.ndarray:
        if isinstance(fetch, Assignment):
            return found[following[fetch.variable]]
        if fetch.name in found:
            return found[fetch.name]
        constant = self.builder.unfinished.constants.get(fetch.name)
        if constant is None and fetch.name not in feeds:
            raise InvalidInput(f"input {fetch.name!r}", "it is missing", "feed it")
        return np.asarray(feeds[fetch.name] if constant is None else constant.array)
