"""The process in which generated kernels are tried: it checks and times candidates, and may die of one."""

from __future__ import annotations

import math
import pickle
import sys

from graphs.ir import Graph
from runtime.codegen.c import not_compiled

from ..process import answer_all
from .measure import Measured, measured_now


def answer(request: tuple[Graph, bool, int]) -> bytes:
    """What came out for a body, exact or not, with so many threads; why nothing did, where the compiler did not answer.
    """
    body, exact, threads = request
    try:
        found = measured_now(body, exact, threads)
    except Exception as error:  # a defect of the generator: told as a fault, and the next candidate is tried
        found = Measured(math.inf, 0.0, "faulty", f"{type(error).__name__}: {error}"[:300]), ()
    return pickle.dumps(not_compiled() if found is None else found, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    from search.fusions.child import answer as _answer  # the module under its own name, so that pickles agree

    answer_all(int(sys.argv[1]), _answer)
