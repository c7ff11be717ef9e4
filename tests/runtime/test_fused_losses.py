"""Losses with labels as fused kernels, and reductions over two sets of columns."""

import numpy as np
import pytest

from graphs.builder import Builder
from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, run
from runtime.codegen.c import FusedKernel, NotFusable, plan_of, unavailable
from runtime.codegen.c.check import fault
from runtime.fusion import Group, body_of, fuse
from runtime.training import softmax_cross_entropy
from search.fusions.enumerate import enumerate_groups
from search.fusions.labels import label_of
from tests.runtime.test_fused_indexing import shapes

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def loss(reduction: str, ignored: int | None, weighted: bool, op: str = "SoftmaxCrossEntropyLoss",
         dtype: str = "float32") -> Graph:
    more, weights = ("", "") if not weighted else (", w", f", w: {dtype}[7]")
    ignore = "" if ignored is None else f", ignore_index={ignored}"
    return parse_graph(f"""graph "g" opset 18 (x: {dtype}[4, 7, 3], i: int64[4, 3]{weights}) -> (y) {{
      y = {op}(x, i{more}, reduction="{reduction}"{ignore})
    }}""")


@pytest.mark.parametrize("reduction,ignored,weighted", [
    ("none", None, False), ("none", -100, True), ("sum", 2, True), ("sum", None, False), ("mean", None, False),
    ("mean", -100, False), ("mean", None, True), ("mean", 2, True)])
def test_a_loss_of_any_reduction_is_one_kernel(reduction: str, ignored: int | None, weighted: bool) -> None:
    graph = loss(reduction, ignored, weighted)
    assert fault(FusedKernel(graph), shapes(graph)) is None


def test_of_logarithms_and_of_float64() -> None:
    for graph in (loss("mean", 0, True, "NegativeLogLikelihoodLoss"), loss("mean", 1, True, dtype="float64")):
        assert fault(FusedKernel(graph), shapes(graph)) is None


def test_a_loss_by_hand() -> None:
    """-(log softmax at the label) * weight over the sum of weights; the label -1 does not count. By the definition in
    ONNX's specification, in float64."""
    rng = np.random.default_rng(0)
    x, labels, w = rng.normal(size=(4, 7, 3)), rng.integers(0, 7, (4, 3)), rng.uniform(0.5, 2, 7)
    labels[0, 0] = labels[2, 1] = -1
    total = weight = 0.0
    for n, d in np.ndindex(4, 3):
        if labels[n, d] >= 0:
            row = x[n, :, d]
            total -= float(w[labels[n, d]] * (row[labels[n, d]] - np.log(np.exp(row).sum())))
            weight += float(w[labels[n, d]])
    got = FusedKernel(loss("mean", -1, True))(x.astype(np.float32), labels, w.astype(np.float32))
    np.testing.assert_allclose(got[0], total / weight, rtol=1e-6)


def test_all_labels_ignored_is_what_the_graph_says() -> None:
    graph = loss("mean", -1, False)
    feeds = {"x": np.zeros((4, 7, 3), np.float32), "i": np.full((4, 3), -1)}
    assert np.isnan(run(graph, feeds)["y"]) and np.isnan(FusedKernel(graph)(*feeds.values())[0])


def test_a_label_outside_is_the_error_of_the_graph() -> None:
    graph = loss("mean", -1, False)
    session = Session(fuse(graph, [Group((0,), "y")]))
    labels = np.zeros((4, 3), np.int64)
    feeds = {"x": np.zeros((4, 7, 3), np.float32), "i": labels}
    np.testing.assert_allclose(session.run(feeds)["y"], np.log(7), rtol=1e-6)
    labels[3, 2] = 7
    with pytest.raises(ExecutionFailed, match="7 is out of bounds"):
        session.run(feeds)


def test_a_training_loss_is_found_without_its_name() -> None:
    b = Builder("loss")
    x, i = b.input("x", "float32", [12, 40]), b.input("i", "int64", [12])
    b.output(softmax_cross_entropy(b, x, i), "y")
    graph = b.graph()
    groups = enumerate_groups(graph, graph.types, 200, 48).groups
    body, _ = body_of(graph, max(groups, key=lambda group: len(group.nodes)))
    assert {node.op for node in body.nodes} >= {"LogSoftmax", "GatherElements", "Neg", "ReduceMean"}
    assert label_of(body) == "cross-entropy" and len(plan_of(body, shapes(body)).before) == 1
    assert fault(FusedKernel(body), shapes(body)) is None


def test_reductions_over_two_sets_of_columns() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[5, 3, 20]) -> (y) {
      a = Softmax(x, axis=2)
      b = ReduceMax(a, axes=[1], keepdims=0)
      y = Exp(b)
    }""")
    assert fault(FusedKernel(graph), shapes(graph)) is None
    third = parse_graph("""graph "g" opset 18 (x: float32[5, 3, 20]) -> (y) {
      a = Softmax(x, axis=2)
      b = Softmax(a, axis=1)
      y = Softmax(b, axis=0)
    }""")
    with pytest.raises(NotFusable, match="different columns"):
        plan_of(third, shapes(third))
