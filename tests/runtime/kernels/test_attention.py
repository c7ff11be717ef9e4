"""Attention and RotaryEmbedding against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.kernels.harness import compare, evaluate_ours
from tests.runtime.kernels.test_convolution import Draw

PLAIN = {"is_causal": 0, "kv_num_heads": None, "left_window_size": -1, "q_num_heads": None,
         "qk_matmul_output_mode": 0, "right_window_size": -1, "scale": None, "softcap": 0.0,
         "softmax_precision": None}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_attention(seed: int) -> None:
    draw = Draw(seed)
    batch, heads, groups, size = draw.whole(1, 2), draw.whole(1, 3), draw.pick(1, 2), 2 * draw.whole(1, 3)
    length, value_size, past = draw.whole(1, 4), draw.whole(1, 4), draw.pick(0, 0, 2)
    # ONNX Runtime aligns the causal frontier another way for caches with keys of another length than the queries.
    keys = length if past else draw.whole(1, 4)
    attrs: dict[str, object] = {}
    if draw.pick(True, False):
        arrays = [
            draw.normal(batch, heads * groups, length, size),
            draw.normal(batch, heads, keys, size),
            draw.normal(batch, heads, keys, value_size),
        ]
    else:
        arrays = [
            draw.normal(batch, length, heads * groups * size),
            draw.normal(batch, keys, heads * size),
            draw.normal(batch, keys, heads * value_size),
        ]
        attrs |= {"q_num_heads": heads * groups, "kv_num_heads": heads}
    total = keys + past
    mask = draw.pick(None, draw.normal(length, total), draw.rng.random((batch, 1, length, total)) < 0.7)
    if mask is not None and mask.dtype == np.bool_:
        mask[..., 0] = True  # a row that sees no key is zero by the standard, not in every runtime
    caches = [draw.normal(batch, heads, past, size), draw.normal(batch, heads, past, value_size)] if past else []
    attrs |= {"is_causal": draw.whole(0, 1), "softcap": draw.pick(None, 1.5), "scale": draw.pick(None, 0.3)}
    compare("Attention", [*arrays, mask, *caches], draw.pick(23, 24), 3 if past else 1, slack=5, **attrs)


def test_a_query_that_sees_no_key_gives_zero() -> None:
    draw = Draw(0)
    arrays = [draw.normal(1, 1, 2, 4) for _ in range(3)]
    mask = np.array([[False, False], [True, True]])
    y = evaluate_ours("Attention", PLAIN, [*arrays, mask])[0]
    assert not y[0, 0, 0].any() and y[0, 0, 1].any()


def test_windows_equal_masks() -> None:
    draw = Draw(1)
    arrays = [draw.normal(1, 2, 5, 4) for _ in range(3)]
    distance = np.arange(5)[None, :] - np.arange(5)[:, None]
    windowed = evaluate_ours("Attention", {**PLAIN, "left_window_size": 2, "right_window_size": 1}, arrays)[0]
    masked = evaluate_ours("Attention", PLAIN, [*arrays, (distance >= -2) & (distance <= 1)])[0]
    np.testing.assert_allclose(windowed, masked, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    for seed in range(5):
        draw = Draw(seed)
        batch, heads, length, size = draw.whole(1, 2), draw.whole(1, 3), draw.whole(1, 4), 2 * draw.whole(2, 3)
        positions = draw.rng.integers(0, 5, (batch, length))
        for width in (0, 2):
            cache = (5, (width or size) // 2)
            compare(
                "RotaryEmbedding",
                [draw.normal(batch, heads, length, size), draw.normal(*cache), draw.normal(*cache), positions],
                23,
                interleaved=interleaved,
                rotary_embedding_dim=width,
                num_heads=heads if width else None,
            )
        flat, cache3 = draw.normal(batch, length, heads * size), (batch, length, size // 2)
        compare(
            "RotaryEmbedding",
            [flat, draw.normal(*cache3), draw.normal(*cache3)],
            23,
            interleaved=interleaved,
            num_heads=heads,
        )
