"""The gradient row of GridSample: a few elements around each position are read and added up by weights.

The weights depend on the position, the places do not move with it, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from graphs.builder import Value

from ._axes import together
from .expanded import expanded
from .movement import size_of_axis
from .rows import Row
from .shapes import cast_like, reshape_to, scalar
from .site import Site

_CUBIC = -0.75
# (place along the axis: int64, whether it lies in the input: bool or None for always, weight)
Tap = tuple[Value, Value | None, Value | None]


class _Axis:
    """One spatial axis: its size, and the bounds at which coordinates are reflected."""

    def __init__(self, s: Site, x: Value, size: Value) -> None:
        b, self.s, self.b = s.b, s, s.b
        self.corners, self.padding, self.mode = bool(s.attrs["align_corners"]), s.attrs["padding_mode"], s.attrs["mode"]
        self.count = size
        self.size = cast_like(b, size, x)
        self.last = self.size - 1.0
        self.low, self.high = (scalar(b, 0.0, x), self.last) if self.corners else (
            scalar(b, -0.5, x), self.size - 0.5)

    def at(self, grid: Value) -> Value:
        """From -1 ... 1 to a coordinate, moved into the input where that is what padding means."""
        x = (grid + 1.0) / 2.0 * self.last if self.corners else ((grid + 1.0) * self.size - 1.0) / 2.0
        if self.mode == "nearest":
            x = self.b.Round(x)
        if self.padding == "border" and self.mode != "cubic":
            return self.b.Min(self.b.Max(x, scalar(self.b, 0.0, x)), self.last)
        return self.reflected(x) if self.padding == "reflection" else x

    def reflected(self, x: Value) -> Value:
        """Thrown back at both bounds as often as needed."""
        b, zero = self.b, scalar(self.b, 0.0, x)
        span = self.high - self.low
        flat = b.LessOrEqual(span, zero)
        span = b.Where(flat, scalar(b, 1.0, x), span)
        below, above = b.Less(x, self.low), b.Greater(x, self.high)
        distance = b.Where(below, self.low - x, b.Where(above, x - self.high, zero))
        turns = b.Floor(distance / span)
        rest = distance - turns * span
        even = b.Equal(turns, b.Floor(turns / 2.0) * 2.0)
        found = b.Where(below, b.Where(even, self.low + rest, self.high - rest),
                        b.Where(above, b.Where(even, self.high - rest, self.low + rest), x))
        return b.Where(flat, zero, found)

    def taps(self, x: Value) -> list[Tap]:
        """What is read for each coordinate."""
        b = self.b
        base = b.Floor(x)
        if self.mode == "nearest":
            return [self.tap(base, None)]
        if self.mode == "linear":
            far = x - base
            return [self.tap(base, 1.0 - far), self.tap(base + 1.0, far)]
        return [self.tap(base + float(k), _cubic(self.s, x - base - float(k))) for k in (-1, 0, 1, 2)]

    def tap(self, place: Value, weight: Value | None) -> Tap:
        """One of them: a place outside counts as the padding says."""
        b, zero = self.b, self.b.constant(0)
        if self.padding == "reflection":
            place = self.reflected(place)
        index = b.Cast(place, to=7)
        end = b.Sub(self.count, b.constant(1))
        kept = b.Min(b.Max(index, zero), end)
        inside = None if self.padding == "border" else b.Equal(index, kept)
        return kept, inside, weight


def _cubic(s: Site, distance: Value) -> Value:
    b, a = s.b, _CUBIC
    d = b.Abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1.0
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    zero, one, two = (scalar(b, number, d) for number in (0.0, 1.0, 2.0))
    return b.Where(b.LessOrEqual(d, one), near, b.Where(b.Less(d, two), far, zero))


def _product(parts: Sequence[Value | None], op: str) -> Value | None:
    found: Value | None = None
    for part in parts:
        if part is not None:
            found = part if found is None else part.builder.value(op, found, part)
    return found


def _sampled(s: Site) -> Sequence[Value]:
    b, rank = s.b, s.rank(0) - 2
    x = s[0]
    for _ in range(rank - 1):
        x = together(b, x, 2)  # (N, C, all places)
    grid = s[1]
    for _ in range(rank - 1):
        grid = together(b, grid, 1)  # (N, positions, rank)
    parts = b.Split(cast_like(b, grid, x), outputs=rank, axis=2, num_outputs=rank)
    coordinates = [b.Squeeze(each, axes=[2]) for each in ((parts,) if isinstance(parts, Value) else parts)][::-1]
    axes = [_Axis(s, x, size_of_axis(b, s[0], 2 + k)) for k in range(rank)]
    spread = b.Concat(b.Shape(x, end=2), size_of_axis(b, grid, 1), axis=0)
    total: Value | None = None
    for combination in product(*(axis.taps(axis.at(each)) for axis, each in zip(axes, coordinates))):
        index = combination[0][0]
        for axis, (place, _, _) in zip(axes[1:], combination[1:]):
            index = b.Add(b.Mul(index, axis.count), place)
        part = b.GatherElements(x, b.Expand(b.Unsqueeze(index, axes=[1]), spread), axis=2)
        inside = _product([each[1] for each in combination], "And")
        weight = _product([each[2] for each in combination], "Mul")
        if inside is not None:
            part = b.Where(b.Unsqueeze(inside, axes=[1]), part, scalar(b, 0.0, part))
        if weight is not None:
            part = part * b.Unsqueeze(weight, axes=[1])
        total = part if total is None else total + part
    assert total is not None
    return [reshape_to(b, total, s.out)]


ROWS: dict[str, Row] = {"GridSample": expanded(_sampled)}
