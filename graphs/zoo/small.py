"""Two graphs of a few nodes: logistic regression, and a product between two sums."""

from __future__ import annotations

from dataclasses import dataclass

from ..builder import Builder
from ..ir import Graph
from .exporter import IR_VERSION, Exporter


@dataclass(frozen=True)
class Sizes:
    """Columns of the input."""

    features: int = 30
    opset: int = 17
    seed: int = 0


def logistic_regression(name: str, sizes: Sizes) -> Graph:
    """`Sigmoid(x W + b)`."""
    net = Exporter(name, sizes.opset, sizes.seed)
    x = net.builder.input("x", "float32", ["batch", sizes.features])
    product = net("MatMul", x, net.normal("weight", (sizes.features, 1), 1.0))
    return net.finish(probability=net("Sigmoid", net("Add", product, net.normal("bias", (1,), 0.5))))


def multiply_add(name: str, sizes: Sizes) -> Graph:
    """`D + (A + B) * C`: three operators that one kernel could do."""
    b = Builder(name, opset=sizes.opset, ir_version=IR_VERSION)
    first, second, factor, addend = (b.input(each, "float32", ["batch", sizes.features]) for each in "ABCD")
    b.output(addend + (first + second) * factor, "y")
    return b.graph()
