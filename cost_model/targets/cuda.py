"""GPU targets: known by name, with the reason why they cannot be used on this machine or in this release."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from graphs.ir import Graph

from .. import protocol
from ..comparison import Comparison
from ..costs import Cost, NodeSpec
from ..fingerprint import Fingerprint
from ..timings import Timings
from .base import NODE_BUDGET, Feeds, Runner, Target
from .onnxruntime_cpu import providers_here

_NOT_YET = "this release of egraft has no GPU measurements; use the cpu target"


class _Cuda(Target):
    """What the GPU targets share."""

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

    def available(self) -> str | None:
        """The reason why not."""
        if not providers_here():
            return "the Python package onnxruntime-gpu is not installed; pip install onnxruntime-gpu"
        if "CUDAExecutionProvider" not in providers_here():
            return "the installed ONNX Runtime has no CUDA provider; pip install onnxruntime-gpu"
        return _NOT_YET


class EgraftCuda(_Cuda):
    """egraft's executor on an NVIDIA GPU."""

    name = "egraft:cuda"

    def available(self) -> str | None:
        """The reason why not."""
        if find_spec("cupy") is None:
            return "the Python package cupy is not installed; pip install 'egraft[cuda12]' or 'egraft[cuda13]'"
        import cupy

        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"no CUDA device answers ({error}); check the driver with nvidia-smi"
        return _NOT_YET if count else "no CUDA device answers; check the driver with nvidia-smi"
