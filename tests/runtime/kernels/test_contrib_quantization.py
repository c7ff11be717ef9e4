"""ONNX Runtime's quantized arithmetic: the same integers, except where a result lies between two."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.kernels.contrib import compare, make_model, ours
from tests.runtime.kernels.harness import run_ort
from tests.runtime.kernels.test_convolution import Draw

F = np.float32
KINDS = pytest.mark.parametrize("dtype", [np.uint8, np.int8])
Part = list["np.ndarray | None"]


def number(value: float) -> np.ndarray:
    return np.array(value, F)


def tensor(draw: Draw, dtype: type, scale: float, *shape: int) -> Part:
    """Tensor, scale, zero point."""
    info = np.iinfo(dtype)
    x = draw.rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return [x, number(scale), np.array(draw.whole(info.min // 4, info.max // 4), dtype)]


def nearly(op: str, inputs: Part, **attrs: object) -> None:
    """Equal to ONNX Runtime's, but for two in a thousand that are one off."""
    mine, = ours(op, inputs, **attrs)
    theirs, = run_ort(make_model(op, inputs, **attrs), inputs)  # type: ignore[arg-type]
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    difference = np.abs(mine.astype(int) - theirs.astype(int))
    assert difference.max(initial=0) <= 1 and difference.mean() <= 0.002, difference.mean()


@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_elementwise(dtype: type, seed: int) -> None:
    draw = Draw(seed)
    a = tensor(draw, dtype, 0.031337, 3, 4, 50)
    b = tensor(draw, dtype, 0.0171723, *draw.pick((3, 4, 50), (4, 1), (50,), ()))
    zero = np.array(draw.whole(0, 30), dtype)
    nearly("QLinearAdd", [*a, *b, number(0.05), zero])
    nearly("QLinearMul", [*b, *a, number(0.06), zero])
    nearly("QLinearSigmoid", [*a, number(1 / 256), zero])
    nearly("QLinearLeakyRelu", [*a, number(0.027), zero], alpha=0.1)
    where = draw.rng.random((3, 4, 50)) < 0.5
    nearly("QLinearWhere", [where, *a, *b, number(0.05), zero])


@KINDS
def test_concat_and_softmax(dtype: type) -> None:
    draw = Draw(0)
    parts = [each for size in (2, 3, 4) for each in tensor(draw, dtype, 0.01 * size, 3, size, 50)]
    nearly("QLinearConcat", [number(0.03), np.array(5, dtype), *parts], axis=1)
    zero = np.array(np.iinfo(dtype).min, dtype)
    for axis, opset in ((-1, 13), (1, 13), (1, 12)):
        nearly("QLinearSoftmax", [*tensor(draw, dtype, 0.02, 3, 5, 50), number(1 / 256), zero], axis=axis, opset=opset)


@KINDS
@pytest.mark.parametrize("last", [0, 1])
def test_pools(dtype: type, last: int) -> None:
    draw = Draw(last)
    shape = (2, 9, 8, 3) if last else (2, 3, 9, 8)
    x, result = tensor(draw, dtype, 0.0312217, *shape), [number(0.027), np.array(3, dtype)]
    nearly("QLinearGlobalAveragePool", [*x, *result], channels_last=last)
    for attrs in ({}, {"pads": [1, 0, 1, 1], "strides": [2, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}):
        nearly("QLinearAveragePool", [*x, *result], channels_last=last, kernel_shape=[3, 2], **attrs)


@pytest.mark.parametrize("last", [0, 1])
def test_what_onnx_runtime_makes_of_quantized_images(last: int) -> None:
    draw = Draw(last)
    x = tensor(draw, np.uint8, 0.0312217, *((2, 7, 6, 4) if last else (2, 4, 7, 6)))
    w = tensor(draw, np.int8, 0.0113, 6, 2, 3, 3)
    w[2] = np.array(0, np.int8)
    result, bias = [number(0.41), np.array(100, np.uint8)], draw.rng.integers(-999, 999, 6).astype(np.int32)
    nearly("QLinearConv", [*x, *w, *result, bias], channels_last=last, group=2, pads=[1, 0, 1, 1], strides=[2, 1])
    compare("NhwcMaxPool", [x[0]], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])


@pytest.mark.parametrize("seed", range(8))
def test_quantized_gemm(seed: int) -> None:
    draw = Draw(seed)
    turns = {name: draw.whole(0, 1) for name in ("transA", "transB")}
    a = tensor(draw, np.uint8, 0.0312217, *((6, 40) if turns["transA"] else (40, 6)))
    b = tensor(draw, np.int8, 0.0113, *((9, 6) if turns["transB"] else (6, 9)))
    if draw.pick(True, False):
        b[1:] = [np.abs(draw.normal(9)) + F(0.01), np.zeros(9, np.int8)]
    bias = draw.pick(None, draw.rng.integers(-99, 99, 9).astype(np.int32))
    compare("QGemm", [*a, *b, bias], slack=20, **turns)
    nearly("QGemm", [*a, *b, bias, number(0.41), np.array(100, np.uint8)], **turns)


@pytest.mark.parametrize("seed", range(8))
def test_products_as_floats(seed: int) -> None:
    draw = Draw(seed)
    b = draw.rng.integers(-128, 127, (6, 5)).astype(np.int8)
    scale = draw.pick(number(0.02), np.abs(draw.normal(5)) + F(0.1))
    zero, bias = draw.pick(None, np.zeros(scale.shape, np.int8)), draw.pick(None, draw.normal(5))
    a = draw.rng.integers(0, 256, (2, 3, 6)).astype(np.uint8)
    point = draw.pick(None, np.array(100, np.uint8))
    compare("MatMulIntegerToFloat", [a, b, number(0.03), scale, point, zero, bias], slack=5)
    compare("DynamicQuantizeMatMul", [draw.normal(2, 3, 6), b, scale, zero, bias], slack=20)


@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "packed"), (4, "float"), (8, "none"), (8, "packed")])
@pytest.mark.parametrize("block", [16, 32])
def test_products_with_few_bits(bits: int, zeros: str, block: int) -> None:
    draw = Draw(block)
    inner, outer, blocks = 48, 5, -(-48 // block)
    packed = draw.rng.integers(0, 256, (outer, blocks, block * bits // 8)).astype(np.uint8)
    bytes_ = -(-blocks * bits // 8)
    given: dict[str, np.ndarray | None] = {
        "none": None, "packed": draw.rng.integers(0, 256, (outer, bytes_)).astype(np.uint8),
        "float": np.abs(draw.normal(outer, blocks)) * 4}
    inputs = [draw.normal(2, 3, inner), packed, np.abs(draw.normal(outer, blocks)), given[zeros], None,
              draw.pick(None, draw.normal(outer))]
    compare("MatMulNBits", inputs, slack=50, K=inner, N=outer, bits=bits, block_size=block,
            constants=[1, 2, *([3] if given[zeros] is not None else [])])


@KINDS
def test_the_operators_that_onnx_took_over(dtype: type) -> None:
    draw = Draw(0)
    x, scales, zeros = draw.normal(2, 3, 4), np.abs(draw.normal(3)) + F(0.1), np.array([1, 2, 3], dtype)
    compare("QuantizeLinear", [x, scales, zeros], axis=1)
    compare("QuantizeLinear", [x, number(0.02), np.array(5, dtype)])
    numbers = draw.rng.integers(0, 100, (2, 3, 4)).astype(dtype)
    compare("DequantizeLinear", [numbers, scales, zeros], axis=1)
    compare("DequantizeLinear", [numbers, number(0.02), np.array(5, dtype)])
