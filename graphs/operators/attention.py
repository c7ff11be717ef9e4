"""Attention family: Attention and RotaryEmbedding of opset 23 and later."""

from __future__ import annotations

from ..dims import DimLike, add, exact_quotient, floordiv, mul
from ..types import Shape, TensorType, Type
from .record import Operator, Site


def _shape(site: Site, index: int) -> Shape | None:
    type_ = site.type(index)
    return None if type_ is None else type_.shape


def _split(site: Site, shape: Shape, heads: object, what: str) -> Shape:
    """(batch, heads, length, size) of a rank 3 or rank 4 input."""
    if len(shape) == 4:
        return shape
    if len(shape) != 3:
        raise site.fail(f"{what} of rank {len(shape)}", "give three or four dimensions")
    if heads is None:
        raise site.fail(f"{what} of rank 3 without a number of heads", "set q_num_heads and kv_num_heads")
    count = int(heads)  # type: ignore[call-overload]
    if isinstance(shape[2], int) and shape[2] % count:
        raise site.fail(f"{what} has {shape[2]} features for {count} heads")
    quotient = exact_quotient(shape[2], count)
    return (shape[0], count, shape[1], floordiv(shape[2], count) if quotient is None else quotient)


def _attention(site: Site) -> list[Type | None]:
    q, k, v = (_shape(site, index) for index in range(3))
    types = [site.type(index) for index in (0, 1, 2, 0)]
    found: list[Type | None]
    if q is None or k is None or v is None:
        found = [None if type_ is None else TensorType(type_.dtype) for type_ in types]
        return found[: site.outputs]
    q_heads, kv_heads = site.attrs["q_num_heads"], site.attrs["kv_num_heads"]
    query, key, value = _split(site, q, q_heads, "Q"), _split(site, k, kv_heads, "K"), _split(site, v, kv_heads, "V")
    total: DimLike = key[2]
    if site.type(4) is not None:
        past = _shape(site, 4)
        total = add(past[2], key[2]) if past is not None else site.unknown_dim()
    y: Shape = (query[0], query[2], mul(query[1], value[3])) if len(q) == 3 else (*query[:3], value[3])
    shapes: list[Shape] = [y, (*key[:2], total, key[3]), (*value[:2], total, value[3]), (*query[:3], total)]
    found = [None if type_ is None else TensorType(type_.dtype, shape) for type_, shape in zip(types, shapes)]
    return found[: site.outputs]


def _write_attention(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    if version < 25 and any(out.pop(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        return None
    return out


def _rotary(site: Site) -> list[Type | None]:
    x = _shape(site, 0)
    if x is not None and len(x) == 3 and not site.attrs["num_heads"]:
        raise site.fail("an input of rank 3 without num_heads", "set num_heads")
    return [site.type(0)]


OPERATORS: list[Operator] = [
    Operator("Attention", _attention, (23, 24, 25),
             {"is_causal": 0, "kv_num_heads": None, "left_window_size": -1, "q_num_heads": None,
              "qk_matmul_output_mode": 0, "right_window_size": -1, "scale": None, "softcap": 0.0,
              "softmax_precision": None}, write=_write_attention),
    Operator("RotaryEmbedding", _rotary, (23,), {"interleaved": 0, "num_heads": None, "rotary_embedding_dim": 0}),
]
