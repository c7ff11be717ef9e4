"""Sliding windows of convolutions and pools as gradient rows see them: padding as static numbers, or made apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphs.builder import Builder, Value
from graphs.dims import DimLike
from graphs.operators._windows import SAME, explicit_pads, per_axis

from .shapes import ints
from .site import Site

END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """Strides, dilations and padding of a node, one number per spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def attrs(self) -> dict[str, object]:
        """Attributes of a Conv of this window."""
        return {"strides": self.strides, "dilations": self.dilations, "pads": (*self.begins, *self.ends)}


def spatial_rank(s: Site) -> int:
    """The number of spatial axes of input 0."""
    return s.rank(0) - 2


def kernel_sizes(s: Site) -> tuple[DimLike, ...]:
    """The kernel's sizes; of a convolution by its weights if no attribute states them."""
    given = s.attrs.get("kernel_shape")
    if given:
        return tuple(given)  # type: ignore[arg-type]
    return (s[1].shape or ())[2:]


def static_window(s: Site) -> Window | None:
    """The window where its padding does not depend on sizes that only the run knows, and no window reaches beyond."""
    rank, sizes, kernel = spatial_rank(s), (s[0].shape or ())[2:], kernel_sizes(s)
    strides, dilations = per_axis(s.attrs, "strides", rank), per_axis(s.attrs, "dilations", rank)
    if s.attrs.get("ceil_mode"):
        return None
    if s.attrs.get("auto_pad", "NOTSET") not in SAME:
        return Window(strides, dilations, *explicit_pads(s.attrs, rank))
    totals: list[int] = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        if not isinstance(k, int) or not (isinstance(size, int) or stride == 1):
            return None
        rest = stride if not isinstance(size, int) else size - (-(-size // stride) - 1) * stride
        totals.append(max((k - 1) * dilation + 1 - rest, 0))
    small = tuple(total // 2 for total in totals)
    large = tuple(total - half for total, half in zip(totals, small))
    begins, ends = (small, large) if s.attrs["auto_pad"] == "SAME_UPPER" else (large, small)
    return Window(strides, dilations, begins, ends)


def padded(s: Site, of: Value, begun: bool = False) -> tuple[Value, Window]:
    """A value of input 0's sizes with zeros around it, just as long as the windows reach; the window without any.

    What no window reads is cut off at the end. `begun`: the padding in front is there already.
    """
    b, rank = s.b, spatial_rank(s)
    strides, dilations = per_axis(s.attrs, "strides", rank), per_axis(s.attrs, "dilations", rank)
    zeros = (0,) * rank
    counts, sizes = b.Shape(s.out, start=2), b.Shape(of, start=2)
    given = s.attrs.get("kernel_shape")
    kernel = ints(b, tuple(given)) if given else b.Shape(s[1], start=2)  # type: ignore[arg-type]
    one = ints(b, (1,))
    last, span = b.Mul(b.Sub(counts, one), ints(b, strides)), b.Mul(b.Sub(kernel, one), ints(b, dilations))
    reach = b.Add(b.Add(last, span), one)
    if s.attrs.get("auto_pad", "NOTSET") in SAME:
        missing = b.Max(b.Sub(reach, sizes), ints(b, (0,)))
        half = b.Div(missing, ints(b, (2,)))
        begins = half if s.attrs["auto_pad"] == "SAME_UPPER" else b.Sub(missing, half)
    else:
        begins = ints(b, zeros if begun else explicit_pads(s.attrs, rank)[0])
    ends = b.Sub(b.Sub(reach, sizes), begins)
    both = ints(b, (0, 0))
    pads = b.Concat(both, begins, both, ends, axis=0)
    return b.Pad(of, pads=pads), Window(strides, dilations, zeros, zeros)


def cut(b: Builder, value: Value, sizes: Value, rank: int) -> Value:
    """The first elements along the spatial axes, as many as `sizes` says."""
    axes = list(range(2, 2 + rank))
    return b.Slice(value, starts=[0] * rank, ends=b.Slice(sizes, starts=[2], ends=[END], axes=[0]), axes=axes)


def leftover(window: Window, sizes: Sequence[DimLike], counts: Sequence[DimLike],
             kernel: Sequence[DimLike]) -> list[int | None]:
    """How many elements at the end of the padded input no window reads, per axis: None where that is not known."""
    found: list[int | None] = []
    for size, count, k, stride, dilation, begin, end in zip(
            sizes, counts, kernel, window.strides, window.dilations, window.begins, window.ends):
        if stride == 1:
            found.append(0)
        elif isinstance(size, int) and isinstance(count, int) and isinstance(k, int):
            found.append(size + begin + end - ((count - 1) * stride + (k - 1) * dilation + 1))
        else:
            found.append(None)
    return found
