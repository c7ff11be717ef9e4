"""Gradients of whole models, by inputs and parameters, against PyTorch's own, in float64."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

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
MASK = 1e30  # what is added to what is masked is no parameter
LARGEST = 1e10 if os.environ.get("EGRAFT_BIG") else 150e6  # bytes of a file
NOT_DIFFERENTIABLE = {  # and where egraft says so
    "ddddocr_old_q": "DynamicQuantizeLSTM", "surfaces_gbdt": "ai.onnx.ml",
    "silero_vad": "the rank of", "fnet_l2.dyn": "the rank of", "gpt2_l2.dynoopt": "SequenceAt"}
# What PyTorch or egraft does not run: an If that decides while it runs, shapes that depend on values, a quantized LSTM.
NOT_COMPARED = {"silero_vad_ifless", "mixtral_t.ts", "tashkeel_bilstm_q"}
FILES = {path.stem: path for path in sorted(folder().glob("*.onnx"))
         if path.stat().st_size < LARGEST and path.stem not in NOT_COMPARED
         # Their weights are all equal: gradients cancel, and what is left is rounding.
         and not path.stem.startswith("light_")}


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
            node.attrs.update({name: Constant.of(value.array.astype(np.float64)) for name, value in node.attrs.items()
                               if isinstance(value, Constant) and value.dtype == "float32"})
        each.types = {name: _wide(type_) for name, type_ in each.types.items()}
        each.declared = {name: _wide(type_) for name, type_ in each.declared.items()}
    infer(result)
    return result


def prepared(graph: Graph) -> Graph:
    """At the first sizes, small ones before large ones, at which the model runs; shapes and constants worked out."""
    base = default_measure_sizes(graph, {})
    problem: Exception = AssertionError("no sizes")
    choices: list[Callable[[int], int]] = [
        lambda size: min(size, 8) if size < 200 else 64, lambda size: min(size, 16), lambda size: size,
        lambda size: 2 * size, lambda size: max(size, 64)]
    for choice in choices:
        try:
            result = fixed(graph, {name: choice(size) for name, size in base.items()})
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
    parameters = [name for name, each in graph.constants.items() if each.dtype == "float64" and each.size > 1
                  and max(-(each.facts.low or 0.0), each.facts.high or 0.0) < MASK]
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
    assert_moves_as_told(graph, outputs, {name: each.copy() for name, each in zip(wrt, found)}, feeds, seeds)
    return sum(each is not None and bool(np.abs(each).max()) for each in expected)


def assert_moves_as_told(graph: Graph, outputs: list[str], found: dict[str, np.ndarray], feeds: dict[str, np.ndarray],
                         seeds: dict[str, np.ndarray]) -> None:
    """A central difference along the gradients, all values moved at once, in proportion to how large they are. Where
    a step crosses a kink (ReLU, maxima) a smaller one does not."""
    generator = np.random.default_rng(2)
    along = {name: generator.standard_normal(each.shape) * np.abs(_value(graph, feeds, name)).mean()
             for name, each in found.items()}
    expected = sum(float((each * along[name]).sum()) for name, each in found.items())
    scale = sum(float((np.abs(each) * np.abs(along[name])).sum()) for name, each in found.items())
    errors = []
    for step in (1e-5, 1e-6, 1e-7, 1e-8):
        sides = []
        for sign in (step, -step):
            moved = graph.copy()
            moved.constants.update({name: Constant.of(_value(graph, feeds, name) + sign * each)
                                    for name, each in along.items() if name in graph.constants})
            given = {name: each + sign * along[name] if name in along else each for name, each in feeds.items()}
            values = run(moved, given)
            sides.append(sum(float((values[name] * seeds[f"seed of {name}"]).sum()) for name in outputs))
        errors.append(abs((sides[0] - sides[1]) / (2 * step) - expected))
        if errors[-1] <= 1e-4 * scale:
            return
    raise AssertionError(f"differences from the central difference {errors}, of {scale}")


def _value(graph: Graph, feeds: dict[str, np.ndarray], name: str) -> np.ndarray:
    return graph.constants[name].array if name in graph.constants else feeds[name]


@pytest.mark.parametrize("name", ["logistic-regression", *(name for name in zoo.names() if name.endswith("-tiny"))])
def test_models_of_egraft(name: str) -> None:
    assert agree(prepared(zoo.build(name)))


@pytest.mark.parametrize("name", sorted(FILES))
def test_models_of_the_development_zoo(name: str) -> None:
    graph = load(FILES[name])
    if name in NOT_DIFFERENTIABLE:
        floats = [each for each in graph.inputs if is_float(_wide(graph.types[each]))]
        weights = [each for each, constant in graph.constants.items() if constant.dtype == "float32"]
        with pytest.raises(NotDifferentiable, match=NOT_DIFFERENTIABLE[name]):
            gradients(graph, graph.outputs[0], (floats or weights)[:1])
        return
    assert agree(prepared(graph))
