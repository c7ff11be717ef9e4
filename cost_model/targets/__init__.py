"""The table of targets: `runtime:device`, and what stands in for a machine that is not here.

`find_target("onnxruntime:cpu@FILE.db")` replays the records of another machine; `roofline` only estimates.
"""

from __future__ import annotations

from functools import lru_cache

from graphs.errors import InvalidOption

from .base import Overhead, Runner, Target, Unsupported
from .cuda import EgraftCuda, OnnxRuntimeCuda
from .egraft_cpu import EgraftCpu
from .estimated import Recorded, Roofline, has_records, require_file
from .onnxruntime_cpu import OnnxRuntimeCpu

__all__ = ["Overhead", "Runner", "Target", "Unsupported", "all_targets", "find_target", "resolve"]


@lru_cache(maxsize=1)
def _table() -> dict[str, Target]:
    ort, own = OnnxRuntimeCpu(), EgraftCpu()
    stands_for = ort if ort.available() is None else own
    return {each.name: each for each in (ort, OnnxRuntimeCuda(), own, EgraftCuda(), Roofline(stands_for))}


def all_targets() -> list[Target]:
    """Every target by name, whether it is available here or not."""
    return list(_table().values())


def find_target(name: str, file_is_onnx: bool = True) -> Target:
    """The target of a name, available or not; `auto` as `resolve` decides.

    Raises InvalidOption for a name that does not exist.
    """
    if name == "auto":
        return resolve(name, file_is_onnx)
    plain, at, path = name.partition("@")
    target = _table().get(plain)
    if target is None:
        raise InvalidOption("--target", f"there is no target {name!r}", f"choose auto, {', '.join(_table())}")
    return Recorded(target, path) if at else target


def resolve(name: str = "auto", file_is_onnx: bool = True, recorded_in: str | None = None) -> Target:
    """The target to use for a name: `auto` measures where the file will run.

    An ONNX file is for ONNX Runtime, on CUDA if that works here, else on the CPU; everything else, and
    everything without ONNX Runtime, is for egraft's own executor. Raises TargetUnavailable where a named
    target is not here, unless `recorded_in` (a frozen timing database) holds what another machine measured on
    it: then that is replayed.
    """
    if name != "auto":
        target = find_target(name)
        if target.available() is not None and recorded_in is not None:
            require_file(recorded_in, "--timings")
            if has_records(recorded_in, target.name):
                return Recorded(target, recorded_in)
        target.require()
        return target
    order = ["onnxruntime:cuda", "onnxruntime:cpu"] if file_is_onnx else []
    for candidate in [*order, "egraft:cuda"]:
        if _table()[candidate].available() is None:
            return _table()[candidate]
    return _table()["egraft:cpu"]
