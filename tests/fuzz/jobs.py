"""Random graphs in processes of their own: one that a graph ends or hangs is replaced, and what is done is on file.

A graph that ended a process is examined once more, carefully: its record then says whose fault that was.

Each line of the log is one graph's record (see `record`); a run with the same log goes on where it was killed.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Case = tuple[int, str]  # seed, kind
Record = dict[str, Any]
Examine = Callable[[int, str, str, bool], Record]  # (seed, kind, path of the timings, carefully) -> record

SLICE = 200  # graphs that one process gets
HUNG_SECONDS = 300.0


@dataclass
class Job:
    """A process at work on its slice, in order."""

    process: BaseProcess
    connection: Connection
    slot: int
    left: deque[Case]
    careful: bool = False
    heard: float = field(default_factory=time.monotonic)


def run(cases: Iterable[Case], examine: Examine, folder: Path, jobs: int = 1, seconds: float = float("inf"),
        hung: float = HUNG_SECONDS, slice_: int = SLICE) -> Iterator[Record]:
    """The records of all cases, as they come; no further case begins after so many seconds.

    A case that ends its process is examined again, carefully; one that does so again, or that says nothing for `hung`
    seconds, has a record with just that as its fault. The cases after it go on in another process. `folder` keeps one
    database of timings for each of the `jobs`.
    """
    end = time.monotonic() + seconds
    waiting, again, running = iter(cases), deque[tuple[deque[Case], bool]](), dict[int, Job]()
    try:
        while True:
            for slot in range(jobs):
                if slot not in running and time.monotonic() < end:
                    taken, careful = again.popleft() if again else (deque(islice(waiting, slice_)), False)
                    if taken:
                        running[slot] = _start(slot, taken, careful, examine, folder, end)
            if not running:
                return
            ready = wait([job.connection for job in running.values()], timeout=1.0)
            for job in list(running.values()):
                if job.connection in ready:
                    yield from _hear(job, running, again)
                elif time.monotonic() - job.heard > hung:
                    job.process.kill()
                    yield from _lost(job, running, again, f"hung for {hung:g} s")
    finally:
        for job in running.values():
            job.process.kill()


def _start(slot: int, cases: deque[Case], careful: bool, examine: Examine, folder: Path, end: float) -> Job:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(theirs, list(cases), careful, examine, str(folder / f"timings-{slot}.db"), end))
    process.start()
    theirs.close()
    return Job(process, ours, slot, cases, careful)


def _work(connection: Connection, cases: list[Case], careful: bool, examine: Examine, timings: str,
          end: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    for seed, kind in cases:
        if time.monotonic() > end:
            break
        connection.send(examine(seed, kind, timings, careful))
    connection.send(None)


def _hear(job: Job, running: dict[int, Job], again: deque[tuple[deque[Case], bool]]) -> Iterator[Record]:
    try:
        found = job.connection.recv()
    except (EOFError, OSError):
        job.process.join()
        yield from _lost(job, running, again, f"ended the process (status {job.process.exitcode})")
        return
    job.heard = time.monotonic()
    if found is None:
        del running[job.slot]
        job.process.join()
    else:
        job.left.popleft()
        yield found


def _lost(job: Job, running: dict[int, Job], again: deque[tuple[deque[Case], bool]], reason: str) -> Iterator[Record]:
    """The case that a process was at is examined carefully or is a fault; another process goes on with the rest."""
    del running[job.slot]
    job.process.join()
    seed, kind = job.left.popleft()
    if job.left:
        again.append((job.left, job.careful))
    if job.careful or reason.startswith("hung"):
        yield {"seed": seed, "kind": kind, "fault": f"died: it {reason}"}
    else:
        again.append((deque([(seed, kind)]), True))


def read(log: Path) -> dict[Case, Record]:
    """The records of a log, the last one of each case; a line that was cut off is left out."""
    found: dict[Case, Record] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["seed"], row["kind"]] = row
    return found
