"""A child process that answers over a socket, can be killed at any time, and dies with this one."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

START_SECONDS = 60.0


_STARTERS: dict[int, ThreadPoolExecutor] = {}


def _started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process, started in a thread that lives as long as this process: a child that dies with its parent dies when
    the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG)."""
    starter = _STARTERS.setdefault(os.getpid(), ThreadPoolExecutor(1, "starter"))  # a fork has no threads
    return starter.submit(lambda: subprocess.Popen(command, **options)).result()


class ChildProcess:
    """A process that runs a module with the number of its socket as argument, and sends `r` when it is ready.

    Not a `multiprocessing` process: those import the caller's main module again.
    """

    def __init__(self, module: str, threads: int = 1) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": str(threads), "RUST_BACKTRACE": "0",
                       "OPENBLAS_NUM_THREADS": str(threads),
                       "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        # Not a pipe: one that nobody reads could fill up. It lives as long as the child.
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = _started([sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", module,
                                 str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.complaints)
        theirs.close()
        self.connection = Connection(ours.detach())
        self.owner = os.getpid()
        self.ready = False

    def answers(self, seconds: float = START_SECONDS) -> bool:
        """Whether it says that it is ready within this time; killed if not."""
        if not self.ready:
            try:
                self.ready = self.connection.poll(seconds) and self.connection.recv_bytes() == b"r"
            except (EOFError, OSError):
                self.ready = False
            if not self.ready:
                self.kill()
        return self.ready

    def last_words(self) -> str:
        """The last line that the process wrote about its end."""
        self.complaints.seek(0)
        lines = self.complaints.read()[-4000:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last[:200]}" if last else ""

    def processor_seconds(self) -> float:
        """What it has used so far; the wall clock where the system does not tell."""
        if sys.platform != "linux":
            return time.monotonic()
        try:
            return time.clock_gettime(~self.process.pid << 3 | 2)  # clock_getcpuclockid(3), which Python does not have
        except OSError:  # it has just ended, which its connection says
            return 0.0

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    @property
    def usable(self) -> bool:
        """Alive, and started by this very process (not inherited by a fork)."""
        return self.owner == os.getpid() and not self.connection.closed and self.process.poll() is None


def die_with_parent() -> None:
    """On Linux: be killed when the parent is gone, also in the middle of a run."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def answer_all(descriptor: int, answer: Callable[[Any], bytes]) -> None:
    """In the child: answer what comes, unpickled, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    connection = Connection(descriptor)
    connection.send_bytes(b"r")
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(answer(request))
