"""Padding and sliding windows, shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from graphs.operators._windows import SAME, counts_along, explicit_pads, per_axis

HALF = frozenset({"float16", "bfloat16"})


def widen(array: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32, anything else as it is."""
    return array.astype(np.float32) if array.dtype.name in HALF else array


def mean_over(array: np.ndarray, axes: tuple[int, ...], keepdims: bool = True) -> np.ndarray:
    """Like `ndarray.mean`, but the mean of nothing is NaN without a warning to the user."""
    count = int(np.prod([array.shape[axis] for axis in axes], dtype=np.int64))
    return np.asarray(np.sum(array, axis=axes, keepdims=keepdims, dtype=array.dtype) / array.dtype.type(count))


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of one node lie: all per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]  # padding before
    ends: tuple[int, ...]  # padding after, as declared (a ceil_mode window may reach further)
    counts: tuple[int, ...]  # output sizes

    @staticmethod
    def of(attrs: Mapping[str, object], sizes: Sequence[int], kernel: Sequence[int], ceil: bool = False) -> Windows:
        """From canonical attributes and the input's spatial sizes. Raises ValueError where a window fits nowhere."""
        rank = len(sizes)
        strides, dilations = per_axis(attrs, "strides", rank), per_axis(attrs, "dilations", rank)
        auto = attrs.get("auto_pad", "NOTSET")
        if auto in SAME:
            counts = tuple(-(-size // stride) for size, stride in zip(sizes, strides))
            totals = [
                max((count - 1) * stride + (k - 1) * dilation + 1 - size, 0)
                for count, stride, k, dilation, size in zip(counts, strides, kernel, dilations, sizes)
            ]
            begins = tuple(total // 2 if auto == "SAME_UPPER" else -(-total // 2) for total in totals)
            ends = tuple(total - begin for total, begin in zip(totals, begins))
        else:
            begins, ends = explicit_pads(attrs, rank)
            found = counts_along(sizes, kernel, strides, dilations, begins, ends, ceil, ValueError)
            counts = tuple(int(count) for count in found)  # type: ignore[arg-type]
        return Windows(tuple(map(int, kernel)), strides, dilations, begins, ends, counts)

    @property
    def trivial(self) -> bool:
        """One element per window and no padding."""
        return all(k == 1 for k in self.kernel) and not any(self.begins) and not any(self.ends)

    def pad(self, x: np.ndarray, fill: object) -> np.ndarray:
        """`x` with `fill` around it, exactly as long as the windows reach."""
        lead = x.ndim - len(self.kernel)
        sizes, needed = x.shape[lead:], self.reach()
        if not any(self.begins) and all(size >= length for size, length in zip(sizes, needed)):
            return x
        padded = np.full((*x.shape[:lead], *needed), fill, x.dtype)
        target, source = [slice(None)] * lead, [slice(None)] * lead
        for size, begin, length in zip(sizes, self.begins, needed):
            taken = max(min(size, length - begin), 0)
            target.append(slice(begin, begin + taken))
            source.append(slice(0, taken))
        padded[tuple(target)] = x[tuple(source)]
        return padded

    def reach(self) -> tuple[int, ...]:
        """Length of the padded input that the windows read."""
        return tuple(
            max(count - 1, 0) * stride + (k - 1) * dilation + 1
            for count, stride, k, dilation in zip(self.counts, self.strides, self.kernel, self.dilations)
        )

    def counted(self, axis: int, size: int, padding: bool) -> np.ndarray:
        """How many elements of each window along an axis lie inside the input, or inside the declared padding."""
        at = (np.arange(self.counts[axis]) * self.strides[axis])[:, None]
        at = at + np.arange(self.kernel[axis]) * self.dilations[axis]
        begin, end = self.begins[axis], self.ends[axis]
        inside = at < begin + size + end if padding else (at >= begin) & (at < begin + size)
        return np.asarray(inside.sum(axis=1))

    def offsets(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each element of the kernel with the slices of the padded input that it meets (one per window)."""
        for place in product(*map(range, self.kernel)):
            yield place, tuple(
                slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride) if count > 0 else slice(0, 0)
                for at, dilation, count, stride in zip(place, self.dilations, self.counts, self.strides)
            )

    def view(self, padded: np.ndarray) -> np.ndarray:
        """A view (leading axes, kernel..., windows...) of the padded input."""
        lead = padded.ndim - len(self.kernel)
        outer, inner = padded.strides[:lead], padded.strides[lead:]
        shape = (*padded.shape[:lead], *self.kernel, *self.counts)
        strides = (*outer, *(s * d for s, d in zip(inner, self.dilations)),
                   *(s * t for s, t in zip(inner, self.strides)))
        return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
