"""Gradients of whole models of the zoo by all their weights, in float64."""

import numpy as np
import pytest

from graphs import dtypes, zoo
from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph
from graphs.types import TensorType
from runtime import Session, gradients, jvp
from runtime.feeds import draw
from tests.runtime.gradients.checking import STEP

DOUBLE = dtypes.ONNX_NUMBER["float64"]


def widened(graph: Graph) -> Graph:
    """The model in float64, with its weights as inputs that have them as defaults."""
    graph = graph.copy()
    for name, constant in list(graph.constants.items()):
        if constant.dtype == "float32":
            graph.constants[name] = Constant.of(constant.array.astype(np.float64))
    for node in graph.nodes:
        if node.op == "Cast" and node.attrs["to"] == dtypes.ONNX_NUMBER["float32"]:
            node.attrs["to"] = DOUBLE
        value = node.attrs.get("value")
        if isinstance(value, Constant) and value.dtype == "float32":
            node.attrs["value"] = Constant.of(value.array.astype(np.float64))
    for name in graph.inputs:
        type_ = graph.type_of(name)
        if type_ is not None and type_.dtype == "float32":
            graph.types[name] = TensorType("float64", type_.shape)
    for name, constant in list(graph.constants.items()):
        if constant.dtype == "float64" and constant.size > 1:
            graph.inputs.append(name)
            graph.defaults[name] = graph.constants.pop(name)
            graph.types[name] = constant.type
    infer(graph)
    return graph


@pytest.mark.parametrize("name", ["multiply-add", "logistic-regression", "resnet-tiny", "bert-tiny", "llama-tiny",
                                  "bilstm-tiny"])
def test_gradients_by_all_weights(name: str) -> None:
    """One direction in the space of all weights: against central differences, and against forward mode."""
    graph = widened(zoo.build(name))
    rng = np.random.default_rng(5)
    feeds = {**{weight: constant.array for weight, constant in graph.defaults.items()},
             **{key: value for key, value in draw(graph, 0, None).items() if key not in graph.defaults}}
    session = Session(graph)
    plain = session.run(feeds)
    tops = [top for top in graph.outputs if plain[top].dtype == np.float64]
    seeds = {top: rng.normal(size=plain[top].shape) for top in tops}
    weights = list(graph.defaults)
    moves = {weight: rng.normal(size=feeds[weight].shape) * np.abs(feeds[weight]).max() for weight in weights}

    backward = gradients(graph, tops, weights, seeds)
    found = Session(backward).run(feeds)
    slope = sum(float(np.sum(found[gradient] * moves[weight]))
                for weight, gradient in zip(weights, backward.outputs[-len(weights):]))

    def height(side: int) -> float:
        moved = {weight: feeds[weight] + side * STEP / 10 * move for weight, move in moves.items()}
        values = session.run({**feeds, **moved})
        return sum(float(np.sum(values[top] * seeds[top])) for top in tops)

    assert slope == pytest.approx((height(1) - height(-1)) / (STEP / 5), rel=1e-5)
    forward = jvp(graph, moves, tops)
    tangents = Session(forward).run(feeds)
    assert slope == pytest.approx(sum(float(np.sum(tangents[tangent] * seeds[top]))
                                      for top, tangent in zip(tops, forward.outputs[-len(tops):])), rel=1e-9)
