"""The gradient row of ONNX Runtime's GroupQueryAttention without a cache: a whole prompt at a time, as in training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.builder import Value
from graphs.operators.contrib import DOMAIN

from ._axes import apart, together
from .attention import turned
from .expanded import expanded
from .movement import size_of_axis
from .rows import Row
from .shapes import cast_like, expand_to, ints, scalar
from .site import Site

_HIDDEN = {"float16": float(np.finfo(np.float16).min)}  # the score of a key that is not seen
_LEAST = -3e38  # of the other types


def _grouped(s: Site) -> Sequence[Value]:
    """softmax(scale Q K' + bias) V with masks, (batch, length, heads * size); then keys and values, as they are
    cached."""
    b, count, shared = s.b, int(s.attrs["num_heads"]), int(s.attrs["kv_num_heads"])  # type: ignore[call-overload]
    _refuse(s)
    query, key, value = _parts(s, count, shared)
    length = b.Reshape(b.Cast(s[6], to=7), [1])
    # A prompt is as long as all that there is: where the run says otherwise, this fails.
    key, value = (b.Reshape(each, b.Concat(b.Shape(each, end=2), length, b.Shape(each, start=3), axis=0))
                  for each in (key, value))
    rows = ints(b, (shared, -1))  # the heads that share keys, behind each other
    grouped = b.Concat(b.Shape(query, end=1), rows, b.Shape(query, start=3), axis=0)
    scores = (b.Reshape(query, grouped) @ b.Transpose(key, perm=[0, 1, 3, 2])) * _scale(s, query)
    scores = b.Reshape(scores, b.Concat(b.Shape(query, end=3), length, axis=0))
    weights = _weights(s, scores, length)
    y = b.Reshape(weights, b.Concat(b.Shape(query, end=1), rows, length, axis=0)) @ value
    y = b.Reshape(y, b.Shape(query))
    return [together(b, b.Transpose(y, perm=[0, 2, 1, 3]), 2), key, value]


def _refuse(s: Site) -> None:
    if s.get(3) is not None or s.get(4) is not None:
        raise s.fail("a cache (past keys and values) is not written; a prompt without one is")
    if s.attrs["sliding_window_cache"] or s.attrs["kv_cache_bit_width"] or any(
            s.get(index) is not None for index in range(12, len(s.names))):
        raise s.fail("a window as cache, quantized caches, or normalized heads, are not written")
    if s.attrs["k_quant_type"] != "NONE" or s.attrs["v_quant_type"] != "NONE" or s.attrs["qk_output"]:
        raise s.fail("quantized caches, or scores as an output, are not written")


def _parts(s: Site, count: int, shared: int) -> list[Value]:
    """Queries, keys and values, (batch, heads, length, size), rotated where the node says so."""
    b = s.b
    if s.get(1) is None:
        width = (s[0].shape or (None,))[-1]
        if not isinstance(width, int):
            raise s.fail("the width of queries, keys and values together is not known")
        size = width // (count + 2 * shared)
        widths = b.constant(np.array([count * size, shared * size, shared * size], np.int64))
        parts = list(b.Split(s[0], widths, outputs=3, axis=2))
    else:
        parts = [s[0], s[1], s[2]]
    heads = [apart(b, part, 2, each) for part, each in zip(parts, (count, shared, shared))]
    if s.attrs["do_rotary"]:
        half, size_ = (s[7].shape or (None,))[-1], (heads[0].shape or (None,))[-1]
        if not isinstance(half, int) or not isinstance(size_, int):
            raise s.fail("how many features are rotated is not known")
        places = s.get(9)
        places = b.Unsqueeze(_places(s, size_of_axis(b, s[0], 1)), axes=[0]) if places is None else places
        angles = [b.Gather(s[index], places) for index in (7, 8)]
        width = 0 if 2 * half == size_ else 2 * half
        heads[:2] = [turned(b, each, angles, width, bool(s.attrs["rotary_interleaved"])) for each in heads[:2]]
    return [b.Transpose(each, perm=[0, 2, 1, 3]) for each in heads]


def _places(s: Site, count: Value) -> Value:
    """0, 1, 2, ... of a number given as a vector of one."""
    return s.b.Range(s.b.constant(0), s.b.Squeeze(count, axes=[0]), s.b.constant(1))


def _scale(s: Site, query: Value) -> Value:
    given, size = s.attrs["scale"], (query.shape or (None,))[-1]
    if given:
        return scalar(s.b, float(given), query)  # type: ignore[arg-type]
    if isinstance(size, int):
        return scalar(s.b, 1.0 / np.sqrt(size), query)
    return s.b.Reciprocal(s.b.Sqrt(cast_like(s.b, size_of_axis(s.b, query, 3), query)))


def _weights(s: Site, scores: Value, length: Value) -> Value:
    """What each query takes of each key, (batch, heads, queries, keys); nothing where it sees none."""
    b, cap = s.b, float(s.attrs["softcap"] or 0.0)  # type: ignore[arg-type]
    bias, sink = s.get(10), s.get(11)
    if cap > 0:
        scores = b.Tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + b.Slice(bias, ints(b, (0,)), length, ints(b, (3,)))
    seen = _seen(s, scores)
    scores = b.Where(seen, scores, scalar(b, _HIDDEN.get(scores.dtype or "", _LEAST), scores))
    if sink is None and s.attrs["smooth_softmax"] != 1:
        weights = b.Softmax(scores, axis=-1)
    else:  # a key that is not there, with a score of its own
        first = b.Slice(scores, ints(b, (0,)), ints(b, (1,)), ints(b, (3,)))
        absent = scalar(b, 0.0, scores) if sink is None else b.Reshape(sink, [1, -1, 1, 1])
        weights = b.Softmax(b.Concat(scores, expand_to(b, absent, first), axis=3), axis=-1)
        weights = b.Slice(weights, ints(b, (0,)), length, ints(b, (3,)))
    return b.Where(seen, weights, scalar(b, 0.0, scores))


def _seen(s: Site, scores: Value) -> Value:
    """Which keys a query sees, (batch, 1, queries, keys)."""
    b = s.b
    lengths = b.Reshape(b.Cast(s[5], to=7), [-1, 1, 1, 1]) + 1
    keys = _places(s, size_of_axis(b, scores, 3))
    queries = b.Unsqueeze(_places(s, size_of_axis(b, scores, 2)), axes=[1])
    seen = b.Less(keys, lengths)
    if s.attrs["causal"]:
        seen = b.And(seen, b.LessOrEqual(keys, queries))
    window = int(s.attrs["local_window_size"])  # type: ignore[call-overload]
    return b.And(seen, b.Greater(keys, queries - window)) if window > 0 else seen


ROWS: dict[str, Row] = {f"{DOMAIN}.GroupQueryAttention": expanded(_grouped)}
