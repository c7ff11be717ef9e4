"""Normalization and softmax against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.operators import find
from runtime.kernels.normalization import KERNELS
from tests.runtime.kernels.harness import canonical, compare, evaluate_ours
from tests.runtime.kernels.test_convolution import ROUNDS, Draw

F = np.float32


@pytest.mark.parametrize("seed", ROUNDS)
def test_batch_normalization(seed: int) -> None:
    draw = Draw(seed)
    channels = draw.whole(1, 4)
    x = draw.normal(*(3, channels, 4, 2)[: draw.whole(2, 4)])
    vectors = [draw.normal(channels) for _ in range(3)]
    arrays = [x, *vectors, np.abs(draw.normal(channels))]
    compare("BatchNormalization", arrays, draw.pick(7, 9, 14, 15), epsilon=draw.pick(1e-5, 1e-3))
    compare("BatchNormalization", arrays, draw.pick(14, 15), 3, slack=4, training_mode=1, momentum=0.7)


def test_batch_normalization_of_old_versions() -> None:
    arrays = [np.ones((2, 3), F)] + [np.ones(3, F)] * 4
    assert canonical("BatchNormalization", {"spatial": 0}, arrays, 7) is None
    assert canonical("BatchNormalization", {"is_test": 0}, arrays, 6) is None
    form = canonical("BatchNormalization", {"is_test": 1, "consumed_inputs": (0, 0)}, arrays, 1)
    assert form is not None and form[0]["training_mode"] == 0
    record = find("BatchNormalization")
    assert record is not None and record.write is not None
    assert record.write(dict(form[0], training_mode=1), 9) is None
    assert record.write(form[0], 9) == {"epsilon": form[0]["epsilon"], "momentum": form[0]["momentum"]}


@pytest.mark.parametrize("seed", ROUNDS)
def test_layer_and_rms_normalization(seed: int) -> None:
    draw = Draw(seed)
    x = draw.normal(*draw.wholes(1, 5, draw.whole(1, 4))).astype(draw.pick(F, F, np.float16))
    axis = draw.whole(-x.ndim, x.ndim - 1)
    scale, bias = (draw.normal(*x.shape[axis:]).astype(x.dtype) for _ in range(2))
    outputs = 3 if x.dtype == F else 1
    compare("LayerNormalization", [x, scale, draw.pick(None, bias)], draw.pick(17, 21), outputs, slack=10, axis=axis)
    compare("RMSNormalization", [x, scale], 23, slack=5, axis=axis)


@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax(op: str, seed: int) -> None:
    draw = Draw(seed)
    x = 10 * draw.normal(*draw.wholes(1, 5, draw.whole(1, 4)))
    axis = draw.whole(-x.ndim, x.ndim - 1)
    compare(op, [x], draw.pick(13, 21), axis=draw.pick(axis, None))
    compare(op, [x], 11, axis=axis)
    compare(op, [x], 9, axis=axis % x.ndim)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_old_versions_flattens(op: str) -> None:
    x, record = np.ones((2, 3, 4), F), find(op)
    assert record is not None and record.write is not None

    def read(opset: int, **attrs: int) -> dict[str, object]:
        form = canonical(op, attrs, [x], opset)
        assert form is not None
        return form[0]

    assert read(11) == {"axis": 1, "flatten": 1}
    assert read(13) == {"axis": -1, "flatten": 0}
    assert read(11, axis=-1) == {"axis": -1, "flatten": 0}  # the same thing along the last axis
    assert record.write({"axis": 1, "flatten": 1}, 13) is None
    assert record.write({"axis": 1, "flatten": 0}, 11) is None
    assert record.write({"axis": -1, "flatten": 0}, 11) == {"axis": -1}
    assert record.write({"axis": -1, "flatten": 0}, 1) == {"axis": -1}  # the writer counts it from the front
    assert record.write({"axis": 1, "flatten": 1}, 1) == {"axis": 1}


def test_softmax_is_stable() -> None:
    x = np.array([[1e4, 1e4, -1e4], [-np.inf, 0, 0]], F)
    y = evaluate_ours("Softmax", {"axis": -1, "flatten": 0}, [x])[0]
    np.testing.assert_allclose(y, [[0.5, 0.5, 0], [0, 0.5, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("seed", ROUNDS)
def test_other_normalizations(seed: int) -> None:
    draw = Draw(seed)
    channels = draw.pick(2, 4, 6)
    x = draw.normal(2, channels, *draw.wholes(2, 5, draw.whole(1, 3)))
    scale, bias = draw.normal(channels), draw.normal(channels)
    compare("InstanceNormalization", [x, scale, bias], draw.pick(6, 21), slack=10)
    compare("GroupNormalization", [x, scale, bias], 21, slack=10, num_groups=draw.pick(1, 2, channels))
    compare("LpNormalization", [x], draw.pick(1, 21), axis=draw.whole(-x.ndim, x.ndim - 1), p=draw.whole(1, 2))
    compare(
        "MeanVarianceNormalization",
        [draw.normal(2, 3, 4, 4)],
        draw.pick(9, 13),
        slack=10,
        axes=draw.pick(None, [0, 2, 3], [2, 3]),
    )


def test_lp_normalization_of_zeros() -> None:
    y = evaluate_ours("LpNormalization", {"axis": -1, "p": 2}, [np.zeros((2, 3), F)])[0]
    np.testing.assert_array_equal(y, np.zeros((2, 3)))


@pytest.mark.parametrize("op, vectors", [("BatchNormalization", 4), ("InstanceNormalization", 2)])
@pytest.mark.parametrize("channels, size", [(1, 3), (3, 1), (2, 3)])
def test_vectors_are_not_broadcast_over_channels(op: str, vectors: int, channels: int, size: int) -> None:
    x, vector = np.ones((2, channels, 4), np.float32), np.ones(size, np.float32)
    attrs = {"epsilon": 1e-5, "momentum": 0.9}
    with pytest.raises(ValueError, match=f"{size} elements, one for each channel, for {channels} channels"):
        KERNELS[op](attrs, [x] + [vector] * vectors)
