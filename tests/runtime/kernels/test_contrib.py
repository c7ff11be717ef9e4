"""Contrib operators against ONNX Runtime; those without a CPU kernel there against their formula."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from tests.runtime.kernels.contrib import compare, ours
from tests.runtime.kernels.test_convolution import Draw

F = np.float32


@pytest.mark.parametrize("seed", range(6))
def test_activations(seed: int) -> None:
    draw = Draw(seed)
    x, bias = 3 * draw.normal(2, 3, 5), draw.normal(5)
    compare("Gelu", [x])
    compare("BiasGelu", [x, bias])
    compare("FastGelu", [x, draw.pick(None, bias)], slack=5)
    compare("QuickGelu", [x], alpha=draw.pick(None, 0.7))


def test_halves_of_gelu() -> None:
    draw = Draw(0)
    x, bias = draw.normal(2, 3, 6), draw.normal(6)
    left, right = np.split((x + bias).astype(np.float64), 2, axis=-1)
    wanted = left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
    np.testing.assert_allclose(ours("BiasSplitGelu", [x, bias])[0], wanted, rtol=1e-5, atol=1e-6)


def test_bias_add() -> None:
    draw = Draw(0)
    x, bias, skip = draw.normal(2, 3, 6), draw.normal(6), draw.normal(2, 3, 6)
    np.testing.assert_allclose(ours("BiasAdd", [x, bias, skip])[0], x + bias + skip, rtol=1e-6)


@pytest.mark.parametrize("inner", [0, 1])
def test_bias_softmax(inner: int) -> None:
    draw = Draw(0)
    x = draw.normal(2, 3, 4, 5)
    bias = draw.normal(2, 1, 1, 5) if inner else draw.normal(3, 4, 5)
    scores = np.exp((x + bias).astype(np.float64))
    found = ours("BiasSoftmax", [x, bias], axis=3, is_inner_broadcast=inner)[0]
    np.testing.assert_allclose(found, scores / scores.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_fused_matmul(seed: int) -> None:
    draw = Draw(seed)
    rows, depth, columns, batch = (draw.whole(1, 4) for _ in range(4))
    turns = {name: draw.whole(0, 1) for name in ("transA", "transB", "transBatchA", "transBatchB")}

    def factor(side: str, *matrix: int) -> np.ndarray:
        shape = [batch, *(reversed(matrix) if turns[f"trans{side}"] else matrix)]
        if turns[f"transBatch{side}"]:
            shape = [shape[1], shape[0], shape[2]]
        return draw.normal(*shape)

    compare("FusedMatMul", [factor("A", rows, depth), factor("B", depth, columns)], alpha=draw.pick(None, 0.5), **turns)


def test_fused_matmul_of_other_ranks() -> None:
    draw = Draw(0)
    compare("FusedMatMul", [draw.normal(4, 3), draw.normal(2, 4, 5)], transA=1, alpha=2.0)
    compare("TransposeMatMul", [draw.normal(4, 3), draw.normal(2, 4, 5)], transA=1, alpha=2.0)
    compare("FusedMatMul", [draw.normal(4), draw.normal(4, 5)], transA=1)
    compare("FusedMatMul", [draw.normal(2, 3, 2, 4), draw.normal(2, 3, 5, 4)], transB=1)


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.75]),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize(("name", "parameters"), ACTIVATIONS)
def test_fused_conv(name: str, parameters: list[float]) -> None:
    draw = Draw(len(name))
    x, w, bias = draw.normal(2, 4, 5, 6), draw.normal(6, 2, 3, 3), draw.normal(6)
    attrs = {"activation": name, "activation_params": parameters or None, "group": 2}
    compare("FusedConv", [x, w, bias], slack=5, pads=[1, 1, 1, 1], **attrs)
    compare("FusedConv", [x, w, None, draw.normal(2, 6, 3, 4)], slack=5, **attrs)


@pytest.mark.parametrize(("name", "parameters"), [each for each in ACTIVATIONS if each[0] != "Clip"])
def test_fused_gemm(name: str, parameters: list[float]) -> None:
    draw = Draw(len(name))
    given = dict(zip(("activation_alpha", "activation_beta"), parameters))
    compare("FusedGemm", [draw.normal(4, 3), draw.normal(5, 4), draw.pick(None, draw.normal(5))], slack=5,
            transA=1, transB=1, alpha=0.5, activation=name, **given)


def test_conv_transpose_with_dynamic_pads() -> None:
    draw = Draw(0)
    x, w, bias = draw.normal(1, 2, 4, 4), draw.normal(2, 3, 3, 3), draw.normal(3)
    for constants in ((), (2,)):
        compare("ConvTransposeWithDynamicPads", [x, w, np.array([1, 0, 1, 2]), bias], slack=5, constants=constants,
                strides=[2, 1])


def test_small_ones() -> None:
    draw = Draw(0)
    compare("Inverse", [draw.normal(2, 3, 3) + 3 * np.eye(3, dtype=F)], slack=5)
    for metric in ("sqeuclidean", "euclidean"):
        compare("CDist", [draw.normal(4, 3), draw.normal(5, 3)], slack=50, metric=metric)
    compare("Trilu", [draw.normal(2, 3, 4)])
    compare("Trilu", [draw.normal(2, 3, 4), np.array(-1)], upper=0)
    for constants in ((), (1,)):
        compare("ExpandDims", [draw.normal(2, 3), np.array(-1, np.int32)], constants=constants, loose=not constants)
        pads = np.array([0, 1, 2, 0])
        compare("Pad", [draw.normal(3, 4), pads, np.array([1.5], F)], constants=constants, mode="constant")
        compare("Pad", [draw.normal(3, 4), pads], constants=constants, mode="reflect")
        compare("Range", [np.array(2), np.array(9), np.array(3)][: 2 + len(constants)], constants=constants)
    compare("Range", [np.array(0.5, F), np.array(4, F)])
    for mode in ("bilinear", "nearest", "bicubic"):
        compare("GridSample", [draw.normal(2, 3, 4, 5), draw.normal(2, 3, 3, 2)], slack=20, mode=mode,
                padding_mode=draw.pick("zeros", "border", "reflection"))


def test_rfft() -> None:
    x = Draw(0).normal(3, 4, 7)
    wanted = np.fft.rfft(x.astype(np.float64))
    found = ours("Rfft", [x], signal_ndim=1)[0]
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_skip_normalization(seed: int) -> None:
    draw = Draw(seed)
    batch, length, size = (draw.whole(1, 5) for _ in range(3))
    x, skip = draw.normal(batch, length, size), draw.normal(*draw.pick((batch, length, size), (length, size)))
    scale, beta, bias = draw.normal(size), draw.pick(None, draw.normal(size)), draw.pick(None, draw.normal(size))
    shown = draw.pick([0], [0, 3])
    compare("SkipLayerNormalization", [x, skip, scale, beta, bias], shown, slack=20, epsilon=1e-5)
    compare("SkipSimplifiedLayerNormalization", [x, skip, scale, bias], shown, slack=5)


def test_statistics_of_skip_normalization() -> None:
    """ONNX Runtime's CPU kernel leaves them out."""
    draw = Draw(3)
    x, skip, scale = draw.normal(2, 3, 8), draw.normal(2, 3, 8), draw.normal(8)
    total = (x + skip).astype(np.float64)
    _, mean, inverse, _ = ours("SkipLayerNormalization", [x, skip, scale], 4, epsilon=1e-5)
    np.testing.assert_allclose(mean, total.mean(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-5), rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_normalization(axis: int) -> None:
    draw = Draw(0)
    scale = draw.normal(*(3, 4)[axis % 3 - 1:])
    compare("SimplifiedLayerNormalization", [draw.normal(2, 3, 4), scale], 2, domain="", slack=5, axis=axis)


@pytest.mark.parametrize("seed", range(6))
def test_embedding(seed: int) -> None:
    draw = Draw(seed)
    ids = draw.rng.integers(0, 7, (2, 4)).astype(np.int32)
    kinds = draw.pick(None, draw.rng.integers(0, 2, (2, 4)).astype(np.int32))
    mask = draw.pick(None, np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32))
    places = draw.pick(None, draw.rng.integers(0, 6, (2, 4)).astype(np.int32))
    tables = [draw.normal(7, 5), draw.normal(6, 5), None if kinds is None else draw.normal(2, 5)]
    compare("EmbedLayerNormalization", [ids, kinds, *tables, draw.normal(5), draw.normal(5), mask, places], 3, slack=5)
