"""Convolutions with windows of 3 x 3 in fewer products (`native/winograd.h`): which ones, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphs.ir import Node
from graphs.operators._windows import per_axis

_KERNEL = (3, 3)
PLACES = 16  # of a square, where there is a matrix product
_LANE, _PANEL = 16, 32  # channels of a vector and maps of a panel, as machines with wide vectors have them
# Measured with wide vectors, in times of one product: what the sums of a channel of a square of the image, and those of
# a map of its results take; and, where the image is unfolded, the maps whose products take what unfolding does.
_SUMS_IN, _SUMS_OUT, _UNFOLDING = 381, 317, 16
_LEAST_GAIN = 1.0  # as estimated: it is 1.1 to 1.4 then


@dataclass(frozen=True)
class Winograd:
    """An image of `channels` planes of `sizes`, `begins` zeros before them, and the `counts` of windows along both
    axes."""

    channels: int
    sizes: tuple[int, int]
    begins: tuple[int, int]
    counts: tuple[int, int]

    def words(self, weights: int) -> list[int]:
        """As the engine reads it (an `eg_winograd`), with the address of the weights as they are."""
        return [self.channels, *self.sizes, *self.begins, *self.counts, weights]

    def packed(self, maps: int, width: int, lane: int) -> int:
        """Elements of the weights' sums, in panels of `width` maps and vectors of `lane` channels."""
        return PLACES * (-(-maps // width) * width) * (-(-self.channels // lane) * lane)


def of_convolution(node: Node, weights: Sequence[int], sizes: Sequence[int], begins: Sequence[int],
                   counts: Sequence[int]) -> Winograd | None:
    """That of a Conv with so many zeros before its image; None where it is not one of these, or has too few channels
    for that to be faster."""
    if tuple(weights[2:]) != _KERNEL or node.attrs["group"] != 1 or min(counts) < 2 or 0 in weights:
        return None
    if {*per_axis(node.attrs, "strides", 2), *per_axis(node.attrs, "dilations", 2)} != {1}:
        return None
    if any(begin + size > count + count % 2 + 2 for begin, size, count in zip(begins[-2:], sizes[-2:], counts[-2:])):
        return None  # of lines with negative padding behind them a part is left out
    if _gain(weights[1], weights[0], counts) < _LEAST_GAIN:
        return None
    return Winograd(weights[1], *(tuple(each[-2:]) for each in (sizes, begins, counts)))  # type: ignore[arg-type]


def _gain(channels: int, maps: int, counts: Sequence[int]) -> float:
    """How many times as long the usual product takes, as an estimate."""
    deep, wide = -(-channels // _LANE) * _LANE, -(-maps // _PANEL) * _PANEL
    squares = -(-counts[-2] // 2) * -(-counts[-1] // 2)
    usual = 9 * channels * (maps + _UNFOLDING) * counts[-2] * counts[-1]
    return usual / (squares * (PLACES * deep * wide + _SUMS_IN * deep + _SUMS_OUT * wide))
