"""Depthwise convolution by banded matrices is the sum over windows; infinities and NaN stay in their windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels import convolution


def summed(x: np.ndarray, w: np.ndarray, strides: tuple[int, ...], dilations: tuple[int, ...], pad: int) -> np.ndarray:
    """By the definition, window by window."""
    rank = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * rank])
    counts = [(size - (k - 1) * d - 1) // s + 1
              for size, k, d, s in zip(padded.shape[2:], w.shape[2:], dilations, strides)]
    out = np.empty((*x.shape[:2], *counts), x.dtype)
    for place in np.ndindex(*counts):
        window = padded[(..., *(slice(at * s, at * s + (k - 1) * d + 1, d)
                                for at, s, k, d in zip(place, strides, w.shape[2:], dilations)))]
        out[(..., *place)] = (window * w[:, 0]).sum(axis=tuple(range(2, 2 + rank)))
    return out


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_by_the_definition(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from([2, 2, 3]))
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    strides, dilations = (tuple(data.draw(st.integers(1, 2)) for _ in range(rank)) for _ in range(2))
    pad, channels = data.draw(st.integers(0, 2)), data.draw(st.integers(2, 3))
    sizes = [max(data.draw(st.integers(1, 9)), (k - 1) * d + 1 - 2 * pad) for k, d in zip(kernel, dilations)]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, w = rng.standard_normal((2, channels, *sizes)), rng.standard_normal((channels, 1, *kernel))
    for _ in range(data.draw(st.integers(0, 2))):
        x[tuple(rng.integers(size) for size in x.shape)] = data.draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    attrs = {"group": channels, "strides": strides, "dilations": dilations, "pads": (pad,) * 2 * rank,
             "auto_pad": "NOTSET", "kernel_shape": kernel}
    with np.errstate(all="ignore"):
        found, expected = convolution.convolve(x, w, attrs), summed(x, w, strides, dilations, pad)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("height", "width", "kernel", "banded"), [
    (14, 14, (3, 3), True), (14, 200, (3, 3), False),
    (1, 64, (1, 9), False),  # a matrix for one row
    (16, 2000, (1, 250), False)])  # matrices of many megabytes
def test_short_rows_alone_are_done_so(monkeypatch: pytest.MonkeyPatch, height: int, width: int,
                                      kernel: tuple[int, int], banded: bool) -> None:
    calls: list[int] = []
    plain = convolution._by_rows
    monkeypatch.setattr(convolution, "_by_rows", lambda *given: calls.append(1) or plain(*given))
    x, w = np.ones((1, 4, height, width), np.float32), np.ones((4, 1, *kernel), np.float32)
    convolution.convolve(x, w, {"group": 4, "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0),
                                "auto_pad": "NOTSET", "kernel_shape": kernel})
    assert bool(calls) == banded
