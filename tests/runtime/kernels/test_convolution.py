"""Convolutions, pools and resampling against ONNX Runtime, over random shapes and attributes."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.kernels import convolution
from tests.runtime.kernels.harness import canonical, compare, evaluate_ours

F = np.float32
ROUNDS = range(20)


class Draw:
    """A seeded source of small shapes and attributes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def wholes(self, low: int, high: int, count: int) -> list[int]:
        return [self.whole(low, high) for _ in range(count)]

    def pick(self, *items: object):
        return items[int(self.rng.integers(len(items)))]

    def normal(self, *shape: int, dtype: type = F) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(dtype)


def window(draw: Draw, rank: int, kernel: list[int], pads: bool = True) -> dict[str, object]:
    """Random strides and one kind of padding, automatic padding only where runtimes agree."""
    strides = draw.wholes(1, 3, rank)
    auto = draw.pick("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto.startswith("SAME"):
        strides = [min(s, k) for s, k in zip(strides, kernel)]
    if auto != "NOTSET":
        return {"strides": strides, "auto_pad": auto}
    return {"strides": strides, "pads": [draw.whole(0, k - 1) for k in kernel + kernel]}


@pytest.mark.parametrize("seed", ROUNDS)
def test_conv(seed: int) -> None:
    draw = Draw(seed)
    rank, group = draw.whole(1, 3), draw.pick(1, 1, 2, 3)
    kernel = draw.wholes(1, 3, rank)
    channels, maps = group * draw.whole(1, 3), group * draw.whole(1, 3)
    x = draw.normal(draw.whole(1, 3), channels, *draw.wholes(5, 9, rank))
    w = draw.normal(maps, channels // group, *kernel)
    attrs = window(draw, rank, kernel)
    if "pads" in attrs or attrs.get("auto_pad") == "VALID":
        attrs["dilations"] = draw.wholes(1, 2, rank)
    bias = draw.pick(None, draw.normal(maps))
    compare("Conv", [x, w, bias], draw.pick(1, 11, 21), slack=3, group=group, **attrs)


@pytest.mark.parametrize("most", [1, 200, 2000])
@pytest.mark.parametrize("seed", ROUNDS[:5])
def test_conv_in_pieces(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the windows are unfolded a line, a few lines, or a few samples at a time."""
    monkeypatch.setattr(convolution, "_COLUMN_BYTES", most)
    test_conv(seed)


@pytest.mark.parametrize("seed", ROUNDS)
def test_conv_transpose(seed: int) -> None:
    draw = Draw(seed)
    rank, group = draw.whole(1, 3), draw.pick(1, 1, 2, 3)
    kernel = draw.wholes(1, 3, rank)
    channels, maps = group * draw.whole(1, 3), draw.whole(1, 3)
    x = draw.normal(draw.whole(1, 2), channels, *draw.wholes(3, 6, rank))
    w = draw.normal(channels, maps, *kernel)
    attrs = window(draw, rank, kernel)
    bias = draw.pick(None, draw.normal(maps * group))
    compare("ConvTranspose", [x, w, bias], draw.pick(11, 13, 21), slack=3, group=group, **attrs)


def test_conv_transpose_of_an_explicit_output_shape() -> None:
    draw = Draw(0)
    for shape in ([7], [6], [5]):
        compare("ConvTranspose", [draw.normal(1, 2, 3), draw.normal(2, 1, 4)], 11, strides=[2], output_shape=shape)


def test_automatic_padding_of_the_first_conv_transpose_stays_opaque() -> None:
    arrays = [np.ones((1, 1, 3), F), np.ones((1, 1, 3), F)]
    assert canonical("ConvTranspose", {"auto_pad": "SAME_UPPER"}, arrays, 1) is None
    assert canonical("ConvTranspose", {}, arrays, 1) is not None


@pytest.mark.parametrize("seed", ROUNDS)
def test_max_pool(seed: int) -> None:
    draw = Draw(seed)
    rank = draw.whole(1, 3)
    kernel = draw.wholes(1, 3, rank)
    opset = draw.pick(8, 10, 11, 12, 18, 22)
    attrs = {"kernel_shape": kernel, **window(draw, rank, kernel)}
    if opset >= 10:
        attrs["ceil_mode"] = draw.whole(0, 1)
        if "pads" in attrs:
            attrs["dilations"] = draw.wholes(1, 2, rank)
    x = draw.rng.integers(-4, 4, (2, 2, *draw.wholes(5, 9, rank)))  # ties: the first one wins
    compare("MaxPool", [x.astype(F)], opset, may_be_opaque=True, **attrs)
    compare("MaxPool", [x.astype(F)], opset, 2, may_be_opaque=True, storage_order=draw.whole(0, 1), **attrs)
    if opset >= 12:
        compare("MaxPool", [x.astype(np.int8)], opset, may_be_opaque=True, **attrs)


def test_max_pool_keeps_nan_and_minus_infinity() -> None:
    x = np.array([[[1, np.nan, 2, -np.inf, -np.inf]]], F)
    form = canonical("MaxPool", {"kernel_shape": (2,)}, [x], 12)
    assert form is not None
    np.testing.assert_array_equal(evaluate_ours("MaxPool", *form)[0], [[[np.nan, np.nan, 2, -np.inf]]])
    values, indices = evaluate_ours("MaxPool", *form, 2)
    np.testing.assert_array_equal(values, [[[np.nan, np.nan, 2, -np.inf]]])
    np.testing.assert_array_equal(indices, [[[1, 1, 2, 3]]])


@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
def test_other_pools(op: str, seed: int) -> None:
    draw = Draw(seed)
    rank = draw.whole(1, 3)
    kernel = draw.wholes(1, 3, rank)
    opset = draw.pick(7, 10, 11, 18, 19, 22)
    attrs = {"kernel_shape": kernel, **window(draw, rank, kernel)}
    if opset >= (10 if op == "AveragePool" else 18):
        attrs["ceil_mode"] = draw.whole(0, 1)
    if opset >= (19 if op == "AveragePool" else 18) and "pads" in attrs:
        attrs["dilations"] = draw.wholes(1, 2, rank)
    if op == "AveragePool":
        attrs["count_include_pad"] = draw.whole(0, 1)
    else:
        attrs["p"] = draw.whole(1, 3)
    compare(op, [draw.normal(2, 2, *draw.wholes(5, 9, rank))], opset, may_be_opaque=True, **attrs)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_longer_than_its_input(op: str) -> None:
    """ONNX's formula gives floor(-1/2) + 1 = 0 windows, ONNX Runtime 1, PyTorch an error, as egraft: its means would
    be NaN. With stride 1 and with a part of a window (ceil_mode) runtimes agree."""
    x = np.ones((1, 1, 1), F)
    with pytest.raises(ValueError, match="a window of 2 is longer than the padded input of 1"):
        evaluate_ours(op, {"kernel_shape": (2,), "strides": (2,), "p": 2}, [x])
    compare(op, [x], 22, kernel_shape=(2,))
    compare(op, [x], 22, kernel_shape=(2,), strides=(2,), ceil_mode=1)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_negative_automatic_padding_stays_opaque(op: str) -> None:
    attrs = {"kernel_shape": (1,), "strides": (2,), "auto_pad": "SAME_UPPER"}
    assert canonical(op, attrs, [np.ones((1, 1, 5), F)], 11) is None


def test_windows_that_start_in_the_padding_stay_opaque_before_22() -> None:
    x, plain = [np.ones((1, 1, 5), F)], {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "ceil_mode": 1}
    assert canonical("MaxPool", plain, x, 12) is not None
    disputed = {**plain, "strides": (3,)}
    assert canonical("MaxPool", disputed, x, 12) is None
    assert canonical("MaxPool", disputed, x, 22) is not None


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op: str) -> None:
    draw = Draw(1)
    for rank in (1, 2, 3):
        compare(op, [draw.normal(2, 3, *draw.wholes(1, 5, rank))], draw.pick(2, 13, 21))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size: int) -> None:
    draw = Draw(size)
    for channels in (1, 2, 6):
        compare("LRN", [draw.normal(2, channels, 3, 3)], 13, size=size, alpha=0.1, beta=0.6, bias=1.2)


MODES = [
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
]


@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str, coordinates: str) -> None:
    for seed in range(6):
        draw = Draw(seed)
        opsets = {"half_pixel_symmetric": (19,), "tf_half_pixel_for_nn": (11,)}.get(coordinates, (11, 13, 18, 19))
        opset = draw.pick(*opsets)
        x = draw.normal(1, 2, draw.whole(2, 7), draw.whole(2, 7))
        attrs: dict[str, object] = {"mode": mode, "coordinate_transformation_mode": coordinates}
        if mode == "nearest":
            attrs["nearest_mode"] = draw.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        if mode == "cubic":
            attrs |= {"cubic_coeff_a": draw.pick(-0.5, -0.75), "exclude_outside": draw.whole(0, 1)}
        empty = np.array([], F) if opset == 11 else None
        scales = np.array([1, 1, draw.pick(0.5, 0.7, 1.3, 2, 3), draw.pick(0.6, 1, 1.5, 2)], F)
        sizes = np.array([1, 2, draw.whole(1, 12), draw.whole(1, 12)])
        compare("Resize", [x, empty, scales], opset, slack=4, **attrs)
        compare("Resize", [x, empty, empty, sizes], opset, slack=4, **attrs)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_that_keeps_the_aspect_ratio(policy: str) -> None:
    for seed in range(8):
        draw = Draw(seed)
        x, sizes = draw.normal(1, 2, draw.whole(2, 7), draw.whole(2, 7)), np.array(draw.wholes(1, 12, 2))
        compare(
            "Resize", [x, None, None, sizes], 18, slack=4, mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy
        )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    for seed in range(6):
        draw = Draw(seed)
        scales = np.array([1, 1, draw.whole(1, 3) + draw.pick(0, 0.5), draw.whole(1, 3)], F)
        compare("Upsample", [draw.normal(1, 2, draw.whole(1, 6), draw.whole(1, 6)), scales], 9, slack=2, mode=mode)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, padding: str) -> None:
    old = {"linear": "bilinear", "cubic": "bicubic"}
    for seed in range(6):
        draw = Draw(seed)
        opset = draw.pick(16, 20, 22)
        x = draw.normal(2, 2, draw.whole(2, 6), draw.whole(2, 6))
        grid = draw.rng.uniform(-1.6, 1.6, (2, 3, 2, 2)).astype(F)
        attrs = {"padding_mode": padding, "align_corners": draw.whole(0, 1)}
        name = old.get(mode, mode) if opset == 16 else mode
        compare("GridSample", [x, grid], opset, slack=10, mode=name, **attrs)
        if mode != "cubic":
            grid = draw.rng.uniform(-1.3, 1.3, (2, 2, 2, 2, 3)).astype(F)
            compare("GridSample", [draw.normal(2, 1, 3, 4, 2), grid], 20, slack=10, mode=mode, **attrs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype: str) -> None:
    from graphs.dtypes import numpy_dtype

    draw, half = Draw(3), numpy_dtype(dtype)
    x, w = draw.normal(1, 8, 6, 6).astype(half), draw.normal(4, 8, 3, 3).astype(half)
    attrs = {"group": 1, "auto_pad": "NOTSET", "pads": None, "strides": None, "dilations": None}
    wide = evaluate_ours("Conv", attrs, [x.astype(F), w.astype(F)])[0]
    np.testing.assert_array_equal(evaluate_ours("Conv", attrs, [x, w])[0], wide.astype(half))
