"""What a CPU reaches at best, measured with NumPy: multiplying matrices, moving data in cache and in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphs.machine import last_level_cache

from . import blas
from .calibration import Calibration, calibrated
from .fingerprint import Fingerprint, numpy_cpu
from .timings import Timings

HOST = "numpy:cpu"  # the target name under which peaks are filed: no product target, the device itself
_GEMM = 768  # rows and columns
_CACHE_BYTES, _MEMORY_BYTES = 128 << 10, 64 << 20  # of each of the two arrays of a copy
IN_CACHE = 1 << 20  # below so many bytes a node's data is taken to lie in cache
_SECONDS = 0.15


@dataclass(frozen=True)
class Peaks:
    """Rates per second: floating-point operations (float32 GEMM), bytes read and written in cache and in
    memory. `cached`: what a run read may lie in a cache for the next one, up to so many bytes.
    """

    flops: float
    cache_bytes: float
    memory_bytes: float
    threads: int
    cached: int = IN_CACHE

    def seconds(self, flops: float, traffic: float) -> float:
        """The least time for so many operations and bytes, whichever takes longer."""
        rate = self.cache_bytes if traffic <= IN_CACHE else self.memory_bytes
        return max(flops / self.flops, traffic / rate)

    def least(self, flops: float, unique: float) -> float:
        """The least time of a run that comes after others, which may have left all its bytes in a cache."""
        rate = self.cache_bytes if unique <= self.cached else self.memory_bytes
        return max(flops / self.flops, unique / rate)


Measure = Callable[[int], tuple[float, list[float]]]  # threads -> amount of work, seconds of each run


def peaks(timings: Timings, threads: int, host: str = HOST, fingerprint: Fingerprint | None = None,
          measures: Mapping[str, Measure] | None = None) -> Peaks:
    """Peaks of this CPU, or of the device that `host`, `fingerprint` and `measures` (named as the CPU's) tell of.

    Measured once per device and thread count, in less than a second; then they come from the database. No rate is less
    than one that is known of fewer threads. Raises
    FrozenMiss where a frozen database lacks them.
    """
    device, found = fingerprint or numpy_cpu(), []
    for name, measure in (measures or _MEASURES).items():
        key = _key(name, threads)
        rate = calibrated(timings, key, host, device, partial(_rate, measure, threads)).median
        found.append(max(rate, _with_fewer(timings, name, threads, host, device.digest)))
    flops, cache_bytes, copied, read = found
    own = measures is None and fingerprint is None
    return Peaks(flops, cache_bytes, max(copied, read), threads, max(IN_CACHE, (own and last_level_cache()) or 0))


def _key(name: str, threads: int) -> str:
    return f"peak {name} threads={threads}"


def _with_fewer(timings: Timings, name: str, threads: int, host: str, digest: str) -> float:
    """The best rate that is known of fewer threads, which more can reach too: one of them may do all the work. A rate
    that was measured while the machine was busy is less than that."""
    keys = [_key(name, fewer) for fewer in range(1, threads)]
    known = [timings.get(key, host, digest) for key in keys if timings.peek(key, host, digest) is not None]
    return max((record.median for record in known if record is not None), default=0.0)


def recorded_peaks(timings: Timings, threads: int, host: str = HOST) -> Peaks | None:
    """Peaks that a database of another machine holds, None where it lacks one."""
    for digest in sorted({record.fingerprint for record in timings.records(target=host)}):
        found = [(name, timings.peek(_key(name, threads), host, digest)) for name in _MEASURES]
        values = [max(record.median, _with_fewer(timings, name, threads, host, digest))
                  for name, record in found if record is not None]
        if len(values) == len(found):
            flops, cache_bytes, copied, read = values
            return Peaks(flops, cache_bytes, max(copied, read), threads)
    return None


def _rate(measure: Measure, threads: int) -> Calibration:
    amount, samples = measure(threads)
    return samples, amount / min(samples), {"amount": amount}


def _best_of(run: Callable[[], object], inner: int, threads: int) -> list[float]:
    """Seconds per run, again and again for a while: on a shared machine a quiet moment may have to be
    waited for.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    run()
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(samples) < 3 or time.perf_counter() < end:
        start = clock()
        for _ in range(inner):
            run()
        samples.append(max(clock() - start, 1e-9) / inner)
    return samples


def _gemm(threads: int) -> tuple[float, list[float]]:
    """Operations of one multiplication, and seconds per run."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (_GEMM, _GEMM)).astype(np.float32)
    b, out = a.T.copy(), np.empty_like(a)
    with blas.limited_to(threads):
        return 2.0 * _GEMM**3, _best_of(lambda: np.matmul(a, b, out=out), 1, threads)


def _copy_cache(threads: int) -> tuple[float, list[float]]:
    """Bytes read and written, and seconds; one thread's cache counts `threads` times."""
    source = np.ones(_CACHE_BYTES // 8)
    target = np.empty_like(source)
    return 2.0 * _CACHE_BYTES * threads, _best_of(lambda: np.copyto(target, source), 50, 1)


def _read_memory(threads: int) -> tuple[float, list[float]]:
    """Bytes read, and seconds: a scalar product, which writes nothing."""
    a = np.ones(_MEMORY_BYTES // 4, np.float32)
    b = a.copy()
    with blas.limited_to(threads):
        return 2.0 * _MEMORY_BYTES, _best_of(lambda: np.dot(a, b), 1, threads)


def _copy_memory(threads: int) -> tuple[float, list[float]]:
    """Bytes read and written, and seconds, with `threads` threads copying at the same time."""
    source = np.ones(_MEMORY_BYTES // 8)
    target = np.empty_like(source)
    if threads == 1:
        return 2.0 * _MEMORY_BYTES, _best_of(lambda: np.copyto(target, source), 1, 1)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with ThreadPoolExecutor(threads) as pool:
        return 2.0 * _MEMORY_BYTES, _best_of(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), 1, threads)


_MEASURES: dict[str, Measure] = {
    "gemm float32": _gemm,
    "copy cache": _copy_cache,
    "copy memory": _copy_memory,
    "read memory": _read_memory,
}
