"""Values while a graph is lowered: tensors in storages, with strides, and values known on the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any

import numpy as np

from graphs import dtypes
from runtime.codegen import address

_numbers = count()


@dataclass(eq=False, slots=True)
class Storage:
    """Bytes on the device. `array`: a constant's or an uploaded value's content, laid there row-major.

    `memory` and `start` are set when it has a place; `kept` keeps it from being reused (inputs, results).
    """

    size: int
    array: np.ndarray | None = None
    kept: bool = False
    memory: Any = None
    start: int = 0
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: element type, concrete shape, strides and offset in elements.

    `storage` is None while it is only on the host. `host` is its value where that is known without running
    anything on the device.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    storage: Storage | None = None
    host: np.ndarray | None = None

    @staticmethod
    def known(array: np.ndarray) -> Tensor:
        """A value on the host."""
        shape = tuple(array.shape)
        return Tensor(dtypes.name_of(array.dtype), shape, address.contiguous(shape), host=array)

    @staticmethod
    def new(dtype: str, shape: tuple[int, ...], storage: Storage | None = None) -> Tensor:
        """A row-major tensor in a storage (of its own if none is given)."""
        size = prod(_checked(shape)) * item_size(dtype)
        return Tensor(dtype, shape, address.contiguous(shape), 0, storage or Storage(size))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_dense(self) -> bool:
        """Row-major without gaps (what Reshape and library calls need)."""
        wanted = address.contiguous(self.shape)
        return all(size <= 1 or own == want for size, own, want in zip(self.shape, self.strides, wanted))

    def viewed(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Tensor:
        """Another view of the same storage; `offset` is added. What is known on the host is not carried along."""
        return replace(self, shape=_checked(shape), strides=strides, offset=self.offset + offset, host=None)

    def broadcast(self, shape: tuple[int, ...]) -> Tensor:
        """Read in a larger shape, by strides of 0. Raises ValueError where NumPy's rule gives another one."""
        if np.broadcast_shapes(self.shape, shape) != tuple(shape):
            raise ValueError(f"{list(self.shape)} cannot be broadcast to {list(shape)}")
        return self.viewed(shape, address.broadcast(self.shape, self.strides, shape))


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    if shape and min(shape) < 0:
        raise ValueError(f"negative dimensions are not allowed: {list(shape)}")
    return shape


def item_size(dtype: str) -> int:
    """Bytes of an element on the device."""
    return dtypes.numpy_dtype(dtype).itemsize
