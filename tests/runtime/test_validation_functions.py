"""Calls of model-local functions are compared as the nodes of their bodies."""

import onnx.parser
import pytest

from graphs import load
from graphs.ir import Node
from graphs.onnx_io import inline_functions
from runtime import validate

FUNCTIONS = """<ir_version: 9, opset_import: ["" : 17, "f" : 1, "my.domain" : 1]>
g (float[N, 12] x) => (float[N, 12] y) { y = f.outer(x) }
<domain: "f", opset_import: ["" : 17, "f" : 1]> outer (a) => (c) { b = f.inner(a) d = Neg(b) c = Neg(d) }
<domain: "f", opset_import: ["" : 17, "my.domain" : 1]> inner (a) => (b) { %s }"""


@pytest.mark.parametrize("body", ["b = Relu(a)", "b = RandomNormalLike(a)", "b = my.domain.Foo(a)", "b = Round(a)"])
def test_functions_whose_bodies_cannot_be_compared_by_themselves(body: str) -> None:
    """One that calls another, which comes after it (`onnx.reference` does not run that), is random, or unknown."""
    original = load(onnx.parser.parse_model(FUNCTIONS % body).SerializeToString())
    opened = original.copy()
    assert inline_functions(opened) and not opened.functions
    assert validate(original, opened).ok and validate(opened, original).ok
    opened.nodes = [node for node in opened.nodes if node.op != "Neg"]
    opened.nodes[-1].outputs = ("y",)
    assert validate(original, opened).ok
    opened.nodes[-1].outputs = ("t",)
    opened.nodes.append(Node("Neg", ("t",), ("y",), version=13))
    assert validate(original, opened).status == "failed"
