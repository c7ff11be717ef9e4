"""Waiting until the other threads of this process rest.

A thread of BLAS looks for work long after the last product: OpenBLAS's for 2^26 ticks, which was 110 ms on an AMD EPYC
at two cores. What runs next in threads of its own has one core less meanwhile: kernels of bert-2 that take 19 ms with
two threads took 39 ms after a run of the same model with BLAS's two.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

LONGEST = 0.5  # seconds; what runs for longer has work to do, and its own reasons
_STEP = 2e-4
_TASKS = Path("/proc/self/task")


def wait_until_others_rest(longest: float = LONGEST) -> float | None:
    """Seconds that were waited, 0 where no other thread was running or the system does not tell (no Linux); None where
    one still runs after the `longest` of them."""
    start = time.perf_counter()
    own = str(threading.get_native_id())
    waited = 0.0
    while _others_run(own):
        waited = time.perf_counter() - start
        if waited > longest:
            return None
        time.sleep(_STEP)
    return waited


def _others_run(own: str) -> bool:
    try:
        tasks = [each for each in _TASKS.iterdir() if each.name != own]
    except OSError:
        return False
    return any(map(_runs, tasks))


def _runs(task: Path) -> bool:
    try:
        line = (task / "stat").read_text()
    except OSError:  # it has ended
        return False
    return line.rpartition(")")[2].split(maxsplit=1)[0] == "R"
