"""A GPU through CuPy: kernels compiled by NVRTC for its architecture, products by cuBLAS, one stream.

Reads and synchronization wait for the stream, all else is queued on it. Runs can be captured as one unit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from graphs.errors import ExecutionFailed, InvalidOption, TargetUnavailable
from runtime.codegen import Kernel, nvrtc

from .cublas import cublas_call
from .device import Device, Gemm, Place

DEVICE = "EGRAFT_CUDA_DEVICE"  # the number of the GPU to use where there are several
_INSUFFICIENT_DRIVER, _NO_DEVICE = 35, 100  # cudaError_t
_USE_CPU = "use egraft:cpu"
_WORKSPACE = 4 << 20
_WORKSPACE_HOPPER = 32 << 20  # what cuBLAS asks for, by its documentation, from compute capability 9.0 on
_COMPILERS = min(os.cpu_count() or 1, 8)
_BLOCKS_PER_PROCESSOR = 32  # four times what is resident with 256 threads a block


class CupyDevice(Device):
    """See the module. `index` is CUDA's number of the device; `calls` stands in for CuPy in tests."""

    def __init__(self, index: int | None = None, calls: Any = None) -> None:
        if calls is None:
            from .cupy_calls import CupyCalls

            require(index)
            calls = CupyCalls(chosen(index))
        self.calls = calls
        with self._active("its properties"):
            found = calls.properties()
        name = found["name"]
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self.capability = int(found["major"]) * 10 + int(found["minor"])
        self.architecture = f"sm_{self.capability}"
        self.most_blocks = int(found["multiProcessorCount"]) * _BLOCKS_PER_PROCESSOR
        self._memory = int(found["totalGlobalMem"])
        self._cache = int(found["l2CacheSize"])
        self._functions: dict[str, Any] = {}
        self._flushing: Any = None
        self._flushes = 0

    def describe(self) -> dict[str, str]:
        """Card, driver and libraries: what measured times belong to."""
        with self._active("its versions"):
            return {"gpu": self.name, "architecture": self.architecture, "memory": str(self._memory),
                    **self.calls.versions()}

    def allocate(self, size: int) -> Any:
        """Memory of the device's pool, aligned to 512 bytes."""
        with self._active(f"{size} bytes of memory"):
            return self.calls.allocate(size)

    def write(self, memory: Any, start: int, array: np.ndarray) -> None:
        """Copy an array there. The array is free again when this returns."""
        data = np.ascontiguousarray(array)
        if data.nbytes:
            with self._active(f"copying {data.nbytes} bytes up"):
                self.calls.copy_in(memory, start, data)
                self.calls.synchronize()

    def read(self, memory: Any, start: int, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """The tensor that lies there when all that was queued is done."""
        found = np.empty(tuple(shape), dtype)
        if found.nbytes:
            with self._active(f"copying {found.nbytes} bytes down"):
                self.calls.copy_out(found, memory, start)
                self.calls.synchronize()
        return found

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Compile and load kernels, several at a time (NVRTC runs outside of Python's lock)."""
        missing = list({each.key: each for each in kernels if each.key not in self._functions}.values())
        if missing:
            with ThreadPoolExecutor(min(len(missing), _COMPILERS)) as pool:
                cubins = list(pool.map(lambda kernel: nvrtc.compile_cubin(kernel, self.architecture), missing))
            with self._active("loading kernels"):
                for kernel, cubin in zip(missing, cubins):
                    self._functions[kernel.key] = self.calls.load(cubin, kernel.name)

    def _function(self, kernel: Kernel) -> Any:
        if kernel.key not in self._functions:
            self.prepare([kernel])
        return self._functions[kernel.key]

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        """Queue a kernel."""
        function = self._function(kernel)
        with self._active(f"kernel {kernel.name}"):
            addresses = [_address(each) for each in places]
            self.calls.launch(function, kernel.grid(self.most_blocks), kernel.block, addresses)

    def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
        """Queue a matrix product."""
        with self._active(f"matrix product {gemm.m} x {gemm.n} x {gemm.k}"):
            if not self.calls.has_workspace():
                size = _WORKSPACE_HOPPER if self.capability >= 90 else _WORKSPACE
                self.calls.set_workspace(self.calls.allocate(size), size)
            self.calls.gemm(cublas_call(gemm), _address(a), _address(b), _address(c))

    def release(self) -> None:
        """The pool gives what is free back to the driver."""
        with self._active("releasing memory"):
            self.calls.synchronize()
            self.calls.release()

    def synchronize(self) -> None:
        """Wait for the stream."""
        with self._active("waiting for what was queued"):
            self.calls.synchronize()

    def capture(self, queue: Callable[[], None]) -> Callable[[], None] | None:
        """What `queue` launches, as a CUDA graph. Raises ExecutionFailed where something in it cannot be captured;
        the stream is as before then. What is captured must have run before: libraries allocate in their first call."""
        with self._active("capturing a run"):
            self.calls.begin_capture()
            try:
                queue()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that the recording is invalid is known
                    self.calls.end_capture()
                raise
            graph = self.calls.end_capture()
            self.calls.upload_graph(graph)

        def replay() -> None:
            with self._active("a captured run"):
                self.calls.launch_graph(graph)

        return replay

    def time(self, queue: Callable[[], None], count: int) -> list[float]:
        """Seconds of each run between two events of the device."""
        with self._active("timing"):
            marks = []
            for _ in range(count):
                self.flush()
                start = self.calls.record()
                queue()
                marks.append((start, self.calls.record()))
            self.calls.synchronize()
            return [self.calls.seconds(start, stop) for start, stop in marks]

    def flush(self) -> None:
        """Write twice the size of the second-level cache."""
        size = max(2 * self._cache, 1 << 20)
        with self._active("flushing caches"):
            if self._flushing is None:
                self._flushing = self.calls.allocate(size)
            self._flushes += 1
            self.calls.fill(self._flushing, self._flushes % 256, size)

    @contextlib.contextmanager
    def _active(self, what: str) -> Iterator[None]:
        """Makes the device current; errors of CUDA become ours, of one line."""
        try:
            with self.calls.active():
                yield
        except MemoryError as error:
            raise ExecutionFailed(f"egraft:cuda, {what}", f"the GPU's memory is too small: {error}",
                                  "run smaller inputs, or close other sessions and programs") from error
        except RuntimeError as error:  # CUDARuntimeError, CUDADriverError, CublasError
            raise ExecutionFailed(f"egraft:cuda, {what}", f"{type(error).__name__}: {error}",
                                  "run it with egraft:cpu; if only the GPU fails, report it") from error


def _address(place: Place) -> int:
    return int(place.memory.ptr) + place.start


def chosen(index: int | None = None) -> int:
    """The device's number: as given, else `$EGRAFT_CUDA_DEVICE`, else CUDA's current one."""
    if index is not None:
        return index
    named = os.environ.get(DEVICE, "")
    if named:
        if not named.isdecimal():
            raise InvalidOption(f"${DEVICE}", f"{named!r} is no number of a device", "set it to 0, 1, ...")
        return int(named)
    from cupy.cuda import runtime

    return int(runtime.getDevice())


def require(index: int | None = None) -> None:
    """Raises TargetUnavailable where something is missing."""
    reason = unavailable(index)
    if reason is not None:
        found, _, fix = reason.partition("; ")
        raise TargetUnavailable("target 'egraft:cuda'", found, fix or _USE_CPU)


def unavailable(index: int | None = None) -> str | None:
    """What is missing for a GPU to be used, and how to get it, in one line; None if all is there."""
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        return (f"CuPy is not installed ({_first_line(error)}); pip install 'cupy-cuda13x[ctk]', or cupy-cuda12x "
                "for a driver older than 580")
    except Exception as error:  # libraries that do not load raise whatever they like
        return f"CuPy does not load ({type(error).__name__}: {_first_line(error)}); install it anew"
    try:
        count = runtime.getDeviceCount()
    except Exception as error:  # CUDARuntimeError; its class cannot be imported everywhere
        status = getattr(error, "status", None)
        if status == _NO_DEVICE:
            return f"no NVIDIA GPU is here; {_USE_CPU}"
        if status == _INSUFFICIENT_DRIVER:
            needed = runtime.runtimeGetVersion() // 1000
            return (f"there is no NVIDIA driver, or one too old for CUDA {needed}; on a machine with an NVIDIA GPU "
                    "install a newer driver or the CuPy for the driver's CUDA version")
        return f"CUDA does not answer ({_first_line(error)}); {_USE_CPU}"
    try:
        number = chosen(index)
    except InvalidOption as error:
        return f"{error.where}: {error.found}; {error.fix}"
    except Exception as error:
        return f"CUDA does not answer ({_first_line(error)}); {_USE_CPU}"
    if not count:
        return f"no NVIDIA GPU is here; {_USE_CPU}"
    if number >= count:
        return f"there is no GPU {number}, only {count} of them, counted from 0; set ${DEVICE} or `device`"
    return nvrtc.unavailable() or _unsupported(number) or _without_cublas(runtime)


def _unsupported(number: int) -> str | None:
    """The GPU is newer than NVRTC, or older than what it still compiles for."""
    from cupy.cuda import Device as Card
    from cupy.cuda import nvrtc as library

    capability = int(Card(number).compute_capability)
    known = library.getSupportedArchs()
    if capability in known:
        return None
    return (f"NVRTC {'.'.join(map(str, library.getVersion()))} does not compile for this GPU (sm_{capability}, it "
            f"knows {', '.join(map(str, known))}); install another nvidia-cuda-nvrtc")


def _without_cublas(runtime: Any) -> str | None:
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except Exception as error:  # as above
        package = "nvidia-cublas" if runtime.runtimeGetVersion() >= 13000 else "nvidia-cublas-cu12"
        return f"cuBLAS is not here ({_first_line(error)}); pip install {package}"
    return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120].replace(";", ",")


__all__ = ["DEVICE", "CupyDevice", "chosen", "require", "unavailable"]
