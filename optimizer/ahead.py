"""Regions of a large graph are saturated in search processes while this one chooses among what earlier ones gave."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from graphs.machine import cores_visible

Made = TypeVar("Made")
MOST_WORKERS = 4  # each is a process of 150 MB
JOBS_A_WORKER = 8  # starting one takes a second
LEAD = 2  # results that may lie ready, beside those that are being made: an e-graph takes memory


def workers_for(jobs: int) -> int:
    """How many search processes are worth it; none where there is but one core.

    As many as there are cores: saturating takes longer than choosing, and who waits takes no core.
    """
    cores = cores_visible()
    return 0 if cores < 2 else min(cores, MOST_WORKERS, max(1, jobs // JOBS_A_WORKER), jobs)


class Ahead(Generic[Made]):
    """Makes what it was given in that order, a little ahead of who takes it. Use as a context manager.

    With no `workers` everything is made when it is taken. `quiet()` is for measurements: inside, nothing is made.
    """

    def __init__(self, jobs: Sequence[Callable[[], Made]], workers: int | None = None) -> None:
        self.workers = workers_for(len(jobs)) if workers is None else workers
        self._jobs = deque(jobs)
        self._pool = ThreadPoolExecutor(self.workers, "ahead") if self.workers > 0 else None
        self._futures: deque[Future[Made]] = deque()
        self._gate = threading.Condition()
        self._running = self._measuring = 0

    def __enter__(self) -> Ahead[Made]:
        self._submit()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self) -> Made:
        """What the next job makes, or the exception that it raised."""
        if self._pool is None:
            return self._jobs.popleft()()
        future = self._futures.popleft()
        self._submit()
        return future.result()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Wait until nothing is being made, and let nothing begin until the end."""
        with self._gate:
            self._measuring += 1
            self._gate.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._gate:
                self._measuring -= 1
                self._gate.notify_all()

    def _submit(self) -> None:
        while self._pool is not None and self._jobs and len(self._futures) < self.workers + LEAD:
            self._futures.append(self._pool.submit(self._make, self._jobs.popleft()))

    def _make(self, job: Callable[[], Made]) -> Made:
        with self._gate:
            self._gate.wait_for(lambda: not self._measuring)
            self._running += 1
        try:
            return job()
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()
