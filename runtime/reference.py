"""Single nodes through `onnx.reference`, for operators that have no kernel here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx.reference import ReferenceEvaluator

from graphs.canonical import newest_opset
from graphs.errors import NotExecutable
from graphs.ir import Graph, Node
from graphs.types import Type

from . import ml_reference as ml


def single_node_graph(node: Node, model: Graph, types: Mapping[str, Type]) -> Graph:
    """A graph of this node alone, at the operator sets of `model` and with its functions."""
    inputs = list(dict.fromkeys(name for name in node.inputs if name))
    opsets = dict(model.opsets)
    opsets.setdefault("", newest_opset())
    if node.domain:
        opsets.setdefault(node.domain, 1)
    known = {name: types[name] for name in (*inputs, *node.outputs) if name in types}
    return Graph(
        "single_node", inputs, [name for name in node.outputs if name], [node.copy()],
        types=dict(known), opsets=opsets, functions=dict(model.functions), ir_version=model.ir_version,
    )


class ReferenceNode:
    """Runs one node through the ONNX reference evaluator. Raises NotExecutable where that has no such operator."""

    def __init__(self, node: Node, model: Graph, types: Mapping[str, Type]) -> None:
        from graphs.onnx_io import to_model_proto

        self.node, self.types = node, types
        self.is_ml = node.domain == ml.DOMAIN and (node.domain, node.op, node.overload) not in model.functions
        problem = ml.problem_with(node) if self.is_ml else ""
        if problem:
            raise NotExecutable(node.label, problem, "run the model in a runtime that has this operator")
        try:
            alone = single_node_graph(ml.amended(node) if self.is_ml else node, model, types)
            self.evaluator = ReferenceEvaluator(to_model_proto(alone))
        except Exception as reason:
            # The evaluator raises half a dozen kinds of exception for an operator that it does not know.
            raise NotExecutable(node.label, f"there is no kernel for {node.domain or 'ai.onnx'}::{node.op} and "
                                f"onnx.reference does not run it ({type(reason).__name__}: {reason})",
                                "run the model in a runtime that has this operator") from reason

    def __call__(self, inputs: Sequence[object]) -> list[object]:
        if self.node.op == "Optional" and not self.node.domain:  # the evaluator puts the value into a list
            return [inputs[0] if inputs else None]
        if self.is_ml:
            inputs = ml.given(self.node, inputs)
            own = ml.computed(self.node, inputs)
            return ml.taken(self.node, own if own is not None else self._run(inputs), self.types)
        return self._run(inputs)

    def _run(self, inputs: Sequence[object]) -> list[object]:
        feeds = {name: value for name, value in zip(self.node.inputs, inputs) if name}
        found = dict(zip(self.evaluator.output_names, self.evaluator.run(None, feeds)))
        return [_as_value(found.get(name)) for name in self.node.outputs]


def _as_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_as_value(item) for item in value]
    if isinstance(value, np.generic | int | float | str):
        return np.asarray(value) if not isinstance(value, str) else np.asarray(value, object)
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return value.astype(object)
    return value
