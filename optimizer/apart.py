"""Validation of a graph of many nodes in a process of its own, while this one works on the trace.

Runs of such a graph are many short calls, which threads of one process only take turns in. Where the process cannot be
had, or dies, the caller validates: nothing depends on it but time.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphs.ir import Graph
from graphs.machine import cores_visible
from runtime.validation import Validation, validate
from search.process import ChildProcess, answer_all

from .collecting import rare_collections
from .context import Context
from .finalists import LARGE_NODES

MOST_BYTES = 64 << 20  # of constants and of given inputs: they are in memory once more, in the other process
VALIDATION, FAILURE = b"v", b"e"


def suits(graph: Graph, feeds: Mapping[str, Any] | None = None) -> bool:
    """It has so many nodes, it and the given inputs so few bytes, and there is a core to spare. Sending them takes half
    a second, validation and the work on the trace two and more."""
    held = sum(each.nbytes for inner in graph.walk() for each in inner.constants.values())
    given = sum(getattr(each, "nbytes", 0) for each in (feeds or {}).values())
    return cores_visible() > 1 and graph.node_count() > LARGE_NODES and held + given <= MOST_BYTES


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
    if context.options.timeout is not None or context.explorer is not None or not suits(original, context.feeds):
        yield None
        return
    process = Apart()
    try:
        yield process
    finally:
        if process.usable:
            process.kill()


def answer(request: tuple[Graph, Graph, dict[str, Any]]) -> bytes:
    """The verdict on what `begin` sent."""
    original, graph, options = request
    try:
        with rare_collections(original.node_count()):
            found = validate(original, graph, **options)
        return VALIDATION + pickle.dumps(found, pickle.HIGHEST_PROTOCOL)
    except Exception:  # the caller validates again, and meets the same where it can be told
        return FAILURE


if __name__ == "__main__":
    from optimizer.apart import answer as _answer  # the module under its own name, so that pickles agree

    answer_all(int(sys.argv[1]), _answer)
