"""Contrib operators of ONNX Runtime: attention in its several forms, and the rotation of queries and keys.

All are pure, except an Attention or QAttention that shares the buffer of past and present keys: that writes into its
input, so it is never merged, folded or duplicated.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..dims import DimLike, add, exact_quotient, floordiv, largest, mul
from ..types import Shape, TensorType, Type
from ._common import integer, same, shape_of
from .contrib import contrib, like
from .record import REQUIRED, Operator, Site

_PACKED = 5  # rank of keys and values, or of all three, in one tensor
_HEADED = 4  # rank of (batch, heads, length, size)


def _divided(size: DimLike, count: int) -> DimLike:
    quotient = exact_quotient(size, count)
    return floordiv(size, count) if quotient is None else quotient


def _no_sharing(attrs: Mapping[str, object]) -> bool:
    return not attrs.get("past_present_share_buffer")


def _self_attention(site: Site, past: int) -> list[Type | None]:
    """Attention and QAttention: projections of one input. Outputs: result, keys and values in one tensor."""
    x, weights, dtype = shape_of(site, 0), shape_of(site, 1), site.type(2 if site.op == "QAttention" else 0)
    if dtype is None:
        return [None] * site.outputs
    if x is None or weights is None:
        unknown: list[Type | None] = [TensorType(dtype.dtype)] * 2
        return unknown[: site.outputs]
    if len(x) != 3 or len(weights) != 2:
        raise site.fail(f"input of rank {len(x)}, weights of rank {len(weights)}", "give (batch, length, features)")
    given, heads = site.attrs.get("qkv_hidden_sizes"), integer(site, "num_heads")
    width = given[2] if given else _divided(weights[1], 3)  # type: ignore[index]
    cached, total = shape_of(site, past), x[1]
    if site.type(past) is not None:
        total = site.unknown_dim() if cached is None else add(cached[3], x[1])
    present = (2, x[0], heads, total, _divided(width, heads))
    types: list[Type | None] = [TensorType(dtype.dtype, (x[0], x[1], width)), TensorType(dtype.dtype, present)]
    return types[: site.outputs]


def _attention(site: Site) -> list[Type | None]:
    return _self_attention(site, 4)


def _quantized_attention(site: Site) -> list[Type | None]:
    return _self_attention(site, 8)


def _lengths(site: Site, query: Shape) -> tuple[DimLike, DimLike, DimLike] | None:
    """(number of new keys, size of a key of one head, size of a value of one head)."""
    heads, key, value = integer(site, "num_heads"), shape_of(site, 1), shape_of(site, 2)
    if len(query) == _PACKED:
        return query[1], query[4], query[4]
    if key is None:
        return None
    if len(key) == _PACKED:
        return key[1], key[4], key[4]
    if value is None:
        return None
    if len(key) == _HEADED:
        return key[2], key[3], value[3]
    return key[1], _divided(key[2], heads), _divided(value[2], heads)


def _multi_head(site: Site) -> list[Type | None]:
    """Outputs: result, keys, values (past and new), and scores of a type that only the model states."""
    query, heads = shape_of(site, 0), integer(site, "num_heads")
    found = None if query is None else _lengths(site, query)
    if query is None or found is None:
        return [like(site, None), like(site, None), like(site, None), None][: site.outputs]
    keys, key_size, value_size = found
    past = shape_of(site, 6)
    total = keys if site.type(6) is None else site.unknown_dim() if past is None else add(past[2], keys)
    batch, length = query[0], query[1]
    shapes: list[Shape] = [(batch, length, mul(heads, value_size)), (batch, heads, total, key_size),
                           (batch, heads, total, value_size)]
    return [*(like(site, shape) for shape in shapes), None][: site.outputs]


def _grouped(site: Site) -> list[Type | None]:
    """Outputs: result, keys, values, scores. The caches hold the longest of the past and of what there is now."""
    query, heads, shared = shape_of(site, 0), integer(site, "num_heads"), integer(site, "kv_num_heads")
    past, total = shape_of(site, 3), site.content(6)
    if query is None or len(query) != 3:
        return [like(site, None)] * site.outputs
    packed = site.type(1) is None
    size = _divided(query[2], heads + 2 * shared if packed else heads)
    whole = total[0] if total else site.unknown_dim()
    if site.type(3) is not None:
        whole = largest(past[2], whole) if past is not None and total else site.unknown_dim(1)
    cache: Shape = (query[0], shared, whole, size)
    types: list[Type | None] = [like(site, (query[0], query[1], mul(heads, size)))]
    types += [like(site, cache, 3 if site.type(3) is not None else 0)] * 2
    scores = total[0] if total else site.unknown_dim(2)
    return [*types, like(site, (query[0], heads, query[1], scores))][: site.outputs]


_SCORES = {"mask_filter_value": None, "num_heads": REQUIRED, "scale": None, "unidirectional": 0}

OPERATORS: list[Operator] = [
    contrib("Attention", _attention,
            {**_SCORES, "do_rotary": 0, "past_present_share_buffer": 0, "qkv_hidden_sizes": None,
             "rotary_embedding_dim": 0}, pure_if=_no_sharing),
    contrib("QAttention", _quantized_attention, {**_SCORES, "do_rotary": 0, "past_present_share_buffer": 0},
            pure_if=_no_sharing),
    contrib("MultiHeadAttention", _multi_head, dict(_SCORES)),
    contrib("GroupQueryAttention", _grouped,
            {"causal": 1, "do_rotary": 0, "k_norm_epsilon": None, "k_quant_type": "NONE", "kv_cache_bit_width": None,
             "kv_num_heads": REQUIRED, "local_window_size": -1, "num_heads": REQUIRED, "q_norm_epsilon": None,
             "qk_norm_epsilon": 9.999999974752427e-07, "qk_output": 0, "rotary_interleaved": 0, "scale": None,
             "sliding_window_cache": 0, "smooth_softmax": -1, "softcap": 0.0, "v_quant_type": "NONE"}),
    contrib("RotaryEmbedding", same,
            {"interleaved": 0, "is_packed_batching": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0}),
]
