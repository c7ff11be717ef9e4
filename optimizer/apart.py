"""Validation of a graph of many nodes in a process of its own, while this one works on the trace.

Runs of such a graph are many short calls, which threads of one process only take turns in. Where the process cannot be
had, or dies, the caller validates: nothing depends on it but time.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from graphs.ir import Graph
from runtime.validation import Validation, validate
from search.process import ChildProcess, die_with_parent

from .collecting import rare_collections
from .context import Context

MANY_NODES = 2000  # two seconds of validation and of work on the trace, beside half a second to send the graphs
MOST_BYTES = 64 << 20  # of constants: they are in memory once more, in the other process
VALIDATION, FAILURE = b"v", b"e"


def suits(graph: Graph) -> bool:
    """It has so many nodes, so few bytes, and there is a core to spare."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (cores > 1 and graph.node_count() > MANY_NODES
            and sum(each.nbytes for inner in graph.walk() for each in inner.constants.values()) <= MOST_BYTES)


class Apart(ChildProcess):
    """The process; it is ready about a second after it is started."""

    def __init__(self) -> None:
        super().__init__("optimizer.apart")

    def begin(self, original: Graph, graph: Graph, options: Mapping[str, Any]) -> bool:
        """Send what is to be validated, with the named arguments of `validate`; False where that is not possible."""
        if not self.usable or not self.answers():
            return False
        try:
            self.connection.send_bytes(pickle.dumps((original, graph, dict(options)), pickle.HIGHEST_PROTOCOL))
        except (OSError, pickle.PicklingError, TypeError, AttributeError):
            return False
        return True

    def result(self) -> Validation | None:
        """What `validate` gave; None where it raised or the process ended."""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            return None
        if message[:1] != VALIDATION:
            return None
        found: Validation = pickle.loads(memoryview(message)[1:])
        return found


@contextmanager
def started(original: Graph, context: Context) -> Iterator[Apart | None]:
    """The process, for graphs that it suits, and killed at the end. None for others; where a timeout says how long the
    run may take; and for Fused nodes, whose kernels are in this process."""
    if context.options.timeout is not None or context.explorer is not None or not suits(original):
        yield None
        return
    process = Apart()
    try:
        yield process
    finally:
        if process.usable:
            process.kill()


def serve(descriptor: int) -> None:
    """Validate what comes, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    connection = Connection(descriptor)
    connection.send_bytes(b"r")
    while True:
        try:
            original, graph, options = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            with rare_collections(original.node_count()):
                found = validate(original, graph, **options)
            answer = VALIDATION + pickle.dumps(found, pickle.HIGHEST_PROTOCOL)
        except Exception:  # the caller validates again, and meets the same where it can be told
            answer = FAILURE
        connection.send_bytes(answer)


if __name__ == "__main__":
    from optimizer.apart import serve as _serve  # the module under its own name, so that pickles agree

    _serve(int(sys.argv[1]))
