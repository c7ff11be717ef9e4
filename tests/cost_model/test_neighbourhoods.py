"""Nodes that a target runs as one kernel."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cost_model.costs import Cost
from cost_model.neighbourhoods import Kernel, Neighbourhood, Places, joined, saving
from cost_model.node_costs import NodeCosts
from cost_model.targets import find_target
from cost_model.targets.estimated import Recorded
from cost_model.timings import Timings
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph

CONV = """graph opset 17 (x: float32[1, 3, 8, 8]) -> (y) {
  a = Conv(x, w)
  y = Relu(a)
  w = constant float32[2, 3, 1, 1] [[[[1]], [[2]], [[5]]], [[[3]], [[4]], [[6]]]]
}"""


def graph_of(text: str) -> Graph:
    graph = parse_graph(text)
    infer(graph)
    return graph


def fused(*inputs: str, output: str = "y") -> Kernel:
    return Kernel("FusedConv", "com.microsoft", inputs, (output,))


def test_a_kernel_is_the_nodes_between_what_it_reads_and_writes() -> None:
    assert joined(graph_of(CONV), [fused("x", "w")]) == [Neighbourhood((0, 1))]
    assert joined(graph_of(CONV), [Kernel("Conv", "", ("x", "w"), ("a",)), Kernel("Relu", "", ("a",), ("y",))]) == []


def test_what_something_else_reads_or_what_cannot_be_told_is_none() -> None:
    graph = graph_of(CONV.replace("-> (y)", "-> (y, a)"))
    assert joined(graph, [fused("x", "w")]) == []
    graph = graph_of(CONV.replace("-> (y)", "-> (y, z)").replace("y = Relu(a)", "y = Relu(a)\n  z = Neg(a)"))
    assert joined(graph, [fused("x", "w")]) == []
    assert joined(graph_of(CONV), [fused("x_nchwc", "w")]) == []


def test_the_key_names_types_and_wiring_but_no_names_or_weights() -> None:
    graph = graph_of(CONV)
    renamed = graph_of(CONV.replace("a = Conv", "b = Conv").replace("Relu(a)", "Relu(b)").replace("[[4]]", "[[7]]"))
    wider = graph_of(CONV.replace("8, 8]) ->", "9, 9]) ->"))
    place = Neighbourhood((0, 1))
    keys = [Places(each, {}, 1).key(place) for each in (graph, renamed, wider)]
    assert keys[0] == keys[1] != keys[2] and keys[0].startswith("neighbourhood Conv+Relu ")


def test_only_what_is_certain_is_saved() -> None:
    two = [Cost(10.0, "measured"), Cost(10.0, "measured")]
    assert saving(two, Cost(10.0, "measured")) == pytest.approx(10.0 - 1.0)
    assert saving(two, Cost(30.0, "measured")) == pytest.approx(-(10.0 - 3.0))
    assert saving(two, Cost(19.8, "measured")) == 0.0
    assert saving(two, Cost(10.0, "measured", spread=12.0)) == 0.0
    assert saving(two, Cost(math.inf, "unsupported")) == 0.0


def test_onnx_runtime_joins_conv_and_relu_and_says_so_only_once(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph, target = graph_of(CONV), find_target("onnxruntime:cpu")
    assert target.neighbourhoods(graph, Timings(tmp_path / "t.db")) == [Neighbourhood((0, 1))]
    with Timings(tmp_path / "t.db", frozen=True) as timings:
        assert target.neighbourhoods(graph, timings) == [Neighbourhood((0, 1))]


@pytest.mark.parametrize(("op", "found"), [("Add", [Neighbourhood((0, 1))]), ("Sum", [])])
def test_onnx_runtime_joins_an_add_with_a_layer_normalization_and_no_sum(op: str, found: list[Neighbourhood],
                                                                         tmp_path: Path) -> None:
    """What the rules `sum-before-layer-norm` are for."""
    pytest.importorskip("onnxruntime")
    graph = graph_of(f"""graph opset 17 (x: float32[2, 3, 4], z: float32[2, 3, 4]) -> (y) {{
      a = {op}(x, z)
      y = LayerNormalization(a, g)
      g = constant float32[4] [1, 2, 3, 4]
    }}""")
    with Timings(tmp_path / "t.db") as timings:
        assert find_target("onnxruntime:cpu").neighbourhoods(graph, timings) == found


def test_a_measured_neighbourhood_is_looked_up_and_a_failed_one_saves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph, target, place = graph_of(CONV), find_target("onnxruntime:cpu"), Neighbourhood((0, 1))
    key = Places(graph, {}, 1).key(place)
    for number, (samples, seconds) in enumerate([([1e-9] * 5, 1e-9), ([], 0.0), ([], math.inf)]):
        with Timings(tmp_path / f"{number}.db") as timings:
            costs = NodeCosts(target, timings, {}, opset=17)
            for node in graph.nodes:
                costs.node_in(graph, node)
            costs.measure()
            timings.add(key, target.name, target.fingerprint, "neighbourhood", samples, seconds, {"call": 0.0})
            target.neighbourhoods(graph, timings)
            timings.freeze()
            found = costs.neighbourhoods(graph)
        assert len(found) == (1 if samples else 0) and all(each[1] > 0 for each in found)


def test_a_replay_of_records_saves_what_the_recording_machine_saved(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph, target, path = graph_of(CONV), find_target("onnxruntime:cpu"), tmp_path / "t.db"
    with Timings(path) as timings:
        costs = NodeCosts(target, timings, {}, opset=17)
        for node in graph.nodes:
            costs.node_in(graph, node)
        costs.measure()
        key = Places(graph, {}, 1).key(Neighbourhood((0, 1)))
        timings.add(key, target.name, target.fingerprint, "neighbourhood", [1e-9] * 5, 1e-9, {"call": 0.0})
        live = costs.neighbourhoods(graph)
    recorded = Recorded(target, str(path))
    with Timings(tmp_path / "other.db") as own:
        assert NodeCosts(recorded, own, {}, opset=17).neighbourhoods(graph) == live != []
        unseen = graph_of(CONV.replace("8, 8]", "9, 9]"))
        assert NodeCosts(recorded, own, {}, opset=17).neighbourhoods(unseen) == []
