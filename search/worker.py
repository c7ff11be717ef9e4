"""Saturation in a child process that can be killed, stays warm, and is used again for the next graph."""

from __future__ import annotations

import atexit
import pickle
import threading
import time
from collections.abc import Mapping, Sequence

from graphs.constants import Constant
from graphs.errors import SearchFailed
from rules.declare import Rule

from .budget import Budget, Folding
from .child import Job, RuleName, path_of
from .process import ChildProcess
from .saturation import Outcome
from .terms import Tables


class Worker(ChildProcess):
    """One process that saturates."""

    def __init__(self) -> None:
        super().__init__("search.child")

    def ask(self, job: Job) -> tuple[Outcome | None, str]:
        """The outcome (perhaps only of a checkpoint), and why it is not complete ('' if it is)."""
        best: Outcome | None = None
        if not self.answers():
            return None, f"the search process did not start{self.last_words()}"
        started, used = time.monotonic(), self.processor_seconds()
        try:
            self.connection.send_bytes(pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
            while True:
                left = min(job.budget.wall_seconds - (time.monotonic() - started),
                           job.budget.hard_seconds - (self.processor_seconds() - used))
                if not self.connection.poll(max(0.0, left)):
                    if left > 0:
                        continue  # on a busy machine it has used less than that
                    self.kill()
                    return best, f"killed after {time.monotonic() - started:.0f} s"
                message = self.connection.recv_bytes()
                if message[:1] == b"e":
                    self.kill()
                    return best, message[1:].decode()
                outcome: Outcome = pickle.loads(memoryview(message)[1:])
                if message[:1] == b"d":
                    return outcome, ""
                best = outcome
        except (EOFError, OSError):
            self.kill()
            return best, f"the search process died (status {self.process.returncode}){self.last_words()}"


class Pool:
    """Idle workers of this process; as many are started as are used at the same time."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def take(self) -> Worker:
        """An idle worker, or a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.usable:
                    return worker
        return Worker()

    def prepare(self) -> None:
        """Start a worker now, unless one is idle: it is ready when the first graph is."""
        with self._lock:
            if not any(worker.usable for worker in self._idle):
                self._idle.append(Worker())

    def give(self, worker: Worker) -> None:
        """Hand a worker back."""
        if worker.usable:
            with self._lock:
                self._idle.append(worker)

    def close(self) -> None:
        """End all idle workers."""
        with self._lock:
            for worker in self._idle:
                if worker.usable:
                    worker.kill()
            self._idle.clear()


POOL = Pool()
atexit.register(POOL.close)


_NAMES: dict[int, tuple[Rule, RuleName]] = {}  # by identity, which keeps a small graph's overhead small


def _name_of(rule: Rule) -> RuleName:
    known = _NAMES.get(id(rule))
    if known is None or known[0] is not rule:
        known = _NAMES[id(rule)] = (rule, RuleName(rule.guard.__module__, path_of(rule), rule.name))
    return known[1]


def saturate_tables(tables: Tables, rules: Sequence[Rule], budget: Budget, folding: Folding | None = None,
                    stored: Mapping[int, Constant] | None = None) -> Outcome:
    """Saturate in a child process. Raises SearchFailed if it ended without anything to show."""
    names = [_name_of(rule) for rule in rules]
    worker = POOL.take()
    outcome, reason = worker.ask(Job(tables, names, budget, folding, dict(stored or {})))
    POOL.give(worker)
    if outcome is None:
        raise SearchFailed("saturation", reason, "lower the effort, or leave out the rule that grows without end")
    if reason:
        outcome.stop = f"{reason}; the state after iteration {outcome.iterations} counts"
    return outcome
