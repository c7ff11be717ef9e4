"""Steps of a group rule are shown to hold whatever members the search knew, in an order in which that can be asked."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from rules.catalogue import all_rules
from search.ordering import provable
from search.partition import partition
from search.stamp import Proof, Script
from search.steps import Patch, Rewriter, Step, same_graph

RULES = {rule.name: rule for rule in all_rules()}


def layers() -> Graph:
    """Two equal layers of three products of one value."""
    draw = np.random.default_rng(0)
    b = Builder("m", opset=17)
    x = b.input("x", "float32", ["n", 4])
    for _ in range(2):
        q, k, v = (b.MatMul(x, b.constant(draw.standard_normal((4, 4)).astype(np.float32))) for _ in range(3))
        x = b.Tanh(b.Add(b.Sin(q), b.Mul(k, b.Cos(v))))
    b.output(x, "y")
    graph = b.graph()
    infer(graph)
    return graph


def join(graph: Graph, members: list[int], wanted: int) -> Step:
    """A product of several in place of one, the member in the place `wanted`, as the rule writes it."""
    products = [node for node in Rewriter(graph).nodes.values() if node.op == "MatMul"]
    weights = {f"w{place}": products[member].inputs[1] for place, member in enumerate(members)}
    parts = [f"part{place}" for place in range(len(members))]
    text = (f"graph opset 17 (x: float32[n, 4], {', '.join(f'{name}: float32[4, 4]' for name in weights)}) -> "
            f"({', '.join(parts)}) {{ c = Concat({', '.join(weights)}, axis=1) j = MatMul(x, c) "
            f"{', '.join(parts)} = Split(j, axis=1, split={[4] * len(members)}) }}")
    made = parse_graph(text)
    infer(made)
    for node in made.nodes:
        node.rename_uses({"x": products[0].inputs[0], **weights})
    types = {name: made.types[name] for node in made.nodes for name in node.outputs}
    old = products[members[wanted]].outputs[0]
    patch = Patch(made.nodes, {}, {old: parts[wanted]}, types)
    return Step(0, "join-matmuls", "rounding", "", [], [], [], patch)


@pytest.mark.parametrize(("members", "wanted"), [([0, 1, 2], 0), ([2, 0, 1], 1), ([1, 2], 1), ([2, 1], 0), ([2, 0], 1)])
def test_some_members_in_any_order_are_what_the_rule_gives(members: list[int], wanted: int) -> None:
    first, copy = partition(layers(), least=8, most=8)
    assert first.key == copy.key and not first.same_constants(copy)
    script = Script(first, [join(first.graph, members, wanted)]).on(copy, RULES)
    assert script is not None
    products = [node.inputs[1] for node in copy.graph.nodes if node.op == "MatMul"]
    assert list(script.steps[0].patch.add[0].inputs) == [products[member] for member in members]


def test_what_the_rule_does_not_give_is_not_shown() -> None:
    first, copy = partition(layers(), least=8, most=8)
    wrong = join(first.graph, [1, 2], 0)
    (old, _), = wrong.patch.replace.items()
    wrong.patch.replace[old] = "part1"  # the other one's product
    assert Script(first, [wrong]).on(copy, RULES) is None
    wrong.patch.replace[old] = "part0"
    assert Script(first, [wrong]).on(copy, RULES) is not None


TEXT = """graph opset 17 (x: float32[4]) -> (y) {
  a = Sin(x) b = Cos(x) c = Add(a, b) y = Tanh(c) }"""


def step(rule: str, text: str, replace: dict[str, str]) -> Step:
    names = [name for name in "xabcdefgh" if f"{name} = " not in text]
    made = parse_graph(f"graph opset 17 ({', '.join(f'{name}: float32[4]' for name in names)}) -> "
                       f"({', '.join(replace.values())}) {{ {text} }}")
    infer(made)
    types = {name: made.types[name] for node in made.nodes for name in node.outputs}
    return Step(0, rule, "exact", "", [], [], [], Patch(made.nodes, {}, replace, types))


def test_a_step_waits_for_the_form_that_its_rule_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(self: Proof, rules: object) -> bool:
        return self.step.rule != "needs e" or "e" in self.makers

    monkeypatch.setattr(Proof, "holds", holds)
    graph = parse_graph(TEXT)
    infer(graph)
    needing, after, giving = (step("needs e", "d = Exp(x)", {"a": "d"}), step("after it", "f = Neg(x)", {"d": "f"}),
                              step("gives e", "e = Abs(x)", {"b": "e"}))
    ordered = provable(graph, [needing, after, giving], {})
    assert ordered == [giving, needing, after]
    whole = [Rewriter(graph), Rewriter(graph)]
    for rewriter, steps in zip(whole, ([needing, after, giving], ordered)):
        for each in steps:
            rewriter.apply(each.patch)
    assert same_graph(whole[0].finish(), whole[1].finish())
    alone = [needing, after]
    assert provable(graph, alone, {}) == alone  # nothing brings it: the order stays
