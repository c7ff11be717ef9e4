"""Costs of steps are sums over the whole graph; what a copy of a step keeps beside its text is what the text says."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Set
from pathlib import Path
from typing import cast

import numpy as np

from cost_model.costs import Cost
from cost_model.node_costs import NodeCosts
from graphs.builder import Builder
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.text import parse_graph
from optimizer.context import open_context
from optimizer.options import Options
from optimizer.pipeline import optimize
from optimizer.replay import replay
from optimizer.searching import TIE_SECONDS
from optimizer.stepcosts import Total
from search.steps import Patch, Step, Written


def stack(layers: int) -> Graph:
    """Equal layers over weights of their own, large enough that they are searched once."""
    rng = np.random.default_rng(0)
    b = Builder("m", opset=17)
    x = b.input("x", "float32", ["n", 8])
    for _ in range(layers):
        for _ in range(20):
            x = b.Relu(b.Relu(b.Add(b.MatMul(x, rng.normal(size=(8, 8)).astype(np.float32)),
                                    rng.normal(size=8).astype(np.float32))))
        x = b.Mul(x, b.Sigmoid(x))
    b.output(x, "y")
    return b.graph()


def test_the_cost_of_a_step_is_the_sum_of_the_times_of_all_nodes(tmp_path: Path) -> None:
    options = Options(target="roofline", timings=str(tmp_path / "t.db"), effort="low")
    result = optimize(stack(1), options)
    context = open_context(result.original.copy(), options)
    steps = result.trace.steps
    assert len(steps) > 3
    for count in range(len(steps) + 1):
        graph = replay(result.original, steps[:count])
        wanted = math.fsum(cost for node in graph.nodes if math.isfinite(cost := context.costs.node_in(graph, node)
                                                                         .seconds))
        assert (steps[count]["cost_before"] if count < len(steps) else steps[-1]["cost_after"]) == wanted


class HalfMeasured:
    """Costs where Relu was measured and Neg was not."""

    def node_in(self, graph: Graph, node: Node, known: Set[str]) -> Cost:
        return Cost(1e-6, "measured" if node.op == "Relu" else "roofline")


def test_sources_are_those_of_the_nodes_that_are_paid_now() -> None:
    graph = parse_graph('graph "m" opset 18 (x: float32[4]) -> (y) { a = Neg(x) b = Neg(a) y = Relu(b) }')
    infer(graph)
    total = Total(graph, cast(NodeCosts, HalfMeasured()))
    assert (total.sources, total.estimated) == ({"measured", "roofline"}, 2)
    total.rewriter.apply(Patch(add=parse_graph('graph "p" opset 18 (x: float32[4]) -> (c) { c = Relu(x) }').nodes,
                               replace={"y": "c"}))
    total.price_changes()
    assert (total.sources, total.estimated) == ({"measured"}, 0)


def test_a_copy_of_a_step_is_what_its_text_says(tmp_path: Path) -> None:
    result = optimize(stack(12), target="roofline", timings=str(tmp_path / "t.db"), effort="low")
    copies = [row for row in result.trace.steps if "copy_of" in row]
    assert copies and all(isinstance(row["patch"], Written) for row in copies)
    read = json.loads(json.dumps(result.trace.steps))
    for row, text in zip(result.trace.steps, read, strict=True):
        if "copy_of" in row:
            kept, parsed = Step.from_dict(row), Step.from_dict(text, stored(result.original))
            assert (kept.to_dict() | {"patch": 0}) == (parsed.to_dict() | {"patch": 0})
            assert dict(kept.to_dict()["patch"]) == dict(parsed.to_dict()["patch"])
    sent = pickle.loads(pickle.dumps(copies[0]["patch"]))
    assert type(sent) is dict and sent == copies[0]["patch"]


def stored(graph: Graph) -> dict[str, object]:
    return {constant.digest: constant for constant in graph.constants.values()}


def test_the_report_predicts_what_the_trace_sums(tmp_path: Path) -> None:
    """Nodes that the search leaves as they are, as the If, count in both."""
    graph = parse_graph("""graph "m" opset 18 (x: float32[1000, 1000], c: bool[]) -> (y) {
      v = constant float32[] 2 w = constant float32[] 3
      a = Mul(x, v) d = Mul(a, w)
      y = If(c, then_branch=graph "t" () -> (t) { t = Exp(d) }, else_branch=graph "e" () -> (e) { e = Neg(d) }) }""")
    result = optimize(graph, target="roofline", timings=str(tmp_path / "t.db"), effort="low")
    found, steps = result.report["predicted"], result.trace.steps
    assert result.report["chosen"] != "normalized" and found["after"] > 0
    for side, step in (("before", steps[0]), ("after", steps[-1])):
        assert abs(found[side] - step[f"cost_{side}"]) <= 4 * TIE_SECONDS
