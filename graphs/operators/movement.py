"""Records of the operators that move elements, and of what asks for a shape.

`_reshaping.py` holds those that only give the same elements another shape, `_slicing.py` slices and padding.
"""

from __future__ import annotations

import numpy as np

from .. import dims, dtypes
from ..constants import Constant
from ..dims import DimLike, Expr
from ..types import TensorType, Type
from . import _reshaping, _slicing
from ._common import (
    CONTENTS_LIMIT,
    array_of,
    as_contents,
    axis_of,
    broadcast_shapes,
    certainly,
    common_dtype,
    elements,
    integer,
    integers,
    larger,
    length,
    needs,
    same,
    shape_of,
    smaller,
    unify_checked,
)  # fmt: skip
from .record import REQUIRED, Contents, Operator, Site

# Joining and splitting -------------------------------------------------------------------------------------


def _concat(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, range(len(site.types)))
    if dtype is None:
        return [None]
    shapes = [shape_of(site, position) for position in range(len(site.types))]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        return [TensorType(dtype)]
    rank = len(known[0])
    if any(len(shape) != rank for shape in known):
        raise site.fail("operands of different ranks", "give all operands the same rank")
    axis = axis_of(site, integer(site, "axis"), rank)
    result = list(known[0])
    for shape in known[1:]:
        result = [unify_checked(site, a, b) if i != axis else 0 for i, (a, b) in enumerate(zip(result, shape))]
    total: DimLike = 0
    for shape in known:
        total = dims.add(total, shape[axis])
    result[axis] = total if len(known) == len(shapes) else site.unknown_dim()
    return [TensorType(dtype, tuple(result))]


def _concat_contents(site: Site) -> Contents | None:
    arrays = [array_of(site, position) for position in range(len(site.types))]
    known = [array for array in arrays if array is not None]
    first = site.type(0)
    if len(known) < len(arrays) or first is None:
        return None
    return as_contents(np.concatenate(known, axis=integer(site, "axis")), first.dtype)


def _read_concat(attrs: dict[str, object], version: int) -> dict[str, object]:
    return {"axis": 1, **attrs} if version == 1 else attrs


def _split(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data] * site.outputs
    axis = axis_of(site, integer(site, "axis"), len(data.shape))
    size = data.shape[axis]
    parts = _parts(site, size)
    return [data.with_shape((*data.shape[:axis], part, *data.shape[axis + 1 :])) for part in parts]


def _parts(site: Site, size: DimLike) -> list[DimLike]:
    count = site.outputs
    if site.attrs["split"] is not None:
        given = elements(site, "split", 1)
        if given is None:
            return [site.unknown_dim(index) for index in range(count)]
        total: DimLike = 0
        for part in given:
            total = dims.add(total, part)
        if len(given) != count or (isinstance(total, int) and isinstance(size, int) and total != size):
            raise site.fail(f"parts {list(map(str, given))} of an axis of size {size} for {count} outputs")
        return list(given)
    number = site.attrs["num_outputs"]
    if isinstance(number, int) and number != count:
        raise site.fail(f"num_outputs = {number} for {count} outputs")
    if number is None:  # before opset 18: equal parts or an error
        if isinstance(size, int) and size % count:
            raise site.fail(f"an axis of size {size} in {count} equal parts")
        return [dims.exact_quotient(size, count) or dims.floordiv(size, count)] * count
    if isinstance(size, int):
        chunk = -(-size // count)
        sizes = [max(0, min(chunk, size - index * chunk)) for index in range(count)]
        return list(sizes)
    exact = dims.exact_quotient(size, count)
    if exact is not None:
        return [exact] * count
    chunk_ = dims.ceildiv(size, count)
    # The last parts are smaller, and empty when there are more parts than elements.
    return [smaller(chunk_, larger(dims.sub(size, dims.mul(index, chunk_)), 0)) for index in range(count)]


def _write_split(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if version >= 18 and attrs["split"] is None and attrs["num_outputs"] is None:
        return None  # there the number of parts must stand in the node
    return needs(num_outputs=(18, None))(attrs, version)


def _tile(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    repeats = elements(site, "repeats", 1)
    if repeats is None:
        return [data.with_shape(tuple(site.unknown_dim(index) for index in range(len(data.shape))))]
    if len(repeats) != len(data.shape):
        raise site.fail(f"{len(repeats)} repeats for a tensor of rank {len(data.shape)}")
    return [data.with_shape(tuple(map(dims.mul, data.shape, repeats)))]


# Asking for shapes and filling them ------------------------------------------------------------------------


def _shape_window(site: Site, rank: int) -> range:
    end = site.attrs["end"]
    return range(*slice(integer(site, "start"), end, 1).indices(rank))


def _shape(site: Site) -> list[Type | None]:
    shape = shape_of(site, 0)
    size: DimLike = site.unknown_dim() if shape is None else len(_shape_window(site, len(shape)))
    return [TensorType("int64", (size,))]


def _shape_contents(site: Site) -> Contents | None:
    shape = shape_of(site, 0)
    return None if shape is None else tuple(shape[index] for index in _shape_window(site, len(shape)))


def _size_contents(site: Site) -> Contents | None:
    shape = shape_of(site, 0)
    return None if shape is None else (dims.product(shape),)


def _fill_value(site: Site) -> Constant:
    value = site.attrs["value"]
    if value is None:
        return Constant.of(np.zeros(1, np.float32))
    assert isinstance(value, Constant)
    return value


def _constant_of_shape(site: Site) -> list[Type | None]:
    dtype = _fill_value(site).dtype
    sizes = site.content(0)
    if sizes is not None:
        if any(isinstance(size, int) and size < 0 for size in sizes):
            raise site.fail(f"the shape {list(map(str, sizes))}")
        return [TensorType(dtype, tuple(sizes))]
    shape = shape_of(site, 0)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return [TensorType(dtype)]
    return [TensorType(dtype, tuple(site.unknown_dim(index) for index in range(shape[0])))]


def _constant_of_shape_contents(site: Site) -> Contents | None:
    fill, sizes = _fill_value(site), site.content(0)
    if sizes is None or any(isinstance(size, Expr) for size in sizes):
        return None
    count = dims.product(sizes)
    if fill.array.dtype.kind not in "biu" or not isinstance(count, int) or count > CONTENTS_LIMIT:
        return None
    return (int(fill.array.ravel()[0]),) * count


def _range(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, (0, 1, 2))
    if dtype is None:
        return [None]
    return [TensorType(dtype, (_range_length(site),))]


def _range_length(site: Site) -> DimLike:
    found = [site.content(position) for position in range(3)]
    if all(item is not None and len(item) == 1 for item in found):
        start, limit, delta = (item[0] for item in found if item is not None)
        if isinstance(delta, int) and delta:
            span = dims.sub(limit, start) if delta > 0 else dims.sub(start, limit)
            if span == 0 or certainly(0, span):
                return 0
            steps = dims.ceildiv(span, abs(delta))
            return steps if certainly(span, 0) else larger(steps, 0)
    constants = [site.constant(position) for position in range(3)]
    if all(each is not None and each.size == 1 for each in constants):
        return _float_steps(site, [float(each.array.ravel()[0]) for each in constants if each is not None])
    return site.unknown_dim()


def _float_steps(site: Site, bounds: list[float]) -> DimLike:
    start, limit, delta = bounds
    if delta == 0 or not np.isfinite(bounds).all():
        return site.unknown_dim()
    quotient = (limit - start) / delta
    whole = all(each == int(each) and abs(each) < 2**20 for each in bounds)
    if not whole and abs(quotient - round(quotient)) < 1e-5 * max(1.0, abs(quotient)):
        return site.unknown_dim()  # rounding decides, and runtimes round in different places
    return max(int(np.ceil(quotient)), 0)


def _range_contents(site: Site) -> Contents | None:
    found, first = [site.content(position) for position in range(3)], site.type(0)
    if first is None or any(item is None or len(item) != 1 for item in found):
        return None
    start, _, delta = (item[0] for item in found if item is not None)
    count = _range_length(site)
    if not isinstance(count, int) or count > CONTENTS_LIMIT:
        return None
    values = np.empty(count, dtype=object)
    values[:] = [dims.add(start, dims.mul(index, delta)) for index in range(count)]
    return as_contents(values, first.dtype)


def _eye_like(site: Site) -> list[Type | None]:
    data, number = site.type(0), site.attrs["dtype"]
    if data is not None and data.shape is not None and len(data.shape) != 2:
        raise site.fail(f"an input of rank {len(data.shape)}", "EyeLike takes a matrix")
    dtype = dtypes.FROM_ONNX.get(int(number)) if number is not None else None  # type: ignore[call-overload]
    if number is None and data is not None:
        dtype = data.dtype
    return [None if dtype is None else TensorType(dtype, shape_of(site, 0))]


# The rest --------------------------------------------------------------------------------------------------


def _expand(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    target = elements(site, "shape", 1)
    if target is not None:
        return [data.with_shape(broadcast_shapes(site, [data.shape, tuple(target)]))]
    count = length(site, "shape", 1)
    if count is None:
        return [data.with_shape(None)]
    rank = max(count, len(data.shape))
    result: list[DimLike] = [site.unknown_dim(index) for index in range(rank)]
    for back, size in enumerate(reversed(data.shape), 1):
        if back > count or (isinstance(size, int) and size != 1):
            result[-back] = size
    return [data.with_shape(tuple(result))]


def _expand_contents(site: Site) -> Contents | None:
    data, type_, sizes = array_of(site, 0), site.type(0), integers(site, "shape", 1)
    if data is None or type_ is None or sizes is None:
        return None
    target = np.broadcast_shapes(data.shape, sizes)
    if int(np.prod(target, dtype=np.int64)) > CONTENTS_LIMIT:
        return None
    return as_contents(np.broadcast_to(data, target), type_.dtype)


def _compress(site: Site) -> list[Type | None]:
    data, chosen = site.type(0), site.content(1)
    if data is None:
        return [None]
    count: DimLike = site.unknown_dim()
    if chosen is not None and all(isinstance(each, int) for each in chosen):
        count = sum(each != 0 for each in chosen)
    if site.attrs["axis"] is None:
        return [data.with_shape((count,))]
    if data.shape is None:
        return [data]
    axis = axis_of(site, integer(site, "axis"), len(data.shape))
    return [data.with_shape((*data.shape[:axis], count, *data.shape[axis + 1 :]))]


def _write_shape(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if version >= 15:
        return attrs
    return {} if attrs["start"] == 0 and attrs["end"] is None else None


OPERATORS: list[Operator] = [
    *_reshaping.OPERATORS,
    *_slicing.OPERATORS,
    Operator("Concat", _concat, (1, 4, 11, 13), {"axis": REQUIRED}, movement=True, contents=_concat_contents,
             read=_read_concat),
    # Version 1 takes the parts from an input or an attribute.
    Operator("Split", _split, (2, 11, 13, 18), {"axis": 0, "split": None, "num_outputs": None}, {"split": 1},
             movement=True, write=_write_split),
    Operator("Tile", _tile, (6, 13), {"repeats": REQUIRED}, {"repeats": 1}, movement=True),
    Operator("Expand", _expand, (8, 13), {"shape": REQUIRED}, {"shape": 1}, movement=True,
             contents=_expand_contents),
    Operator("Shape", _shape, (1, 13, 15, 19, 21, 23, 24, 25), {"start": 0, "end": None},
             contents=_shape_contents, write=_write_shape),
    Operator("Size", lambda site: [TensorType("int64", ())], (1, 13, 19, 21, 23, 24, 25),
             contents=_size_contents),
    Operator("ConstantOfShape", _constant_of_shape, (9, 20, 21, 23, 24, 25), {"value": None},
             contents=_constant_of_shape_contents),
    Operator("Range", _range, (11, 27), {"stash_type": 1}, contents=_range_contents,
             write=needs(stash_type=(27, 1))),
    Operator("EyeLike", _eye_like, (9, 22), {"dtype": None, "k": 0}),
    Operator("Trilu", same, (14,), {"upper": 1, "k": None}, {"k": 1}),
    Operator("Compress", _compress, (9, 11, 28), {"axis": None}, movement=True),
    Operator("ReverseSequence", same, (10, 28), {"batch_axis": 1, "time_axis": 0}, movement=True),
]  # fmt: skip
