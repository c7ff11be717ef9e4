"""The process in which kernels are tried on a GPU. One that the device refuses, or that hurts it, ends the process: a
device that met an error answers nothing more, and the next candidate gets another process."""

from __future__ import annotations

import pickle
import sys

from cost_model.targets import find_target
from cost_model.targets.cuda import EgraftCuda
from graphs.ir import Graph

from ..process import answer_all
from .budget import GPU_TARGET
from .gpu import measured_on


def answer(request: tuple[Graph, bool, int]) -> bytes:
    """What came out for a body, exact or not; how many threads the host has does not matter."""
    body, exact, _ = request
    target = find_target(GPU_TARGET)
    assert isinstance(target, EgraftCuda)
    return pickle.dumps(measured_on(target, body, exact), pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    from search.fusions.gpu_child import answer as _answer  # the module under its own name, so that pickles agree

    find_target(GPU_TARGET).device  # type: ignore[attr-defined]  # noqa: B018 - without one it does not start
    answer_all(int(sys.argv[1]), _answer)
