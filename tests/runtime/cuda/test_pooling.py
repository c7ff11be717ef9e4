"""Pools and resizing on the emulated device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype

from .harness import check, emulate, expected, needs_compiler
from .oracle import agree

pytestmark = needs_compiler
RTOL = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}
WINDOWS = (
    ([4, 3, 17], {"kernel_shape": [3]}),
    ([2, 3, 17], {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}),
    ([2, 3, 9, 10], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ([2, 3, 9, 10], {"kernel_shape": [2, 3], "dilations": [2, 3]}),
    ([2, 3, 9, 10], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 0, 0]}),
    ([2, 3, 9, 10], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ([2, 3, 9, 10], {"kernel_shape": [3, 4], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ([2, 3, 9, 10], {"kernel_shape": [3, 4], "auto_pad": "VALID"}),
    ([1, 2, 5, 6, 7], {"kernel_shape": [2, 3, 2], "strides": [1, 2, 3], "pads": [1, 1, 0, 0, 1, 1]}),
)  # fmt: skip


class Cases:
    """Builds a graph with random inputs."""

    def __init__(self, opset: int = 22) -> None:
        self.b, self.random = Builder("cases", opset=opset), np.random.default_rng(7)
        self.feeds: dict[str, np.ndarray] = {}

    def put(self, array: np.ndarray) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.b.input(name, array.dtype.name, array.shape)

    def normal(self, *shape: int, dtype: str = "float32") -> Value:
        return self.put(self.random.normal(size=shape).astype(numpy_dtype(dtype)))

    def keep(self, made: object) -> None:
        for value in made if isinstance(made, tuple) else (made,):
            self.b.output(value)


def test_pools_of_every_rank() -> None:
    c = Cases()
    for shape, attrs in WINDOWS:
        x = c.normal(*shape)
        c.keep(c.b.MaxPool(x, outputs=2, **attrs))
        if len(shape) != 4:
            c.keep(c.b.MaxPool(x, storage_order=1, outputs=2, **attrs))
        c.keep(c.b.AveragePool(x, **attrs))
        if not attrs.get("ceil_mode"):
            c.keep(c.b.AveragePool(x, count_include_pad=1, **attrs))
            c.keep(c.b.LpPool(x, p=1 + len(attrs), **attrs))  # 2, 3 and more
    agree(c.b.graph(), c.feeds, rtol=RTOL)


def test_pools_of_strided_inputs_and_other_dtypes() -> None:
    c = Cases()
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 1, 0]}
    turned = c.b.Transpose(c.normal(9, 2, 10, 3), perm=[1, 3, 2, 0])
    for dtype in ("float64", "float16", "bfloat16"):
        x = c.normal(2, 3, 9, 10, dtype=dtype)
        c.keep(c.b.MaxPool(x, **window))
        c.keep(c.b.AveragePool(x, **window))
        c.keep(c.b.GlobalAveragePool(x))
    for dtype in ("int8", "uint8"):
        x = c.put(c.random.integers(-100 if dtype == "int8" else 0, 100, (2, 3, 9, 10)).astype(dtype))
        c.keep(c.b.MaxPool(x, outputs=2, **window))
    c.keep(c.b.MaxPool(turned, outputs=2, **window))
    c.keep(c.b.AveragePool(turned, **window))
    c.keep(c.b.GlobalMaxPool(turned))
    c.keep(c.b.GlobalAveragePool(turned))
    c.keep(c.b.GlobalAveragePool(c.normal(2, 3, 5)))
    agree(c.b.graph(), c.feeds, rtol=RTOL)


def test_norms_of_whole_images(tmp_path: Path) -> None:
    c = Cases(21)
    for p in (1, 2, 3):
        c.keep(c.b.GlobalLpPool(c.normal(2, 3, 5, 7), p=p))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))


def test_a_nan_in_a_window_is_its_greatest() -> None:
    c = Cases()
    value = c.random.normal(size=(1, 1, 6)).astype(np.float32)
    value[0, 0, 2] = np.nan
    value[0, 0, 4] = -np.inf
    x = c.put(value)
    c.keep(c.b.MaxPool(x, kernel_shape=[2], outputs=2))
    v = value[0, 0]
    wanted = [np.maximum(v[:-1], v[1:])[None, None],
              np.array([[[int(np.argmax(v[i : i + 2])) + i for i in range(5)]]], np.int64)]  # fmt: skip
    check(c.b.graph(), c.feeds, wanted)


MODES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")


def test_resize(tmp_path: Path) -> None:
    c = Cases(19)
    x, image = c.normal(1, 2, 5, 7), c.b.Transpose(c.normal(1, 4, 6, 2), perm=[0, 3, 1, 2])
    for mode in MODES:
        for target in ([1, 2, 9, 4], [1, 2, 3, 14], [1, 2, 5, 1]):
            c.keep(c.b.Resize(x, sizes=target, mode="linear", coordinate_transformation_mode=mode))
        for policy in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            c.keep(c.b.Resize(x, scales=[1.0, 1.0, 1.7, 0.7], coordinate_transformation_mode=mode,
                              nearest_mode=policy))
        c.keep(c.b.Resize(image, scales=[1.0, 1.0, 2.0, 2.0], mode="linear", coordinate_transformation_mode=mode))
        c.keep(c.b.Resize(image, sizes=[1, 2, 9, 8], mode="cubic", coordinate_transformation_mode=mode))
    c.keep(c.b.Resize(x, sizes=[1, 2, 3, 4], mode="linear", antialias=1))
    c.keep(c.b.Resize(x, sizes=[4, 9], axes=[2, 3], mode="linear"))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path), rtol=1e-4, atol=1e-5)


def test_resize_of_a_region_of_integers_and_of_16_bits(tmp_path: Path) -> None:
    c = Cases(19)
    x = c.normal(1, 2, 5, 7)
    for mode in ("nearest", "linear"):
        c.keep(c.b.Resize(x, sizes=[1, 2, 6, 5], roi=[0.0, 0.0, 0.2, -0.3, 1.0, 1.0, 0.8, 1.1], mode=mode,
                          coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0))
    whole = c.put(c.random.integers(0, 200, (1, 2, 5, 7)).astype(np.uint8))
    c.keep(c.b.Resize(whole, scales=[1.0, 1.0, 2.0, 3.0]))
    c.keep(c.b.Resize(whole, scales=[1.0, 1.0, 2.0, 1.0], mode="linear", coordinate_transformation_mode="asymmetric"))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path), rtol=1e-4, atol=1e-5)
    c = Cases(19)
    small = c.normal(1, 2, 5, 7, dtype="float16")
    c.keep(c.b.Resize(small, scales=[1.0, 1.0, 2.0, 2.0], mode="linear"))
    c.keep(c.b.Resize(small, scales=[1.0, 1.0, 2.0, 2.0]))
    agree(c.b.graph(), c.feeds, rtol=RTOL)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str, tmp_path: Path) -> None:
    c = Cases(9)
    c.keep(c.b.Upsample(c.normal(1, 2, 3, 4), scales=[1.0, 1.0, 2.0, 3.0], mode=mode))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))


def test_nothing_to_do() -> None:
    c = Cases(19)
    x = c.normal(1, 2, 3, 4)
    c.keep(c.b.Resize(x, scales=[1.0, 1.0, 1.0, 1.0]))
    c.keep(c.b.MaxPool(c.normal(0, 2, 3, 4), kernel_shape=[2, 2]))
    found, executor = emulate(c.b.graph(), c.feeds)
    np.testing.assert_array_equal(found[0], c.feeds["x0"])
    assert found[1].shape == (0, 2, 2, 3) and not executor.device.launches  # type: ignore[attr-defined]
