"""Residual networks as PyTorch exports them in training mode: Conv and BatchNormalization apart."""

from __future__ import annotations

from dataclasses import dataclass

from ..builder import Value
from ..ir import Graph
from .exporter import Exporter


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network; the defaults are ResNet-18. With `bottleneck` a block is 1x1, 3x3, 1x1."""

    blocks: tuple[int, ...] = (2, 2, 2, 2)
    bottleneck: bool = False
    width: int = 64
    image: int = 224
    classes: int = 1000
    opset: int = 17
    seed: int = 0


@dataclass
class _Signal:
    """Channels and the mean square of a value, from which plausible running statistics follow."""

    value: Value
    channels: int
    power: float


def resnet(name: str, sizes: Sizes) -> Graph:
    """The network: an image in NCHW, class scores out."""
    net = Exporter(name, sizes.opset, sizes.seed)
    image = net.builder.input("input", "float32", ["batch", 3, sizes.image, sizes.image])
    stem = _conv_norm(net, _Signal(image, 3, 1.0), sizes.width, 7, 2, "")
    x = _relu(net, stem)
    with net.module("maxpool"):
        x.value = net("MaxPool", x.value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x.power *= 2
    for stage, count in enumerate(sizes.blocks):
        with net.module(f"layer{stage + 1}"):
            for index in range(count):
                with net.module(f"layer{stage + 1}.{index}"):
                    x = _block(net, sizes, x, sizes.width << stage, 2 if stage and not index else 1)
    with net.module("avgpool"):
        pooled = net("GlobalAveragePool", x.value)
    flat = net("Flatten", pooled, axis=1)
    with net.module("fc"):
        weight = net.normal("weight", (sizes.classes, x.channels), 2 * (x.channels * x.power)**-0.5)
        scores = net("Gemm", flat, weight, net.normal("bias", (sizes.classes,), 0.1), transB=1)
    return net.finish(output=scores)


def _block(net: Exporter, sizes: Sizes, x: _Signal, width: int, stride: int) -> _Signal:
    out = width * 4 if sizes.bottleneck else width
    if sizes.bottleneck:
        y = _relu(net, _conv_norm(net, x, width, 1, 1, "1"))
        y = _relu(net, _conv_norm(net, y, width, 3, stride, "2"))
        y = _conv_norm(net, y, out, 1, 1, "3")
    else:
        y = _relu(net, _conv_norm(net, x, width, 3, stride, "1"))
        y = _conv_norm(net, y, out, 3, 1, "2")
    shortcut = x
    if stride != 1 or x.channels != out:
        with net.module("downsample"):
            shortcut = _conv_norm(net, x, out, 1, stride, "")
    carried = 2 if shortcut is x else 1  # what is not negative passes the rectifier whole
    total = net("Add", y.value, shortcut.value)
    return _relu(net, _Signal(total, out, y.power + carried * shortcut.power))


def _relu(net: Exporter, x: _Signal) -> _Signal:
    with net.module("relu"):
        return _Signal(net("Relu", x.value), x.channels, x.power / 2)


def _conv_norm(net: Exporter, x: _Signal, channels: int, kernel: int, stride: int, number: str) -> _Signal:
    """Conv without bias, then BatchNormalization with statistics that fit the signal."""
    fan_in = x.channels * kernel * kernel
    with net.module(f"conv{number}"):
        weight = net.normal("weight", (channels, x.channels, kernel, kernel), (2 / fan_in) ** 0.5)
        made = net("Conv", x.value, weight, kernel_shape=[kernel, kernel], strides=[stride, stride],
                   pads=[kernel // 2] * 4)
    variance = 2 * x.power
    with net.module(f"bn{number}"):
        scale, bias = net.uniform("weight", (channels,), 0.5, 1.5), net.normal("bias", (channels,), 0.1)
        mean = net.normal("running_mean", (channels,), 0.1 * variance**0.5)
        spread = net.uniform("running_var", (channels,), 0.5 * variance, 1.5 * variance)
        return _Signal(net("BatchNormalization", made, scale, bias, mean, spread, epsilon=1e-5), channels, 1.1)
