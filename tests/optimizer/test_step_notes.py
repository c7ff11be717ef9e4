"""Costs of steps are sums over the whole graph; what a copy of a step keeps beside its text is what the text says."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Set
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from cost_model.costs import Cost
from cost_model.node_costs import NodeCosts
from cost_model.signature import spec_of
from cost_model.targets import resolve
from cost_model.timings import Timings
from graphs.builder import Builder
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.text import parse_graph
from optimizer.context import Context, open_context
from optimizer.options import Options
from optimizer.pipeline import optimize
from optimizer.replay import replay
from optimizer.result import step_text
from optimizer.searching import TIE_SECONDS, Prices
from optimizer.stepcosts import Total
from search import NORMAL, run
from search.encode import encode
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


def test_an_estimate_beside_a_measured_time_is_no_change_of_cost() -> None:
    """Neg is only estimated: that it gives way to a Relu, which was measured, says nothing of which is faster."""
    graph = parse_graph('graph "m" opset 18 (x: float32[4]) -> (y) { a = Relu(x) b = Relu(a) c = Neg(b) y = Relu(c) }')
    infer(graph)
    total = Total(graph, cast(NodeCosts, HalfMeasured()))
    found = []
    for old, text in (("c", "d = Relu(a)"), ("d", "e = Relu(x)")):
        added = parse_graph(f'graph "p" opset 18 (x: float32[4], a: float32[4]) -> ({text[0]}) {{ {text} }}').nodes
        total.rewriter.apply(Patch(add=added, replace={old: text[0]}))
        found.append(total.price_changes().to_dict())
    assert found == [{"change_source": "measured/roofline -> measured", "comparable": False},
                     {"change_source": "measured", "comparable": True}]
    shown = step_text({"index": 0, "rule": "r", "exactness": "exact", "before": [], "after": [], "cost_before": 1e-6,
                       "cost_after": 2e-6, "cost_source": "sum", **found[0]})
    assert "1.00 us -> 2.00 us (sum); not comparable, of its own nodes: measured/roofline -> measured" in shown


def test_the_file_and_the_search_know_a_node_by_one_signature() -> None:
    """Else what the search measures would stay an estimate in the trace, whose graphs are those of the file."""
    graph = parse_graph("""graph "m" opset 18 (x: float32[2, n, 4], i: int64[]) -> (y, z) {
      w = constant float32[4] [1, 2, 3, 5]
      a = Softmax(x) b = ReduceMean(a, axes=[-1]) c = Sub(a, b) d = Add(w, c) e = Transpose(d)
      f = Slice(d, starts=[1], ends=[9223372036854775807], axes=[-1]) g = Concat(f, f, axis=-1)
      y = Unsqueeze(g, axes=[0]) z = Flatten(e) }""")
    infer(graph)
    saturated = run(encode(graph), [], NORMAL)
    costs = NodeCosts(resolve("egraft:cpu", True), Timings(":memory:"), {"n": 3}, opset=18)
    prices = Prices(saturated, cast(Context, SimpleNamespace(costs=costs)))
    there = [each for each in saturated.enodes if each.kind == "op" and each.origin is not None]
    assert len(there) == len(graph.nodes)
    for each in there:
        assert each.origin is not None
        assert prices.signature(each) == costs.signature(spec_of(graph, graph.nodes[each.origin], costs.sizes))


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


def test_the_report_counts_the_estimates_of_the_sum_beside_them(tmp_path: Path) -> None:
    """The search prices equal values once, and not what normalization takes out: Exp, two Mul and an
    Add of six nodes, which are 7 Exp(x)."""
    graph = parse_graph("""graph "m" opset 18 (x: float32[1000, 1000]) -> (y) {
      v = constant float32[] 2 w = constant float32[] 3
      a = Exp(x) b = Identity(a) c = Mul(b, v) d = Mul(c, w) e = Exp(x) y = Add(d, e) }""")
    found = optimize(graph, target="roofline", timings=str(tmp_path / "t.db"), effort="low").report
    assert found["chosen"] not in ("input", "normalized")
    assert found["predicted"]["estimated"] == {"before": 4, "after": 2}


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
