"""GPU targets: known by name, with the reason why they cannot be used in this release."""

from __future__ import annotations

from collections.abc import Mapping

from graphs.ir import Graph

from .. import protocol
from ..comparison import Comparison
from ..costs import Cost, NodeSpec
from ..fingerprint import Fingerprint
from ..timings import Timings
from .base import NODE_BUDGET, Feeds, Runner, Target

_NOT_YET = "this release of egraft has no GPU measurements; use the cpu target"


class _Cuda(Target):
    """What the GPU targets share."""

    def available(self) -> str | None:
        """Not in this release, whatever is installed: nobody should install a GPU package for nothing."""
        return _NOT_YET

    @property
    def fingerprint(self) -> Fingerprint:
        """No device, no fingerprint."""
        return Fingerprint.of({"device": "none"})

    def measure_node(self, spec: NodeSpec, threads: int, timings: Timings, budget: float = NODE_BUDGET) -> Cost:
        """Raises TargetUnavailable."""
        self.require()
        raise AssertionError(f"{self.name} is available and cannot measure")

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """Raises TargetUnavailable."""
        self.require()
        raise AssertionError(f"{self.name} is available and cannot run")

    def compare(
        self,
        graphs: Mapping[str, Graph],
        baseline: str,
        feeds: Feeds,
        *,
        threads: int = 1,
        settings: protocol.Settings | None = None,
        timings: Timings | None = None,
    ) -> Comparison:
        """Raises TargetUnavailable."""
        self.require()
        raise AssertionError(f"{self.name} is available and cannot compare")


class OnnxRuntimeCuda(_Cuda):
    """ONNX Runtime on an NVIDIA GPU."""

    name = "onnxruntime:cuda"


class EgraftCuda(_Cuda):
    """egraft's executor on an NVIDIA GPU."""

    name = "egraft:cuda"
