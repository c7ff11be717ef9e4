"""What patterns match on a graph."""

from __future__ import annotations

from graphs.text import parse_graph
from rules.declare import Match, Outcome, Rule, rule
from rules.matching import Site, matches

ANY = "graph opset 17 (x: float32[2]) -> (y) { y = Neg(x) }"


def pattern(before: str) -> Rule:
    @rule(family="test", exactness="exact", meaning="A pattern.", before=before, example=ANY, near_miss=ANY)
    def guard(m: Match) -> Outcome:
        return None

    return guard


def found(before: str, text: str) -> list[Match]:
    return list(matches(parse_graph(text), pattern(before)))


def test_commutative_operators_match_in_both_orders() -> None:
    text = "graph opset 17 (x: float32[2]) -> (y) { c = constant float32[] 1 y = Add(c, x) }"
    assert [match.x.key for match in found("Add(x, $c)", text)] == ["x"]
    assert not found("Sub(x, $c)", text.replace("Add", "Sub"))


def test_a_repeated_variable_is_the_same_value() -> None:
    text = "graph opset 17 (x: float32[2], z: float32[2]) -> (p, q) { p = Mul(x, x) q = Mul(x, z) }"
    assert [match.root.key for match in found("Mul(x, x)", text)] == ["p"]


def test_equal_constants_are_the_same_value() -> None:
    text = ("graph opset 17 (x: float32[2]) -> (y) { a = constant float32[] 1 b = constant float32[] 1 "
            "t = Add(x, a) y = Sub(t, b) }")
    assert len(found("Sub(Add(x, c), c)", text)) == 1


def test_attributes_that_are_not_mentioned_have_their_default() -> None:
    text = "graph opset 17 (x: float32[2, 3]) -> (p, q) { p = Softmax(x) q = Softmax(x, axis=0) }"
    assert [match.root.key for match in found("Softmax(x)", text)] == ["p"]
    assert [match.root.key for match in found("s:Softmax(x)", text)] == ["p", "q"]
    assert [match["a"] for match in found("Softmax(x, axis=a)", text)] == [1, 0]


def test_optional_and_rest_operands() -> None:
    text = ("graph opset 17 (x: float32[1, 1, 3], w: float32[1, 1, 1], b: float32[1]) -> (p, q, r) "
            "{ p = Conv(x, w) q = Conv(x, w, b) r = Concat(x, x, w, axis=2) }")
    assert [match.b is None for match in found("c:Conv(x, w, ?b)", text)] == [True, False]
    assert not found("c:Conv(x, w, $b)", text)
    assert [len(match.xs) for match in found("Concat(*xs, axis=a)", text)] == [3]
    assert not found("Concat(x, y, axis=a)", text)


def test_outputs_of_one_node() -> None:
    text = "graph opset 17 (x: float32[2, 4]) -> (p, q) { p, q = Split(x, axis=1, num_outputs=2) }"
    text = text.replace("opset 17", "opset 18")
    assert [match.root.key for match in found("s:Split(x)[1]", text)] == ["q"]
    view = Site(parse_graph(text)).view("q")
    assert view is not None and view.output == 1


def test_views_look_like_reshape() -> None:
    text = ("graph opset 17 (x: float32[n, 2, 3]) -> (p, q, r) { p = Flatten(x) q = Unsqueeze(p, axes=[0]) "
            "r = Squeeze(q, axes=[0]) }")
    assert [str(match["s"][-1]) for match in found("Reshape(x, shape=s)", text)] == ["6", "6", "6"]


def test_groups_share_a_value() -> None:
    @rule(family="test", exactness="exact", meaning="A group.", before="Mul(x, $c)", group="x", example=ANY,
          near_miss=ANY)
    def group(m: Match) -> Outcome:
        return None

    text = ("graph opset 17 (x: float32[2], z: float32[2]) -> (p, q, r) { a = constant float32[] 1 "
            "b = constant float32[] 2 p = Mul(x, a) q = Mul(b, x) r = Mul(z, a) }")
    found_groups = list(matches(parse_graph(text), group))
    assert [[member.root.key for member in match.members] for match in found_groups] == [["p", "q"]]
