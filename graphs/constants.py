"""Constants: tensors known before the graph runs, loaded when first needed, compared by content."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import dtypes
from .spill import let_go
from .types import TensorType


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a constant's elements. `low` and `high` are None for non-numbers, NaN or no elements."""

    splat: float | int | bool | None
    low: float | None
    high: float | None
    finite: bool
    integral: bool


class Constant:
    """A tensor known beforehand. The array may be a memory map and is read-only.

    `load` is called at most once. Equality and hash are by dtype, shape and content (floats by their bits).
    """

    __slots__ = ("__dict__", "__weakref__", "_load", "type")

    def __init__(self, type_: TensorType, load: Callable[[], np.ndarray]) -> None:
        self.type = type_
        self._load: Callable[[], np.ndarray] | None = load

    @staticmethod
    def of(array: np.ndarray | float | int | bool | list, dtype: str | None = None) -> Constant:
        """A constant of an array (of the named dtype if given)."""
        value = np.asarray(array) if dtype is None else np.asarray(array, dtypes.numpy_dtype(dtype))
        if value.dtype.kind in "US":
            value = value.astype(object)
        return Constant(TensorType(dtypes.name_of(value.dtype), tuple(value.shape)), lambda: value)

    @cached_property
    def array(self) -> np.ndarray:
        """The tensor, read-only."""
        assert self._load is not None
        loaded = np.asarray(self._load())
        self._load = None
        view = loaded.view()
        view.flags.writeable = False
        return view

    @property
    def dtype(self) -> str:
        """Element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return self.type.shape  # type: ignore[return-value]

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in a file, rounded up."""
        return math.ceil(self.size * dtypes.item_bytes(self.dtype))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of dtype, shape and content."""
        h = hashlib.sha256(f"{self.dtype}{list(self.shape)}".encode())
        if self.dtype == "string":
            for item in self.array.ravel():
                raw = item if isinstance(item, bytes) else str(item).encode()
                h.update(len(raw).to_bytes(8, "little") + raw)
        else:
            h.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)
            let_go(self.array)
        return h.hexdigest()

    @cached_property
    def facts(self) -> Facts:
        """Splat value, range, finiteness, integrality."""
        a = self.array
        if self.dtype == "string" or a.size == 0 or a.dtype.kind == "c":
            return Facts(None, None, None, self.dtype != "string", False)
        flat = np.ascontiguousarray(a).reshape(-1)
        bits = flat.view(np.dtype(f"V{flat.dtype.itemsize}"))
        splat = flat[0].item() if bool((bits == bits[0]).all()) else None
        if a.dtype.kind in "biu":
            return Facts(splat, float(flat.min()), float(flat.max()), True, True)
        wide = flat.astype(np.float64) if flat.dtype != np.float64 else flat
        finite = bool(np.isfinite(wide).all())
        has_nan = not finite and bool(np.isnan(wide).any())
        low, high = (None, None) if has_nan else (float(wide.min()), float(wide.max()))
        let_go(a)
        return Facts(splat, low, high, finite, finite and bool((wide == np.floor(wide)).all()))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Constant) and self.type == other.type and self.digest == other.digest

    @cached_property
    def sample(self) -> bytes:
        """Some elements, enough to tell most constants of one type apart without reading them whole."""
        if self.dtype == "string":
            return self.digest.encode()
        flat = self.array.reshape(-1)
        return np.ascontiguousarray(flat[:: max(1, flat.size // 64)]).view(np.uint8).tobytes()

    def __hash__(self) -> int:  # by type alone, a table of a model's weights would compare each with each
        return hash((self.type, self.sample))

    def __repr__(self) -> str:
        return f"Constant({self.type})"

    def __reduce__(self) -> tuple[Callable[[np.ndarray, str], Constant], tuple[np.ndarray, str]]:
        return _rebuild, (np.array(self.array), self.dtype)


def _rebuild(array: np.ndarray, dtype: str) -> Constant:
    return Constant.of(array) if dtype == "string" else Constant.of(array, dtype)
