"""What is done in a thread while the search process works and this process only waits for it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

from graphs.constants import Constant
from graphs.ir import Graph

SOLVER = "search.exact"  # takes long to import
LARGE_BYTES = 1 << 16  # smaller constants are hashed in no time


def begin(graph: Graph) -> None:
    """Import the solver and hash the weights that the stages after the search will ask for."""
    large = [constant for constant in graph.constants.values() if constant.nbytes > LARGE_BYTES]
    if large or SOLVER not in sys.modules:
        threading.Thread(target=_work, args=(large,), name="meanwhile", daemon=True).start()


def _work(constants: Iterable[Constant]) -> None:
    with suppress(Exception):  # who needs it meets the error where it can be told
        importlib.import_module(SOLVER)
        for constant in constants:
            constant.digest  # noqa: B018  kept by the constant
