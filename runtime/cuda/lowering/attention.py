"""Lowerings of the attention operators: batched products that read heads through strides, and a softmax that knows
masks, windows and caches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from runtime.codegen import address
from runtime.codegen.attention import Rotation, Sight, rotary_kernel, weights_kernel
from runtime.codegen.rowwise import Layout
from runtime.codegen.scalar import DTYPES

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows
from ._product import LIBRARY, emit_product

LOWERINGS, lowering = rows()
_FLOAT64 = 11  # ONNX TensorProto.DOUBLE


@dataclass(frozen=True, slots=True)
class _Scores:
    """How scores come about: scale of the products, what queries see, an added mask and lengths of key sequences;
    `mode` is the stage that output 3 shows (see the operator's `qk_matmul_output_mode`)."""

    scale: float
    sight: Sight
    mask: Tensor | None = None
    lengths: Tensor | None = None
    mode: int = 0


@lowering("Attention")
def _attention(emitter: Emitter) -> None:
    attrs = emitter.attrs
    q, k, v = (emitter.tensor(index) for index in range(3))
    if q.dtype not in LIBRARY or {k.dtype, v.dtype} != {q.dtype}:
        raise NoKernel(f"Attention of {q.dtype}, {k.dtype} and {v.dtype}")
    query = _heads(q, attrs["q_num_heads"])
    key, value = _heads(k, attrs["kv_num_heads"]), _heads(v, attrs["kv_num_heads"])
    past = emitter.tensor(4).shape[2] if emitter.has(4) and emitter.has(5) else 0
    if not all((query.size, key.size, value.size)):
        raise NoKernel("Attention of nothing")
    mask = emitter.tensor(3) if emitter.has(3) else None
    _check_mask(mask, key.shape[2] + past)
    key, value = _present(emitter, 1, key, 4, past), _present(emitter, 2, value, 5, past)
    left, right = int(attrs["left_window_size"]), int(attrs["right_window_size"])
    limits = [*([0] if attrs["is_causal"] else []), *([right] if right >= 0 else [])]
    sight = Sight(float(attrs["softcap"] or 0.0), past, left if left >= 0 else None, min(limits, default=None),
                  precise=attrs["softmax_precision"] == _FLOAT64)
    scale = 1 / sqrt(query.shape[3]) if attrs["scale"] is None else float(attrs["scale"])
    scores = _Scores(scale, sight, mask, emitter.tensor(6) if emitter.has(6) else None,
                     int(attrs["qk_matmul_output_mode"]))
    y = _output(emitter, q.rank, query, value)
    _emit(emitter, query, key, value, y, scores)


def _check_mask(mask: Tensor | None, keys: int) -> None:
    if mask is None:
        return
    if mask.dtype not in DTYPES:
        raise NoKernel(f"a mask of {mask.dtype}")
    if mask.shape[-1] == 1 < keys:
        raise NoKernel("a mask of one column, whose meaning is disputed")


def _heads(tensor: Tensor, count: object) -> Tensor:
    """(batch, heads, length, size) of (batch, length, heads * size), a view."""
    if tensor.rank == 4:
        return tensor
    heads = int(count)  # type: ignore[call-overload]
    (batch, length, width), (of_batch, of_length, step) = tensor.shape, tensor.strides
    size = width // heads
    return tensor.viewed((batch, heads, length, size), (of_batch, size * step, of_length, step))


def _present(emitter: Emitter, output: int, new: Tensor, cache: int, past: int) -> Tensor:
    """The cache with the new entries behind it, also as output; without a cache the new entries as they are."""
    if not (emitter.has(4) and emitter.has(5)):
        emitter.view(output, new)
        return new
    batch, heads, length, size = new.shape
    made = emitter.output(output, (batch, heads, past + length, size), new.dtype)
    emitter.copy(emitter.tensor(cache), made.viewed((batch, heads, past, size), made.strides))
    emitter.copy(new, made.viewed(new.shape, made.strides, past * size))
    return made


def _output(emitter: Emitter, rank: int, query: Tensor, value: Tensor) -> Tensor:
    """Output 0 as (batch, heads, length, size)."""
    (batch, heads, length, _), size = query.shape, value.shape[3]
    if rank == 4:
        return emitter.output(0, (batch, heads, length, size))
    return _heads(emitter.output(0, (batch, length, heads * size)), heads)


def _emit(emitter: Emitter, query: Tensor, key: Tensor, value: Tensor, y: Tensor, scores: _Scores) -> None:
    """y = softmax(scale * query key^T + ...) value. Queries of a group of heads share keys and values."""
    (batch, heads, length, _), (shared, keys) = query.shape, key.shape[1:3]
    shape = (batch, heads, length, keys)

    def buffer(*modes: int) -> Tensor:
        shown = emitter.wants(3) and scores.mode in modes
        return emitter.output(3, shape, query.dtype) if shown else emitter.temporary(shape, query.dtype)

    raw = buffer(0)
    emit_product(emitter, _grouped(query, shared), _repeated(key, turn=True), _grouped(raw, shared), scores.scale)
    shows = {1: "capped", 2: "masked"}.get(scores.mode, "") if emitter.wants(3) else ""
    sight, layout = replace(scores.sight, shows=shows), Layout(shape, (3,))
    operands, mask, lengths = [raw], None, None
    if scores.mask is not None:
        sight = replace(sight, columns_of_mask=scores.mask.shape[-1])
        to = (*shape[:3], scores.mask.shape[-1])
        mask = layout.operand(scores.mask.dtype, address.broadcast(scores.mask.shape, scores.mask.strides, to))
        operands.append(scores.mask)
    if scores.lengths is not None:
        lengths = layout.operand(scores.lengths.dtype, (scores.lengths.strides[0], 0, 0, 0))
        operands.append(scores.lengths)
    if shows:
        operands.append(buffer(1, 2))
    weights = buffer(3)
    emitter.launch(weights_kernel(shape, query.dtype, sight, mask, lengths), *operands, weights)
    emit_product(emitter, _grouped(weights, shared), _repeated(value), _grouped(y, shared))


def _grouped(tensor: Tensor, shared: int) -> Tensor:
    """(batch, shared, heads / shared, rows, columns)."""
    (batch, heads, *rest), (of_batch, of_head, *steps) = tensor.shape, tensor.strides
    group = heads // shared
    return tensor.viewed((batch, shared, group, *rest), (of_batch, group * of_head, of_head, *steps))


def _repeated(tensor: Tensor, turn: bool = False) -> Tensor:
    """(batch, shared, 1, rows, columns), the matrices transposed if `turn`."""
    order = (-1, -2) if turn else (-2, -1)
    return tensor.viewed((*tensor.shape[:2], 1, *(tensor.shape[axis] for axis in order)),
                         (*tensor.strides[:2], 0, *(tensor.strides[axis] for axis in order)))


@lowering("com.microsoft.MultiHeadAttention")
def _multi_head_attention(emitter: Emitter) -> None:
    """ONNX Runtime's, for separate queries, keys and values of rank 3 without padding masks and caches."""
    attrs = emitter.attrs
    if not emitter.has(1) or not emitter.has(2) or any(emitter.has(index) for index in (3, 4, *range(6, 10))):
        raise NoKernel("MultiHeadAttention with packed inputs, biases, padding masks or caches")
    q, k, v = (emitter.tensor(index) for index in range(3))
    if q.dtype not in LIBRARY or {q.rank, k.rank, v.rank} != {3} or not (q.size and k.size and v.size):
        raise NoKernel(f"MultiHeadAttention of {q.dtype}, ranks {q.rank}, {k.rank} and {v.rank}")
    if any(emitter.wants(index) for index in (1, 2, 3)):
        raise NoKernel("MultiHeadAttention that puts out caches or scores")
    if attrs.get("unidirectional") and q.shape[1] != k.shape[1]:
        raise NoKernel("unidirectional attention from other positions than there are keys: runtimes differ")
    mask = emitter.tensor(5) if emitter.has(5) else None
    _check_mask(mask, k.shape[1])
    query, key, value = (_heads(each, attrs["num_heads"]) for each in (q, k, v))
    scale = float(attrs.get("scale") or 0.0) or 1 / sqrt(query.shape[3])
    sight = Sight(right=0 if attrs.get("unidirectional") else None)
    _emit(emitter, query, key, value, _output(emitter, 3, query, value), _Scores(scale, sight, mask))


@lowering("RotaryEmbedding")
def _rotary_embedding(emitter: Emitter) -> None:
    positions = emitter.tensor(3) if emitter.has(3) else None
    _emit_rotary(emitter, emitter.tensor(1), emitter.tensor(2), positions, emitter.attrs["num_heads"])


@lowering("com.microsoft.RotaryEmbedding")
def _contrib_rotary_embedding(emitter: Emitter) -> None:
    """ONNX Runtime's: positions come first, and may be that of the first step only."""
    attrs, cosine = emitter.attrs, emitter.tensor(2)
    if attrs.get("is_packed_batching") or float(attrs.get("scale", 1.0)) != 1.0:
        raise NoKernel("RotaryEmbedding of packed batches, or scaled")
    x = emitter.tensor(0)
    heads = attrs.get("num_heads") or (x.shape[2] // (2 * cosine.shape[1]) if x.rank == 3 else None)
    _emit_rotary(emitter, cosine, emitter.tensor(3), emitter.tensor(1), heads)


def _emit_rotary(emitter: Emitter, cosine: Tensor, sine: Tensor, positions: Tensor | None, heads: object) -> None:
    attrs, x = emitter.attrs, emitter.tensor(0)
    if x.dtype not in LIBRARY or {cosine.dtype, sine.dtype} != {x.dtype}:
        raise NoKernel(f"RotaryEmbedding of {x.dtype}, {cosine.dtype} and {sine.dtype}")
    made = emitter.output(0, x.shape)
    if not x.size:
        return
    read, written = _heads(x, heads), _heads(made, heads)
    width = int(attrs.get("rotary_embedding_dim", 0)) or read.shape[3]
    cosine, sine = emitter.as_dense(cosine), emitter.as_dense(sine)
    batch, _, length, _ = read.shape
    where, offset = None, positions is not None and positions.rank == 1
    if positions is not None:
        spread = positions.broadcast((batch, length)) if not offset else positions.broadcast((batch, 1))
        where = (positions.dtype, (spread.strides[0], spread.strides[1]))
    rotation = Rotation(x.dtype, read.shape, read.strides, written.strides, width, bool(attrs.get("interleaved", 0)),  # type: ignore[arg-type]
                        cosine.strides, cosine.shape[0], where, offset)
    emitter.launch(rotary_kernel(rotation), x, cosine, sine, *([positions] if positions is not None else []), made)
