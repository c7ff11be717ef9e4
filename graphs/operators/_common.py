"""What the families share: broadcasting, axes, reading static attributes, and deciding about symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .. import dims, dtypes
from ..dims import DimLike, Expr
from ..types import Shape, TensorType, Type
from .record import RUNTIME, Contents, Convert, Site

CONTENTS_LIMIT = 64  # elements; the same limit as `Site.contents`
FAR = 2**31 - 1  # starts and ends of this size stand for "to the very end"


def f32(value: float) -> float:
    """The float32 nearest to a number: attributes are float32 in a file."""
    return float(np.float32(value))


def dropping(*names: str) -> Convert:
    """A `read` that forgets attributes without meaning (`consumed_inputs`)."""

    def read(attrs: dict[str, object], version: int) -> dict[str, object]:
        return {name: value for name, value in attrs.items() if name not in names}

    return read


legacy_read = dropping("consumed_inputs")


def needs(**conditions: tuple[int, object]) -> Convert:
    """A `write` that takes attributes away below the version that brought them in.

    `needs(batch_dims=(12, 0))`: below version 12 the attribute is left out, and must have the value 0.
    """

    def write(attrs: dict[str, object], version: int) -> dict[str, object] | None:
        kept = dict(attrs)
        for name, (since, value) in conditions.items():
            if version < since and kept.pop(name, value) != value:
                return None
        return kept

    return write


# Types -----------------------------------------------------------------------------------------------------


def same(site: Site) -> list[Type | None]:
    """The type of the first input."""
    return [site.type(0)]


def same_shape(dtype: str) -> Callable[[Site], list[Type | None]]:
    """The shape of the first input with a fixed element type."""

    def infer(site: Site) -> list[Type | None]:
        first = site.type(0)
        return [TensorType(dtype, None if first is None else first.shape)]

    return infer


def common_dtype(site: Site, positions: Sequence[int]) -> str | None:
    """The element type that inputs share, None where none is known."""
    found: str | None = None
    for position in positions:
        type_ = site.type(position)
        if type_ is None:
            continue
        if found is not None and type_.dtype != found:
            raise site.fail(
                f"inputs of types {found} and {type_.dtype} that must be the same", "insert a Cast"
            )
        found = type_.dtype
    return found


def broadcast_shapes(site: Site, shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape after ONNX (NumPy) broadcasting, None where a rank is unknown."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return None
    result: list[DimLike] = []
    for back in range(1, max(map(len, known)) + 1):
        size: DimLike = 1
        for shape in known:
            if back <= len(shape):
                met = dims.broadcast(size, shape[-back])
                if met is None:
                    text = ", ".join("[" + ", ".join(map(str, each)) + "]" for each in known)
                    raise site.fail(f"shapes {text} do not broadcast")
                size = met
        result.append(size)
    return tuple(reversed(result))


def shape_of(site: Site, position: int) -> Shape | None:
    """The shape of an input, None where unknown or absent."""
    type_ = site.type(position)
    return None if type_ is None else type_.shape


def broadcast_infer(dtype: str | None = None, first: int = 0) -> Callable[[Site], list[Type | None]]:
    """All inputs broadcast; inputs from `first` on share an element type, which is the result's unless given."""

    def infer(site: Site) -> list[Type | None]:
        positions = range(len(site.types))
        shared = common_dtype(site, positions[first:])
        out = dtype or shared
        if out is None:
            return [None]
        return [TensorType(out, broadcast_shapes(site, [shape_of(site, i) for i in positions]))]

    return infer


def unify(a: DimLike, b: DimLike) -> DimLike:
    """One of two sizes that a valid model makes equal: an integer rather than a symbol, a symbol before data."""
    if isinstance(a, int):
        return a
    if isinstance(b, int) or (dims.depends_on_data(a) and not dims.depends_on_data(b)):
        return b
    return a


def unify_checked(site: Site, a: DimLike, b: DimLike) -> DimLike:
    """`unify`, refusing two different integers."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise site.fail(f"sizes {a} and {b} that must be equal")
    return unify(a, b)


# Attributes ------------------------------------------------------------------------------------------------


def integer(site: Site, name: str) -> int:
    """An integer attribute."""
    value = site.attrs[name]
    assert isinstance(value, int), (site.op, name, value)
    return int(value)


def axis_of(site: Site, axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise site.fail(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def axes_of(site: Site, axes: Sequence[int], rank: int) -> list[int]:
    """Distinct axes counted from the front, in the order given."""
    found = [axis_of(site, axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise site.fail(f"axes {list(axes)} name one axis twice")
    return found


def elements(site: Site, name: str, position: int) -> Contents | None:
    """Elements of a static attribute, or of its input where that is a runtime value; None where not known."""
    value = site.attrs[name]
    if value is RUNTIME:
        return site.content(position)
    if isinstance(value, tuple):
        return value
    return None if value is None else (value,)  # type: ignore[return-value]


def integers(site: Site, name: str, position: int) -> tuple[int, ...] | None:
    """Like `elements` where each one is an integer."""
    found = elements(site, name, position)
    if found is None or any(isinstance(item, Expr) for item in found):
        return None
    return tuple(int(item) for item in found)  # type: ignore[arg-type]


def length(site: Site, name: str, position: int) -> int | None:
    """How many elements a static attribute or its input has, None where not known."""
    found = elements(site, name, position)
    if found is not None:
        return len(found)
    shape = shape_of(site, position)
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


# Sizes -----------------------------------------------------------------------------------------------------


def certainly(a: DimLike, b: DimLike) -> bool:
    """a >= b for all sizes, for certain."""
    return dims.at_least(a, b)


def larger(a: DimLike, b: DimLike) -> DimLike:
    """max(a, b), decided only where that is certain."""
    return dims.largest(a, b)


def smaller(a: DimLike, b: DimLike) -> DimLike:
    """min(a, b), decided only where that is certain."""
    return dims.smallest(a, b)


def differ(a: DimLike, b: DimLike) -> bool:
    """a != b for all sizes, for certain."""
    return certainly(a, dims.add(b, 1)) or certainly(b, dims.add(a, 1))


# Contents --------------------------------------------------------------------------------------------------


def array_of(site: Site, position: int) -> np.ndarray | None:
    """Known elements of an input as an array of dimensions in the input's shape."""
    found, shape = site.content(position), shape_of(site, position)
    if found is None or shape is None or any(isinstance(dim, Expr) for dim in shape):
        return None
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(shape) if array.size == np.prod(shape, dtype=np.int64) else None  # type: ignore[arg-type]


def fits(value: DimLike, dtype: str) -> bool:
    """True where an element type holds the value. Symbolic values are sizes and fit 32-bit and 64-bit integers."""
    if isinstance(value, Expr):
        return dtype in ("int32", "int64") or (dtype in ("uint32", "uint64") and certainly(value, 0))
    if dtype == "bool":
        return value in (0, 1)
    if dtype not in dtypes.INTEGERS:
        return False
    info = np.iinfo(dtype)
    return int(info.min) <= value <= int(info.max)


def as_contents(values: np.ndarray, dtype: str) -> Contents | None:
    """The elements of an array of dimensions, None where it is too large or one does not fit."""
    if values.size > CONTENTS_LIMIT:
        return None
    found = tuple(int(v) if isinstance(v, (int, np.integer, bool)) else v for v in values.ravel().tolist())
    return found if all(v is not None and fits(v, dtype) for v in found) else None


def pointwise_contents(function: Callable[..., DimLike | None]) -> Callable[[Site], Contents | None]:
    """Apply a function of dimensions to broadcast inputs; its None makes the whole unknown."""

    def contents(site: Site) -> Contents | None:
        arrays = [array_of(site, position) for position in range(len(site.types))]
        known = [array for array in arrays if array is not None]
        if not known or len(known) < len(arrays):
            return None
        out = _dtype_after(site)
        if np.prod(np.broadcast_shapes(*[a.shape for a in known]), dtype=np.int64) > CONTENTS_LIMIT:
            return None
        met = np.broadcast_arrays(*known)
        values = np.empty(met[0].size, dtype=object)
        values[:] = [function(*items) for items in zip(*[each.ravel().tolist() for each in met])]
        return as_contents(values, out)

    return contents


_COMPARISONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"}


def _dtype_after(site: Site) -> str:
    if site.op in _COMPARISONS:
        return "bool"
    last = site.type(len(site.types) - 1)
    assert last is not None
    return last.dtype
