"""Kernels of ONNX Runtime's attention operators.

Everywhere B is the batch, N the number of heads, S the number of queries, T that of keys (past ones included) and H
the size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from . import OUTPUTS, Arrays, rows
from ._numeric import given, integer, narrow, number, optional, wide
from .attention import rotary_embedding

KERNELS, kernel = rows()
_FILTER = -10000.0  # what is added to the score of a masked key, unless the node says otherwise


@dataclass(slots=True)
class Heads:
    """Queries (B, N, S, H), keys (B, N, T, H) and values (B, N, T, H of values)."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    past: int = 0  # how many of the keys

    def with_past(self, key: np.ndarray | None, value: np.ndarray | None) -> Heads:
        """Keys and values behind those of the past."""
        if key is None or value is None:
            return self
        return Heads(self.query, np.concatenate((wide(key), self.key), axis=2),
                     np.concatenate((wide(value), self.value), axis=2), key.shape[2])


def split_heads(x: np.ndarray, count: int) -> np.ndarray:
    """(B, N, S, H) of (B, S, N * H)."""
    return x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3)


def joined(x: np.ndarray) -> np.ndarray:
    """(B, S, N * H) of (B, N, S, H)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def scores_of(heads: Heads, scale: object) -> np.ndarray:
    """Scaled products of queries and keys. A scale of 0 is one that was not given."""
    factor = float(scale or 0.0) or 1 / np.sqrt(heads.query.shape[3])  # type: ignore[arg-type]
    return np.matmul(heads.query, heads.key.swapaxes(2, 3)) * heads.query.dtype.type(factor)


def softmax(scores: np.ndarray, sink: np.ndarray | float | None = None) -> np.ndarray:
    """Along the last axis. A sink is the score of a key that is not there; keys at minus infinity are not seen."""
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0, top)
    powers = np.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    return np.divide(powers, np.where(total == 0, 1, total)).astype(scores.dtype, copy=False)


# Masks -----------------------------------------------------------------------------------------------------


def hidden_keys(mask: np.ndarray, batch: int, queries: int, keys: int, past: int) -> np.ndarray:
    """True where a mask hides a key, in a shape that broadcasts to (B, N, S, T)."""
    places = np.arange(keys)
    if mask.ndim == 1 and len(mask) == batch:  # how many keys there are
        return (places >= mask[:, None])[:, None, None, :]
    if mask.ndim == 1 and len(mask) == 2 * batch:  # where keys end, and where they begin
        end, start = mask[:batch, None], mask[batch:, None]
        return ((places >= end) | (places < start))[:, None, None, :]
    if mask.ndim == 2 and mask.shape[1] == keys:
        return (mask <= 0)[:, None, None, :]
    if mask.ndim == 3 and mask.shape[1:] == (queries, keys):
        return (mask <= 0)[:, None, :, :]
    if mask.ndim == 4 and mask.shape[2] >= keys:  # of the longest sequence that there may be
        return mask[:, :, past : past + queries, :keys] <= 0
    raise NotImplementedError(f"a mask of shape {mask.shape} for {queries} queries and {keys} keys")


def _added(attrs: Mapping[str, object], heads: Heads, mask: np.ndarray | None,
           bias: np.ndarray | None) -> np.ndarray:
    """What is added to the scores (B, N, S, T)."""
    dtype, batch, queries, keys = heads.query.dtype, len(heads.query), heads.query.shape[2], heads.key.shape[2]
    value = attrs["mask_filter_value"]
    filter_ = _FILTER if value is None else float(value)  # type: ignore[arg-type]
    added = np.zeros((1, 1, queries, keys), dtype)
    if mask is not None:
        hidden = hidden_keys(mask, batch, queries, keys, heads.past)
        added = added + np.where(hidden, dtype.type(filter_), dtype.type(0))
    if attrs["unidirectional"]:
        if queries != keys - heads.past:
            raise NotImplementedError("one direction among other positions: runtimes differ in what the last row sees")
        later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + heads.past
        added = np.where(later, np.finfo(dtype).min, added)
    return added if bias is None else added + wide(bias)


def _attended(attrs: Mapping[str, object], heads: Heads, mask: np.ndarray | None,
              bias: np.ndarray | None) -> np.ndarray:
    """(B, S, N * H)."""
    scores = scores_of(heads, attrs["scale"])
    with np.errstate(over="ignore"):
        scores = scores + _added(attrs, heads, mask, bias)
    return joined(np.matmul(softmax(scores), heads.value))


# Attention and QAttention ----------------------------------------------------------------------------------


def _self_attention(attrs: Mapping[str, object], projected: np.ndarray, widths: Sequence[int], dtype: np.dtype,
                    mask: np.ndarray | None, past: np.ndarray | None, bias: np.ndarray | None) -> list[np.ndarray]:
    if attrs["do_rotary"] or attrs["past_present_share_buffer"]:
        raise NotImplementedError("Attention that rotates, or shares the buffer of past and present")
    count = integer(attrs, "num_heads")
    parts = np.split(projected, np.cumsum(widths)[:-1], axis=2)
    query, key, value = (split_heads(part, count) for part in parts)
    heads = Heads(query, key, value)
    if past is not None:
        heads = heads.with_past(past[0], past[1])
    found = [narrow(_attended(attrs, heads, mask, bias), dtype)]
    if integer(attrs, OUTPUTS) > 1:
        found.append(narrow(np.stack((heads.key, heads.value)), dtype))
    return found


@kernel("com.microsoft.Attention")
def _attention(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Projections of one input, then attention among its positions."""
    x, weights, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    projected = np.matmul(wide(x), wide(weights))
    if bias is not None:
        projected = projected + wide(bias)
    widths: Sequence[int] = attrs["qkv_hidden_sizes"] or (weights.shape[1] // 3,) * 3  # type: ignore[assignment]
    return _self_attention(attrs, projected, widths, x.dtype, optional(inputs, 3), optional(inputs, 4),
                           optional(inputs, 5))


@kernel("com.microsoft.QAttention")
def _quantized_attention(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Attention whose projections multiply 8-bit numbers."""
    x, weights, bias = given(inputs, 0), given(inputs, 1), given(inputs, 2)
    zeros = [optional(inputs, 6), optional(inputs, 7)]
    a, b = (array.astype(np.int32) - (0 if zero is None else zero.astype(np.int32))
            for array, zero in zip((x, weights), zeros))
    scale = given(inputs, 3) * given(inputs, 4)
    projected = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(bias.dtype) * scale + bias
    widths = (weights.shape[1] // 3,) * 3
    return _self_attention(attrs, projected, widths, bias.dtype, optional(inputs, 5), optional(inputs, 8), None)


# MultiHeadAttention ----------------------------------------------------------------------------------------


def _multi_heads(inputs: Arrays, count: int) -> Heads:
    """Queries, keys and values out of the forms in which they come, biases added."""
    query, key, value, bias = (optional(inputs, index) for index in range(4))
    assert query is not None
    if query.ndim == 5:  # (B, S, N, 3, H)
        parts = [joined_last(wide(query)[:, :, :, index]) for index in range(3)]
    elif key is not None and key.ndim == 5:  # (B, T, N, 2, H)
        parts = [wide(query), *(joined_last(wide(key)[:, :, :, index]) for index in range(2))]
    else:
        assert key is not None and value is not None
        parts = [wide(query), wide(key), wide(value)]
    if bias is not None:
        flat = [part.shape[2] if part.ndim == 3 else part.shape[1] * part.shape[3] for part in parts]
        terms = np.split(wide(bias), np.cumsum(flat)[:-1])
        parts = [part + term if part.ndim == 3 else part for part, term in zip(parts, terms)]
    q, k, v = (split_heads(part, count) if part.ndim == 3 else part for part in parts)
    return Heads(q, k, v)


def joined_last(x: np.ndarray) -> np.ndarray:
    """(B, S, N * H) of (B, S, N, H)."""
    return x.reshape(*x.shape[:2], -1)


@kernel("com.microsoft.MultiHeadAttention")
def _multi_head(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Attention of given queries, keys and values."""
    if optional(inputs, 8) is not None or optional(inputs, 9) is not None:
        raise NotImplementedError("MultiHeadAttention with a buffer for past and present, or with beams")
    if integer(attrs, OUTPUTS) > 3:
        raise NotImplementedError("MultiHeadAttention that puts out scores, of a type that only the model states")
    dtype = given(inputs, 0).dtype
    heads = _multi_heads(inputs, integer(attrs, "num_heads"))
    heads = heads.with_past(optional(inputs, 6), optional(inputs, 7))
    y = _attended(attrs, heads, optional(inputs, 4), optional(inputs, 5))
    found = [y, heads.key, heads.value]
    return [narrow(array, dtype) for array in found[: integer(attrs, OUTPUTS)]]


# GroupQueryAttention ---------------------------------------------------------------------------------------


def _refuse_variants(attrs: Mapping[str, object], inputs: Arrays) -> None:
    if attrs["sliding_window_cache"] or attrs["kv_cache_bit_width"] or any(each is not None for each in inputs[12:]):
        raise NotImplementedError("GroupQueryAttention with a window as cache, quantized caches or normalized heads")
    if attrs["k_quant_type"] != "NONE" or attrs["v_quant_type"] != "NONE":
        raise NotImplementedError("GroupQueryAttention with quantized caches")
    if integer(attrs, OUTPUTS) > 3 or attrs["qk_output"]:
        raise NotImplementedError("GroupQueryAttention that puts out scores")


def _grouped_heads(attrs: Mapping[str, object], inputs: Arrays, positions: np.ndarray) -> Heads:
    """New queries, keys and values, rotated to their positions (B, S)."""
    count, shared = integer(attrs, "num_heads"), integer(attrs, "kv_num_heads")
    query, key, value = wide(given(inputs, 0)), optional(inputs, 1), optional(inputs, 2)
    if key is None or value is None:
        size = query.shape[2] // (count + 2 * shared)
        query, key, value = np.split(query, [count * size, (count + shared) * size], axis=2)
    heads = Heads(split_heads(query, count), split_heads(wide(key), shared), split_heads(wide(value), shared))
    if attrs["do_rotary"]:
        cosine, sine = wide(given(inputs, 7)), wide(given(inputs, 8))
        turn = {"num_heads": None, "interleaved": attrs["rotary_interleaved"],
                "rotary_embedding_dim": 2 * cosine.shape[1]}
        heads.query, heads.key = (rotary_embedding(turn, [part, cosine, sine, positions])[0]
                                  for part in (heads.query, heads.key))
    return heads


def _cached(past: np.ndarray | None, new: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """(B, N, length, H): of the past what each sequence really has, the new ones behind it, zeros to the end."""
    cache = np.zeros((*new.shape[:2], length, new.shape[3]), new.dtype)
    for row, begin in enumerate(begins):
        if past is not None:
            cache[row, :, :begin] = wide(past)[row, :, :begin]
        end = min(begin + new.shape[2], length)
        cache[row, :, begin:end] = new[row, :, : end - begin]
    return cache


def _seen(attrs: Mapping[str, object], begins: np.ndarray, lengths: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """Which keys a query sees, (B, 1, S, T)."""
    place, key = begins[:, None, None] + np.arange(queries)[None, :, None], np.arange(keys)[None, None, :]
    seen = key < lengths[:, None, None]
    if attrs["causal"]:
        seen = seen & (key <= place)
    window = integer(attrs, "local_window_size")
    if window > 0:
        seen = seen & (key > place - window)
    return np.broadcast_to(seen, (len(begins), queries, keys))[:, None]


@kernel("com.microsoft.GroupQueryAttention")
def _grouped(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Attention whose heads share keys in groups, with a cache that each sequence fills to its own length."""
    _refuse_variants(attrs, inputs)
    x, past_key, past_value = given(inputs, 0), optional(inputs, 3), optional(inputs, 4)
    lengths, total = given(inputs, 5).reshape(-1).astype(np.int64) + 1, int(given(inputs, 6).reshape(-1)[0])
    queries = x.shape[1]
    begins = np.zeros_like(lengths) if queries == total else lengths - queries
    positions = optional(inputs, 9)
    if positions is None:
        positions = np.maximum(begins[:, None] + np.arange(queries)[None, :], 0)
    heads = _grouped_heads(attrs, inputs, positions)
    room = max(total, 0 if past_key is None else past_key.shape[2])
    key, value = (_cached(past, new, begins, room)
                  for past, new in ((past_key, heads.key), (past_value, heads.value)))
    groups = heads.query.shape[1] // key.shape[1]
    every_key, every_value = (np.repeat(each[:, :, :total], groups, axis=1) for each in (key, value))
    scores = scores_of(Heads(heads.query, every_key, every_value), attrs["scale"])
    cap = scores.dtype.type(number(attrs, "softcap"))
    if cap > 0:
        scores = np.tanh(scores / cap) * cap
    bias, sink = optional(inputs, 10), optional(inputs, 11)
    if bias is not None:
        scores = scores + wide(bias)[..., :total]
    scores = np.where(_seen(attrs, begins, lengths, queries, total), scores, scores.dtype.type(-np.inf))
    absent = wide(sink).reshape(1, -1, 1, 1) if sink is not None else 0.0 if attrs["smooth_softmax"] == 1 else None
    y = joined(np.matmul(softmax(scores, absent), every_value))
    return [narrow(array, x.dtype) for array in (y, key, value)][: integer(attrs, OUTPUTS)]


@kernel("com.microsoft.RotaryEmbedding")
def _rotary(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Rotation of pairs of features by angles; one position given stands for the first of consecutive ones."""
    x, positions, cosine, sine = (given(inputs, index) for index in range(4))
    if attrs["is_packed_batching"] or attrs["scale"] != 1.0:
        raise NotImplementedError("RotaryEmbedding of packed batches, or scaled")
    length = x.shape[1] if x.ndim == 3 else x.shape[2]
    if positions.ndim == 1:
        positions = np.broadcast_to(positions.reshape(-1)[0] + np.arange(length), (x.shape[0], length))
    heads = integer(attrs, "num_heads") or x.shape[-1] // (2 * cosine.shape[1])
    return rotary_embedding({**attrs, "num_heads": heads}, [x, cosine, sine, positions])
