"""Large graphs that `scripts.bench_scale` optimizes: equal blocks many times, and cells of which no two are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from graphs.builder import Value
from graphs.ir import Graph
from graphs.zoo import bert
from graphs.zoo.exporter import Exporter
from scripts.scale_swin import swin

CHANNELS, IMAGE = 16, 14
CELL_BLOCKS, SHARE = 5, 0.03
BERT = bert.Sizes(hidden=64, heads=4, intermediate=128, vocabulary=100, positions=64)


@dataclass(frozen=True)
class Large:
    """A graph by its size: layers, cells or steps, in the text as `unit`."""

    unit: str
    make: Callable[[int], Graph]


def encoder(layers: int) -> Graph:
    """BERT of this many layers, hidden size 64."""
    sizes = bert.Sizes(layers=layers, hidden=BERT.hidden, heads=BERT.heads, intermediate=BERT.intermediate,
                       vocabulary=BERT.vocabulary, positions=BERT.positions)
    return bert.bert(f"bert_{layers}", sizes)


def random_cells(nodes: int) -> Graph:
    """Cells like those of NASNet, about `nodes` nodes: each wires five sums of two random operations, and differs."""
    random = Random(nodes)
    return _cells(f"random_cells_{nodes}", nodes, lambda index: random)


def nasnet(nodes: int) -> Graph:
    """As in NASNet: one kind of cell again and again, and another one after every sixth. Weights differ."""
    return _cells(f"nasnet_{nodes}", nodes, lambda index: Random(2 if index % 7 == 6 else 1))


def _cells(name: str, nodes: int, random: Callable[[int], Random]) -> Graph:
    net = Exporter(name)
    image = net.builder.input("image", "float32", ["batch", 3, IMAGE, IMAGE])
    with net.module("stem"):
        before = here = _conv(net, image, 3, CHANNELS, 3)
    index = 0
    while len(net.builder.unfinished.nodes) < nodes:
        with net.module(f"cell{index}"):
            before, here = here, _cell(net, random(index), before, here)
        index += 1
    return net.finish(scores=net("Flatten", net("GlobalAveragePool", here), axis=1))


def _cell(net: Exporter, random: Random, before: Value, here: Value) -> Value:
    """As NASNet has them: two earlier cells, five blocks, what nobody read is concatenated, projected and added.

    What comes in is limited to [0, 6] and little is added, so that hundreds of cells with random weights neither
    overflow nor amplify what rounding leaves.
    """
    with net.module("left"):
        left = _conv(net, net("Clip", before, 0.0, 6.0), CHANNELS, CHANNELS, 1)
    with net.module("right"):
        right = _conv(net, net("Clip", here, 0.0, 6.0), CHANNELS, CHANNELS, 1)
    values, unread = [left, right], {}
    for block in range(CELL_BLOCKS):
        with net.module(f"block{block}"):
            chosen = [random.randrange(len(values)) for _ in range(2)]
            parts = [_operation(net, random, values[each], part) for part, each in enumerate(chosen)]
            values.append(net("Add", *parts))
        unread = {key: value for key, value in unread.items() if key not in chosen} | {len(values) - 1: values[-1]}
    ends = list(unread.values())
    joined = net("Concat", *ends, axis=1) if len(ends) > 1 else ends[0]
    with net.module("project"):
        fresh = _conv(net, net("Relu", joined), CHANNELS * len(ends), CHANNELS, 1)
        return net("Add", here, net("Mul", fresh, SHARE))


def _operation(net: Exporter, random: Random, value: Value, part: int) -> Value:
    kind = random.choice(("separable", "separable", "dilated", "average", "maximum", "gate", "squeeze", "identity"))
    size = random.choice((3, 5, 7))
    pads = [size // 2] * 4
    with net.module(f"{kind}{part}"):
        if kind == "separable":
            deep = _conv(net, net("Relu", value), CHANNELS, CHANNELS, size, group=CHANNELS)
            return _conv(net, deep, CHANNELS, CHANNELS, 1)
        if kind == "dilated":
            return _conv(net, net("Relu", value), CHANNELS, CHANNELS, 3, dilation=size // 2)
        if kind == "average":
            return net("AveragePool", value, kernel_shape=[size, size], pads=pads)
        if kind == "maximum":
            return net("MaxPool", value, kernel_shape=[size, size], pads=pads)
        if kind == "gate":
            return net("Mul", value, net("Sigmoid", _conv(net, value, CHANNELS, CHANNELS, 1)))
        if kind == "squeeze":
            mean = net("ReduceMean", value, axes=[2, 3])
            return net("Div", net("Sub", value, mean), net("Sqrt", net("Add", net("Abs", mean), 1.0)))
        return value


def _conv(net: Exporter, value: Value, inner: int, outer: int, size: int, group: int = 1, dilation: int = 1) -> Value:
    """Conv without bias and BatchNormalization."""
    fan_in = inner // group * size * size
    weight = net.normal("weight", (outer, inner // group, size, size), (2 / fan_in) ** 0.5)
    made = net("Conv", value, weight, kernel_shape=[size, size], pads=[dilation * (size // 2)] * 4,
               dilations=[dilation, dilation], group=group)
    names = [net.uniform(f"scale{size}", (outer,), 0.5, 1.5), net.normal(f"bias{size}", (outer,), 0.1),
             net.normal(f"mean{size}", (outer,), 0.1), net.uniform(f"variance{size}", (outer,), 0.5, 1.5)]
    return net("BatchNormalization", made, *names, epsilon=1e-5)


def unrolled(steps: int) -> Graph:
    """An LSTM cell of 32 units, unrolled: 19 nodes a step, gates cut out of one product as frameworks write them."""
    net, units = Exporter(f"unrolled_{steps}"), 32
    sequence = net.builder.input("sequence", "float32", ["batch", steps, units])
    hidden = net.builder.input("hidden", "float32", ["batch", units])
    cell = net.builder.input("cell", "float32", ["batch", units])
    into, back = (net.normal(name, (units, 4 * units), units**-0.5) for name in ("in", "back"))
    bias = net.normal("bias", (4 * units,), 0.1)
    for step in range(steps):
        with net.module(f"step{step}"):
            x = net("Squeeze", net("Slice", sequence, np.array([step]), np.array([step + 1]), np.array([1])),
                    np.array([1]))
            fed = net("Add", net("Add", net("MatMul", x, into), bias), net("MatMul", hidden, back))
            gates = [net("Slice", fed, np.array([units * k]), np.array([units * (k + 1)]), np.array([1]))
                     for k in range(4)]
            taken, kept, told = (net("Sigmoid", gates[k]) for k in (0, 1, 3))
            fresh = net("Mul", taken, net("Tanh", gates[2]))
            cell = net("Add", net("Mul", kept, cell), fresh)
            hidden = net("Mul", told, net("Tanh", cell))
    return net.finish(last=hidden, state=cell)


LARGE = {
    "bert": Large("layers", encoder),
    "nasnet": Large("nodes", nasnet),
    "random-cells": Large("nodes", random_cells),
    "swin": Large("nodes", swin),
    "unrolled-lstm": Large("steps", unrolled),
}
