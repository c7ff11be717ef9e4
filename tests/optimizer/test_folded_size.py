"""Folding leaves weights as the file stores them, and does not let the file grow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import optimize
from optimizer.normalize import normalize, why_not_folded
from optimizer.normalize.folding import COPY_BYTES, GROWTH_BYTES
from rules.catalogue import all_rules
from search import LOW, saturate
from search.prove import prove

OPTIONS = {"target": "roofline", "effort": "low", "objective": "nodes"}


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def normalized(graph: Graph) -> Graph:
    normalize(graph)
    return graph


def stored(graph: Graph) -> int:
    return sum(constant.nbytes for constant in graph.constants.values())


def weight(b: Builder, dtype: str, width: int, start: int = 0) -> Value:
    return b.constant((np.arange(64 * width).reshape(64, width) % 7 + start).astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "float8_e4m3fn", "int32"])
def test_quantized_weights_stay_quantized(dtype: str) -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", ["n", 64])
    b.output(b.MatMul(x, b.DequantizeLinear(weight(b, dtype, 4), np.float32(0.25))), "y")
    graph = normalized(b.graph())
    assert operators(graph) == Counter(DequantizeLinear=1, MatMul=1)
    (reason, row), = why_not_folded(graph).items()
    assert "weights stay stored in few bits" in reason and row["count"] == 1


def test_weights_in_blocks_and_of_the_contrib_operator_stay_quantized() -> None:
    b = Builder(opset=21, opsets={"com.microsoft": 1})
    x = b.input("x", "float32", ["n", 64])
    scales = np.ones((4, 8), np.float32)
    blocks = b.DequantizeLinear(weight(b, "int4", 8), scales, axis=0, block_size=16)
    other = b.op("DequantizeLinear", weight(b, "uint8", 8), np.float32(0.5), np.uint8(3), domain="com.microsoft")
    b.output(b.Add(b.MatMul(x, blocks), b.MatMul(x, other)), "y")
    assert operators(normalized(b.graph()))["DequantizeLinear"] == 2


def test_weights_that_are_quantized_in_the_file_are_stored_so() -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", ["n", 64])
    codes = b.QuantizeLinear(weight(b, "float32", 4), np.float32(0.25), np.int8(0))
    b.output(b.MatMul(x, b.DequantizeLinear(codes, np.float32(0.25), np.int8(0))), "y")
    graph = normalized(b.graph())
    assert operators(graph) == Counter(DequantizeLinear=1, MatMul=1)
    assert stored(graph) < 64 * 4 + 20


def test_one_number_is_dequantized() -> None:
    graph = parse_graph("graph (x: float32[2]) -> (y) { k = constant int8[] 4  s = constant float32[] 0.5 "
                        "d = DequantizeLinear(k, s) y = Mul(x, d) }")
    assert operators(normalized(graph)) == Counter(Mul=1)


@pytest.mark.parametrize(("dtype", "width", "casts"), [("int8", 64, 1), ("int4", 64, 1), ("float8_e5m2", 64, 1),
                                                       ("int8", 2, 0), ("bool", 64, 0)])
def test_a_cast_of_many_narrow_numbers_stays(dtype: str, width: int, casts: int) -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", ["n", 64])
    b.output(b.MatMul(x, b.Mul(b.Cast(weight(b, dtype, width), to=1), np.float32(0.5))), "y")
    assert operators(normalized(b.graph()))["Cast"] == casts


def test_what_is_computed_from_quantized_weights_is_folded_where_it_is_small() -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", ["n", 64])
    real = b.DequantizeLinear(weight(b, "int8", 64), np.float32(0.25))
    total = b.ReduceSum(real, axes=[0], keepdims=0)
    b.output(b.Add(b.MatMul(x, b.Mul(real, np.float32(2))), total), "y")
    assert operators(normalized(b.graph())) == Counter(DequantizeLinear=1, Mul=1, MatMul=1, Add=1)


def test_many_small_foldings_do_not_add_up() -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", [64, 64])
    for layer in range(8):  # each grows the file by less than the bound, all of them by twice as much
        row, column = np.full((1, 64), 1.5 + layer, np.float32), np.full((64, 1), 2.5, np.float32)
        x = b.Sin(b.Add(x, b.Div(row, column)))
    graph = b.graph()
    before = stored(graph)
    assert stored(normalized(graph)) <= before + GROWTH_BYTES
    assert stored(normalized(graph)) <= before + GROWTH_BYTES  # a second time neither


@pytest.mark.parametrize("op", ["Expand", "Tile", "ConstantOfShape", "EyeLike", "Range"])
def test_copies_stay_nodes(op: str) -> None:
    b = Builder(opset=21)
    x, size, one = b.input("x", "float32", ["n", 64]), np.array([64, 64]), np.ones((1, 1), np.float32)
    copy = {"Expand": lambda: b.Expand(one, size), "Tile": lambda: b.Tile(one, size),
            "ConstantOfShape": lambda: b.ConstantOfShape(size), "EyeLike": lambda: b.EyeLike(b.ConstantOfShape(size)),
            "Range": lambda: b.Reshape(b.Range(np.float32(0), np.float32(4096), np.float32(1)), size)}[op]()
    b.output(b.MatMul(x, copy), "y")
    graph = normalized(b.graph())
    assert op in operators(graph) and stored(graph) < COPY_BYTES


def two_products() -> tuple[Graph, Graph]:
    """x times dequantized weights, and x times the same numbers as float32."""
    graphs = []
    for real in (False, True):
        b = Builder(opset=21)
        x, codes = b.input("x", "float32", [2, 64]), np.arange(4096).reshape(64, 64) % 7
        factor = b.constant(codes.astype(np.float32) * np.float32(0.25)) if real else b.DequantizeLinear(
            b.constant(codes.astype(np.int8)), np.float32(0.25))
        b.output(b.MatMul(x, factor), "y")
        graphs.append(b.graph())
    return graphs[0], graphs[1]


def test_a_search_takes_them_for_no_constants_and_a_proof_computes_them() -> None:
    packed, plain = two_products()
    saturated = saturate(packed, all_rules(), LOW)
    assert saturated.class_of(packed.nodes[0].outputs[0]) not in saturated.constant
    assert prove(packed, plain, all_rules()).joined


def test_the_trace_says_why_weights_stay() -> None:
    b = Builder(opset=21)
    x = b.input("x", "float32", [2, 64])
    real = b.DequantizeLinear(weight(b, "int8", 64), np.float32(0.25))
    b.output(b.Relu(b.MatMul(b.Mul(x, np.float32(3)), real)), "y")
    graph = b.graph()
    result = optimize(graph, **OPTIONS)
    assert stored(result.graph) <= stored(graph)
    (reason, row), = result.trace.refusals["fold-constants"].items()
    assert "quantized kernels" in reason and row["count"] == 1 and row["where"]
