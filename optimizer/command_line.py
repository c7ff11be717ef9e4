"""The command line, as the console script `egraft` calls it. `optimizer.arguments` holds the commands.

Exit status 0: done (also "nothing to gain"); 1: a result failed its validation, or a check found a difference;
2: bad input or usage, one line on standard error and no output file; 3: `check --prove` neither proved nor refuted;
130: interrupted (Ctrl-C). This module loads nothing, so that it is there before the first Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from . import interrupts

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; the console script exits with it."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    # OpenBLAS's threads look for work for 2^20 ticks instead of 2^26: measuring waits until they rest.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    with _interrupts() as found:
        try:
            from .arguments import parse

            found.loading = False
            status = parse(sys.argv[1:] if arguments is None else arguments)
            if not interrupts.seen():  # the parser makes a status of a KeyboardInterrupt
                return status
        except (KeyboardInterrupt, Exception) as error:
            if not interrupts.seen() and not isinstance(error, KeyboardInterrupt):
                raise
    print("egraft: interrupted", file=sys.stderr)
    return INTERRUPTED


class _Interrupts:
    """What Ctrl-C does: it ends the process at once while modules load, and raises KeyboardInterrupt afterwards."""

    def __init__(self) -> None:
        self.loading = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        if self.loading:  # nothing is written yet, and modules that load report an exception in their own ways
            os.write(2, b"egraft: interrupted\n")
            os._exit(INTERRUPTED)
        interrupts.note()
        raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Take over from Python's own handler, if that is the one in place."""
    found = _Interrupts()
    interrupts.forget()
    ours = (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    if ours:
        signal.signal(signal.SIGINT, found.handle)
    try:
        yield found
    finally:
        interrupts.forget()  # what comes after this command was not interrupted
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
