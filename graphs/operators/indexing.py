"""Records of the operators that pick or place elements by index."""

from __future__ import annotations

import numpy as np

from .. import dims
from ..dims import DimLike, Expr
from ..types import Shape, TensorType, Type
from ._common import array_of, as_contents, axis_of, common_dtype, integer, needs, shape_of, unify
from .record import Contents, Convert, Operator, Site


def _check_index_dtype(site: Site, position: int = 1) -> None:
    type_ = site.type(position)
    if type_ is not None and type_.dtype not in ("int32", "int64"):
        raise site.fail(f"indices of type {type_.dtype}", "insert a Cast to int64")


def _gather(site: Site) -> list[Type | None]:
    _check_index_dtype(site)
    data, indices = site.type(0), shape_of(site, 1)
    if data is None or data.shape is None:
        return [data]
    axis = axis_of(site, integer(site, "axis"), len(data.shape))
    if indices is None:
        return [data.with_shape(None)]
    return [data.with_shape((*data.shape[:axis], *indices, *data.shape[axis + 1 :]))]


def _gather_contents(site: Site) -> Contents | None:
    data, indices, type_ = array_of(site, 0), array_of(site, 1), site.type(0)
    if data is None or indices is None or type_ is None or any(isinstance(i, Expr) for i in indices.ravel()):
        return None
    axis = integer(site, "axis")
    where = indices.astype(np.int64)
    if where.size and (where.min() < -data.shape[axis] or where.max() >= data.shape[axis]):
        return None  # an error when it runs, if it ever runs
    return as_contents(np.asarray(np.take(data, where, axis=axis), object), type_.dtype)


def _gather_elements(site: Site) -> list[Type | None]:
    _check_index_dtype(site)
    data, indices = site.type(0), shape_of(site, 1)
    if data is None:
        return [None]
    if data.shape is not None and indices is not None and len(data.shape) != len(indices):
        raise site.fail(f"data of rank {len(data.shape)} and indices of rank {len(indices)}")
    return [data.with_shape(indices)]


def _gather_nd(site: Site) -> list[Type | None]:
    data, indices, batch = site.type(0), shape_of(site, 1), integer(site, "batch_dims")
    if data is None or data.shape is None or indices is None:
        return [None if data is None else data.with_shape(None)]
    if not indices or not isinstance(indices[-1], int):
        return [data.with_shape(None)]
    width = indices[-1]
    if batch + width > len(data.shape):
        raise site.fail(f"index vectors of {width} for a tensor of rank {len(data.shape)}")
    head = tuple(unify(a, b) for a, b in zip(indices[:batch], data.shape[:batch]))
    return [data.with_shape(head + indices[batch:-1] + data.shape[batch + width :])]


def _scatter(site: Site) -> list[Type | None]:
    common_dtype(site, (0, 2))
    data = site.type(0)
    if data is not None and data.shape is not None and "axis" in site.attrs:
        axis_of(site, integer(site, "axis"), len(data.shape))
    return [data]


def _write_reduction() -> Convert:
    def write(attrs: dict[str, object], version: int) -> dict[str, object] | None:
        kept, reduction = dict(attrs), attrs["reduction"]
        if version < 16:
            return kept if kept.pop("reduction") == "none" else None
        return kept if version >= 18 or reduction in ("none", "add", "mul") else None

    return write


def _one_hot(site: Site) -> list[Type | None]:
    indices, depth, values = shape_of(site, 0), site.content(1), site.type(2)
    if values is None:
        return [None]
    if indices is None:
        return [TensorType(values.dtype)]
    size: DimLike = site.unknown_dim()
    constant = site.constant(1)
    if depth is not None and len(depth) == 1:
        size = depth[0]
    elif constant is not None and constant.size == 1:  # a float depth
        size = int(constant.array.reshape(-1)[0])
    axis = axis_of(site, integer(site, "axis"), len(indices) + 1)
    return [TensorType(values.dtype, (*indices[:axis], size, *indices[axis:]))]


def _non_zero(site: Site) -> list[Type | None]:
    shape = shape_of(site, 0)
    if not shape:  # unknown, or a scalar, which ONNX Runtime takes for a vector and ONNX itself does not
        return [TensorType("int64", (site.unknown_dim(0), site.unknown_dim(1)))]
    return [TensorType("int64", (len(shape), site.unknown_dim(1)))]


def _unique(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None:
        return [None, *[TensorType("int64", (site.unknown_dim(index),)) for index in (0, 1, 0)]]
    count = site.unknown_dim(0)
    shape: Shape | None = (count,)
    inverse: DimLike = site.unknown_dim(1)
    if data.shape is not None and site.attrs["axis"] is None:
        inverse = dims.product(data.shape)
    elif data.shape is not None:
        axis = axis_of(site, integer(site, "axis"), len(data.shape))
        shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        inverse = data.shape[axis]
    elif site.attrs["axis"] is not None:
        shape = None
    int64 = [TensorType("int64", (count,)), TensorType("int64", (inverse,)), TensorType("int64", (count,))]
    return [data.with_shape(shape), *int64]


_ELEMENTS = {"axis": 0, "reduction": "none"}

OPERATORS: list[Operator] = [
    Operator("Gather", _gather, (1, 11, 13), {"axis": 0}, movement=True, contents=_gather_contents),
    Operator("GatherElements", _gather_elements, (11, 13), {"axis": 0}, movement=True),
    Operator("GatherND", _gather_nd, (11, 12, 13), {"batch_dims": 0}, movement=True,
             write=needs(batch_dims=(12, 0))),
    Operator("ScatterElements", _scatter, (11, 13, 16, 18), _ELEMENTS, write=_write_reduction()),
    Operator("ScatterND", _scatter, (11, 13, 16, 18), {"reduction": "none"}, write=_write_reduction()),
    Operator("Scatter", _scatter, (9,), {"axis": 0}),
    # Version 9 leaves negative indices out, the later ones count them from the end.
    Operator("OneHot", _one_hot, (11, 28), {"axis": -1}),
    Operator("NonZero", _non_zero, (9, 13)),
    Operator("Unique", _unique, (11, 28), {"axis": None, "sorted": 1}),
]  # fmt: skip
