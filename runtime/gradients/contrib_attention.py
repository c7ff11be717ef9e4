"""Gradient rows of ONNX Runtime's attention operators, by what they are made of; formulas as in the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from graphs.builder import Value
from graphs.operators.contrib import DOMAIN
from graphs.operators.contrib_attention import OPERATORS

from ._axes import apart, together
from .attention import rotated
from .contrib_grouped_attention import ROWS as GROUPED
from .expanded import expanded
from .movement import size_of_axis
from .rows import Row
from .shapes import cast_like, scalar
from .site import Site

_FILTER = -10000.0  # what is added to the score of a masked key, unless the node says otherwise


def _heads(s: Site, x: Value) -> Value:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    return s.b.Transpose(apart(s.b, x, 2, int(s.attrs["num_heads"])), perm=[0, 2, 1, 3])  # type: ignore[call-overload]


def _count(s: Site, value: Value, axis: int) -> Value:
    """0, 1, 2, ... as many as an axis has."""
    b = s.b
    return b.Range(b.constant(0), b.Squeeze(size_of_axis(b, value, axis), axes=[0]), b.constant(1))


def _hidden(s: Site, mask: Value, scores: Value, query: Value) -> Value:
    """True where the mask hides a key, in a shape that broadcasts to the scores."""
    b, rank = s.b, len(mask.shape or ())
    if mask.shape is None or rank not in (1, 2, 3):
        raise s.fail(f"a mask of {'unknown rank' if mask.shape is None else f'{rank} axes'} is not written")
    if rank > 1:
        return b.Unsqueeze(b.LessOrEqual(mask, b.constant(0, dtype=mask.dtype)), axes=[1, 2] if rank == 2 else [1])
    if query.shape is None or mask.shape[0] != query.shape[0]:
        raise s.fail("a mask of starts and ends, or of a length that is not known, is not written")
    places = b.Cast(_count(s, scores, 3), to=6)  # int32, as the lengths are
    return b.Unsqueeze(b.GreaterOrEqual(places, b.Unsqueeze(mask, axes=[1])), axes=[1, 2])


def _attended(s: Site, heads: Sequence[Value], mask: Value | None, bias: Value | None, past: Value | None) -> Value:
    """softmax(scale Q K' + what masks and biases add) V, as (batch, length, heads * size)."""
    b, (query, key, value) = s.b, heads
    size = query.shape[3] if query.shape is not None else None
    given = float(s.attrs["scale"] or 0.0)  # type: ignore[arg-type]
    if given:
        factor = scalar(b, given, query)
    elif isinstance(size, int):
        factor = scalar(b, 1.0 / np.sqrt(size), query)
    else:
        factor = b.Reciprocal(b.Sqrt(cast_like(b, size_of_axis(b, query, 3), query)))
    scores = (query @ b.Transpose(key, perm=[0, 1, 3, 2])) * factor
    zero, added = scalar(b, 0.0, scores), None
    if mask is not None:
        filter_ = s.attrs["mask_filter_value"]
        filtered = scalar(b, _FILTER if filter_ is None else float(filter_), scores)  # type: ignore[arg-type]
        added = b.Where(_hidden(s, mask, scores, query), filtered, zero)
    if s.attrs["unidirectional"]:
        rows = b.Unsqueeze(_count(s, scores, 2), axes=[1])
        first = rows if past is None else b.Add(rows, size_of_axis(b, past, 2))
        later = b.Greater(_count(s, scores, 3), first)
        least = scalar(b, -np.inf, scores)  # the kernel adds the least number: exp of either is 0
        added = b.Where(later, least, zero if added is None else added)
    for each in (added, bias):
        scores = scores if each is None else scores + each
    y = b.Softmax(scores, axis=-1) @ value
    return together(b, b.Transpose(y, perm=[0, 2, 1, 3]), 2)


def _attention(s: Site) -> Sequence[Value]:
    """Projections of one input, then attention among its positions."""
    b, bias, past = s.b, s.get(2), s.get(4)
    if s.attrs["do_rotary"] or s.attrs["past_present_share_buffer"]:
        raise s.fail("rotation inside, or a buffer that past and present share, is not written")
    projected = s[0] @ s[1]
    projected = projected if bias is None else projected + bias
    total = (s[1].shape or (None, None))[1]
    widths = s.attrs["qkv_hidden_sizes"] or ((total // 3,) * 3 if isinstance(total, int) else None)
    if widths is None:
        raise s.fail("the width of the projections is not known")
    parts = b.Split(projected, b.constant(np.array(widths, np.int64)), outputs=3, axis=2)
    query, key, value = (_heads(s, part) for part in parts)
    before = None
    if past is not None:
        before, after = (b.Gather(past, b.constant(index), axis=0) for index in (0, 1))
        key, value = b.Concat(before, key, axis=2), b.Concat(after, value, axis=2)
    y = _attended(s, (query, key, value), s.get(3), s.get(5), before)
    return [y, b.Concat(b.Unsqueeze(key, axes=[0]), b.Unsqueeze(value, axes=[0]), axis=0)]


def _packed(s: Site, index: int, count: int) -> list[Value]:
    """The `count` tensors of (batch, length, heads, count, size), as (batch, length, heads * size)."""
    return [together(s.b, s.b.Gather(s[index], s.b.constant(k), axis=3), 2) for k in range(count)]


def _multi_head(s: Site) -> Sequence[Value]:
    """Attention of given queries, keys and values, in the forms in which they come."""
    b, bias = s.b, s.get(3)
    if s.get(8) is not None or s.get(9) is not None:
        raise s.fail("a buffer for past and present, or beams, is not written")
    if s.rank(0) == 5:
        parts = _packed(s, 0, 3)
    else:
        parts = [s[0], *(_packed(s, 1, 2) if s.rank(1) == 5 else [s[1], s[2]])]
    if bias is not None:
        parts = _with_bias(s, parts, bias)
    query, key, value = (_heads(s, part) if len(part.shape or ()) == 3 else part for part in parts)
    past_key, past_value = s.get(6), s.get(7)
    if past_key is not None and past_value is not None:
        key, value = b.Concat(past_key, key, axis=2), b.Concat(past_value, value, axis=2)
    return [_attended(s, (query, key, value), s.get(4), s.get(5), past_key), key, value]


def _with_bias(s: Site, parts: Sequence[Value], bias: Value) -> list[Value]:
    """Queries, keys and values of three axes with their parts of the bias added."""
    widths = []
    for part in parts:
        shape = part.shape or ()
        sizes = shape[2:] if len(shape) == 3 else (shape[1], shape[3]) if len(shape) == 4 else (None,)
        if not all(isinstance(size, int) for size in sizes):
            raise s.fail("the width that the bias is for is not known")
        widths.append(int(np.prod(sizes)))  # type: ignore[arg-type]
    ends = pairwise(accumulate(widths, initial=0))
    return [part + s.b.Slice(bias, starts=[start], ends=[end], axes=[0]) if len(part.shape or ()) == 3 else part
            for part, (start, end) in zip(parts, ends)]


def _rotary(s: Site) -> Sequence[Value]:
    """Rotation by cached angles; one position given stands for the first of consecutive ones."""
    b, positions, flat = s.b, s[1], s.rank(0) == 3
    if s.attrs["is_packed_batching"] or s.attrs["scale"] != 1.0:
        raise s.fail("packed batches, or a scale, are not written")
    if s.rank(1) == 1:
        positions = b.Unsqueeze(b.Add(positions, _count(s, s[0], 1 if flat else 2)), axes=[0])
    heads, width, half = int(s.attrs["num_heads"]), (s[0].shape or (None,))[-1], (s[2].shape or (None,))[-1]  # type: ignore[call-overload]
    if flat and not heads:
        if not isinstance(width, int) or not isinstance(half, int):
            raise s.fail("the number of heads is not known")
        heads = width // (2 * half)
    return [rotated(s, heads, [b.Gather(s[index], positions) for index in (2, 3)])]


ROWS: dict[str, Row] = {
    f"{DOMAIN}.RotaryEmbedding": expanded(_rotary),
    f"{DOMAIN}.Attention": expanded(_attention),
    f"{DOMAIN}.MultiHeadAttention": expanded(_multi_head),
    **GROUPED,
}

_REASON = "not yet: differentiate the model before ONNX Runtime's own operators are put in"

ABSENT: dict[str, str] = {name: _REASON for each in OPERATORS
                          if (name := f"{each.domain}.{each.name}".lstrip(".")) not in ROWS}
