"""Candidates are tried in a process of their own: a generated kernel that crashes or hangs ends only that."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence

from graphs.ir import Graph

from ..process import ChildProcess
from .measure import Measured

Trial = tuple[Measured, Sequence[float]]
Try = Callable[[Graph, bool, int], Trial | None]  # (body, exact, threads) -> what came out; None: nothing was tried
SECONDS = 120.0  # for one candidate: its compilation, the check, and the measurement


class Apart:
    """Tries candidates in a child process, which is started when it is first needed, and again where it ended. `note`
    says why it does not start, if it does not: then nothing more is tried; `untried` why some were not tried, if the
    compiler did not answer."""

    def __init__(self, module: str = "search.fusions.child", seconds: float = SECONDS) -> None:
        self.module, self.seconds, self.note, self.untried = module, seconds, "", ""
        self._child: ChildProcess | None = None

    def __call__(self, body: Graph, exact: bool, threads: int) -> Trial | None:
        """What came out; `crashed` where the process died or did not answer in time; None where it does not start."""
        if self.note:
            return None
        if self._child is None or not self._child.usable:
            self._child = ChildProcess(self.module, threads)
        child = self._child
        if not child.answers():
            self.note = f"the process that tries kernels does not start{child.last_words()}"
            return None
        try:
            child.connection.send_bytes(pickle.dumps((body, exact, threads), pickle.HIGHEST_PROTOCOL))
            if child.connection.poll(self.seconds):
                found: Trial | str = pickle.loads(child.connection.recv_bytes())
                if isinstance(found, str):
                    self.untried = self.untried or found
                    return None
                return found
            reason = f"no answer within {self.seconds:g} s"
        except (EOFError, OSError):
            child.process.wait()
            reason = f"its process died (status {child.process.returncode}){child.last_words()}"
        child.kill()
        return Measured(math.inf, 0.0, "crashed", reason), ()

    def close(self) -> None:
        """End the child process."""
        if self._child is not None and self._child.usable:
            self._child.kill()
        self._child = None
