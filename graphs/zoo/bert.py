"""A BERT encoder as PyTorch exports it: separate projections, LayerNorm and GELU in parts, shapes computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..builder import Value
from ..ir import Graph
from .exporter import Exporter

MASKED = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder; the defaults are BERT-base."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    positions: int = 512
    token_types: int = 2
    epsilon: float = 1e-12
    opset: int = 17
    seed: int = 0


def bert(name: str, sizes: Sizes) -> Graph:
    """The encoder: token ids, mask and token types in; hidden states and pooled output out."""
    net = Exporter(name, sizes.opset, sizes.seed)
    ids, mask, types = (net.builder.input(each, "int64", ["batch", "sequence"])
                        for each in ("input_ids", "attention_mask", "token_type_ids"))
    wide = net("Cast", net("Unsqueeze", net("Unsqueeze", mask, axes=[1]), axes=[2]), to=TensorProto.FLOAT)
    bias = net("Mul", net("Sub", 1.0, wide), MASKED)
    with net.module("embeddings"):
        hidden = _embeddings(net, sizes, ids, types)
    with net.module("encoder"):
        for index in range(sizes.layers):
            with net.module(f"layer.{index}"):
                hidden = _layer(net, sizes, hidden, bias)
    with net.module("pooler"):
        pooled = _pooler(net, sizes, hidden)
    return net.finish(last_hidden_state=hidden, pooler_output=pooled)


def _embeddings(net: Exporter, sizes: Sizes, ids: Value, types: Value) -> Value:
    positions = net("Slice", net.constant("position_ids", np.arange(sizes.positions, dtype=np.int64)[None]),
                    np.array([0], np.int64), net.size(ids, 1), np.array([1], np.int64), np.array([1], np.int64))

    def look_up(table: str, rows: int, index: Value) -> Value:
        with net.module(f"{table}_embeddings"):
            return net("Gather", net.normal("weight", (rows, sizes.hidden), 0.6), index, axis=0)

    words = look_up("word", sizes.vocabulary, ids)
    total = net("Add", words, look_up("token_type", sizes.token_types, types))
    total = net("Add", total, look_up("position", sizes.positions, positions))
    with net.module("LayerNorm"):
        return net.layer_norm(total, sizes.hidden, sizes.epsilon)


def _layer(net: Exporter, sizes: Sizes, hidden: Value, bias: Value) -> Value:
    width, inner = sizes.hidden, sizes.intermediate
    with net.module("attention"):
        with net.module("self"):
            context = _attention(net, sizes, hidden, bias)
        with net.module("output"):
            hidden = _joined(net, sizes, context, hidden, width)
    with net.module("intermediate"):
        with net.module("dense"):
            wide = net.linear(hidden, width, inner)
        with net.module("intermediate_act_fn"):
            wide = gelu(net, wide)
    with net.module("output"):
        return _joined(net, sizes, wide, hidden, inner)


def _joined(net: Exporter, sizes: Sizes, value: Value, residual: Value, inner: int) -> Value:
    with net.module("dense"):
        value = net.linear(value, inner, sizes.hidden)
    total = net("Add", value, residual)
    with net.module("LayerNorm"):
        return net.layer_norm(total, sizes.hidden, sizes.epsilon)


def _attention(net: Exporter, sizes: Sizes, hidden: Value, bias: Value) -> Value:
    each = sizes.hidden // sizes.heads

    def project(name: str, order: list[int]) -> Value:
        with net.module(name):
            made = net.linear(hidden, sizes.hidden, sizes.hidden)
        split = net.view(made, [net.size(made, 0), net.size(made, 1), sizes.heads, each])
        return net("Transpose", split, perm=order)

    query, key = project("query", [0, 2, 1, 3]), project("key", [0, 2, 3, 1])
    value = project("value", [0, 2, 1, 3])
    scores = net("Div", net("MatMul", query, key), float(np.sqrt(each)))
    weights = net("Softmax", net("Add", scores, bias), axis=-1)
    context = net("Transpose", net("MatMul", weights, value), perm=[0, 2, 1, 3])
    return net.view(context, [net.size(context, 0), net.size(context, 1), sizes.hidden])


def gelu(net: Exporter, value: Value) -> Value:
    """The exact GELU in parts."""
    bent = net("Add", net("Erf", net("Div", value, float(np.sqrt(2)))), 1.0)
    return net("Mul", net("Mul", value, bent), 0.5)


def _pooler(net: Exporter, sizes: Sizes, hidden: Value) -> Value:
    first = net("Gather", hidden, np.array(0, np.int64), axis=1)
    with net.module("dense"):
        weight = net.normal("weight", (sizes.hidden, sizes.hidden), sizes.hidden**-0.5)
        dense = net("Gemm", first, weight, net.normal("bias", (sizes.hidden,), 0.1), transB=1)
    with net.module("activation"):
        return net("Tanh", dense)
