"""Records of the operators that give the same elements another shape or order."""

from __future__ import annotations

import numpy as np

from .. import dims
from ..dims import DimLike
from ..types import Shape, Type
from ._common import (
    array_of,
    as_contents,
    axes_of,
    certainly,
    elements,
    integer,
    integers,
    legacy_read,
    length,
    shape_of,
)  # fmt: skip
from .record import REQUIRED, RUNTIME, Contents, Convert, Operator, Site


def _reshape(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None:
        return [None]
    target = elements(site, "shape", 1)
    if target is None:
        count = length(site, "shape", 1)
        return [data.with_shape(None if count is None else tuple(map(site.unknown_dim, range(count))))]
    return [data.with_shape(reshaped(site, data.shape, target))]


def reshaped(site: Site, shape: Shape | None, target: Contents) -> Shape:
    """The shape that Reshape makes, 0 copied (unless `allowzero`) and -1 computed."""
    result: list[DimLike] = list(target)
    for index, size in enumerate(target):
        if size == 0 and not site.attrs["allowzero"]:
            if shape is None:
                result[index] = site.unknown_dim(index)
            elif index < len(shape):
                result[index] = shape[index]
            else:
                raise site.fail(f"0 at position {index} of the target of a tensor of rank {len(shape)}")
        elif isinstance(size, int) and size < -1:
            raise site.fail(f"size {size} in the target")
    open_ = [index for index, size in enumerate(target) if size == -1]
    if len(open_) > 1:
        raise site.fail(f"the target [{', '.join(map(str, target))}] with more than one -1")
    if open_:
        result[open_[0]] = _rest(
            site, shape, [size for i, size in enumerate(result) if i != open_[0]], open_[0]
        )
    elif shape is not None:
        total, wanted = dims.product(shape), dims.product(result)
        if isinstance(total, int) and isinstance(wanted, int) and total != wanted:
            raise site.fail(f"{total} elements for the shape [{', '.join(map(str, result))}]")
    return tuple(result)


def _rest(site: Site, shape: Shape | None, others: list[DimLike], index: int) -> DimLike:
    """The size that -1 stands for: all elements over the product of the other sizes."""
    if shape is None:
        return site.unknown_dim(index)
    kept, left = list(shape), list(others)
    for size in others:  # a size that is not an integer may be a polynomial that divides only as a whole
        if not isinstance(size, int) and size in kept:
            kept.remove(size)
            left.remove(size)
    total, known = dims.product(kept), dims.product(left)
    if known == 0:
        return site.unknown_dim(index)
    exact = dims.exact_quotient(total, known)
    if exact is not None:
        return exact
    if isinstance(total, int) and isinstance(known, int):
        raise site.fail(f"{total} elements that {known} does not divide")
    return (
        dims.floordiv(total, known)
        if isinstance(known, int) or certainly(known, 0)
        else site.unknown_dim(index)
    )


def _write_reshape(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if version >= 14:
        return attrs
    kept, shape = dict(attrs), attrs["shape"]
    if kept.pop("allowzero") and (not isinstance(shape, tuple) or 0 in shape):
        return None
    return None if version == 1 and shape is RUNTIME else kept


def _transpose(site: Site) -> list[Type | None]:
    data, perm = site.type(0), site.attrs["perm"]
    if data is None or data.shape is None:
        return [data]
    order = tuple(reversed(range(len(data.shape)))) if perm is None else perm
    assert isinstance(order, tuple)
    if sorted(order) != list(range(len(data.shape))):
        raise site.fail(f"perm {list(order)} of a tensor of rank {len(data.shape)}")
    return [data.with_shape(tuple(data.shape[axis] for axis in order))]


def _transpose_contents(site: Site) -> Contents | None:
    data, type_ = array_of(site, 0), site.type(0)
    if data is None or type_ is None:
        return None
    return as_contents(np.transpose(data, site.attrs["perm"]), type_.dtype)  # type: ignore[call-overload]


def _flatten(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    rank, axis = len(data.shape), integer(site, "axis")
    if not -rank <= axis <= rank:
        raise site.fail(f"axis {axis} of a tensor of rank {rank}")
    axis = axis + rank if axis < 0 else axis
    return [data.with_shape((dims.product(data.shape[:axis]), dims.product(data.shape[axis:])))]


def _write_flatten(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    axis = attrs["axis"]
    assert isinstance(axis, int)
    return None if version < 11 and axis < 0 else attrs  # runtimes refuse a negative axis there


def _squeeze(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    rank = len(data.shape)
    if site.attrs["axes"] is None:
        if not all(isinstance(size, int) for size in data.shape):
            return [data.with_shape(None)]  # a symbolic size may be 1
        return [data.with_shape(tuple(size for size in data.shape if size != 1))]
    axes = integers(site, "axes", 1)
    if axes == ():  # given but empty: ONNX Runtime squeezes all axes of size 1, onnx.reference none
        return [data.with_shape(None)]
    if axes is None:
        count = length(site, "axes", 1)
        return [data.with_shape(tuple(map(site.unknown_dim, range(rank - count))) if count else None)]
    away = axes_of(site, axes, rank)
    for axis in away:
        if isinstance(data.shape[axis], int) and data.shape[axis] != 1:
            raise site.fail(f"axis {axis} of size {data.shape[axis]}", "only axes of size 1 can be squeezed")
    return [data.with_shape(tuple(size for axis, size in enumerate(data.shape) if axis not in away))]


def _unsqueeze(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    axes = integers(site, "axes", 1)
    if axes is None:
        count = length(site, "axes", 1)
        rank = None if count is None else len(data.shape) + count
        return [data.with_shape(None if rank is None else tuple(map(site.unknown_dim, range(rank))))]
    new = axes_of(site, axes, len(data.shape) + len(axes))
    old = iter(data.shape)
    return [
        data.with_shape(tuple(1 if axis in new else next(old) for axis in range(len(data.shape) + len(axes))))
    ]


def _blocks(site: Site, data: Shape, block: int) -> tuple[DimLike, DimLike, DimLike, DimLike]:
    if block < 1:
        raise site.fail(f"blocks of {block} x {block}", "give a blocksize of 1 or more")
    if len(data) != 4:
        raise site.fail(f"a tensor of rank {len(data)}", "give N, C, H, W")
    return data  # type: ignore[return-value]


def _depth_to_space(site: Site) -> list[Type | None]:
    data, block = site.type(0), integer(site, "blocksize")
    if data is None or data.shape is None:
        return [data]
    n, c, h, w = _blocks(site, data.shape, block)
    if isinstance(c, int) and c % (block * block):
        raise site.fail(f"{c} channels in blocks of {block} x {block}")
    return [data.with_shape((n, dims.floordiv(c, block * block), dims.mul(h, block), dims.mul(w, block)))]


def _space_to_depth(site: Site) -> list[Type | None]:
    data, block = site.type(0), integer(site, "blocksize")
    if data is None or data.shape is None:
        return [data]
    n, c, h, w = _blocks(site, data.shape, block)
    if any(isinstance(size, int) and size % block for size in (h, w)):
        raise site.fail(f"{h} x {w} in blocks of {block}")
    return [
        data.with_shape((n, dims.mul(c, block * block), dims.floordiv(h, block), dims.floordiv(w, block)))
    ]


def _write_mode(since: int) -> Convert:
    def write(attrs: dict[str, object], version: int) -> dict[str, object] | None:
        if version >= since:
            return attrs
        return {"blocksize": attrs["blocksize"]} if attrs["mode"] == "DCR" else None

    return write


def _move(site: Site) -> Contents | None:
    """The shape changes, the order of elements does not."""
    return None if shape_of(site, 0) is None else site.content(0)


_BLOCKS = {"blocksize": REQUIRED, "mode": "DCR"}

OPERATORS: list[Operator] = [
    Operator("Reshape", _reshape, (1, 5, 13, 14, 19, 21, 23, 24, 25), {"shape": REQUIRED, "allowzero": 0},
             {"shape": 1}, movement=True, contents=_move, read=legacy_read, write=_write_reshape),
    Operator("Transpose", _transpose, (1, 13, 21, 23, 24, 25), {"perm": None}, movement=True,
             contents=_transpose_contents),
    Operator("Flatten", _flatten, (1, 9, 11, 13, 21, 23, 24, 25), {"axis": 1}, movement=True, contents=_move,
             write=_write_flatten),
    Operator("Squeeze", _squeeze, (1, 11, 13, 21, 23, 24, 25), {"axes": None}, {"axes": 1}, movement=True,
             contents=_move),
    Operator("Unsqueeze", _unsqueeze, (1, 11, 13, 21, 23, 24, 25), {"axes": REQUIRED}, {"axes": 1}, movement=True,
             contents=_move),
    Operator("DepthToSpace", _depth_to_space, (1, 11, 13, 28), _BLOCKS, movement=True, write=_write_mode(11)),
    Operator("SpaceToDepth", _space_to_depth, (1, 13, 28), _BLOCKS, movement=True, write=_write_mode(28)),
]  # fmt: skip
