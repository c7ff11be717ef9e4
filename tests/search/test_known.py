"""What a step goes back to is known to be equal; anything else is not."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from search.known import Known
from search.partition import partition
from search.stamp import Proof, Script
from search.steps import Patch, Rewriter, Step

TEXT = """graph opset 17 (x: float32[4, 4]) -> (y) {
  w = constant float32[] 2.0  v = constant float32[] 3.0
  a = Sub(x, w)  b = Mul(a, v)  c = RandomUniformLike(x)  d = Softmax(b, axis=1)  e = Add(d, c)  y = Sub(e, v) }"""


def patch(text: str, replace: dict[str, str]) -> Patch:
    """New nodes over the values of the graph above."""
    given = ", ".join(f"{name}: float32[4, 4]" for name in "xabcdehw" if f"{name} = " not in text)
    made = parse_graph(f"graph opset 17 ({given}, v: float32[]) -> ({', '.join(replace.values())}) {{ {text} }}")
    return Patch(made.nodes, {}, replace, {})


def known() -> Known:
    """After a step that replaced b by h, which is read like b from then on."""
    found = Known(parse_graph(TEXT))
    found.take(patch("h = Exp(x)", {"b": "h"}))
    return found


@pytest.mark.parametrize(("text", "replaced", "shown"), [
    ("p = Sub(x, w) q = Mul(p, v)", "h", True),
    ("p = Sub(x, w) q = Mul(v, p)", "h", True),  # a product may be turned round, a difference not
    ("p = Sub(w, x) q = Mul(p, v)", "h", False),
    ("q = Mul(a, v)", "h", True),
    ("q = Mul(a, w)", "h", False),
    ("q = Mul(a, v)", "b", True),
    ("q = Mul(a, v)", "a", False),
    ("q = Softmax(h, axis=1)", "d", True),  # d was computed from b
    ("q = Softmax(h, axis=0)", "d", False),
    ("q = Exp(x)", "b", True),
    ("q = RandomUniformLike(x)", "c", False),
])
def test_what_was_there_is_known(text: str, replaced: str, shown: bool) -> None:
    assert known().shows(patch(text, {replaced: "q"})) is shown


def test_all_values_must_be_known() -> None:
    both = patch("q = Mul(a, v) r = Tanh(a)", {"h": "q", "a": "r"})
    assert not known().shows(both)
    assert known().shows(patch("", {"h": "b"})) and not known().shows(patch("", {"h": "a"}))


def layers() -> Graph:
    """Two equal layers, each with two products of one value, over weights of their own."""
    draw = np.random.default_rng(0)
    b = Builder("m", opset=17)
    x = b.input("x", "float32", ["n", 4])
    for _ in range(2):
        left, right = (b.MatMul(x, b.constant(draw.standard_normal((4, 4)).astype(np.float32))) for _ in range(2))
        x = b.Tanh(b.Add(b.Sin(left), b.Cos(right)))
    b.output(x, "y")
    graph = b.graph()
    infer(graph)
    return graph


def test_a_step_back_is_done_on_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values are joined by a rule, then one of them is led back: no rule says so of one alone."""
    monkeypatch.setattr(Proof, "holds", lambda self, rules: self.step.rule == "join")
    first, copy = partition(layers(), least=6, most=6)
    assert first.key == copy.key and not first.same_constants(copy)
    rewriter = Rewriter(first.graph)
    left, right = (node for node in rewriter.nodes.values() if node.op == "MatMul")
    (one,), (two,), type_ = left.outputs, right.outputs, first.graph.types[left.outputs[0]]
    made = parse_graph("graph opset 17 (v: float32[2, 4], w: float32[4, 4]) -> (j) { s = Exp(v) j = MatMul(s, w) }")
    exp, product = made.nodes
    exp.rename_uses({"v": left.inputs[0]})
    product.rename_uses({"w": left.inputs[1]})
    back = left.copy()
    back.outputs = ("back",)
    join = Patch([exp, product], {}, {one: "j", two: "s"}, {"j": type_, "s": type_})
    steps = [Step(0, "join", "exact", "", [], [], [], join),
             Step(1, "none", "exact", "", [], [], [], Patch([back], {}, {"j": "back"}, {"back": type_}), reverse=True)]
    script = Script(first, steps).on(copy, {})
    assert script is not None
    weight = next(node for node in copy.graph.nodes if node.op == "MatMul").inputs[1]
    assert script.steps[1].patch.add[0].inputs[1] == weight
    back.inputs = (back.inputs[0], right.inputs[1])  # the other weight: that is not what was there
    assert Script(first, steps).on(copy, {}) is None
