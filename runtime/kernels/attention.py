"""Kernels of the attention operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import OUTPUTS, Arrays, rows
from ._windows import widen

KERNELS, kernel = rows()
_FLOAT64 = 11  # ONNX TensorProto.DOUBLE


def _heads(x: np.ndarray, count: object) -> np.ndarray:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    if x.ndim == 4:
        return x
    assert count is not None
    return x.reshape(x.shape[0], x.shape[1], int(count), -1).transpose(0, 2, 1, 3)  # type: ignore[call-overload]


def _get(inputs: Arrays, index: int) -> np.ndarray | None:
    return inputs[index] if index < len(inputs) else None


def _bias(attrs: Mapping[str, object], mask: np.ndarray | None, past: int, lengths: np.ndarray | None,
          rows_: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """What is added to the scores: the mask, and minus infinity where a key may not be seen."""
    minus, zero = dtype.type(-np.inf), dtype.type(0)
    bias = np.zeros((rows_, columns), dtype)
    if mask is not None:
        missing = columns - mask.shape[-1]
        if missing > 0:
            fill = False if mask.dtype == np.bool_ else -np.inf
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=fill)
        bias = bias + (np.where(mask, zero, minus) if mask.dtype == np.bool_ else mask.astype(dtype))
    left, right = int(attrs["left_window_size"]), int(attrs["right_window_size"])  # type: ignore[call-overload]
    if attrs["is_causal"] or left >= 0 or right >= 0:
        offset = np.asarray(past) if lengths is None else (lengths.reshape(-1, 1, 1, 1) - rows_)
        ahead = np.arange(columns)[None, :] - (np.arange(rows_)[:, None] + offset)  # key position - query position
        allowed = np.ones(ahead.shape, np.bool_)
        if attrs["is_causal"]:
            allowed &= ahead <= 0
        if left >= 0:
            allowed &= ahead >= -left
        if right >= 0:
            allowed &= ahead <= right
        bias = bias + np.where(allowed, zero, minus)
    if lengths is not None:
        bias = bias + np.where(np.arange(columns) < lengths.reshape(-1, 1, 1, 1), zero, minus)
    return bias


def _softmax(scores: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Rows that may see no key at all become zero."""
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    powers /= np.where(total == 0, 1, total)
    blind = np.isneginf(bias.max(axis=-1, keepdims=True))
    return np.where(blind, powers.dtype.type(0), powers)


@kernel("Attention")
def attention(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """softmax(scale * Q K^T + mask) V, with grouped heads, key and value caches and windows."""
    q, k, v = inputs[0], inputs[1], inputs[2]
    assert q is not None and k is not None and v is not None
    past_key, past_value, lengths = _get(inputs, 4), _get(inputs, 5), _get(inputs, 6)
    query = widen(_heads(q, attrs["q_num_heads"]))
    present_key, present_value = _heads(k, attrs["kv_num_heads"]), _heads(v, attrs["kv_num_heads"])
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        present_key = np.concatenate((past_key, present_key), axis=2)
        present_value = np.concatenate((past_value, present_value), axis=2)
    groups = query.shape[1] // present_key.shape[1]
    key, value = widen(present_key), widen(present_value)
    if groups > 1:
        key, value = np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)
    scale = attrs["scale"]
    factor = query.dtype.type(1 / np.sqrt(query.shape[3]) if scale is None else scale)  # type: ignore[arg-type]
    raw = (query * factor) @ key.swapaxes(2, 3)
    cap = query.dtype.type(attrs["softcap"] or 0.0)  # type: ignore[arg-type]
    capped = np.tanh(raw / cap) * cap if cap > 0 else raw
    bias = _bias(attrs, _get(inputs, 3), past, lengths, query.shape[2], key.shape[2], query.dtype)
    scores = capped + bias
    precise = scores.astype(np.float64) if attrs["softmax_precision"] == _FLOAT64 else scores
    weights = _softmax(precise, bias).astype(query.dtype, copy=False)
    y = weights @ value
    if q.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    shown = (raw, capped, scores, weights)[int(attrs["qk_matmul_output_mode"])]  # type: ignore[call-overload]
    outputs = [y.astype(q.dtype, copy=False), present_key, present_value, shown.astype(q.dtype, copy=False)]
    return outputs[: int(attrs.get(OUTPUTS, 1))]  # type: ignore[call-overload]


@kernel("RotaryEmbedding")
def rotary_embedding(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Rotates pairs of features by angles that depend on the position."""
    x, cosine, sine = inputs[0], inputs[1], inputs[2]
    positions = _get(inputs, 3)
    assert x is not None and cosine is not None and sine is not None
    data = widen(x)
    if x.ndim == 3:  # (batch, length, heads * size)
        split = data.reshape(x.shape[0], x.shape[1], int(attrs["num_heads"]), -1)  # type: ignore[call-overload]
    else:  # (batch, heads, length, size)
        split = data.transpose(0, 2, 1, 3)
    width = int(attrs["rotary_embedding_dim"]) or split.shape[3]  # type: ignore[call-overload]
    if positions is not None:
        cosine, sine = cosine[positions], sine[positions]
    c, s = widen(cosine)[:, :, None, :], widen(sine)[:, :, None, :]
    turned = split[..., :width]
    if attrs["interleaved"]:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pair = np.stack((c * a - s * b, s * a + c * b), axis=-1).reshape(turned.shape)
    else:
        a, b = np.split(turned, 2, axis=-1)
        pair = np.concatenate((c * a - s * b, s * a + c * b), axis=-1)
    y = np.concatenate((pair, split[..., width:]), axis=-1)
    y = y.reshape(x.shape) if x.ndim == 3 else y.transpose(0, 2, 1, 3)
    return [y.astype(x.dtype, copy=False)]
