"""What `gradients` and `jvp` promise beside the rows: names, types, sizes, opsets, kinks and errors."""

import numpy as np
import pytest

from graphs import load
from graphs.builder import Builder
from graphs.dtypes import numpy_dtype
from graphs.errors import InvalidOption, NotDifferentiable
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from runtime import gradients, jvp, run


def of(text: str) -> Graph:
    return parse_graph(text)


def slope(op: str, at: list[float], **attrs: object) -> list[float]:
    """The derivative of an operator of one input at some points."""
    b = Builder()
    b.output(b.value(op, b.input("x", "float64", [len(at)]), **attrs), "y")
    return run(gradients(b.graph(), "y", "x"), {"x": np.array(at, np.float64)})["grad_x"].tolist()


SQUARE = "graph opset 17 (x: float64[n], w: float64[n]) -> (y) { t = Mul(x, w) y = Mul(t, t) }"


def test_functions_and_package_share_a_name() -> None:
    from runtime import gradients as function
    from runtime.gradients import gradients as again
    from runtime.gradients.rows import Row

    assert function is again and callable(function) and Row.__module__ == "runtime.gradients.rows"


def test_results_follow_the_outputs_and_take_free_names() -> None:
    graph = of("graph opset 17 (x: float32[2], grad_x: float32[2]) -> (y) { y = Mul(x, grad_x) }")
    found = gradients(graph, "y", ["grad_x", "x"])
    assert found.outputs == ["y", "grad_grad_x", "grad_x_1"]
    assert found.inputs == graph.inputs
    assert graph.outputs == ["y"] and len(graph.nodes) == 1  # the argument stays as it was


def test_by_initializers_inner_values_and_what_is_not_used() -> None:
    graph = of("""graph opset 17 (x: float32[2], z: float32[3]) -> (y) {
        w = constant float32[2] [2, 3] t = Mul(x, w) y = ReduceSum(t) }""")
    found = run(gradients(graph, "y", ["w", "t", "z", "x"]), {"x": np.float32([5, 7]), "z": np.zeros(3, np.float32)})
    assert found["grad_w"].tolist() == [5, 7] and found["grad_t"].tolist() == [1, 1]
    assert found["grad_z"].tolist() == [0, 0, 0] and found["grad_x"].tolist() == [2, 3]


def test_seeds_are_inputs_values_or_arrays() -> None:
    graph, x, w = of(SQUARE), np.array([1.0, 2.0]), np.array([3.0, -1.0])
    for seeds, more in (({"y": "u"}, {"u": np.array([1.0, 10.0])}), ({"y": np.array([1.0, 10.0])}, {})):
        found = run(gradients(graph, "y", "x", seeds), {"x": x, "w": w, **more})
        assert found["grad_x"].tolist() == [18, 40]
    assert run(gradients(graph, "y", "x", {"y": "w"}), {"x": x, "w": w})["grad_x"].tolist() == [54, -4]


def test_several_outputs_add_up() -> None:
    graph = of("graph opset 17 (x: float64[]) -> (a, b) { a = Exp(x) b = Mul(x, x) }")
    found = run(gradients(graph, ["a", "b"], "x"), {"x": np.array(1.5)})
    assert found["grad_x"] == pytest.approx(np.exp(1.5) + 3)


def test_a_tangent_at_an_inner_value_adds_to_what_arrives() -> None:
    graph = jvp(of(SQUARE), ["x", "t"])
    feeds = {"x": np.array([1.0]), "w": np.array([3.0]), "tangent_x": np.array([1.0]), "tangent_t": np.array([10.0])}
    assert run(graph, feeds)["tangent_y"].tolist() == [2 * 3 * (3 + 10)]


def test_applied_again_it_gives_higher_orders() -> None:
    graph = of("graph opset 17 (x: float64[]) -> (y) { s = Sin(x) y = Mul(s, s) }")
    for _ in range(4):
        graph = gradients(graph, graph.outputs[-1], "x")
    found = run(graph, {"x": np.array(0.7)})
    expected = [np.sin(0.7) ** 2, np.sin(1.4), 2 * np.cos(1.4), -4 * np.sin(1.4), -8 * np.cos(1.4)]
    assert [float(found[name]) for name in graph.outputs] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_element_type_is_kept(dtype: str) -> None:
    b = Builder()
    x = b.input("x", dtype, ["n", 3])
    b.output(b.ReduceMean(b.Gelu(b.Softmax(x)) + b.Pow(b.Clip(x, min=-1.0), 2.0) / 3.0), "y")
    graph = gradients(b.graph(), "y", "x")
    assert str(graph.type_of("grad_x")) == f"{dtype}[n, 3]"
    assert {graph.type_of(name).dtype for node in graph.nodes for name in node.outputs} <= {dtype, "int64", "bool"}
    assert run(graph, {"x": np.ones((2, 3), numpy_dtype(dtype))})["grad_x"].dtype == numpy_dtype(dtype)


def test_nothing_flows_through_integers() -> None:
    graph = of("""graph opset 17 (x: float32[3]) -> (y) { k = Cast(x, to=7) f = Cast(k, to=1) y = Mul(f, x) }""")
    assert run(gradients(graph, "y", "x"), {"x": np.float32([1.5, 2.5, -3])})["grad_x"].tolist() == [1, 2, -3]


def test_one_graph_serves_all_sizes() -> None:
    graph = gradients(of("""graph opset 17 (x: float64[a, b], y: float64[c, d]) -> (z) { z = Mul(x, y) }"""), "z", "y")
    for left, right in (((2, 3), (1, 3)), ((2, 1), (1, 4)), ((1, 1), (2, 3)), ((2, 3), (1, 1))):
        x, y = np.arange(1.0, 1 + np.prod(left)).reshape(left), np.ones(right)
        whole = np.broadcast_to(x, np.broadcast_shapes(left, right))
        axes = tuple(axis for axis in range(2) if right[axis] == 1)
        np.testing.assert_allclose(run(graph, {"x": x, "y": y})["grad_y"], whole.sum(axes, keepdims=True))
    unknown = of("graph opset 17 (x: float64[...], y: float64[...]) -> (z) { z = Sub(x, y) }")
    found = run(gradients(unknown, "z", "y"), {"x": np.zeros((2, 3)), "y": np.zeros(3)})
    assert found["grad_y"].tolist() == [-2, -2, -2]


def test_a_branch_that_is_never_taken_may_have_another_rank() -> None:
    graph = of("""graph opset 17 (x: float32[]) -> (y) { no = constant bool[] false y = If(no,
        then_branch=graph () -> (a) { one = constant float32[1] [1] a = Add(x, one) },
        else_branch=graph () -> (b) { b = Mul(x, x) }) }""")
    assert run(gradients(graph, "y", "x"), {"x": np.float32(3)})["grad_x"] == 6


def test_the_ones_that_a_gradient_starts_with_leave_no_nodes() -> None:
    graph = gradients(of("""graph opset 17 (x: float32[n, 5], t: float32[n, 5]) -> (y) {
        p = Mul(x, t) s = ReduceSum(p, axes=[1], keepdims=0) m = Neg(s) y = ReduceSum(m, keepdims=0) }"""), "y", "x")
    assert [node.op for node in graph.nodes[4:]] == ["Neg"]
    feeds = {"x": np.zeros((2, 5), np.float32), "t": np.float32([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]])}
    assert (run(graph, feeds)["grad_x"] == -feeds["t"]).all()


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
def test_the_graph_stays_at_its_opset_where_that_has_all_operators(opset: int) -> None:
    b = Builder(opset=opset)
    x, w = b.input("x", "float32", ["n", 3]), b.constant(np.ones((3, 2), np.float32), "w")
    b.output(b.Softmax(b.Relu(x @ w), axis=-1), "y")
    graph = gradients(b.graph(), "y", "w")
    assert graph.opset == opset
    again = load(proto_bytes(graph))
    feeds = {"x": np.float32([[1, 2, 3], [-1, 0.5, 2]])}
    np.testing.assert_allclose(run(again, feeds)["grad_w"], run(graph, feeds)["grad_w"])


def test_the_opset_rises_where_the_gradient_needs_it() -> None:
    b = Builder(opset=11)
    x, k = b.input("x", "float32", [4, 2]), b.input("k", "int64", [3])
    b.output(b.Gather(x, k), "y")
    graph = gradients(b.graph(), "y", "x")  # a Scatter that adds
    assert graph.opset == 18
    found = run(graph, {"x": np.zeros((4, 2), np.float32), "k": np.array([0, 3, 3])})
    assert found["grad_x"].tolist() == [[1, 1], [0, 0], [0, 0], [2, 2]]


@pytest.mark.parametrize(("op", "attrs", "points", "expected"), [
    ("Relu", {}, [-1, 0, 1], [0, 0, 1]), ("Abs", {}, [-1, 0, 1], [-1, 0, 1]),
    ("LeakyRelu", {"alpha": 0.25}, [-1, 0, 1], [0.25, 0.25, 1]), ("Sqrt", {}, [0, 4], [np.inf, 0.25]),
    ("Clip", {"min": -1.0, "max": 1.0}, [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
    ("Elu", {"alpha": 0.5}, [0, 1], [0.5, 1]), ("Celu", {"alpha": 0.5}, [0, 1], [1, 1]),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, [-2, 0, 2], [0, 0.25, 0]),
    ("HardSwish", {}, [-3, 0, 3], [0, 0.5, 1]), ("Shrink", {"lambd": 0.5}, [-0.5, 0, 0.5, 1], [0, 0, 0, 1]),
    ("ThresholdedRelu", {"alpha": 0.5}, [0.5, 1], [0, 1]), ("Softsign", {}, [0], [1]),
    ("ReduceMax", {}, [3, 1, 3], [0.5, 0, 0.5]), ("ReduceL2", {}, [0, 0], [0, 0]),
    ("ReduceProd", {}, [0, 2, 3], [6, 0, 0]), ("ReduceL1", {}, [-1, 0, 2], [-1, 0, 1]),
    ("Round", {}, [0.5, 1], [0, 0]),
])  # fmt: skip
def test_derivatives_at_kinks(op: str, attrs: dict[str, object], points: list[float], expected: list[float]) -> None:
    assert slope(op, points, **attrs) == expected


def test_powers_of_zero_and_ties() -> None:
    for power, expected in ((0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (3.0, 0.0), (0.5, np.inf)):
        b = Builder()
        x, p = b.input("x", "float64", []), b.input("p", "float64", [])
        b.output(b.Pow(x, p), "y")
        found = run(gradients(b.graph(), "y", ["x", "p"]), {"x": np.array(0.0), "p": np.array(power)})
        assert (found["grad_x"], found["grad_p"]) == (expected, 0)
    graph = of("graph opset 17 (a: float64[], b: float64[]) -> (y) { y = Max(a, b) }")
    found = run(gradients(graph, "y", ["a", "b"]), {"a": np.array(2.0), "b": np.array(2.0)})
    assert (found["grad_a"], found["grad_b"]) == (0.5, 0.5)


def test_an_operator_without_a_row_is_named() -> None:
    graph = of("graph opset 17 (x: float32[2]) -> (y) { t = my.domain.Foo(x) y = Add(t, x) }")
    with pytest.raises(NotDifferentiable, match=r"Foo.*no gradient row.*opaque") as error:
        gradients(graph, "y", "x")
    assert error.value.problem()["code"] == "not-differentiable"
    assert run(gradients(of("graph opset 17 (x: float32[2]) -> (y) { t = NonZero(x) y = Neg(x) }"), "y", "x"),
               {"x": np.float32([1, 2])})["grad_x"].tolist() == [-1, -1]  # not on the way


@pytest.mark.parametrize(("outputs", "wrt", "message"), [
    ("nowhere", "x", "no value 'nowhere'"), ("y", "nowhere", "no value 'nowhere'"), ("y", "k", "int64"),
])  # fmt: skip
def test_names_that_cannot_be_differentiated(outputs: str, wrt: str, message: str) -> None:
    graph = of("graph opset 17 (x: float32[2], k: int64[2]) -> (y) { y = Gather(x, k) }")
    with pytest.raises(InvalidOption, match=message):
        gradients(graph, outputs, wrt)


@pytest.mark.parametrize(("along", "message"), [
    (np.ones((5, 2, 3)), r"its shape is \[5, 2, 3\], that of the value \[2, n\]"), (np.ones(6), "its shape is"),
    (np.ones((1, 3)), "its shape is"), ("k", "int64"), ("w", "its shape is"), ("", "empty name")])
def test_seeds_and_directions_of_another_shape_or_type_are_refused(along: np.ndarray | str, message: str) -> None:
    graph = of("graph opset 17 (x: float64[2, n], k: int64[2, n], w: float64[2]) -> (y) { y = Add(x, x) }")
    with pytest.raises(InvalidOption, match=rf"seeds of 'y'.*{message}"):
        gradients(graph, "y", "x", seeds={"y": along})
    with pytest.raises(InvalidOption, match=rf"tangents of 'x'.*{message}"):
        jvp(graph, {"x": along})


def test_a_seed_of_what_is_no_output_is_refused() -> None:
    graph = of("graph opset 17 (x: float64[2]) -> (y, z) { y = Add(x, x) z = Neg(x) }")
    with pytest.raises(InvalidOption, match=r"'z'.*not among the outputs"):
        gradients(graph, "y", "x", seeds={"z": np.ones(2)})
