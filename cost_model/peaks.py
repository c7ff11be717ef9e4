"""What a CPU reaches at best, measured with NumPy: multiplying matrices, copying in cache and in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from . import blas
from .fingerprint import Fingerprint, numpy_cpu
from .timings import Timings

HOST = "numpy:cpu"  # the target name under which peaks are filed: no product target, the device itself
_GEMM = 1024  # rows and columns
_CACHE_BYTES, _MEMORY_BYTES = 128 << 10, 64 << 20  # of each of the two arrays of a copy
IN_CACHE = 1 << 20  # below so many bytes a node's data is taken to lie in cache
_SAMPLES = 5


@dataclass(frozen=True)
class Peaks:
    """Rates per second: floating-point operations (float32 GEMM), bytes read and written in cache and in
    memory.
    """

    flops: float
    cache_bytes: float
    memory_bytes: float
    threads: int

    def seconds(self, flops: float, traffic: float) -> float:
        """The least time for so many operations and bytes, whichever takes longer."""
        rate = self.cache_bytes if traffic <= IN_CACHE else self.memory_bytes
        return max(flops / self.flops, traffic / rate)


def peaks(timings: Timings, threads: int, fingerprint: Fingerprint | None = None) -> Peaks:
    """Peaks of this CPU (or of the device with another fingerprint, from the database alone).

    Measured once per device and thread count, in about 0.3 s; then they come from the database. Raises
    FrozenMiss where a frozen database lacks them, KeyError where those of another device were never recorded.
    """
    device = fingerprint or numpy_cpu()
    found = []
    for name, measure in (
        ("gemm float32", _gemm),
        ("copy cache", _copy_cache),
        ("copy memory", _copy_memory),
    ):
        key = f"peak {name} threads={threads}"
        record = timings.get(key, HOST, device)
        if record is None:
            if fingerprint is not None and fingerprint != numpy_cpu():
                raise KeyError(key)
            amount, samples = measure(threads)
            record = timings.add(key, HOST, device, "peak", samples, amount / min(samples), {"amount": amount})
        found.append(record.median)
    flops, cache_bytes, memory_bytes = found
    return Peaks(flops, cache_bytes, memory_bytes, threads)


def _best_of(run: Callable[[], object], inner: int) -> list[float]:
    run()
    samples = []
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        for _ in range(inner):
            run()
        samples.append(max(time.perf_counter() - start, 1e-9) / inner)
    return samples


def _gemm(threads: int) -> tuple[float, list[float]]:
    """Operations of one multiplication, and seconds per run."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (_GEMM, _GEMM)).astype(np.float32)
    b, out = a.T.copy(), np.empty_like(a)
    with blas.limited_to(threads):
        return 2.0 * _GEMM**3, _best_of(lambda: np.matmul(a, b, out=out), 1)


def _copy_cache(threads: int) -> tuple[float, list[float]]:
    """Bytes read and written, and seconds; one thread's cache counts `threads` times."""
    source = np.ones(_CACHE_BYTES // 8)
    target = np.empty_like(source)
    return 2.0 * _CACHE_BYTES * threads, _best_of(lambda: np.copyto(target, source), 200)


def _copy_memory(threads: int) -> tuple[float, list[float]]:
    """Bytes read and written, and seconds, with `threads` threads copying at the same time."""
    source = np.ones(_MEMORY_BYTES // 8)
    target = np.empty_like(source)
    if threads == 1:
        return 2.0 * _MEMORY_BYTES, _best_of(lambda: np.copyto(target, source), 1)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with ThreadPoolExecutor(threads) as pool:
        return 2.0 * _MEMORY_BYTES, _best_of(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), 1)
