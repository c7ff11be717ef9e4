"""Kernels of convolutions: windows laid out for a matrix product, sums back from one, and channels on their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Slide:
    """Windows that slide over an array, all per spatial axis: `sizes` of the array, `counts` of the windows. Window p
    has its element k at `p * strides + k * dilations - begins`."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]

    def position(self, axis: int, window: str, element: str) -> str:
        """Where in the array an element of a window is."""
        begin = f" - {self.begins[axis]}" if self.begins[axis] else ""
        return f"{window} * {self.strides[axis]} + {element} * {self.dilations[axis]}{begin}"

    def outside(self, axis: int, position: str) -> list[str]:
        """Conditions for a position to lie outside of the array, those that no window meets left out."""
        last = ((self.counts[axis] - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis]
                - self.begins[axis])
        return [*([f"{position} < 0"] if self.begins[axis] > 0 else []),
                *([f"{position} >= {self.sizes[axis]}"] if last >= self.sizes[axis] else [])]


def _coordinates(names: Sequence[str], shape: Sequence[int]) -> str:
    """Declarations of the coordinates of `i`."""
    return "".join(f"  const eg_index {name} = {text};\n"
                   for name, text in zip(names, address.coordinates("i", shape)))


def _sum(names: Sequence[str], strides: Sequence[int]) -> str:
    terms = [name if stride == 1 else f"{name} * {stride}" for name, stride in zip(names, strides) if stride]
    return " + ".join(terms) or "0"


def _names(letter: str, rank: int) -> list[str]:
    return [f"{letter}{axis}" for axis in range(rank)]


@lru_cache(maxsize=1024)
def columns_kernel(dtype: str, lead: tuple[int, int], strides: tuple[int, ...], slide: Slide) -> Kernel:
    """y[n, c, k..., p...] = x[n, c, element k of window p], 0 outside: one thread an element of y, row-major.

    `lead` is (batch, channels), `strides` those of x. Elements are moved as they are stored.
    """
    rank, storage = len(slide.sizes), Scalar.of(dtype).storage
    shape = (*lead, *slide.kernel, *slide.counts)
    k, p, s = (_names(letter, rank) for letter in "kps")
    text = f"EG_PARALLEL(i, {prod(shape)})\n" + _coordinates(["n", "c", *k, *p], shape)
    for axis in range(rank):
        text += f"  const eg_index {s[axis]} = {slide.position(axis, p[axis], k[axis])};\n"
    got = f"EG_GET(x, {_sum(['n', 'c', *s], strides)})"
    outside = " || ".join(each for axis in range(rank) for each in slide.outside(axis, s[axis]))
    text += f"  EG_PUT(y, i, {f'{outside} ? ({storage})0 : {got}' if outside else got});\nEG_END"
    wide = address.is_wide(shape, address.contiguous(shape)) or address.is_wide((*lead, *slide.sizes), strides)
    return Kernel("eg_columns", (Parameter("x", dtype), Parameter("y", dtype, True)), text, prod(shape), wide=wide)


@lru_cache(maxsize=1024)
def depthwise_kernel(dtype: str, lead: tuple[int, int], maps: int, strides: tuple[int, ...], slide: Slide,
                     has_bias: bool) -> Kernel:
    """y[n, m, p...] = bias[m] + the sum over k of x[n, m / (maps / channels), element k of window p] * w[m, k...]:
    one thread an element of y. `lead` is (batch, channels), `strides` those of x."""
    scalar, rank = Scalar.of(dtype), len(slide.sizes)
    shape = (lead[0], maps, *slide.counts)
    k, p, s = (_names(letter, rank) for letter in "kps")
    text = f"EG_PARALLEL(i, {prod(shape)})\n" + _coordinates(["n", "m", *p], shape)
    text += f"  const eg_index from = {_sum(['n', f'm / {maps // lead[1]}'], strides[:2])};\n"
    text += f"  {scalar.compute} total = {scalar.load('b', 'm') if has_bias else scalar.literal(0)};\n"
    for axis in range(rank):
        text += f"  for (int {k[axis]} = 0; {k[axis]} < {slide.kernel[axis]}; ++{k[axis]}) {{\n"
        text += f"    const eg_index {s[axis]} = {slide.position(axis, p[axis], k[axis])};\n"
        outside = " || ".join(slide.outside(axis, s[axis]))
        text += f"    if ({outside}) continue;\n" if outside else ""
    value = scalar.load("x", f"from + {_sum(s, strides[2:])}")
    factor = scalar.load("w", _sum(["m", *k], address.contiguous((maps, *slide.kernel))))
    text += f"    total += {value} * {factor};\n  {'}' * rank}\n  {scalar.store('y', 'i', 'total')}\nEG_END"
    wide = address.is_wide(shape, address.contiguous(shape)) or address.is_wide((*lead, *slide.sizes), strides)
    return Kernel("eg_depthwise", _parameters(dtype, ["x", "w"], has_bias), text, prod(shape), exact=False, wide=wide)


@lru_cache(maxsize=1024)
def gather_kernel(dtype: str, lead: tuple[int, int], slide: Slide, has_bias: bool, channels: int = 0) -> Kernel:
    """Transposed windows: y[n, m, s...] = bias[m] + the sum of all elements of windows that lie at s.

    `lead` is (batch, maps), `slide.sizes` those of y. Elements come from row-major `c[n, m, k..., p...]`; or, with
    `channels`, they are x[n, m / (maps / channels), p...] * w[m, k...], both row-major.
    """
    scalar, rank = Scalar.of(dtype), len(slide.sizes)
    shape = (*lead, *slide.sizes)
    k, p, s, t = (_names(letter, rank) for letter in "kpst")
    text = f"EG_PARALLEL(i, {prod(shape)})\n" + _coordinates(["n", "m", *s], shape)
    text += f"  {scalar.compute} total = {scalar.load('b', 'm') if has_bias else scalar.literal(0)};\n"
    for axis in range(rank):
        stride, begin = slide.strides[axis], f" + {slide.begins[axis]}" if slide.begins[axis] else ""
        apart = f" || {t[axis]} % {stride}" if stride > 1 else ""
        text += f"  for (int {k[axis]} = 0; {k[axis]} < {slide.kernel[axis]}; ++{k[axis]}) {{\n"
        text += f"    const eg_index {t[axis]} = {s[axis]}{begin} - {k[axis]} * {slide.dilations[axis]};\n"
        text += f"    if ({t[axis]} < 0{apart}) continue;\n"
        text += f"    const eg_index {p[axis]} = {t[axis]} / {stride};\n"
        text += f"    if ({p[axis]} >= {slide.counts[axis]}) continue;\n"
    columns = (*lead, *slide.kernel, *slide.counts)
    if channels:
        value = scalar.load("x", _sum(["n", f"(m / {lead[1] // channels})", *p],
                                      address.contiguous((lead[0], channels, *slide.counts))))
        value += f" * {scalar.load('w', _sum(['m', *k], address.contiguous((lead[1], *slide.kernel))))}"
    else:
        value = scalar.load("c", _sum(["n", "m", *k, *p], address.contiguous(columns)))
    text += f"    total += {value};\n  {'}' * rank}\n  {scalar.store('y', 'i', 'total')}\nEG_END"
    wide = address.is_wide(shape, address.contiguous(shape)) or address.is_wide(columns, address.contiguous(columns))
    return Kernel("eg_gather_windows", _parameters(dtype, ["x", "w"] if channels else ["c"], has_bias), text,
                  prod(shape), exact=False, wide=wide)


def _parameters(dtype: str, inputs: Sequence[str], has_bias: bool) -> tuple[Parameter, ...]:
    names = [*inputs, *(["b"] if has_bias else [])]
    return (*(Parameter(name, dtype) for name in names), Parameter("y", dtype, True))
