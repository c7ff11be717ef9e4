"""How much one look for fusions may do, and for which targets there are any."""

from __future__ import annotations

from dataclasses import dataclass

TARGET = "egraft:cpu"
GPU_TARGET = "egraft:cuda"
TARGETS = (TARGET, GPU_TARGET)
GPU_SECONDS = 3  # times as many: a text holds sizes, and is compiled for each way to launch it


def takes_fusions(target: str) -> bool:
    """Whether a target runs fused nodes as kernels, here or on the machine whose records it names."""
    return target.partition("@")[0] in TARGETS


@dataclass(frozen=True, slots=True)
class FusionBudget:
    """`candidates` bounds what is new in one graph, `seconds` is the emergency brake for all graphs of a run."""

    most_per_root: int = 200
    most_nodes: int = 48
    candidates: int = 128  # swin_t needs that many: with 80 its products of attention stayed in NumPy
    seconds: float = 90.0
