"""Records of the operators that reduce or scan along axes."""

from __future__ import annotations

import numpy as np

from .. import dims
from ..dims import DimLike
from ..types import Shape, TensorType, Type
from ._common import (
    array_of,
    as_contents,
    axes_of,
    axis_of,
    elements,
    integer,
    integers,
    length,
    needs,
    same,
    shape_of,
)  # fmt: skip
from .record import REQUIRED, RUNTIME, Contents, Convert, Operator, Site


def _reduced(site: Site, shape: Shape, axes: list[int]) -> Shape:
    if integer(site, "keepdims"):
        return tuple(1 if index in axes else dim for index, dim in enumerate(shape))
    return tuple(dim for index, dim in enumerate(shape) if index not in axes)


def _reduction_axes(site: Site, rank: int) -> list[int] | None:
    """Axes to reduce over; None where only the data of the axes input tell."""
    if site.attrs["axes"] is None:
        axes: tuple[int, ...] | None = ()
    else:
        axes = integers(site, "axes", 1)
    if axes is None:
        return None
    if not axes:
        return [] if site.attrs["noop_with_empty_axes"] else list(range(rank))
    return axes_of(site, axes, rank)


def _reduce(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    rank = len(data.shape)
    axes = _reduction_axes(site, rank)
    if axes is not None:
        return [data.with_shape(_reduced(site, data.shape, axes))]
    if integer(site, "keepdims"):
        return [data.with_shape(tuple(site.unknown_dim(index) for index in range(rank)))]
    count = length(site, "axes", 1)
    if not count:  # none or an unknown number: all axes or no axis
        return [data.with_shape(None)]
    return [data.with_shape(tuple(site.unknown_dim(index) for index in range(rank - count)))]


def _fold_contents(site: Site) -> Contents | None:
    data, type_ = array_of(site, 0), site.type(0)
    if data is None or type_ is None or data.ndim != 1 or _reduction_axes(site, 1) != [0]:
        return None
    total: DimLike = 1 if site.op == "ReduceProd" else 0
    for item in data:
        total = dims.mul(total, item) if site.op == "ReduceProd" else dims.add(total, item)
    values = np.empty(1, dtype=object)
    values[0] = total
    return as_contents(values, type_.dtype)


def _arg(site: Site) -> list[Type | None]:
    shape = shape_of(site, 0)
    if shape is None:
        return [TensorType("int64")]
    if not shape:
        # A scalar counts as a vector of one element here, as in ONNX Runtime.
        return [TensorType("int64", ())]
    return [TensorType("int64", _reduced(site, shape, [axis_of(site, integer(site, "axis"), len(shape))]))]


def _top_k(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data, TensorType("int64")]
    axis = axis_of(site, integer(site, "axis"), len(data.shape))
    k = elements(site, "k", 1)
    if k is not None and len(k) != 1:
        raise site.fail(f"{len(k)} values for k", "give one")
    size = site.unknown_dim() if k is None else k[0]
    known = data.shape[axis]
    if isinstance(size, int) and (size < 0 or (isinstance(known, int) and size > known)):
        raise site.fail(f"k = {size} of {known} elements", "k must lie between 0 and the size of the axis")
    shape = (*data.shape[:axis], size, *data.shape[axis + 1 :])
    return [data.with_shape(shape), TensorType("int64", shape)]


def _write_reduce(since: int) -> Convert:
    """`noop_with_empty_axes` came together with axes as an input; with axes given it has no effect."""

    def write(attrs: dict[str, object], version: int) -> dict[str, object] | None:
        if version >= since:
            return attrs
        kept = dict(attrs)
        if kept.pop("noop_with_empty_axes", 0) and not (isinstance(kept["axes"], tuple) and kept["axes"]):
            return None
        if kept["axes"] is RUNTIME:
            return None
        if kept["axes"] == ():
            kept["axes"] = None
        return kept

    return write


def _reduction(name: str, since: int, *versions: int) -> Operator:
    contents = _fold_contents if name in ("ReduceProd", "ReduceSum") else None
    return Operator(name, _reduce, versions, {"axes": None, "keepdims": 1, "noop_with_empty_axes": 0},
                    {"axes": 1}, contents=contents, write=_write_reduce(since))  # fmt: skip


def _scan(site: Site) -> list[Type | None]:
    shape, axis = shape_of(site, 0), integers(site, "axis", 1)
    if shape is not None and axis is not None:
        axis_of(site, axis[0], len(shape))
    return same(site)


_ARG = {"axis": 0, "keepdims": 1, "select_last_index": 0}
_SCAN = {"axis": REQUIRED, "exclusive": 0, "reverse": 0}

OPERATORS: list[Operator] = [
    _reduction("ReduceSum", 13, 1, 11, 13),
    _reduction("ReduceMean", 18, 1, 11, 13, 18),
    _reduction("ReduceMax", 18, 1, 11, 12, 13, 18, 20),
    _reduction("ReduceMin", 18, 1, 11, 12, 13, 18, 20),
    _reduction("ReduceProd", 18, 1, 11, 13, 18),
    _reduction("ReduceL1", 18, 1, 11, 13, 18),
    _reduction("ReduceL2", 18, 1, 11, 13, 18),
    _reduction("ReduceLogSum", 18, 1, 11, 13, 18, 28),
    _reduction("ReduceLogSumExp", 18, 1, 11, 13, 18, 28),
    _reduction("ReduceSumSquare", 18, 1, 11, 13, 18),
    Operator("ArgMax", _arg, (1, 11, 12, 13), _ARG, write=needs(select_last_index=(12, 0))),
    Operator("ArgMin", _arg, (1, 11, 12, 13), _ARG, write=needs(select_last_index=(12, 0))),
    Operator("CumSum", _scan, (11, 14), _SCAN, {"axis": 1}),
    Operator("CumProd", _scan, (26,), _SCAN, {"axis": 1}),
    Operator("TopK", _top_k, (1, 10, 11, 24), {"k": REQUIRED, "axis": -1, "largest": 1, "sorted": 1}, {"k": 1},
             write=needs(largest=(11, 1), sorted=(11, 1))),
]  # fmt: skip
