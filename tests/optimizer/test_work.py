"""How much work the optimizer does: counted, not timed. What is done once must not be done for each node or pass."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cost_model.node_costs
import graphs.inference
import runtime.execute
from cost_model.node_costs import NodeCosts
from cost_model.peaks import Peaks
from cost_model.roofline import graph_roofline
from cost_model.timings import Timings
from graphs.builder import Builder
from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer.collecting import rare_collections
from optimizer.journal import apply, diff
from optimizer.normalize import normalize
from rules.zero_signs import showing_places
from runtime.validation.changes import Changes
from runtime.validation.twins import Twin, TwinProgram
from tests.cost_model.fakes import FakeTarget

LAYERS = 40


def tower(layers: int = LAYERS) -> Graph:
    """Three nodes a layer, each layer with weights of its own."""
    b = Builder("tower")
    x = b.input("x", "float32", ["n", 8])
    draw = np.random.default_rng(0)
    for _ in range(layers):
        y = b.Add(b.MatMul(x, b.constant(draw.standard_normal((8, 8), np.float32) / 3)),
                  b.constant(draw.standard_normal(8, np.float32)))
        x = b.LeakyRelu(y, alpha=0.3)
    b.output(x, "y")
    return b.graph()


def counted(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> Counter[str]:
    """Calls of a function of a module (or class) from now on."""
    calls: Counter[str] = Counter()
    plain: Callable[..., Any] = getattr(place, name)

    def call(*args: Any, **named: Any) -> Any:
        calls[name] += 1
        return plain(*args, **named)

    monkeypatch.setattr(place, name, call)
    return calls


def test_only_what_changed_is_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tower()
    infer(graph)
    calls = counted(monkeypatch, graphs.inference, "infer_node")
    infer(graph)
    copy = graph.copy()
    infer(copy)
    assert not calls and copy.types == graph.types
    copy.nodes[-1].attrs["alpha"] = 0.5
    infer(copy)
    assert calls.total() == 1


def test_what_types_follow_from_is_looked_at() -> None:
    """Attributes, types and contents of inputs, constants, the operator, the number of outputs."""
    graph = parse_graph("graph (x: float32[n, 4]) -> (y) { k = constant int64[2] [-1, 2]\n"
                        " t = Transpose(x, perm=[1, 0])\n y = Reshape(t, k, shape=runtime) }")
    infer(graph)
    assert str(graph.types["y"]) == "float32[2*n, 2]"
    graph.nodes[0].attrs["perm"] = (0, 1)
    graph.constants["k"] = Constant.of(np.array([-1, 1], np.int64))
    infer(graph)
    assert (str(graph.types["t"]), str(graph.types["y"])) == ("float32[n, 4]", "float32[4*n, 1]")
    graph.types["x"] = graph.types["x"].with_shape((3, 4))  # type: ignore[union-attr]
    infer(graph)
    assert str(graph.types["y"]) == "float32[12, 1]"
    graph.nodes[0].op = "Shape"
    graph.nodes[0].attrs = {"start": 0, "end": None}
    infer(graph)
    assert str(graph.types["t"]) == "int64[2]"


def test_a_patch_infers_what_it_adds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tower()
    after = before.copy()
    infer(before)
    after.nodes[-1].op, after.nodes[-1].attrs = "Relu", {}
    patch = diff(before, after)
    calls = counted(monkeypatch, graphs.inference, "infer_node")
    result = apply(before, patch)
    assert result.nodes[-1].op == "Relu" and calls.total() == 1


def test_normalization_copies_the_graph_for_what_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tower()
    calls = counted(monkeypatch, Graph, "copy")
    normalize(graph, lambda *_: None)
    assert calls["copy"] == 2  # before types are known, and after


def test_nodes_that_are_alike_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tower()
    infer(graph)
    costs = NodeCosts(FakeTarget(), Timings(":memory:"), {"n": 2})
    costs._peaks = Peaks(flops=1e9, cache_bytes=1e9, memory_bytes=1e9, threads=1)
    calls = counted(monkeypatch, cost_model.node_costs, "spec_of")
    again = [costs.node_in(graph, node) for node in graph.nodes]
    assert calls.total() == 3
    assert again == [costs.cost_of(cost_model.node_costs.spec_of(graph, node, {"n": 2})) for node in graph.nodes]
    one, many = (graph_roofline(tower(layers), {"n": 2}, costs.peaks()) for layers in (1, LAYERS))
    assert (many.flops, many.launches) == (LAYERS * one.flops, LAYERS * one.launches)


def test_who_shows_the_sign_of_a_zero_is_found_with_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("quotients")
    x = b.input("x", "float32", ["n", 8])
    for _ in range(20):
        x = b.Div(x, b.Relu(x))
    b.output(x, "y")
    calls = counted(monkeypatch, Graph, "producers")
    showing_places(b.graph())
    assert calls["producers"] == 1


@pytest.mark.parametrize("twin", [Twin(True), Twin(True, 1), Twin(False, 1)])
def test_variations_of_a_graph_share_their_functions(monkeypatch: pytest.MonkeyPatch, twin: Twin) -> None:
    graph = tower()
    infer(graph)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8), np.float32)}
    alone = TwinProgram(graph, twin, None, 0).run(feeds)
    first = TwinProgram(graph, Twin(twin.wide, 0), None, 0)
    between = first.run(feeds)
    calls = counted(monkeypatch, runtime.execute, "_prepare")
    shared = TwinProgram(graph, twin, None, 0, others=[TwinProgram(graph, Twin(), None, 0), first])
    assert calls.total() == len(graph.nodes)  # of the plain one, which has all constants at hand
    assert shared.run(feeds)["y"].tobytes() == alone["y"].tobytes() != between["y"].tobytes()
    assert first.run(feeds)["y"].tobytes() == between["y"].tobytes()


def test_variations_that_change_attributes_do_not_share_those_nodes() -> None:
    graph = tower(2)
    infer(graph)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8), np.float32)}
    changes = Changes(frozenset(), frozenset({(id(graph.nodes[-1]), "alpha")}), True)
    twin = Twin(True, 1, changed=True)
    alone = TwinProgram(graph, twin, None, 0, changes=changes).run(feeds)
    wide = TwinProgram(graph, Twin(True), None, 0, changes=changes)
    shared = TwinProgram(graph, twin, None, 0, changes=changes, others=[wide]).run(feeds)
    assert shared["y"].tobytes() == alone["y"].tobytes() != wide.run(feeds)["y"].tobytes()


def test_python_looks_for_garbage_as_usual_afterwards() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections(10_000):
        assert gc.get_threshold()[0] >= 10_000
        raise KeyError
    with rare_collections(3):
        assert gc.get_threshold() == usual
    assert gc.get_threshold() == usual
