"""One block of a Llama-like decoder as PyTorch exports it: RMSNorm in parts, RoPE, grouped-query attention, SwiGLU."""

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
    """Sizes of the block; `groups` is the number of key and value heads."""

    hidden: int = 1024
    heads: int = 16
    groups: int = 4
    intermediate: int = 2816
    layers: int = 1
    base: float = 10000.0
    epsilon: float = 1e-6
    opset: int = 17
    seed: int = 0

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


@dataclass
class _Context:
    """What all blocks share: sizes of the input, the causal mask, cosine and sine of the positions."""

    batch: Value
    sequence: Value
    bias: Value
    cosine: Value
    sine: Value


def llama(name: str, sizes: Sizes) -> Graph:
    """The block: embedded tokens and a padding mask in, hidden states out."""
    net = Exporter(name, sizes.opset, sizes.seed)
    hidden = net.builder.input("hidden_states", "float32", ["batch", "sequence", sizes.hidden])
    mask = net.builder.input("attention_mask", "int64", ["batch", "sequence"])
    with net.module("model"):
        context = _context(net, sizes, hidden, mask)
        for index in range(sizes.layers):
            with net.module(f"layers.{index}"):
                hidden = _block(net, sizes, hidden, context)
        with net.module("norm"):
            hidden = _rms_norm(net, sizes, hidden)
    return net.finish(last_hidden_state=hidden)


def _context(net: Exporter, sizes: Sizes, hidden: Value, mask: Value) -> _Context:
    batch, sequence = net.size(hidden, 0), net.size(hidden, 1)
    length = net("Gather", net("Shape", hidden), np.array(1, np.int64), axis=0)
    square = net("ConstantOfShape", net("Concat", sequence, sequence, axis=0), value=np.array([MASKED], np.float32))
    causal = net("Trilu", square, np.array(1, np.int64), upper=1)
    causal = net("Unsqueeze", net("Unsqueeze", causal, axes=[0]), axes=[1])
    shape = net("Concat", batch, np.array([1], np.int64), sequence, sequence, axis=0)
    padding = net("Cast", net("Unsqueeze", net("Unsqueeze", mask, axes=[1]), axes=[2]), to=TensorProto.BOOL)
    bias = net("Where", padding, net("Expand", causal, shape), np.array(MASKED, np.float32))
    with net.module("rotary_emb"):
        positions = net("Range", np.array(0, np.int64), length, np.array(1, np.int64))
        positions = net("Cast", net("Unsqueeze", positions, axes=[0]), to=TensorProto.FLOAT)
        powers = np.arange(0, sizes.head, 2, dtype=np.float64) / sizes.head
        frequencies = net.constant("inv_freq", (sizes.base**-powers).astype(np.float32)[None, :, None])
        angles = net("MatMul", frequencies, net("Unsqueeze", positions, axes=[1]))
        half = net("Transpose", angles, perm=[0, 2, 1])
        whole = net("Concat", half, half, axis=-1)
        cosine, sine = net("Mul", net("Cos", whole), 1.0), net("Mul", net("Sin", whole), 1.0)
    return _Context(batch, sequence, bias, cosine, sine)


def _rms_norm(net: Exporter, sizes: Sizes, value: Value) -> Value:
    power = net("ReduceMean", net("Pow", value, 2.0), axes=[-1])
    factor = net("Div", 1.0, net("Sqrt", net("Add", power, sizes.epsilon)))
    return net("Mul", net.normal("weight", (sizes.hidden,), 0.1, 1.0), net("Mul", value, factor))


def _block(net: Exporter, sizes: Sizes, hidden: Value, context: _Context) -> Value:
    with net.module("input_layernorm"):
        normal = _rms_norm(net, sizes, hidden)
    with net.module("self_attn"):
        attended = _attention(net, sizes, normal, context)
    hidden = net("Add", hidden, attended)
    with net.module("post_attention_layernorm"):
        normal = _rms_norm(net, sizes, hidden)
    with net.module("mlp"):
        gate = _project(net, "gate_proj", normal, sizes.hidden, sizes.intermediate)
        with net.module("act_fn"):
            gate = net("Mul", gate, net("Sigmoid", gate))
        up = _project(net, "up_proj", normal, sizes.hidden, sizes.intermediate)
        down = _project(net, "down_proj", net("Mul", gate, up), sizes.intermediate, sizes.hidden)
    return net("Add", hidden, down)


def _project(net: Exporter, name: str, value: Value, inner: int, outer: int) -> Value:
    with net.module(name):
        return net.linear(value, inner, outer, bias=False)


def _attention(net: Exporter, sizes: Sizes, value: Value, context: _Context) -> Value:
    def heads(name: str, count: int) -> Value:
        made = _project(net, name, value, sizes.hidden, count * sizes.head)
        split = net.view(made, [net.size(value, 0), net.size(value, 1), count, sizes.head])
        return net("Transpose", split, perm=[0, 2, 1, 3])

    query, key = heads("q_proj", sizes.heads), heads("k_proj", sizes.groups)
    values = heads("v_proj", sizes.groups)
    cosine, sine = net("Unsqueeze", context.cosine, axes=[1]), net("Unsqueeze", context.sine, axes=[1])
    query, key = (net("Add", net("Mul", each, cosine), net("Mul", _rotate_half(net, each, sizes), sine))
                  for each in (query, key))
    key, values = _repeat(net, sizes, key, context), _repeat(net, sizes, values, context)
    scores = net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net("Mul", scores, float(sizes.head**-0.5))
    weights = net("Softmax", net("Add", scores, context.bias), axis=-1)
    out = net("Transpose", net("MatMul", weights, values), perm=[0, 2, 1, 3])
    out = net.view(out, [net.size(value, 0), net.size(value, 1), sizes.heads * sizes.head])
    return _project(net, "o_proj", out, sizes.heads * sizes.head, sizes.hidden)


def _rotate_half(net: Exporter, value: Value, sizes: Sizes) -> Value:
    middle, end = sizes.head // 2, np.iinfo(np.int64).max

    def part(start: int, stop: int) -> Value:
        return net("Slice", value, *(np.array([each], np.int64) for each in (start, stop, 3, 1)))

    return net("Concat", net("Neg", part(middle, end)), part(0, middle), axis=-1)


def _repeat(net: Exporter, sizes: Sizes, value: Value, context: _Context) -> Value:
    """Each key or value head serves several query heads."""
    count = sizes.heads // sizes.groups
    wide = net("Unsqueeze", value, axes=[2])
    parts = [np.array([each], np.int64) for each in (sizes.groups, count, sizes.head)]
    shape = net("Concat", context.batch, parts[0], parts[1], context.sequence, parts[2], axis=0)
    return net.view(net("Expand", wide, shape), [context.batch, sizes.heads, context.sequence, sizes.head])
