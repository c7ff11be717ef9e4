"""One spelling of attributes that count axes: from the front, in order, with what a node leaves out filled in.

The search (`rules.form`) and the keys of measured times (`cost_model.signature`) see nodes so: the same operation looks
the same, however its file spells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .operators import RUNTIME
from .types import TensorType

# operator -> attributes that hold an axis or axes counted on the first input / on the output
_AXES = {
    "Softmax": "axis", "LogSoftmax": "axis", "Hardmax": "axis", "Concat": "axis", "Split": "axis", "Gather": "axis",
    "GatherElements": "axis", "ScatterElements": "axis", "ArgMax": "axis", "ArgMin": "axis", "TopK": "axis",
    "LayerNormalization": "axis", "RMSNormalization": "axis", "Slice": "axes", "LpNormalization": "axis",
    "ReduceSum": "axes", "ReduceMean": "axes", "ReduceMax": "axes", "ReduceMin": "axes", "ReduceProd": "axes",
    "ReduceL1": "axes", "ReduceL2": "axes", "ReduceLogSum": "axes", "ReduceLogSumExp": "axes",
    "ReduceSumSquare": "axes",
}  # fmt: skip


def from_front(op: str, domain: str, attrs: Mapping[str, Any], first: TensorType | None) -> Mapping[str, Any]:
    """The attributes of a canonical node whose first input is of this type; as they are where its rank is unknown."""
    if domain or first is None or first.rank is None:
        return attrs
    rank, name = first.rank, _AXES.get(op)
    if op == "Transpose" and attrs.get("perm") is None:
        return {**attrs, "perm": tuple(reversed(range(rank)))}
    if name == "axis" and isinstance(attrs.get(name), int):
        axis = attrs[name]
        return {**attrs, name: axis + rank if axis < 0 else axis} if rank else {**attrs, name: 0}
    if name == "axes" and op.startswith("Reduce"):
        return {**attrs, **_reduction_axes(attrs, rank)}
    if op == "Slice" and rank:
        return {**attrs, **_slice(attrs, first)}
    return attrs


def _reduction_axes(attrs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    axes = attrs.get("axes")
    if axes is RUNTIME:
        return {}
    if not axes:  # None or empty: all axes, unless it means none
        if attrs.get("noop_with_empty_axes"):
            return {"axes": ()}
        return {"axes": tuple(range(rank)), "noop_with_empty_axes": 0}
    return {"axes": tuple(sorted({axis % rank for axis in axes})) if rank else (), "noop_with_empty_axes": 0}


def _slice(attrs: Mapping[str, Any], source: TensorType) -> dict[str, Any]:
    """Sorted axes and explicit steps; ends that reach past a static end become that end."""
    starts, ends, axes, steps = (attrs.get(name) for name in ("starts", "ends", "axes", "steps"))
    if any(value is RUNTIME for value in (starts, ends, axes, steps)) or starts is None or ends is None:
        return {}
    if any(value is not None and len(value) != len(starts) for value in (ends, axes, steps)):
        return {}  # no Slice, as may stand in a branch that is never taken
    rank = len(source.shape or ())
    axes = tuple(range(len(starts))) if axes is None else tuple(axis % rank for axis in axes)
    steps = (1,) * len(starts) if steps is None else tuple(steps)
    rows = sorted(zip(axes, starts, ends, steps, strict=True))
    fixed = []
    for axis, start, end, step in rows:
        size = source.shape[axis] if source.shape is not None else None
        if isinstance(size, int) and step > 0:
            start = min(max(start + size if start < 0 else start, 0), size)
            end = min(max(end + size if end < 0 else end, start), size)
        elif step > 0 and end >= 2**31 - 1:
            end = 2**63 - 1
        fixed.append((axis, start, end, step))
    keys = ("axes", "starts", "ends", "steps")
    return {key: tuple(row[index] for row in fixed) for index, key in enumerate(keys)}
