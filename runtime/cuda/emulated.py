"""A device that is none: kernels run in the checking emulation, matrix products in NumPy.

It tests the executor, plans and kernels where there is no GPU. Reads of what nothing has written, or of what was
given up, raise `Faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphs import dtypes
from graphs.errors import ExecutionFailed
from runtime.codegen import Kernel, emulation
from runtime.codegen.emulation import Argument, Faults, Memory

from .device import Device, Gemm, Place


class EmulatedDevice(Device):
    """See the module. `seed` other than 0 shuffles the order of threads and blocks; every launch is counted."""

    name = "emulation"
    architecture = "sm_90"
    most_blocks = 256

    def __init__(self, seed: int = 0, captures: bool = False) -> None:
        self.seed, self.captures = seed, captures
        self.launches: list[str] = []
        self.kernels: dict[str, Kernel] = {}  # all that were launched, by key
        self._recorded: list[Callable[[], None]] | None = None  # while it captures

    def allocate(self, size: int) -> Memory:
        """Memory that nothing has written."""
        return Memory.of(size)

    def write(self, memory: Memory, start: int, array: np.ndarray) -> None:
        """Copy a contiguous array there."""
        self._must_not_capture()
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory.data[start : start + data.size] = data
        memory.filled[start : start + data.size] = 1

    def read(self, memory: Memory, start: int, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """The tensor; every byte of it must have been written."""
        self._must_not_capture()
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        _must_be_filled(memory.filled[start : start + size], "a result")
        return memory.data[start : start + size].copy().view(dtype).reshape(shape)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Compile them together."""
        emulation.prepare(kernels)

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        """Run a kernel now."""
        if self._recorded is not None:
            self._recorded.append(lambda: self.launch(kernel, places))
            return
        self.launches.append(kernel.name)
        self.kernels[kernel.key] = kernel
        arguments = [Argument(each.memory, each.start, each.dtype, each.shape, each.strides) for each in places]
        emulation.launch(kernel, arguments, self.seed, self.most_blocks)

    def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
        """Run a matrix product now, as the library documents it."""
        if self._recorded is not None:
            self._recorded.append(lambda: self.gemm(gemm, a, b, c))
            return
        self.launches.append("gemm")
        left = _matrices(a, gemm.batch, (gemm.k, gemm.m) if gemm.transpose_a else (gemm.m, gemm.k), gemm.lda,
                         gemm.stride_a)
        right = _matrices(b, gemm.batch, (gemm.n, gemm.k) if gemm.transpose_b else (gemm.k, gemm.n), gemm.ldb,
                          gemm.stride_b)
        wide = np.float64 if gemm.dtype == "float64" else np.float32
        left = (left.swapaxes(1, 2) if gemm.transpose_a else left).astype(wide)
        right = (right.swapaxes(1, 2) if gemm.transpose_b else right).astype(wide)
        with np.errstate(all="ignore"):
            product: np.ndarray = np.multiply(np.matmul(left, right), gemm.alpha, dtype=wide)
            if gemm.beta:
                old = _matrices(c, gemm.batch, (gemm.m, gemm.n), gemm.ldc, gemm.stride_c)
                product = product + np.multiply(old, gemm.beta, dtype=wide)
            _store(c, product.astype(dtypes.numpy_dtype(gemm.dtype)), gemm)

    def forget(self, memory: Memory, start: int, size: int) -> None:
        """Later reads are errors until something writes there."""
        if self._recorded is not None:
            self._recorded.append(lambda: self.forget(memory, start, size))
            return
        memory.filled[start : start + size] = 0
        memory.data[start : start + size] = 0xA5

    def capture(self, queue: Callable[[], None]) -> Callable[[], None] | None:
        """With `captures`: what was queued, to be run again."""
        if not self.captures:
            return None
        recorded: list[Callable[[], None]] = []
        self._recorded = recorded
        try:
            queue()
        finally:
            self._recorded = None

        def replay() -> None:
            for each in recorded:
                each()

        return replay

    def synchronize(self) -> None:
        """Nothing is ever pending."""
        self._must_not_capture()

    def _must_not_capture(self) -> None:
        if self._recorded is not None:
            raise ExecutionFailed("the emulation", "a copy or a wait while it captures", "report it: the plan is wrong")


def _matrices(place: Place, batch: int, shape: tuple[int, int], ld: int, stride: int, fill: bool = False) -> np.ndarray:
    """Views of the stored matrices, `[batch, rows, columns]`, all elements of which must hold values."""
    dtype = dtypes.numpy_dtype(place.dtype)
    size = dtype.itemsize
    last = place.start + ((batch - 1) * stride + (shape[0] - 1) * ld + shape[1]) * size
    if last > place.memory.data.size:
        raise Faults("gemm", f"a matrix ends at byte {last} of {place.memory.data.size}", "report it")
    strides = (stride * size, ld * size, size)
    filled = np.lib.stride_tricks.as_strided(place.memory.filled[place.start :], (batch, *shape), strides)
    if fill:
        filled[...] = 1
        rest = np.lib.stride_tricks.as_strided(place.memory.filled[place.start :], (batch, *shape, size), (*strides, 1))
        rest[...] = 1
    else:
        _must_be_filled(filled, "a factor")
    data = place.memory.data[place.start : last].view(dtype) if (last - place.start) % size == 0 else None
    assert data is not None
    return np.lib.stride_tricks.as_strided(data, (batch, *shape), strides)


def _store(c: Place, values: np.ndarray, gemm: Gemm) -> None:
    _matrices(c, gemm.batch, (gemm.m, gemm.n), gemm.ldc, gemm.stride_c, fill=True)[...] = values


def _must_be_filled(filled: np.ndarray, what: str) -> None:
    if not filled.all():
        raise Faults("the emulation", f"{what} has bytes that nothing has written", "report it: the plan is wrong")
