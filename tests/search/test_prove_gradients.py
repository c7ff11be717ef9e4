"""What the e-graph proves of gradients: the softmax cross-entropy."""

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.ir import Graph
from rules.catalogue import permitted
from runtime import gradients
from runtime.training import softmax_cross_entropy
from search.prove import prove

RULES = permitted("rounding")


def classifier(sizes: list, labels: bool) -> tuple[Builder, Value, Value]:
    """A builder with logits x and their target t."""
    b = Builder(opset=17)
    x = b.input("x", "float32", sizes)
    return b, x, b.input("t", "int64", sizes[:-1]) if labels else b.input("t", "float32", sizes)


def gradient(sizes: list, labels: bool = False) -> Graph:
    b, x, t = classifier(sizes, labels)
    b.output(softmax_cross_entropy(b, x, t, reduction="sum"), "loss")
    graph = gradients(b.graph(), "loss", "x")
    graph.outputs = ["grad_x"]
    return graph


SIZES = pytest.mark.parametrize("sizes", [[4], ["n", 5]], ids=["one", "batch"])


@SIZES
def test_for_any_target_it_is_softmax_times_the_sum_of_the_target_less_the_target(sizes: list) -> None:
    b, x, t = classifier(sizes, labels=False)
    b.output(b.Softmax(x, axis=-1) * b.ReduceSum(t, axes=[-1]) - t, "grad_x")
    proof = prove(gradient(sizes), b.graph(), RULES)
    assert proof.joined and proof.exactness == "rounding" and proof.steps


@SIZES
def test_for_any_target_it_is_not_softmax_less_the_target(sizes: list) -> None:
    b, x, t = classifier(sizes, labels=False)
    b.output(b.Softmax(x, axis=-1) - t, "grad_x")
    assert not prove(gradient(sizes), b.graph(), permitted("approximate")).joined


@SIZES
def test_for_labels_it_is_softmax_less_one_hot(sizes: list) -> None:
    b, x, t = classifier(sizes, labels=True)
    b.output(b.Softmax(x, axis=-1) - b.OneHot(t, sizes[-1], np.float32([0, 1])), "grad_x")
    assert prove(gradient(sizes, labels=True), b.graph(), RULES).joined
