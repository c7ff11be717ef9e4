"""What the executor asks of a device, and the matrix product in the terms of row-major tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from runtime.codegen import Kernel


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a device's memory. `start`: byte of its first element; `strides` in elements."""

    memory: Any
    start: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """`C = alpha * op(A) @ op(B) + beta * C`, `batch` times.

    C is m x n, op(A) m x k, op(B) k x n, all row-major: a row of the stored A (k columns, m if `transpose_a`) begins
    `lda` elements after the one before it, a matrix of the batch `stride_a` after the one before it (0: shared).
    All three have element type `dtype`: float16 and bfloat16 are accumulated in float32.
    """

    m: int
    n: int
    k: int
    dtype: str
    lda: int
    ldb: int
    ldc: int
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    alpha: float = 1.0
    beta: float = 0.0


class Device(ABC):
    """A device with memory of its own. Work is queued in order; `read` and `synchronize` wait for it."""

    name: str
    architecture: str
    most_blocks: int  # of a launch; kernels walk on where there is more to do

    def describe(self) -> dict[str, str]:
        """What measured times belong to: `gpu`, and versions of drivers and libraries."""
        return {"gpu": self.name, "architecture": self.architecture}

    @abstractmethod
    def allocate(self, size: int) -> Any:
        """Memory of so many bytes, aligned to 256, content undefined."""

    @abstractmethod
    def write(self, memory: Any, start: int, array: np.ndarray) -> None:
        """Copy a contiguous array there."""

    @abstractmethod
    def read(self, memory: Any, start: int, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """An array of its own with the row-major tensor that lies there."""

    def prepare(self, kernels: Sequence[Kernel]) -> None:  # noqa: B027 - a device may have nothing to do
        """Compile kernels before they are launched."""

    @abstractmethod
    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        """Queue a kernel."""

    @abstractmethod
    def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
        """Queue a matrix product."""

    def forget(self, memory: Any, start: int, size: int) -> None:  # noqa: B027 - only the emulation checks this
        """Nobody needs these bytes any more; a read before the next write is an error."""

    def release(self) -> None:  # noqa: B027 - a device may keep nothing
        """Give memory that nothing uses back to whom it came from."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all that was queued."""

    def capture(self, queue: Callable[[], None]) -> Callable[[], None] | None:
        """What `queue` launches as one unit that can be replayed; None where the device cannot."""
        return None

    def time(self, queue: Callable[[], None], count: int) -> list[float]:
        """Seconds on the device of each of `count` runs of what `queue` launches, caches flushed before each.

        A device with a clock of its own (events) overrides this; here it is wall time around a run that is waited for.
        """
        found = []
        for _ in range(count):
            self.flush()
            self.synchronize()
            start = perf_counter()
            queue()
            self.synchronize()
            found.append(perf_counter() - start)
        return found

    def flush(self) -> None:  # noqa: B027 - a device may have no caches
        """Put other data into the caches, so that a measurement reads from memory."""
