"""Gradients of whole models, by inputs and parameters, against PyTorch's own, in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cost_model.sizes import default_measure_sizes
from graphs import load, zoo
from graphs.constants import Constant
from graphs.errors import EgraftError, NotDifferentiable
from graphs.inference import infer
from graphs.ir import Graph
from graphs.types import TensorType, Type
from optimizer.fixing import fixed
from optimizer.normalize import normalize
from runtime import run
from runtime.feeds import draw
from runtime.gradients import gradients
from scripts.trained_models import folder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.bench

PARAMETERS = 8  # of each model, from first to last
LARGEST = 150e6  # bytes of a file
NOT_DIFFERENTIABLE = {  # and where egraft says so
    "ddddocr_old_q": "DynamicQuantizeLSTM", "tashkeel_bilstm_q": "DynamicQuantizeLSTM", "surfaces_gbdt": "ai.onnx.ml",
    "silero_vad": "the rank of", "silero_vad_ifless": "the rank of"}
FILES = {path.stem: path for path in sorted(folder(None).glob("*.onnx")) if path.stat().st_size < LARGEST}


def _wide(type_: Type) -> Type:
    narrow = isinstance(type_, TensorType) and type_.dtype == "float32"
    return dataclasses.replace(type_, dtype="float64") if narrow else type_


def in_float64(graph: Graph) -> Graph:
    """The same graph with float64 in the place of float32."""
    result = graph.copy()
    for each in result.walk():
        each.constants = {name: Constant.of(value.array.astype(np.float64)) if value.dtype == "float32" else value
                          for name, value in each.constants.items()}
        for node in each.nodes:
            if node.op == "Cast" and node.attrs["to"] == 1:
                node.attrs["to"] = 11
            if node.op == "LayerNormalization":
                node.attrs["stash_type"] = 11
        each.types = {name: _wide(type_) for name, type_ in each.types.items()}
        each.declared = {name: _wide(type_) for name, type_ in each.declared.items()}
    infer(result)
    return result


def prepared(graph: Graph) -> Graph:
    """At the first sizes, small ones before large ones, at which the model runs; shapes and constants worked out."""
    base = default_measure_sizes(graph, {})
    problem: Exception = AssertionError("no sizes")
    for most, least in ((8, 1), (16, 1), (64, 1), (224, 1), (1 << 30, 1), (1 << 30, 64)):
        try:
            result = fixed(graph, {name: max(least, min(size, most)) for name, size in base.items()})
            normalize(result)
            result = in_float64(result)
            run(result, draw(result, 0, {}))
            return result
        except EgraftError as error:
            problem = error
    raise problem


def is_float(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.dtype == "float64"


def agree(graph: Graph) -> int:
    """Compare all gradients; how many are not zero."""
    from scripts.torch_graph import TorchGraph

    outputs = [name for name in graph.outputs if is_float(graph.types.get(name)) and name not in graph.inputs]
    parameters = [name for name, each in graph.constants.items() if each.dtype == "float64" and each.size > 1]
    last = len(parameters) - 1
    parameters = [parameters[place] for place in sorted({index * last // max(1, PARAMETERS - 1)
                                                         for index in range(min(PARAMETERS, last + 1))})]
    wrt = [*(name for name in graph.inputs if is_float(graph.types.get(name))), *parameters]
    feeds = draw(graph, 0, {})
    generator = np.random.default_rng(1)
    seeds = {f"seed of {name}": generator.standard_normal(np.shape(value))
             for name, value in run(graph, feeds).items() if name in outputs}
    backward = gradients(graph, outputs, wrt, {name: f"seed of {name}" for name in outputs})
    values = run(backward, {**{name: each for name, each in feeds.items() if name in backward.inputs}, **seeds})
    found = [values[name] for name in backward.outputs[-len(wrt):]]

    module = TorchGraph(graph, {}, leaves=parameters).eval()
    arguments = [torch.from_numpy(feeds[name]).requires_grad_(name in wrt) for name in graph.inputs]
    results = dict(zip(graph.outputs, module(*arguments), strict=True))
    total = sum((results[name] * torch.from_numpy(seeds[f"seed of {name}"])).sum() for name in outputs)
    leaves = [*(each for each in arguments if each.requires_grad), *module.leaves.values()]
    expected = [None if each is None else each.numpy()
                for each in torch.autograd.grad(total, leaves, allow_unused=True)]
    largest = max(float(np.abs(each).max()) for each in expected if each is not None)
    for name, mine, wanted in zip(wrt, found, expected, strict=True):
        wanted = np.zeros_like(mine) if wanted is None else wanted
        scale = max(float(np.abs(wanted).max()), 1e-9 * largest, 1e-9)
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-7 * scale, err_msg=name)
    return sum(each is not None and bool(np.abs(each).max()) for each in expected)


@pytest.mark.parametrize("name", ["logistic-regression", *(name for name in zoo.names() if name.endswith("-tiny"))])
def test_models_of_egraft(name: str) -> None:
    assert agree(prepared(zoo.build(name)))


@pytest.mark.parametrize("name", sorted(FILES))
def test_models_of_the_development_zoo(name: str) -> None:
    graph = load(FILES[name])
    if name in NOT_DIFFERENTIABLE:
        floats = [each for each in graph.inputs if is_float(_wide(graph.types[each]))]
        with pytest.raises(NotDifferentiable, match=NOT_DIFFERENTIABLE[name]):
            gradients(graph, graph.outputs[0], floats or graph.inputs[:1])
        return
    assert agree(prepared(graph))
