"""A GPT-2-like decoder as PyTorch exports it: LayerNorm before each part, one projection for Q, K and V, tanh GELU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..builder import Value
from ..ir import Graph
from .exporter import Exporter

MASKED = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 1000
    positions: int = 256
    epsilon: float = 1e-5
    opset: int = 17
    seed: int = 0


def gpt(name: str, sizes: Sizes) -> Graph:
    """The decoder: token ids in, scores of each place's next token out."""
    net = Exporter(name, sizes.opset, sizes.seed)
    ids = net.builder.input("input_ids", "int64", ["batch", "sequence"])
    length = net.size(ids, 1)
    positions = net("Slice", net.constant("position_ids", np.arange(sizes.positions, dtype=np.int64)[None]),
                    np.array([0], np.int64), length, np.array([1], np.int64), np.array([1], np.int64))
    with net.module("transformer"):
        words = net("Gather", net.normal("wte.weight", (sizes.vocabulary, sizes.hidden), 0.6), ids, axis=0)
        places = net("Gather", net.normal("wpe.weight", (sizes.positions, sizes.hidden), 0.2), positions, axis=0)
        hidden = net("Add", words, places)
        square = net("ConstantOfShape", net("Concat", length, length, axis=0), value=np.array([MASKED], np.float32))
        later = net("Trilu", square, np.array(1, np.int64), upper=1)
        for index in range(sizes.layers):
            with net.module(f"h.{index}"):
                hidden = _layer(net, sizes, hidden, later)
        with net.module("ln_f"):
            hidden = net.layer_norm(hidden, sizes.hidden, sizes.epsilon)
    with net.module("lm_head"):
        return net.finish(logits=net.linear(hidden, sizes.hidden, sizes.vocabulary, bias=False))


def _layer(net: Exporter, sizes: Sizes, hidden: Value, later: Value) -> Value:
    with net.module("ln_1"):
        normal = net.layer_norm(hidden, sizes.hidden, sizes.epsilon)
    with net.module("attn"):
        hidden = net("Add", hidden, _attention(net, sizes, normal, later))
    with net.module("ln_2"):
        normal = net.layer_norm(hidden, sizes.hidden, sizes.epsilon)
    with net.module("mlp"):
        with net.module("c_fc"):
            inner = net.linear(normal, sizes.hidden, 4 * sizes.hidden)
        with net.module("act"):
            inner = _gelu(net, inner)
        with net.module("c_proj"):
            return net("Add", hidden, net.linear(inner, 4 * sizes.hidden, sizes.hidden))


def _attention(net: Exporter, sizes: Sizes, value: Value, later: Value) -> Value:
    head = sizes.hidden // sizes.heads
    with net.module("c_attn"):
        joined = net.linear(value, sizes.hidden, 3 * sizes.hidden)
    parts = net.several("Split", 3, joined, np.array([sizes.hidden] * 3, np.int64), axis=2)
    batch, length = net.size(value, 0), net.size(value, 1)
    query, key, values = (net("Transpose", net.view(part, [batch, length, sizes.heads, head]), perm=order)
                          for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])))
    scores = net("Div", net("MatMul", query, key), float(np.sqrt(head)))
    weights = net("Softmax", net("Add", scores, later), axis=-1)
    context = net("Transpose", net("MatMul", weights, values), perm=[0, 2, 1, 3])
    with net.module("c_proj"):
        return net.linear(net.view(context, [batch, length, sizes.hidden]), sizes.hidden, sizes.hidden)


def _gelu(net: Exporter, value: Value) -> Value:
    """The GELU by tanh, in parts."""
    bent = net("Add", value, net("Mul", net("Pow", value, 3.0), 0.044715))
    share = net("Add", net("Tanh", net("Mul", bent, float(np.sqrt(2 / np.pi)))), 1.0)
    return net("Mul", net("Mul", value, 0.5), share)
