"""The process in which generated kernels are tried: it checks and times candidates, and may die of one."""

from __future__ import annotations

import math
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from ..process import die_with_parent
from .measure import Measured, measured_now


def serve(descriptor: int) -> None:
    """Answer (body, exact, threads) until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    connection = Connection(descriptor)
    connection.send_bytes(b"r")
    while True:
        try:
            body, exact, threads = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            found = measured_now(body, exact, threads)
        except Exception as error:  # a defect of the generator: told as a fault, and the next candidate is tried
            found = Measured(math.inf, 0.0, "faulty", f"{type(error).__name__}: {error}"[:300]), ()
        connection.send_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))


if __name__ == "__main__":
    from search.fusions.child import serve as _serve  # the module under its own name, so that pickles agree

    _serve(int(sys.argv[1]))
