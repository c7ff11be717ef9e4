"""Rates of the device: what more threads reach is never less than what fewer do."""

from __future__ import annotations

from pathlib import Path

from cost_model.fingerprint import numpy_cpu
from cost_model.peaks import HOST, peaks, recorded_peaks
from cost_model.timings import Timings

NAMES = ("gemm float32", "copy cache", "copy memory", "read memory")


def test_what_one_thread_reaches_several_reach_too(tmp_path: Path) -> None:
    """Two threads were measured while the machine was busy, three while it was not."""
    timings = Timings(tmp_path / "t.db")
    for threads, rate in ((1, 100e9), (2, 36.7e9), (3, 250e9)):
        for name in NAMES:
            key = f"peak {name} threads={threads}"
            timings.add(key, HOST, numpy_cpu(), "peak", (0.01,), rate, {"amount": rate / 100})
    for threads, rate in ((1, 100e9), (2, 100e9), (3, 250e9)):
        for found in (peaks(timings, threads), recorded_peaks(timings, threads)):
            assert found is not None
            assert (found.flops, found.cache_bytes, found.memory_bytes) == (rate, rate, rate)
