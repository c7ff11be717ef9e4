"""Quantization against ONNX Runtime: every element must be the same integer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.kernels.harness import compare
from tests.runtime.kernels.test_convolution import Draw

F = np.float32


def positive(draw: Draw, *shape: int) -> np.ndarray:
    return np.asarray(np.abs(draw.rng.standard_normal(shape)) + 0.1, F)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantize_and_dequantize(dtype: type, seed: int) -> None:
    draw = Draw(seed)
    channels = draw.whole(1, 4)
    shape = (draw.whole(1, 3), channels, draw.whole(1, 5))
    x, numbers = 50 * draw.normal(*shape), draw.rng.integers(0, 100, shape).astype(dtype)
    scale, zero = positive(draw), draw.pick(None, np.array(draw.whole(0, 100), dtype))
    compare("QuantizeLinear", [x, scale, zero], draw.pick(10, 13, 19, 21, 23))
    compare("DequantizeLinear", [numbers, scale, zero], draw.pick(10, 13, 19, 21, 23))
    half = np.asarray(scale, np.float16)
    compare("QuantizeLinear", [x.astype(np.float16), half, zero], 21)
    compare("DequantizeLinear", [numbers, half, zero], 21)
    scales, zeros = positive(draw, channels), draw.rng.integers(0, 100, channels).astype(dtype)
    axis, opset = draw.pick(1, -2), draw.pick(13, 19, 21)
    compare("QuantizeLinear", [x, scales, zeros], opset, axis=axis)
    compare("DequantizeLinear", [numbers, scales, zeros], opset, axis=axis)
    blocked = (*shape[:2], -(-shape[2] // 2))
    scales, zeros = positive(draw, *blocked), draw.rng.integers(0, 100, blocked).astype(dtype)
    compare("QuantizeLinear", [x, scales, zeros], 21, axis=2, block_size=2)
    compare("DequantizeLinear", [numbers, scales, zeros], 21, axis=2, block_size=2)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_sixteen_bits(dtype: type) -> None:
    draw = Draw(2)
    compare("QuantizeLinear", [5000 * draw.normal(2, 3, 4), positive(draw), np.array(77, dtype)], 21)


def test_dequantize_int32() -> None:
    draw = Draw(3)
    x = draw.rng.integers(-(10**9), 10**9, (3, 4)).astype(np.int32)
    compare("DequantizeLinear", [x, positive(draw)], 13)


def test_dynamic_quantize() -> None:
    draw = Draw(4)
    x = 9 * draw.normal(3, 5)
    for data in (x, np.abs(x), -np.abs(x), 0 * x):
        compare("DynamicQuantizeLinear", [data], 11, 3)


@pytest.mark.parametrize("seed", range(15))
def test_convolutions(seed: int) -> None:
    draw = Draw(seed)
    group = draw.pick(1, 2)
    x = draw.rng.integers(0, 255, (draw.whole(1, 2), 2 * group, 5, 5)).astype(np.uint8)
    w = draw.rng.integers(-128, 127, (2 * group, 2, draw.whole(1, 3), draw.whole(1, 3))).astype(np.int8)
    attrs = {"group": group, "strides": draw.wholes(1, 2, 2), "pads": draw.wholes(0, 1, 4)}
    compare("ConvInteger", [x, w.view(np.uint8), np.array(draw.whole(0, 9), np.uint8)], 10, **attrs)
    scales = draw.pick(np.array(0.02, F), 0.02 * positive(draw, 2 * group))
    bias = draw.pick(None, draw.rng.integers(-999, 999, 2 * group).astype(np.int32))
    zero = np.array(draw.whole(0, 200), np.uint8)
    compare(
        "QLinearConv",
        [x, np.array(0.05, F), zero, w, scales, np.zeros(scales.shape, np.int8), np.array(1.7, F), zero, bias],
        10,
        **attrs,
    )


@pytest.mark.parametrize("depth", [1, 30, 600])
def test_qlinear_matmul(depth: int) -> None:
    draw = Draw(depth)
    a = draw.rng.integers(0, 255, (2, 3, depth)).astype(np.uint8)
    b = draw.rng.integers(-128, 127, (depth, 4)).astype(np.int8)
    for scales in (np.array(0.01, F), 0.01 * positive(draw, 4)):
        compare(
            "QLinearMatMul",
            [
                a,
                np.array(0.02, F),
                np.array(7, np.uint8),
                b,
                scales,
                np.zeros(scales.shape, np.int8),
                np.array(0.9, F),
                np.array(100, np.uint8),
            ],
            10,
        )
