"""ONNX Runtime's attention operators against ONNX Runtime; forms without a CPU kernel against those that have one."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.kernels import find
from tests.runtime.kernels.contrib import compare, make_model, ours
from tests.runtime.kernels.harness import check_close, run_ort
from tests.runtime.kernels.test_convolution import Draw

SLACK = 20.0


def masks(draw: Draw, batch: int, queries: int, keys: int) -> list[np.ndarray | None]:
    """Padding masks of every form that fits."""
    rows = draw.rng.integers(0, 2, (batch, keys)).astype(np.int32)
    rows[:, 0] = 1
    lengths = draw.rng.integers(1, keys + 1, batch).astype(np.int32)
    every = np.repeat(rows[:, None, :], queries, axis=1)
    return [None, rows, lengths, every]


@pytest.mark.parametrize("seed", range(16))
def test_attention(seed: int) -> None:
    draw = Draw(seed)
    batch, length, count, size, past = draw.whole(1, 3), draw.whole(2, 5), draw.whole(1, 3), draw.whole(1, 4), 3
    wide, width = draw.whole(1, 5), count * size
    values = draw.pick(None, count * draw.whole(1, 4))
    x, weights = draw.normal(batch, length, wide), draw.normal(wide, 2 * width + (values or width))
    caching = values is None and draw.pick(True, False)
    keys = length + past * caching
    mask = draw.pick(*masks(draw, batch, length, keys))
    inputs = [x, weights, draw.normal(weights.shape[1]), mask,
              draw.normal(2, batch, count, past, size) if caching else None,
              None if caching else draw.pick(None, draw.normal(draw.pick(1, batch), count, length, keys))]
    compare("Attention", inputs, 2 if caching else 1, slack=SLACK, num_heads=count,
            qkv_hidden_sizes=values and [width, width, values], scale=draw.pick(None, 0.3),
            unidirectional=draw.whole(0, 1), mask_filter_value=draw.pick(None, -50.0))


def test_attention_with_other_masks() -> None:
    draw = Draw(0)
    x, weights, bias = draw.normal(2, 4, 3), draw.normal(3, 12), draw.normal(12)
    between = np.array([3, 4, 1, 0], np.int32)
    for unidirectional in (0, 1):
        compare("Attention", [x, weights, bias, between], slack=SLACK, num_heads=2, unidirectional=unidirectional)
    longest = draw.rng.integers(0, 2, (2, 1, 9, 9)).astype(np.int32)  # not on ONNX Runtime's CPU
    check_close(ours("Attention", [x, weights, bias, longest], num_heads=2),
                ours("Attention", [x, weights, bias, longest[:, 0, :4, :4].copy()], num_heads=2))
    nothing = np.zeros((2, 4), np.int32)
    compare("Attention", [x, weights, bias, nothing], slack=SLACK, num_heads=2)


@pytest.mark.parametrize("seed", range(8))
def test_quantized_attention(seed: int) -> None:
    draw = Draw(seed)
    batch, length, count, size = draw.whole(1, 3), draw.whole(2, 5), draw.whole(1, 3), draw.whole(1, 4)
    width = count * size
    x = draw.rng.integers(0, 255, (batch, length, width)).astype(np.uint8)
    weights = draw.rng.integers(-128, 127, (width, 3 * width)).astype(np.int8)
    scales = [np.array(0.02, np.float32), draw.pick(np.array(0.01, np.float32),
                                                    np.abs(0.01 * draw.normal(3 * width)) + np.float32(0.001))]
    inputs = [x, weights, draw.normal(3 * width), *scales, draw.pick(*masks(draw, batch, length, length)[:3]),
              np.array(120, np.uint8), np.zeros(scales[1].shape, np.int8)]
    compare("QAttention", inputs, slack=SLACK, num_heads=count, unidirectional=draw.whole(0, 1))


@pytest.mark.parametrize("seed", range(20))
def test_multi_head_attention(seed: int) -> None:
    draw = Draw(seed)
    batch, length, count, size = draw.whole(1, 3), draw.whole(1, 4), draw.whole(1, 3), draw.whole(1, 4)
    headed = draw.pick(True, False, False)  # keys and values of another layer, split already
    past = 0 if headed else draw.pick(0, 3)
    new = draw.pick(length, draw.whole(2, 5))
    value_size = size if past or headed else draw.whole(1, 4)
    key, value = ((batch, count, new, size), (batch, count, new, value_size)) if headed else (
        (batch, new, count * size), (batch, new, count * value_size))
    bias = draw.pick(None, draw.normal(2 * count * size + count * value_size))
    cache = [draw.normal(batch, count, past, each) for each in (size, value_size)] if past else [None, None]
    total = new + past
    inputs = [draw.normal(batch, length, count * size), draw.normal(*key), draw.normal(*value),
              None if headed else bias, draw.pick(*masks(draw, batch, length, total)),
              draw.pick(None, draw.normal(draw.pick(1, batch), draw.pick(1, count), length, total)), *cache]
    compare("MultiHeadAttention", inputs, 3 if past else 1, slack=SLACK, num_heads=count,
            scale=draw.pick(None, 0.3), unidirectional=draw.whole(0, 1) if length == new else 0)


def test_packed_forms_are_the_plain_ones() -> None:
    """ONNX Runtime has these on GPUs only."""
    draw = Draw(0)
    q, k, v = (draw.normal(2, 4, 6) for _ in range(3))
    bias = draw.normal(18)
    plain = ours("MultiHeadAttention", [q, k, v, bias], num_heads=2)

    def pack(*parts: np.ndarray) -> np.ndarray:
        return np.stack([part.reshape(2, 4, 2, 3) for part in parts], axis=3)

    check_close(ours("MultiHeadAttention", [q, pack(k, v), None, bias], num_heads=2), plain)
    check_close(ours("MultiHeadAttention", [pack(q, k, v), None, None, bias], num_heads=2), plain)


def rotation(draw: Draw, length: int, size: int) -> list[np.ndarray | None]:
    return [draw.normal(length, size // 2), draw.normal(length, size // 2)]


def grouped(draw: Draw, batch: int, length: int, past: int, packed: bool) -> list[np.ndarray | None]:
    """Inputs 0 to 4 of GroupQueryAttention: four heads that share two keys, of size 16."""
    size, parts = 16, [draw.normal(batch, length, count * 16) for count in (4, 2, 2)]
    found = [np.concatenate(parts, axis=2), None, None] if packed else parts
    return [*found, *([draw.normal(batch, 2, past, size) for _ in range(2)] if past else [None, None])]


@pytest.mark.parametrize("seed", range(24))
def test_grouped_attention(seed: int) -> None:
    """Prompts, single new tokens, and several new ones after a past."""
    draw = Draw(seed)
    batch, past = draw.whole(1, 3), draw.pick(0, 5)
    length = draw.whole(2, 4) if not past else draw.pick(1, 1, 3)
    batch = batch if length == 1 or not past else 1
    total = length + past
    inputs = grouped(draw, batch, length, past, draw.pick(True, False))
    inputs += [np.full(batch, total - 1, np.int32), np.array(total, np.int32)]
    turning = draw.whole(0, 1)
    inputs += rotation(draw, total + 2, 16) if turning else [None, None]
    inputs += [None, draw.pick(None, draw.normal(draw.pick(1, batch), draw.pick(1, 4), length, total)),
               draw.pick(None, None, draw.normal(4))]
    compare("GroupQueryAttention", inputs, 3, slack=SLACK, loose=True, num_heads=4, kv_num_heads=2,
            do_rotary=turning, rotary_interleaved=draw.whole(0, 1), softcap=draw.pick(None, 1.5),
            local_window_size=draw.pick(None, 2), scale=draw.pick(None, 0.3),
            smooth_softmax=draw.pick(None, None, 1) if inputs[11] is None else None)


@pytest.mark.parametrize("packed", [True, False])
def test_sequences_of_different_lengths(packed: bool) -> None:
    draw = Draw(1)
    inputs = [*grouped(draw, 3, 1, 5, packed), np.array([5, 2, 4], np.int32), np.array(6, np.int32),
              *rotation(draw, 8, 16)]
    compare("GroupQueryAttention", inputs, 3, slack=SLACK, loose=True, num_heads=4, kv_num_heads=2, do_rotary=1)


def test_padded_prompts() -> None:
    """What stands behind the end of a prompt is not defined."""
    draw = Draw(2)
    lengths = np.array([4, 2], np.int32)
    inputs = [*grouped(draw, 2, 4, 0, False), lengths - 1, np.array(4, np.int32), *rotation(draw, 8, 16)]
    attrs: dict[str, object] = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    mine = ours("GroupQueryAttention", inputs, 3, loose=True, **attrs)
    theirs = run_ort(make_model("GroupQueryAttention", inputs, 3, **attrs), inputs)  # type: ignore[arg-type]
    for row, length in enumerate(lengths):
        check_close([mine[0][row, :length]], [theirs[0][row, :length]], SLACK)
        check_close([each[row, :, :length] for each in mine[1:]], [each[row, :, :length] for each in theirs[1:]])


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation(interleaved: int) -> None:
    draw = Draw(interleaved)
    places = np.array([[0, 1, 2], [3, 1, 4]])
    for positions in (np.array([2]), places):
        compare("RotaryEmbedding", [draw.normal(2, 3, 8), positions, *rotation(draw, 6, 4)], interleaved=interleaved)
        compare("RotaryEmbedding", [draw.normal(2, 2, 3, 4), positions, *rotation(draw, 6, 4)],
                interleaved=interleaved)
    compare("RotaryEmbedding", [draw.normal(2, 3, 16), places, *rotation(draw, 6, 4)], interleaved=interleaved,
            num_heads=2, rotary_embedding_dim=4)


@pytest.mark.parametrize(("op", "attrs"), [
    ("Attention", {"do_rotary": 1, "past_present_share_buffer": 0}),
    ("RotaryEmbedding", {"is_packed_batching": 1, "scale": 1.0}),
])
def test_variants_that_are_left_to_onnx_runtime(op: str, attrs: dict[str, object]) -> None:
    draw = Draw(0)
    function = find(op, "com.microsoft")
    assert function is not None
    with pytest.raises(NotImplementedError):
        function({"num_heads": 1, "qkv_hidden_sizes": None, **attrs},
                 [draw.normal(1, 2, 3), draw.normal(3, 9), draw.normal(9), draw.normal(9)])
