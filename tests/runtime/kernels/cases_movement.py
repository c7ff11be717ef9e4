"""Random nodes of the movement and indexing operators; see `cases.py`."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from tests.runtime.kernels.cases import NUMBERS, Case, Rng, axis, case, shape, sibling, values


@case("Reshape")
def _reshape(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    target: list[int] = list(size) if rng.random() < 0.5 else [int(np.prod(size)), 1]
    if rng.random() < 0.6:
        target[int(rng.integers(0, len(target)))] = -1
    elif target[0] == size[0]:
        target[0] = 0
    return {"shape": tuple(target)}, [values(rng, size, dtype)]


@case("Transpose")
def _transpose(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    perm = None if rng.random() < 0.3 else tuple(int(a) for a in rng.permutation(len(size)))
    return {"perm": perm}, [values(rng, size, dtype)]


@case("Flatten")
def _flatten(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    return {"axis": int(rng.integers(-len(size), len(size) + 1))}, [values(rng, size, dtype)]


@case("Squeeze")
def _squeeze(rng: Rng, dtype: str) -> Case:
    size = (3, 1, 2, 1)
    axes = [None, (1,), (-1,), (1, 3), (-3, 3)][int(rng.integers(0, 5))]
    return {"axes": axes}, [values(rng, size, dtype)]


@case("Unsqueeze")
def _unsqueeze(rng: Rng, dtype: str) -> Case:
    return {"axes": [(0,), (-1,), (0, 2), (1, -1)][int(rng.integers(0, 4))]}, [values(rng, shape(rng, 1, 3), dtype)]


@case("Expand", dtypes=(*NUMBERS, "bool"))
def _expand(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 0, 4)
    target = tuple(1 if rng.random() < 0.3 else each for each in size)
    return {"shape": target}, [values(rng, sibling(rng, size), dtype)]


@case("Concat")
def _concat(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    where = axis(rng, len(size))
    arrays: list[np.ndarray | None] = []
    for _ in range(int(rng.integers(1, 4))):
        each = list(size)
        each[where] = int(rng.integers(0, 4))
        arrays.append(values(rng, tuple(each), dtype))
    return {"axis": where}, arrays


@case("Split")
def _split(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = axis(rng, len(size))
    each = list(size)
    how = int(rng.integers(0, 3))
    each[where] = int(rng.integers(5, 9)) if how == 1 else 6  # num_outputs leaves a smaller last part
    attrs: dict[str, object] = {"axis": where}
    if how == 0:
        attrs["split"] = (1, 2, 3)
    elif how == 1:
        attrs["num_outputs"] = 3
    return attrs, [values(rng, tuple(each), dtype)]


@case("Slice")
def _slice(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    count = int(rng.integers(1, len(size) + 1))
    axes = tuple(int(a) - (len(size) if rng.random() < 0.3 else 0) for a in rng.permutation(len(size))[:count])
    far = [2**31 - 1, -(2**31) + 1, 2**62, -(2**62)]
    pick = lambda: int(rng.choice(far)) if rng.random() < 0.2 else int(rng.integers(-6, 7))  # noqa: E731
    attrs: dict[str, object] = {"starts": tuple(pick() for _ in axes), "ends": tuple(pick() for _ in axes)}
    attrs["axes"] = axes if rng.random() < 0.8 else None
    steps = tuple(int(rng.choice([1, 1, 2, 3, -1, -2])) for _ in axes)
    attrs["steps"] = steps if rng.random() < 0.4 else None
    return attrs, [values(rng, size, dtype)]


@case("Pad", dtypes=("float32", "float64", "int32", "int64", "uint8"))
def _pad(rng: Rng, dtype: str) -> Case:
    size = tuple(int(each) for each in rng.integers(3, 6, rng.integers(1, 4)))
    mode = str(rng.choice(["constant", "constant", "reflect", "edge", "wrap"]))
    axes = None if rng.random() < 0.6 else (axis(rng, len(size)),)
    count = 2 * (len(size) if axes is None else 1)
    low = -1 if mode == "constant" else 0
    attrs: dict[str, object] = {"mode": mode, "pads": tuple(int(p) for p in rng.integers(low, 3, count))}
    value = values(rng, (), dtype, special=False).item()
    attrs["constant_value"] = value if mode == "constant" and rng.random() < 0.5 else None
    return attrs | {"axes": axes}, [values(rng, size, dtype)]


@case("CenterCropPad", dtypes=("float32",))
def _crop(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 2, 3)
    return {"shape": (int(rng.integers(1, 7)),), "axes": (axis(rng, len(size)),)}, [values(rng, size, dtype)]


@case("Tile")
def _tile(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    return {"repeats": tuple(int(r) for r in rng.integers(0, 4, len(size)))}, [values(rng, size, dtype)]


@case("DepthToSpace", dtypes=("float32",))
def _depth_to_space(rng: Rng, dtype: str) -> Case:
    attrs: dict[str, object] = {"blocksize": 2, "mode": str(rng.choice(["DCR", "CRD"]))}
    return attrs, [values(rng, (2, 8, 3, 2), dtype)]


@case("SpaceToDepth", dtypes=("float32",))
def _space_to_depth(rng: Rng, dtype: str) -> Case:
    return {"blocksize": 2, "mode": str(rng.choice(["DCR", "CRD"]))}, [values(rng, (2, 3, 4, 6), dtype)]


@case("Shape")
def _shape(rng: Rng, dtype: str) -> Case:
    some = [{}, {"start": 1}, {"start": -2}, {"end": -1}, {"start": 1, "end": 3}, {"start": -9, "end": 9}]
    return dict(some[int(rng.integers(0, 6))]), [values(rng, shape(rng), dtype)]


@case("Size")
def _size(rng: Rng, dtype: str) -> Case:
    return {}, [values(rng, shape(rng), dtype)]


@case("ConstantOfShape", dtypes=("int64",))
def _constant_of_shape(rng: Rng, dtype: str) -> Case:
    fill = Constant.of(np.array([rng.integers(0, 5)]).astype(rng.choice(["int64", "float32", "bool"])))
    return ({} if rng.random() < 0.3 else {"value": fill}), [np.array(shape(rng, 1, 3), np.int64)]


@case("Range", dtypes=("float32", "int32", "int64", "float64"))
def _range(rng: Rng, dtype: str) -> Case:
    numbers = [int(rng.integers(-5, 5)), int(rng.integers(-5, 9)), int(rng.choice([1, 2, 3, -1, -2]))]
    return {}, [np.array(each, dtype) for each in numbers]


@case("EyeLike", dtypes=("float32", "int64"))
def _eye_like(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 2, 2)
    return {"dtype": None if rng.random() < 0.5 else 1, "k": int(rng.integers(-2, 3))}, [values(rng, size, dtype)]


@case("Trilu", dtypes=("float32", "int64", "bool"))
def _trilu(rng: Rng, dtype: str) -> Case:
    k = None if rng.random() < 0.3 else int(rng.integers(-5, 6))
    return {"upper": int(rng.integers(0, 2)), "k": k}, [values(rng, shape(rng, 2, 4), dtype)]


@case("Compress", dtypes=("float32",))
def _compress(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = None if rng.random() < 0.3 else axis(rng, len(size))
    limit = int(np.prod(size)) if where is None else size[where]
    return {"axis": where}, [values(rng, size, dtype), values(rng, (int(rng.integers(1, limit + 1)),), "bool")]


@case("ReverseSequence", dtypes=("float32",))
def _reverse(rng: Rng, dtype: str) -> Case:
    batch = int(rng.integers(0, 2))
    size = (3, 4, 2)
    lengths = rng.integers(1, size[1 - batch] + 1, size[batch]).astype(np.int64)
    return {"batch_axis": batch, "time_axis": 1 - batch}, [values(rng, size, dtype), lengths]


def _indices(rng: Rng, size: tuple[int, ...], limit: int) -> np.ndarray:
    return np.asarray(rng.integers(-limit, limit, size)).astype(rng.choice(["int32", "int64"]))


@case("Gather")
def _gather(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = axis(rng, len(size))
    return {"axis": where}, [values(rng, size, dtype), _indices(rng, shape(rng, 0, 2), size[where])]


@case("GatherElements")
def _gather_elements(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = axis(rng, len(size)) % len(size)
    taken = tuple(int(rng.integers(1, each + 1)) if i != where else 3 for i, each in enumerate(size))
    return {"axis": where}, [values(rng, size, dtype), _indices(rng, taken, size[where])]


@case("GatherND", dtypes=("float32", "int64"))
def _gather_nd(rng: Rng, dtype: str) -> Case:
    size = (2, 3, 3, 2)
    batch, width = int(rng.integers(0, 2)), int(rng.integers(1, 4))
    indices = rng.integers(-2, 2, (*size[:batch], 4, width)).astype(np.int64)
    return {"batch_dims": batch}, [values(rng, size, dtype), indices]


@case("ScatterElements", "Scatter", dtypes=("float32", "int64"))
def _scatter_elements(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = axis(rng, len(size)) % len(size)
    count = int(rng.integers(1, size[where] + 1))
    one = rng.permutation(size[where])[:count]
    taken = tuple(count if i == where else each for i, each in enumerate(size))
    indices = np.broadcast_to(one.reshape([-1 if i == where else 1 for i in range(len(size))]), taken).astype(np.int64)
    attrs: dict[str, object] = {"axis": where}
    return attrs, [values(rng, size, dtype), indices, values(rng, taken, dtype)]


@case("ScatterND", dtypes=("float32", "int64"))
def _scatter_nd(rng: Rng, dtype: str) -> Case:
    size, width = (4, 3, 2), int(rng.integers(1, 4))
    flat = rng.permutation(int(np.prod(size[:width])))[:3]
    indices = np.stack(np.unravel_index(flat, size[:width]), axis=-1).astype(np.int64)
    reduction = str(rng.choice(["none", "add", "mul", "max", "min"]))
    updates = values(rng, (3, *size[width:]), dtype, special=False)
    return {"reduction": reduction}, [values(rng, size, dtype, special=False), indices, updates]


@case("OneHot", dtypes=("float32", "int64"))
def _one_hot(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    inputs: list[np.ndarray | None] = [rng.integers(-6, 6, size).astype(np.int64), np.array(4, np.int64)]
    return {"axis": axis(rng, len(size) + 1)}, [*inputs, values(rng, (2,), dtype, special=False)]


@case("NonZero", dtypes=("float32", "int64", "bool"))
def _non_zero(rng: Rng, dtype: str) -> Case:
    return {}, [values(rng, shape(rng, 1, 3), dtype, special=False)]


@case("Unique", dtypes=("float32", "int64"))
def _unique(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    data = np.round(values(rng, size, dtype, special=False, scale=1.0)).astype(dtype)
    where = None if rng.random() < 0.5 else axis(rng, len(size))
    return {"axis": where, "sorted": int(rng.integers(0, 2))}, [data + np.zeros((), data.dtype)]
