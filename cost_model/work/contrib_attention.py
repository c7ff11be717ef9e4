"""Work of ONNX Runtime's attention operators."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, elements, plain, traffic


def _sizes(types: Types, position: int) -> tuple[int, ...] | None:
    type_ = types[position] if position < len(types) else None
    return None if type_ is None or type_.shape is None else tuple(map(int, type_.shape))  # type: ignore[arg-type]


def _attended(outputs: Types, queries: int, keys: int, heads: object) -> float:
    """Both products over all keys, and a softmax for each query and head."""
    y = _sizes(outputs, 0)
    assert y is not None
    return 4.0 * keys * elements(outputs[0]) + 12.0 * float(y[0]) * float(heads) * queries * keys  # type: ignore[arg-type]


def _projecting(past: int) -> Row:
    def row(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
        x, weights, cache = _sizes(inputs, 0), _sizes(inputs, 1), _sizes(inputs, past)
        assert x is not None and weights is not None
        keys = x[1] + (cache[3] if cache is not None else 0)
        products = 2.0 * x[0] * x[1] * weights[0] * weights[1]
        return Work(products + _attended(outputs, x[1], keys, attrs["num_heads"]), traffic(inputs, outputs))

    return row


def _multi_head(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    q, k, past = _sizes(inputs, 0), _sizes(inputs, 1), _sizes(inputs, 6)
    assert q is not None
    keys = q[1] if k is None else k[2] if len(k) == 4 else k[1]
    keys += past[2] if past is not None else 0
    return Work(_attended(outputs, q[1], keys, attrs["num_heads"]), traffic(inputs, outputs))


def _grouped(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    q, cache, past = _sizes(inputs, 0), _sizes(outputs, 1), _sizes(inputs, 3)
    assert q is not None
    keys = cache[2] if cache is not None else max(q[1], past[2] if past is not None else 0)
    return Work(_attended(outputs, q[1], keys, attrs["num_heads"]), traffic(inputs, outputs))


def _rotary(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 3.0)


WORK: dict[str, Row] = {
    "com.microsoft.Attention": _projecting(4),
    "com.microsoft.QAttention": _projecting(8),
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.GroupQueryAttention": _grouped,
    "com.microsoft.RotaryEmbedding": _rotary,
}
