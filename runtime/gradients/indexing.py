"""Gradient rows of the operators that pick or place elements by index."""

from __future__ import annotations

import numpy as np

from graphs.builder import Value

from .movement import by_positions
from .rows import Grads, Row, jointly_linear, linear
from .shapes import cast_like, full_like, scalar, zeros_like
from .site import Site


def _gather(s: Site, g: Value) -> Grads:
    """Adds the rows of g to the rows of zeros that they came from; the axis of the rows is moved to the front."""
    b, x, indices = s.b, s[0], s[1]
    if x.shape is None or indices.shape is None:
        return by_positions(s, g)
    rank, width = len(x.shape), len(indices.shape)
    axis = int(s.attrs["axis"]) % rank  # type: ignore[call-overload]
    wide = indices if indices.dtype == "int64" else b.Cast(indices, to=7)  # ScatterND takes no int32
    places = b.Unsqueeze(wide, axes=[-1])
    if axis == 0:
        return [b.ScatterND(zeros_like(b, x), places, g, reduction="add")]
    front = [axis, *(each for each in range(rank) if each != axis)]
    taken = list(range(axis, axis + width))
    moved = b.Transpose(g, perm=[*taken, *(each for each in range(rank - 1 + width) if each not in taken)])
    zeros = zeros_like(b, b.Transpose(x, perm=front))
    return [b.Transpose(b.ScatterND(zeros, places, moved, reduction="add"), perm=np.argsort(front).tolist())]


def _gather_elements(s: Site, g: Value) -> Grads:
    return [s.b.ScatterElements(zeros_like(s.b, s[0]), s[1], g, axis=s.attrs["axis"], reduction="add")]


def _gather_nd(s: Site, g: Value) -> Grads:
    if s.attrs["batch_dims"]:
        return by_positions(s, g)
    return [s.b.ScatterND(zeros_like(s.b, s[0]), s[1], g, reduction="add")]


class _Scatter:
    """A scatter of updates by indices into data, with the gather that reads the same places."""

    def __init__(self, s: Site) -> None:
        self.s, self.b = s, s.b
        self.by_vectors = s.node.op == "ScatterND"
        self.attrs = {} if self.by_vectors else {"axis": s.attrs["axis"]}
        self.reduction = str(s.attrs.get("reduction", "none"))

    def place(self, data: Value, updates: Value, reduction: str = "none") -> Value:
        """Updates in their places of data."""
        op = "ScatterND" if self.by_vectors else "ScatterElements"
        return self.b.value(op, data, self.s[1], updates, reduction=reduction, **self.attrs)

    def read(self, data: Value) -> Value:
        """What stands in the places of the updates."""
        return self.b.value("GatherND" if self.by_vectors else "GatherElements", data, self.s[1], **self.attrs)

    def shares(self) -> tuple[Value, Value]:
        """Of max and min: how much of each result comes from data, and of each result the part of each update."""
        s, b = self.s, self.b
        own = cast_like(b, b.Equal(s[0], s.out), s.out)
        theirs = cast_like(b, b.Equal(s[2], self.read(s.out)), s.out)
        count = self.place(own, theirs, "add")
        return own / count, theirs / self.read(count)

    def factors(self) -> tuple[Value, Value]:
        """Of mul: what each element of data, and each update, is multiplied by.

        Without dividing by an update that is 0: the product of all others is that of those that are not 0 where it is
        the only 0 of its place, and 0 where there are more.
        """
        s, b = self.s, self.b
        zero, one = scalar(b, 0.0, s[2]), scalar(b, 1.0, s[2])
        none = b.Equal(s[2], zero)
        full = full_like(b, s[0], 1.0)
        zeros = self.read(self.place(zeros_like(b, s[0]), b.Where(none, one, zero), "add"))
        nonzero = b.Where(none, one, s[2])
        product = self.read(self.place(full, nonzero, "mul"))
        least = b.Where(none, one, zero)  # the zeros that are the update's own
        others = b.Where(b.Equal(zeros, least), product / nonzero, zero)
        return self.place(full, s[2], "mul"), self.read(s[0]) * others


def _scatter(s: Site, grads: Grads) -> Grads:
    g, scatter = grads[0], _Scatter(s)
    assert g is not None
    if scatter.reduction == "none":
        return [scatter.place(g, zeros_like(s.b, s[2])), None, scatter.read(g)]
    if scatter.reduction == "add":
        return [g, None, scatter.read(g)]
    own, theirs = scatter.factors() if scatter.reduction == "mul" else scatter.shares()
    return [g * own, None, scatter.read(g) * theirs]


def _scatter_forward(s: Site, tangents: Grads) -> Grads:
    scatter = _Scatter(s)
    data = tangents[0] if tangents[0] is not None else zeros_like(s.b, s[0])
    updates = tangents[2] if tangents[2] is not None else zeros_like(s.b, s[2])
    if scatter.reduction in ("none", "add"):
        return [scatter.place(data, updates, scatter.reduction)]
    own, theirs = scatter.factors() if scatter.reduction == "mul" else scatter.shares()
    return [scatter.place(data * own, updates * theirs, "add")]


def _one_hot(s: Site, grads: Grads) -> Grads:
    """Of the two values: the sum of g where it is cold, and where it is hot."""
    b, g = s.b, grads[0]
    assert g is not None
    marks = b.constant(np.array([0.0, 1.0]), dtype=g.dtype)
    hot = b.OneHot(s[0], s[1], marks, axis=s.attrs["axis"])
    parts = [b.ReduceSum(g * (1.0 - hot)), b.ReduceSum(g * hot)]
    return [None, None, b.Concat(*(b.Reshape(part, [1]) for part in parts), axis=0)]


ROWS: dict[str, Row] = {
    "Gather": linear(_gather),
    "GatherElements": linear(_gather_elements),
    "GatherND": linear(_gather_nd),
    **{op: Row(_scatter, _scatter_forward) for op in ("ScatterElements", "ScatterND")},
    "OneHot": jointly_linear(_one_hot, data=(2,)),
}

ABSENT: dict[str, str] = {
    "Scatter": "it is read as ScatterElements",
    "NonZero": "its output is an index",
    "Unique": "which of several equal elements counts is not defined",
}
