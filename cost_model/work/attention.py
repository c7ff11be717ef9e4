"""Work of the attention operators."""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, elements, plain, traffic


def _attention(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    q, k, y = inputs[0], inputs[1], outputs[0]
    assert q is not None and q.shape is not None and k is not None and k.shape is not None
    past = inputs[4] if len(inputs) > 4 else None
    keys = k.shape[-2] + (past.shape[2] if past is not None and past.shape is not None else 0)
    heads = q.shape[1] if len(q.shape) == 4 else attrs["q_num_heads"]
    scores = float(q.shape[0]) * float(heads) * float(q.shape[-2]) * float(keys)  # type: ignore[arg-type]
    products = 2.0 * float(keys) * (elements(q) + elements(y))  # type: ignore[arg-type]
    return Work(products + 12.0 * scores, traffic(inputs, outputs))


def _rotary(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, 3.0)


WORK: dict[str, Row] = {"Attention": _attention, "RotaryEmbedding": _rotary}
