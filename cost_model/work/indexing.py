"""Work of the operators that pick or place elements by index."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from . import Row, Types, Work, elements, traffic


def _gather(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """Elements that are taken are read and written; the rest of the table stays untouched."""
    return Work(0.0, traffic(inputs[1:2], ()) + 2.0 * traffic((), outputs))


def _scatter(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    """A copy of the data, then the updates are read and written."""
    adds = 0.0 if attrs.get("reduction", "none") == "none" else elements(inputs[2])
    return Work(adds, traffic(inputs, outputs) + traffic(inputs[2:3], ()))


def _one_hot(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(0.0, traffic(inputs, outputs))


def _sorted(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    count = elements(inputs[0])
    return Work(count * log2(max(count, 2.0)), traffic(inputs, outputs))


WORK: dict[str, Row] = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _scatter),
    "OneHot": _one_hot,
    "Unique": _sorted,
}
