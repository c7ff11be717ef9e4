"""The engine of the CPU in C: a pool of threads, matrix products, and what calls fused kernels (`calls.c`)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from ...functions import FUNCTIONS, written
from ...scalar import Scalar
from ..compiler import READING, library

HERE = Path(__file__).parent
_SECONDS = 600  # 5 of processor time, but others may be at work
# Products are sums in an order of their own anyway: they may be contracted.
_FLAGS = ("-ffp-contract=fast", "-pthread")


@cache
def engine() -> ctypes.CDLL:
    """The library. Raises TargetUnavailable without a compiler."""
    found = library("eg_engine", source(), *_FLAGS, seconds=_SECONDS)
    found.eg_follow.restype = None
    found.eg_follow.argtypes = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_longlong]
    for name in ("eg_height", "eg_width", "eg_lane", "eg_plan", "eg_plan_recurrent"):
        getattr(found, name).restype = ctypes.c_longlong
    found.eg_plan.argtypes = found.eg_plan_recurrent.argtypes = [ctypes.c_void_p]
    found.eg_height.argtypes = [ctypes.c_longlong]
    found.eg_is_plain.restype = found.eg_is_by_lines.restype = ctypes.c_longlong
    found.eg_is_by_lines.argtypes = [ctypes.c_void_p]
    found.eg_is_plain.argtypes = [ctypes.c_void_p, ctypes.c_longlong]
    for name in ("eg_pack_a", "eg_pack_b", "eg_pack_w", "eg_pack_t", "eg_pack_gates"):
        function = getattr(found, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p, *([ctypes.c_longlong] * 4), ctypes.c_void_p]
    return found


def source() -> str:
    """The engine's text, below that of the functions that its gates and fused kernels have in common."""
    names = ("pool.h", "product.h", "lanes.h", "subnormal.h", "padding.h", "lines.h", "winograd.h", "engine.c",
             "chain.h", "tiling.h", "recurrent.h", "calls.c")
    texts = [READING.read_text(encoding="utf-8"), written(FUNCTIONS["eg_sigmoid"], Scalar.of("float32")),
             *((HERE / name).read_text(encoding="utf-8") for name in names)]
    return "\n".join(line for text in texts for line in text.splitlines() if not line.startswith('#include "'))
