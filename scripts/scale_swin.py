"""A Swin transformer of many small blocks, as PyTorch's exporter writes it, for `scripts.bench_scale`.

Liu et al. 2021, "Swin Transformer": attention within windows of a picture, every other block with windows shifted by
half of one, so that what was cut meets; a position bias for each head; between stages each 2 x 2 pixels become one.
"""

from __future__ import annotations

import numpy as np

from graphs.builder import Value
from graphs.ir import Graph
from graphs.zoo.bert import gelu
from graphs.zoo.exporter import Exporter

WINDOW, SIDE, WIDTH, STAGES = 4, 16, 16, 3
MASKED = -100.0
EDGES = 2  # blocks of the first stage, and of the last
FIRST_BLOCK = 66  # nodes of a block, about


def swin(nodes: int) -> Graph:
    """About `nodes` nodes; most blocks are in the second stage, as in the large published ones."""
    net = Exporter(f"swin_{nodes}")
    image = net.builder.input("image", "float32", ["batch", 3, 4 * SIDE, 4 * SIDE])
    with net.module("patch_embed"):
        weight = net.normal("weight", (WIDTH, 3, 4, 4), 0.15)
        made = net("Conv", image, weight, net.normal("bias", (WIDTH,), 0.1), kernel_shape=[4, 4], strides=[4, 4])
        here = net("Transpose", made, perm=[0, 2, 3, 1])
    side, width = SIDE, WIDTH
    for stage in range(STAGES):
        with net.module(f"stage{stage}"):
            block = 0
            while block < EDGES or (stage == 1 and len(net.builder.unfinished.nodes) < nodes - EDGES * FIRST_BLOCK):
                with net.module(f"block{block}"):
                    here = _block(net, here, side, width, WINDOW // 2 if block % 2 and side > WINDOW else 0)
                block += 1
            if stage < STAGES - 1:
                with net.module("merge"):
                    here = _merge(net, here, side, width)
                side, width = side // 2, width * 2
    with net.module("norm"):
        here = net.layer_norm(here, width, 1e-5)
    pooled = net("ReduceMean", here, axes=[1, 2], keepdims=0)
    with net.module("head"):
        return net.finish(scores=net.linear(pooled, width, 10))


def _block(net: Exporter, here: Value, side: int, width: int, shift: int) -> Value:
    with net.module("norm1"):
        normal = net.layer_norm(here, width, 1e-5)
    with net.module("attn"):
        moved = _rolled(net, normal, shift, side) if shift else normal
        cut = _windows(net, moved, side, width)
        made = _attention(net, cut, side, width, shift)
        whole = _joined(net, made, side, width)
        moved = _rolled(net, whole, side - shift, side) if shift else whole
    here = net("Add", here, moved)
    with net.module("norm2"):
        normal = net.layer_norm(here, width, 1e-5)
    with net.module("mlp"):
        with net.module("fc1"):
            wide = net.linear(normal, width, 2 * width)
        wide = gelu(net, wide)
        with net.module("fc2"):
            made = net.linear(wide, 2 * width, width)
    return net("Add", here, made)


def _rolled(net: Exporter, value: Value, by: int, side: int) -> Value:
    """`torch.roll` of both axes of a picture, towards the front."""
    for axis in (1, 2):
        parts = [net("Slice", value, np.array([low]), np.array([high]), np.array([axis]), np.array([1]))
                 for low, high in ((by, side), (0, by))]
        value = net("Concat", *parts, axis=axis)
    return value


def _windows(net: Exporter, value: Value, side: int, width: int) -> Value:
    """(batch, side, side, width) -> (batch * windows, pixels, width), with sizes computed where they are free."""
    count = side // WINDOW
    apart = net.view(value, [net.size(value, 0), count, WINDOW, count, WINDOW, width])
    turned = net("Transpose", apart, perm=[0, 1, 3, 2, 4, 5])
    return net("Reshape", turned, np.array([-1, WINDOW * WINDOW, width]))


def _joined(net: Exporter, value: Value, side: int, width: int) -> Value:
    """The inverse of `_windows`."""
    count = side // WINDOW
    apart = net("Reshape", value, np.array([-1, count, count, WINDOW, WINDOW, width]))
    turned = net("Transpose", apart, perm=[0, 1, 3, 2, 4, 5])
    return net("Reshape", turned, np.array([-1, side, side, width]))


def _attention(net: Exporter, value: Value, side: int, width: int, shift: int) -> Value:
    pixels, heads, windows = WINDOW * WINDOW, width // 8, (side // WINDOW) ** 2
    with net.module("qkv"):
        made = net.linear(value, width, 3 * width)
    apart = net("Transpose", net("Reshape", made, np.array([-1, pixels, 3, heads, 8])), perm=[2, 0, 3, 1, 4])
    query, key, content = (net("Gather", apart, np.array(index, np.int64), axis=0) for index in range(3))
    query = net("Mul", query, 8**-0.5)
    scores = net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2]))
    table = net.normal("relative_position_bias_table", ((2 * WINDOW - 1) ** 2, heads), 0.5)
    index = net.constant("relative_position_index", _relative_positions())
    bias = net("Transpose", net("Reshape", net("Gather", table, index, axis=0), np.array([pixels, pixels, heads])),
               perm=[2, 0, 1])
    scores = net("Add", scores, net("Unsqueeze", bias, axes=[0]))
    if shift:
        mask = net.constant("attn_mask", _mask(side, shift))
        grouped = net("Reshape", scores, np.array([-1, windows, heads, pixels, pixels]))
        masked = net("Add", grouped, net("Unsqueeze", net("Unsqueeze", mask, axes=[1]), axes=[0]))
        scores = net("Reshape", masked, np.array([-1, heads, pixels, pixels]))
    weights = net("Softmax", scores, axis=-1)
    context = net("Transpose", net("MatMul", weights, content), perm=[0, 2, 1, 3])
    with net.module("proj"):
        return net.linear(net("Reshape", context, np.array([-1, pixels, width])), width, width)


def _relative_positions() -> np.ndarray:
    """int64[pixels * pixels]: the row of the table for each two pixels of a window."""
    places = np.stack(np.meshgrid(*[np.arange(WINDOW)] * 2, indexing="ij")).reshape(2, -1)
    apart = places[:, :, None] - places[:, None, :] + WINDOW - 1
    rows: np.ndarray = (apart[0] * (2 * WINDOW - 1) + apart[1]).reshape(-1).astype(np.int64)
    return rows


def _mask(side: int, shift: int) -> np.ndarray:
    """float32[windows, pixels, pixels]: pixels that only the shift brought together do not see each other."""
    parts = np.array([0] * (side - WINDOW) + [1] * (WINDOW - shift) + [2] * shift)
    of_pixel = (3 * parts[:, None] + parts[None, :]).reshape(side // WINDOW, WINDOW, side // WINDOW, WINDOW)
    cut = of_pixel.transpose(0, 2, 1, 3).reshape(-1, WINDOW * WINDOW)
    mask: np.ndarray = np.where(cut[:, :, None] == cut[:, None, :], 0.0, MASKED).astype(np.float32)
    return mask


def _merge(net: Exporter, here: Value, side: int, width: int) -> Value:
    """Each 2 x 2 pixels become one of twice the width."""
    parts = [net("Slice", net("Slice", here, np.array([row]), np.array([side]), np.array([1]), np.array([2])),
                 np.array([column]), np.array([side]), np.array([2]), np.array([2]))
             for column in (0, 1) for row in (0, 1)]
    joined = net("Concat", *parts, axis=-1)
    with net.module("norm"):
        normal = net.layer_norm(joined, 4 * width, 1e-5)
    with net.module("reduction"):
        return net.linear(normal, 4 * width, 2 * width, bias=False)
