"""Gradient rows of the attention family, by what the operators are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.builder import Builder, Value

from ._axes import apart, together
from .expanded import expanded
from .movement import size_of_axis
from .rows import Row
from .shapes import cast_like, ints, reshape_to, scalar
from .site import Site

_END = np.iinfo(np.int64).max


def _heads(s: Site, index: int, count: object) -> Value:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    b, x = s.b, s[index]
    if s.rank(index) == 4:
        return x
    return b.Transpose(apart(b, x, 2, int(count)), perm=[0, 2, 1, 3])  # type: ignore[call-overload]


def _scale(s: Site, query: Value) -> Value:
    b, given, size = s.b, s.attrs["scale"], None if query.shape is None else query.shape[3]
    if given is not None:
        return scalar(b, float(given), query)  # type: ignore[arg-type]
    if isinstance(size, int):
        return scalar(b, 1.0 / np.sqrt(size), query)
    return b.Reciprocal(b.Sqrt(cast_like(b, size_of_axis(b, query, 3), query)))


def _repeated(s: Site, value: Value, like: Value) -> Value:
    """Keys or values with each head as often as several heads of the query share it."""
    b = s.b
    heads, wanted = ((each.shape or (None, None))[1] for each in (value, like))
    if heads is not None and heads == wanted:
        return value
    groups = b.Div(size_of_axis(b, like, 1), size_of_axis(b, value, 1))
    shape = b.Concat(b.Shape(value, end=2), groups, b.Shape(value, start=2), axis=0)
    return together(b, b.Expand(b.Unsqueeze(value, axes=[2]), shape), 1)


def _numbers(s: Site, value: Value, axis: int) -> Value:
    """0, 1, 2, ... as many as an axis has."""
    b = s.b
    return b.Range(b.constant(0), b.Squeeze(size_of_axis(b, value, axis), axes=[0]), b.constant(1))


def _mask(s: Site, scores: Value) -> Value | None:
    """Input 3, as what is added to the scores; keys that it does not reach may not be seen."""
    b, mask = s.b, s.get(3)
    if mask is None:
        return None
    truth = mask.dtype == "bool"
    least = b.constant(np.array(False)) if truth else scalar(b, -np.inf, mask)
    sizes = [None if each.shape is None else each.shape[-1] for each in (mask, scores)]
    if sizes[0] is None or sizes[0] != sizes[1]:
        missing = b.Max(b.Sub(b.Shape(scores, start=-1), b.Shape(mask, start=-1)), ints(b, (0,)))
        mask = b.Pad(mask, pads=b.Concat(ints(b, (0,)), missing, axis=0), constant_value=least, axes=[-1])
    if truth:
        return b.Where(mask, scalar(b, 0.0, scores), scalar(b, -np.inf, scores))
    return cast_like(b, mask, scores)


def _allowed(s: Site, scores: Value) -> list[Value]:
    """Which keys a query may see by their places: booleans that broadcast against the scores."""
    b, past, lengths = s.b, s.get(4), s.get(6)
    left, right = int(s.attrs["left_window_size"]), int(s.attrs["right_window_size"])  # type: ignore[call-overload]
    columns = _numbers(s, scores, 3)
    found: list[Value] = []
    if s.attrs["is_causal"] or left >= 0 or right >= 0:
        rows = b.Unsqueeze(_numbers(s, scores, 2), axes=[1])
        if lengths is not None:
            offset = b.Sub(b.Unsqueeze(lengths, axes=[1, 2, 3]), size_of_axis(b, scores, 2))
        else:
            offset = ints(b, (0,)) if past is None else size_of_axis(b, past, 2)
        ahead = b.Sub(columns, b.Add(rows, offset))
        if s.attrs["is_causal"]:
            found.append(b.LessOrEqual(ahead, b.constant(0)))
        if left >= 0:
            found.append(b.GreaterOrEqual(ahead, b.constant(-left)))
        if right >= 0:
            found.append(b.LessOrEqual(ahead, b.constant(right)))
    if lengths is not None:
        found.append(b.Less(columns, b.Unsqueeze(lengths, axes=[1, 2, 3])))
    return found


def _bias(s: Site, scores: Value) -> Value | None:
    """What is added to the scores: the mask, and minus infinity where a key may not be seen."""
    b, bias = s.b, _mask(s, scores)
    for each in _allowed(s, scores):
        part = b.Where(each, scalar(b, 0.0, scores), scalar(b, -np.inf, scores))
        bias = part if bias is None else bias + part
    return bias


def _weights(s: Site, scores: Value, bias: Value | None) -> Value:
    """Softmax in the precision that is asked for; rows that may see no key at all become zero."""
    b, precision = s.b, s.attrs["softmax_precision"]
    blind = None
    if bias is not None:
        blind = b.Equal(b.ReduceMax(bias, axes=[-1]), scalar(b, -np.inf, bias))
        scores = b.Where(blind, scalar(b, 0.0, scores), scores)
    precise = scores if precision is None else b.Cast(scores, to=precision)
    weights = cast_like(b, b.Softmax(precise, axis=-1), scores)
    return weights if blind is None else b.Where(blind, scalar(b, 0.0, weights), weights)


def _attention(s: Site) -> Sequence[Value]:
    """softmax(scale Q K' + mask) V, with shared heads, caches and windows."""
    b, past_key, past_value = s.b, s.get(4), s.get(5)
    query = _heads(s, 0, s.attrs["q_num_heads"])
    present_key, present_value = (_heads(s, index, s.attrs["kv_num_heads"]) for index in (1, 2))
    if past_key is not None and past_value is not None:
        present_key = b.Concat(past_key, present_key, axis=2)
        present_value = b.Concat(past_value, present_value, axis=2)
    key, value = (_repeated(s, each, query) for each in (present_key, present_value))
    raw = (query * _scale(s, query)) @ b.Transpose(key, perm=[0, 1, 3, 2])
    cap = float(s.attrs["softcap"] or 0.0)  # type: ignore[arg-type]
    capped = b.Tanh(raw / cap) * cap if cap > 0 else raw
    bias = _bias(s, capped)
    scores = capped if bias is None else capped + bias
    weights = _weights(s, scores, bias)
    y = weights @ value
    if s.rank(0) == 3:
        y = together(b, b.Transpose(y, perm=[0, 2, 1, 3]), 2)
    shown = (raw, capped, scores, weights)[int(s.attrs["qk_matmul_output_mode"])]  # type: ignore[call-overload]
    return [y, present_key, present_value, shown]


def rotated(s: Site, heads: int, angles: Sequence[Value]) -> Value:
    """Input 0 rotated (see `turned`), with an axis of heads or without. `heads`: of an input of three axes."""
    b, flat = s.b, s.rank(0) == 3
    x = apart(b, s[0], 2, heads) if flat else b.Transpose(s[0], perm=[0, 2, 1, 3])
    width = int(s.attrs["rotary_embedding_dim"])  # type: ignore[call-overload]
    y = turned(b, x, angles, width, bool(s.attrs["interleaved"]))
    return reshape_to(b, y, s[0]) if flat else b.Transpose(y, perm=[0, 2, 1, 3])


def turned(b: Builder, x: Value, angles: Sequence[Value], width: int, interleaved: bool) -> Value:
    """Pairs of features (a, c) of (batch, length, heads, size) become (a cos - c sin, a sin + c cos).

    `angles`: cosines and sines, (batch or 1, length, half of what is turned). `width`: that many features are turned,
    0 for all.
    """
    part = b.Slice(x, starts=[0], ends=[width], axes=[3]) if width else x
    cosine, sine = (b.Unsqueeze(each, axes=[2]) for each in angles)
    if interleaved:
        pairs = b.Reshape(part, b.Concat(b.Shape(part, end=3), ints(b, (-1, 2)), axis=0))
        first, second = (b.Gather(pairs, b.constant(index), axis=4) for index in (0, 1))
    else:
        first, second = b.Split(part, outputs=2, axis=3, num_outputs=2)
    made = [first * cosine - second * sine, first * sine + second * cosine]
    if interleaved:
        y = reshape_to(b, b.Concat(*(b.Unsqueeze(each, axes=[4]) for each in made), axis=4), part)
    else:
        y = b.Concat(*made, axis=3)
    return b.Concat(y, b.Slice(x, starts=[width], ends=[_END], axes=[3]), axis=3) if width else y


def _rotary(s: Site) -> Sequence[Value]:
    positions, heads = s.get(3), int(s.attrs["num_heads"]) if s.rank(0) == 3 else 0  # type: ignore[call-overload]
    angles = [s[index] if positions is None else s.b.Gather(s[index], positions) for index in (1, 2)]
    return [rotated(s, heads, angles)]


ROWS: dict[str, Row] = {"Attention": expanded(_attention), "RotaryEmbedding": expanded(_rotary)}

ABSENT: dict[str, str] = {}
