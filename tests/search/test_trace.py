"""Traces replay to the built graph, step by step, also after a trip through JSON; proofs join two graphs."""

from __future__ import annotations

import json
import random
import time

import pytest

from graphs.errors import InvalidOption
from graphs.structure import check_structure
from rules.catalogue import all_rules
from search import Budget, ENode, Saturated, saturate
from search.build import build_graph
from search.extract import exact, node_count
from search.prove import prove
from search.steps import Step, replay, same_graph
from search.trace import rebuild
from tests.search import samples
from tests.search.samples import SOUND, graph_of

GRAPHS = {
    "transposes": """graph opset 17 (x: float32[n, 3, 4]) -> (y) {
        one = constant float32[] 1
        a = Transpose(x, perm=[1, 0, 2])
        b = Relu(a)
        c = Transpose(b, perm=[1, 0, 2])
        y = Mul(c, one) }""",
    "equal nodes": """graph opset 17 (x: float32[2, 3]) -> (y) {
        a = Neg(x)
        b = Neg(x)
        c = Relu(a)
        d = Relu(b)
        y = Add(c, d) }""",
    "outputs": """graph opset 17 (x: float32[2, 3]) -> (y, z, w) {
        one = constant float32[] 1
        y = Relu(x)
        t = Mul(y, one)
        z = Relu(t)
        w = Mul(x, one) }""",
    "several outputs": """graph opset 17 (x: float32[2, 4]) -> (y) {
        a, b = Split(x, axis=1, split=[2, 2])
        c = Relu(a)
        d = Relu(c)
        y = Concat(b, d, axis=1) }""",
    "known shape": """graph opset 17 (x: float32[n, 3, 4]) -> (y) {
        s = Shape(x)
        i = constant int64[1] [0]
        g = Gather(s, i, axis=0)
        m = constant int64[1] [-1]
        t = Concat(g, m, axis=0)
        y = Reshape(x, t, shape=runtime) }""",
    "nested": """graph opset 17 (x: float32[2, 3], c: bool[]) -> (y) {
        t = Relu(x)
        u = Relu(t)
        y = If(c, then_branch=graph () -> (v) { v = Neg(u) }, else_branch=graph () -> (w) { w = Abs(u) }) }""",
}


def check(graph, found: Saturated, cost) -> list[Step]:
    """The trace of the cheapest graph replays, and each prefix of it is a valid graph with the same outputs."""
    built = build_graph(graph, found, (selection := exact(found, cost)))
    steps = rebuild(graph, found, selection, built)
    assert same_graph(replay(graph, steps), built)
    again = [Step.from_dict(json.loads(json.dumps(step.to_dict()))) for step in steps]
    assert same_graph(replay(graph, again), built)
    for count in range(len(steps)):
        part = replay(graph, again[:count])
        check_structure(part)
        assert [part.type_of(name) for name in part.outputs] == [graph.type_of(name) for name in graph.outputs]
    return steps


@pytest.mark.parametrize("name", GRAPHS)
def test_traces_of_small_graphs(name: str) -> None:
    graph = graph_of(GRAPHS[name])
    steps = check(graph, saturate(graph, SOUND), node_count)
    assert steps
    assert not any(step.region for step in steps)


def test_a_step_says_what_where_and_how() -> None:
    graph = graph_of("graph opset 17 (x: float32[2, 3]) -> (y) { t = Relu(x) y = Relu(t) }")
    (step,) = check(graph, saturate(graph, SOUND), node_count)
    assert (step.rule, step.exactness, step.where) == ("t-relu-relu", "exact", ["y", "t"])
    assert step.before == ["t = Relu(x)", "y = Relu(t)"]
    assert "t-relu-relu" in str(step)


def matmul_heavy(enode: ENode) -> float:
    return node_count(enode) * (6.0 if enode.op == "MatMul" else 1.0)


def random_cost(seed: int):
    draw, prices = random.Random(seed), {}

    def cost(enode: ENode) -> float:
        return 0.0 if enode.kind not in ("op", "opaque") else prices.setdefault(enode.index, draw.random() + 0.1)

    return cost


@pytest.mark.parametrize("seed", range(3))
def test_traces_under_random_costs(seed: int) -> None:
    graph = samples.bert(layers=1)
    check(graph, saturate(graph, SOUND), random_cost(seed))


def test_traces_of_every_rules_example() -> None:
    """Every fourth rule: the whole catalogue in the e-graph, a random choice, no step without a rule."""
    rules = all_rules()
    regions = 0
    for rule in rules[::4]:
        graph = graph_of(rule.example)
        found = saturate(graph, rules, Budget(iterations=4, nodes=600))
        assert not found.conflicts, rule.name
        regions += sum(step.region for step in check(graph, found, random_cost(0)))
    assert regions <= len(rules) // 40


def test_equal_nodes_of_a_long_model_are_traced_in_time() -> None:
    graph = samples.bert(layers=12)
    found = saturate(graph, SOUND)
    selection = exact(found, matmul_heavy)
    built = build_graph(graph, found, selection)
    start = time.process_time()
    steps = rebuild(graph, found, selection, built)
    assert time.process_time() - start < 1.0
    assert steps and not any(step.region for step in steps)
    assert same_graph(replay(graph, steps), built)


def test_same_graph_sees_differences() -> None:
    one = graph_of("graph opset 17 (x: float32[2]) -> (y) { a = Relu(x) y = Neg(a) }")
    assert same_graph(one, graph_of("graph opset 17 (x: float32[2]) -> (y) { b = Relu(x) y = Neg(b) }"))
    assert not same_graph(one, graph_of("graph opset 17 (x: float32[2]) -> (y) { a = Abs(x) y = Neg(a) }"))
    assert not same_graph(one, graph_of("graph opset 17 (x: float32[2]) -> (y) { a = Relu(x) b = Neg(x) y = Neg(a) }"))


def test_a_proof_joins_two_graphs_and_says_how() -> None:
    long = graph_of(GRAPHS["transposes"])
    short = graph_of("graph opset 17 (u: float32[n, 3, 4]) -> (v) { v = Relu(u) }")
    proof = prove(long, short, SOUND)
    assert proof.joined and proof.outputs == {"y": True} and proof.exactness == "exact"
    assert [step.rule for step in proof.steps]
    back = prove(short, long, SOUND)
    assert back.joined
    other = graph_of("graph opset 17 (u: float32[n, 3, 4]) -> (v) { v = Neg(u) }")
    assert not prove(long, other, SOUND).joined


def test_a_result_is_proved_equal_to_its_input() -> None:
    graph = samples.bert(layers=1)
    found = saturate(graph, SOUND)
    built = build_graph(graph, found, exact(found, matmul_heavy))
    proof = prove(graph, built, SOUND)
    assert proof.joined and proof.exactness == "rounding"
    assert same_graph(replay(graph, proof.steps), built)


def test_graphs_whose_inputs_do_not_correspond_are_refused() -> None:
    a = graph_of("graph opset 17 (x: float32[2]) -> (y) { y = Relu(x) }")
    b = graph_of("graph opset 17 (x: float32[3]) -> (y) { y = Relu(x) }")
    with pytest.raises(InvalidOption, match=r"float32\[3\]"):
        prove(a, b, SOUND)
