"""The calls of CuPy and cuBLAS that the GPU executor makes, one method each, so that tests can stand in for them.

cuBLAS is called directly, by way of the library that CuPy has loaded: CuPy's own wrapper refuses to be captured
(`setStream` in cupy_backends/cuda/libs/cublas.pyx) and cannot give cuBLAS a workspace, without which every captured
product allocates memory of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .cublas import CublasCall

CUBLAS_POINTER_MODE_HOST = 0
CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # sums of 16-bit products stay in float32 throughout
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
# cublasGemmStridedBatchedEx in cublas_api.h
_GEMM = (_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _LONG, _POINTER, _INT, _INT, _LONG,
         _POINTER, _POINTER, _INT, _INT, _LONG, _INT, _INT, _INT)  # fmt: skip


class CublasError(RuntimeError):
    """A call of cuBLAS that failed, in its words."""


class CupyCalls:
    """One device and one stream of it. Every call is made inside `active`."""

    def __init__(self, index: int) -> None:
        import cupy

        self.cuda = cupy.cuda
        self.version = str(cupy.__version__)
        self.device = self.cuda.Device(index)
        with self.device:
            self.stream = self.cuda.Stream(non_blocking=True)
        self.pool = self.cuda.MemoryPool()
        self._cublas: Cublas | None = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Makes device and stream current for this thread: allocations belong to the current stream."""
        with self.device, self.stream:
            yield

    def properties(self) -> dict[str, Any]:
        """Of the card, as the runtime names them."""
        return self.cuda.runtime.getDeviceProperties(self.device.id)

    def versions(self) -> dict[str, str]:
        """Of the driver and of libraries."""
        return {"driver": str(self.cuda.runtime.driverGetVersion()),
                "cuda": str(self.cuda.runtime.runtimeGetVersion()),
                "nvrtc": ".".join(map(str, self.cuda.nvrtc.getVersion())), "cupy": self.version,
                "cublas": str(self.cublas.version())}  # fmt: skip

    def allocate(self, size: int) -> Any:
        """Memory of the pool; it goes back there when nobody refers to it. `.ptr` is its address."""
        return self.pool.malloc(size)

    def release(self) -> None:
        """The pool gives free memory back."""
        self.pool.free_all_blocks()

    def copy_in(self, memory: Any, start: int, array: np.ndarray) -> None:
        """Queue a copy from the host."""
        (memory + start).copy_from_host_async(array.ctypes.data, array.nbytes, self.stream)

    def copy_out(self, array: np.ndarray, memory: Any, start: int) -> None:
        """Queue a copy to the host."""
        (memory + start).copy_to_host_async(array.ctypes.data, array.nbytes, self.stream)

    def fill(self, memory: Any, value: int, size: int) -> None:
        """Queue writing one byte everywhere."""
        memory.memset_async(value, size, self.stream)

    def load(self, cubin: bytes, name: str) -> Any:
        """A function of a compiled kernel, which keeps its module loaded."""
        module = self.cuda.function.Module()
        module.load(cubin)
        return module.get_function(name)

    def launch(self, function: Any, blocks: int, threads: tuple[int, int], addresses: Sequence[int]) -> None:
        """Queue a kernel. Python integers are passed as 64 bits, which is what pointers are."""
        function((blocks,), threads, tuple(addresses), stream=self.stream)

    @property
    def cublas(self) -> Cublas:
        """cuBLAS on the stream, opened when it is first needed."""
        if self._cublas is None:
            self._cublas = Cublas(self.cuda.runtime.runtimeGetVersion() // 1000, self.stream.ptr)
        return self._cublas

    def has_workspace(self) -> bool:
        """`set_workspace` was called."""
        return self._cublas is not None and self._cublas.workspace is not None

    def set_workspace(self, memory: Any, size: int) -> None:
        """Memory that cuBLAS may use between calls."""
        self.cublas.set_workspace(memory, size)

    def gemm(self, call: CublasCall, a: int, b: int, c: int) -> None:
        """Queue a matrix product of our A and B."""
        self.cublas.gemm(call, a, b, c)

    def synchronize(self) -> None:
        """Wait for the stream. A kernel that failed is told of here."""
        self.stream.synchronize()

    def begin_capture(self) -> None:
        """From now on the stream records."""
        self.stream.begin_capture()

    def end_capture(self) -> Any:
        """What it recorded, ready to be launched."""
        return self.stream.end_capture()

    def upload_graph(self, graph: Any) -> None:
        """Have a recording ready on the device."""
        graph.upload(self.stream)

    def launch_graph(self, graph: Any) -> None:
        """Queue a recording."""
        graph.launch(self.stream)

    def record(self) -> Any:
        """A point in time on the stream."""
        return self.stream.record()

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two points that were reached."""
        return float(self.cuda.get_elapsed_time(start, stop)) * 1e-3


class Cublas:
    """A handle of cuBLAS for one stream."""

    def __init__(self, cuda_version: int, stream: int) -> None:
        from cupy_backends.cuda.libs import cublas  # loads the library, wherever it lies

        self.library = _loaded(cuda_version)
        self.keep = cublas
        self.workspace: Any = None
        self.handle = ctypes.c_void_p()
        self._check(self.library.cublasCreate_v2(ctypes.byref(self.handle)))
        self._check(self.library.cublasSetStream_v2(self.handle, _POINTER(stream)))
        self._check(self.library.cublasSetPointerMode_v2(self.handle, CUBLAS_POINTER_MODE_HOST))
        self._check(self.library.cublasSetMathMode(self.handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION))

    def version(self) -> int:
        """As cuBLAS counts."""
        found = ctypes.c_int()
        self._check(self.library.cublasGetVersion_v2(self.handle, ctypes.byref(found)))
        return found.value

    def set_workspace(self, memory: Any, size: int) -> None:
        """Setting the stream would take it away again, so that is done once, before."""
        self._check(self.library.cublasSetWorkspace_v2(self.handle, _POINTER(memory.ptr), ctypes.c_size_t(size)))
        self.workspace = memory

    def gemm(self, call: CublasCall, a: int, b: int, c: int) -> None:
        """The scalars are read during the call, or captured with it."""
        scalar = ctypes.c_double if call.scale == "float64" else ctypes.c_float
        alpha, beta = scalar(call.alpha), scalar(call.beta)
        arguments = call.arguments(self.handle.value or 0, a, b, c, ctypes.addressof(alpha), ctypes.addressof(beta))
        self._check(self.library.cublasGemmStridedBatchedEx(*arguments))

    def _check(self, status: int) -> None:
        if status:
            raise CublasError(f"cuBLAS status {status}: {self.library.cublasGetStatusString(status).decode()}")


def _loaded(cuda_version: int) -> Any:
    """The cuBLAS that CuPy has loaded: a library is found by its name once it is there."""
    for name in (f"libcublas.so.{cuda_version}", f"cublas64_{cuda_version}.dll"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name)
            library.cublasGemmStridedBatchedEx.argtypes = _GEMM
            library.cublasGetStatusString.restype = ctypes.c_char_p
            return library
    raise ImportError(f"libcublas.so.{cuda_version} was loaded by CuPy but is not found by its name")
