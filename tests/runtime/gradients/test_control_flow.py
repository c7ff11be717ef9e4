"""Gradient rows of If, Loop and Scan."""

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.errors import NotDifferentiable
from graphs.text import parse_graph
from runtime import gradients, jvp, run
from runtime.gradients.control_flow import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t

TRUE, FALSE = np.array(True), np.array(False)


def choose(b: Builder, condition: Value, x: Value, y: Value) -> list[Value]:
    """(x * x, x) or (y, sin(y)): each branch reads what the other does not, and hands a value through."""
    then, other = b.nested("then"), b.nested("other")
    inner = Value(then, x.name)
    then.output(inner * inner)
    then.output(then.Identity(inner))
    other.output(other.Identity(Value(other, y.name)))
    other.output(other.Sin(Value(other, y.name)))
    return list(b.op("If", condition, outputs=2, then_branch=then.unfinished, else_branch=other.unfinished))  # type: ignore[arg-type, call-overload]


def recurrence(b: Builder, h: Value, xs: Value, w: Value, **more: object) -> list[Value]:
    """h' = tanh(h w + x), emitting h' * x; w is captured."""
    body = b.nested("body")
    assert h.shape is not None and h.dtype is not None
    state, x = body.input("state", h.dtype, h.shape), body.input("x", h.dtype, h.shape)
    new = body.Tanh(state @ Value(body, w.name) + x)
    body.output(new)
    body.output(new * x)
    return list(b.op("Scan", h, xs, outputs=2, body=body.unfinished, num_scan_inputs=1, **more))  # type: ignore[arg-type, call-overload]


def repeated(b: Builder, trips: Value, s: Value, w: Value) -> list[Value]:
    """s' = sin(s * w) * (turn + 1) and a count that is no float, emitting s; until it counts to 3."""
    body = b.nested("body")
    turn, _ = body.input("turn", "int64", []), body.input("going", "bool", [])
    state, count = body.input("state", s.dtype or "", s.shape), body.input("count", "int64", [])
    scale = body.CastLike(body.Add(turn, body.constant(1)), state)
    more = body.Add(count, body.constant(1))
    body.output(body.Less(more, body.constant(3)))
    body.output(body.Sin(state * Value(body, w.name)) * scale)
    body.output(more)
    body.output(body.Identity(state))
    final, _, seen = b.op("Loop", trips, None, s, b.constant(0), outputs=3, body=body.unfinished)  # type: ignore[misc, arg-type]
    return [final, seen]


def nested(b: Builder, h: Value, xs: Value, w: Value) -> list[Value]:
    """A Scan whose body holds an If that captures a state of the body and a value around both."""
    body = b.nested("body")
    assert h.shape is not None and h.dtype is not None
    state, x = body.input("state", h.dtype, h.shape), body.input("x", h.dtype, h.shape)
    positive = body.Greater(body.ReduceSum(x, keepdims=0), body.constant(np.array(0.0, h.dtype)))
    then, other = body.nested("then"), body.nested("other")
    then.output(Value(then, state.name) * Value(then, w.name))
    other.output(Value(other, state.name) + Value(other, x.name))
    body.output(body.If(positive, then_branch=then.unfinished, else_branch=other.unfinished))
    return [b.Scan(h, xs, body=body.unfinished, num_scan_inputs=1)]


def _sample(op: str, inputs: list[np.ndarray], build: object, **more: object) -> Sample:
    return Sample(op, inputs, build=build, **more)  # type: ignore[arg-type]


def twice(b: Builder, h: Value, xs: Value) -> list[Value]:
    """A Scan that captures its own first state and all that it scans."""
    body = b.nested("body")
    assert h.shape is not None and h.dtype is not None
    state, x = body.input("state", h.dtype, h.shape), body.input("x", h.dtype, h.shape)
    whole = body.ReduceSum(Value(body, xs.name), axes=[0], keepdims=0)
    body.output(state * Value(body, h.name) + x * whole)
    return [b.Scan(h, xs, body=body.unfinished, num_scan_inputs=1)]


SCANNED = [t(2, 3), t(4, 2, 3), t(3, 3)]
SAMPLES = [
    *(_sample("If", [condition, t(2, 3), t(3, 2).T.copy()], choose) for condition in (TRUE, FALSE)),
    _sample("Scan", SCANNED, recurrence),
    _sample("Scan", [t(2, 3), t(2, 3, 4), t(3, 3)], lambda *args: recurrence(
        *args, scan_input_axes=[2], scan_input_directions=[1], scan_output_axes=[-1], scan_output_directions=[1]),
        symbolic=False),
    _sample("Scan", [*SCANNED[:1], np.stack([t(2, 3), -t(2, 3), t(2, 3)]), t(2, 3) + 1.0], nested),
    _sample("Scan", [t(2, 3), t(3, 2, 3)], twice),
    *(_sample("Loop", [np.array(trips), t(2, 3), t(3)], repeated, in_onnxruntime=trips > 0)  # no Scan of length 0 there
      for trips in (0, 2, 5)),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}


def test_a_body_that_draws_random_numbers_is_refused() -> None:
    b = Builder()
    x = b.input("x", "float32", [2])
    body = b.nested("body")
    state, _ = body.input("state", "float32", [2]), body.input("slice", "float32", [])
    body.output(state * body.RandomNormalLike(state))
    b.output(b.Scan(x, b.input("n", "float32", [3]), body=body.unfinished, num_scan_inputs=1), "y")
    with pytest.raises(NotDifferentiable, match="random"):
        gradients(b.graph(), "y", "x")


@pytest.mark.parametrize("mode", [gradients, jvp])
def test_a_branch_that_is_never_taken_may_be_ill_typed(mode: object) -> None:
    graph = parse_graph("""graph opset 17 (x: float64[2, 3], c: bool[]) -> (y) {
        y = If(c, then_branch=graph () -> (a) { a = Squeeze(x, axes=[0]) },
                  else_branch=graph () -> (b) { b = Mul(x, x) }) }""")
    found = gradients(graph, "y", "x") if mode is gradients else jvp(graph, {"x": np.ones((2, 3))})
    values = run(found, {"x": t(2, 3), "c": FALSE})
    np.testing.assert_allclose(values[found.outputs[-1]], 2 * t(2, 3))


NESTED = """graph opset 17 (x: float64[3], w: float64[3]) -> (y) {
  true = constant bool[] [1] four = constant int64[] [4] two = constant int64[] [2] most = constant float64[] [5]
  y = Loop(four, true, x, body=graph (i: int64[], c: bool[], p: float64[3]) -> (small, r) {
    q = Loop(two, true, p, body=graph (j: int64[], d: bool[], u: float64[3]) -> (going, v) {
      going = Identity(d) k = Mul(u, w) v = Sin(k) })
    s = Add(q, p) square = Mul(s, s) total = ReduceSum(square, keepdims=0) small = Less(total, most)
    r = If(small, then_branch=graph () -> (a) { a = Mul(s, w) }, else_branch=graph () -> (b) { b = Mul(s, p) }) }) }"""
# States that change places, one that is only handed on, outputs that are values of the graph around.
HANDED = """graph opset 17 (x: float64[3], w: float64[3]) -> (a, b, s, o) {
  true = constant bool[] [1] three = constant int64[] [3]
  a, b, s, o = Loop(three, true, x, w, body=graph (i: int64[], c: bool[], p: float64[3], q: float64[3]) ->
    (going, q, m, p, w) { going = Identity(c) m = Mul(p, w) }) }"""


@pytest.mark.parametrize("text", [NESTED, HANDED])
def test_first_and_second_derivatives_of_nested_loops(text: str) -> None:
    first, feeds = parse_graph(text), {"x": np.array([0.3, 0.5, -0.4]), "w": np.array([1.2, 0.9, 1.3])}
    for _ in range(2):
        graph = gradients(first, first.outputs, ["x", "w"])
        found = run(graph, feeds)
        for name, output in zip(("x", "w"), graph.outputs[-2:]):
            sides = [run(first, {**feeds, name: feeds[name] + sign * 1e-6}) for sign in (1, -1)]
            slope = sum(np.sum(sides[0][each] - sides[1][each]) for each in first.outputs) / 2e-6
            assert np.sum(found[output]) == pytest.approx(slope, rel=1e-6), name
        first = graph.copy()
        first.outputs = [graph.outputs[-2]]
