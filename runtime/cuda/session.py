"""What a `Session` does for `egraft:cuda`: it opens the device, runs graphs on it, and reports what ran where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from graphs.errors import NotExecutable, TargetUnavailable
from graphs.ir import Graph
from runtime.execute import Context
from runtime.session import SessionReport

from .device import Device
from .emitter import NeedsValue
from .executor import Executor, Prepared, lock_of

EMULATE = "EGRAFT_CUDA_EMULATE"  # tests and debugging: kernels run in the checking emulation, very slowly


@dataclass(slots=True)
class CudaReport(SessionReport):
    """What the last run did: kernels and products of the library launched, nodes that became views, nodes that NumPy
    ran (with the reason) and the bytes copied for those. `peak_bytes` is the memory of all values between nodes
    together, `without_reuse` what it would be if each had its own; None where nodes ran one by one."""

    device: str = ""
    kernels: int = 0
    products: int = 0
    views: int = 0
    on_numpy: list[str] = field(default_factory=list)
    copied_bytes: int = 0
    without_reuse: int | None = None
    constant_bytes: int = 0
    captured: bool = False
    not_captured: str = ""

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        own = ("device", "kernels", "products", "views", "copied_bytes", "without_reuse", "constant_bytes", "captured",
               "not_captured")
        return {**SessionReport.to_dict(self), "on_numpy": list(self.on_numpy),
                **{name: getattr(self, name) for name in own}}

    def summary(self) -> str:
        """One line for people."""
        left = f"{len(self.on_numpy)} nodes on NumPy ({self.copied_bytes} bytes copied)" if self.on_numpy else (
            "no node on NumPy")
        return (f"{self.device}: {self.nodes} nodes as {self.kernels} kernels, {self.products} products and "
                f"{self.views} views, {left}")


@dataclass(frozen=True)
class Replay:
    """A plan with its inputs uploaded: `queue` runs it without waiting for it."""

    executor: Executor
    prepared: Prepared
    names: tuple[str, ...]

    @property
    def launches(self) -> int:
        """Kernels and products of a run."""
        work = self.prepared.work()
        return work.kernels + work.products

    def queue(self) -> None:
        """Queue a run."""
        with lock_of(self.executor.device):
            self.prepared.queue()

    def outputs(self) -> dict[str, np.ndarray]:
        """Run once more and bring the results down."""
        with lock_of(self.executor.device):
            self.prepared.queue()
            return dict(zip(self.names, self.prepared.outputs()))

    def close(self) -> None:
        """Give up the memory."""
        self.executor.close()


class CudaProgram:
    """A graph on a device."""

    def __init__(self, graph: Graph, context: Context, device: Device | int | None = None) -> None:
        self.graph = graph
        self.device = device if isinstance(device, Device) else open_device(device)
        context.around = graph  # of the nodes that NumPy runs
        self.executor = Executor(graph, self.device, context)
        self.report = CudaReport(graph.shown_count(), context.by_reference, device=self.device.name)

    def run(self, values: list[Any], sizes: Mapping[str, int]) -> list[Any]:
        """The output values, arrays of their own."""
        found = self.executor.run(dict(zip(self.graph.inputs, values)), sizes)
        work, report = self.executor.work, self.report
        report.kernels, report.products, report.views = work.kernels, work.products, work.views
        report.on_numpy, report.copied_bytes = list(work.on_host), work.copied_bytes
        report.peak_bytes, report.without_reuse = work.peak_bytes, work.without_reuse
        report.captured, report.not_captured = work.captured, work.not_captured
        report.constant_bytes = self.executor.weights.bytes
        return found

    def replay(self, values: list[Any], sizes: Mapping[str, int]) -> Replay:
        """A plan to be measured. Raises NotExecutable where sizes depend on data, so that there is none."""
        feeds = dict(zip(self.graph.inputs, values))
        with lock_of(self.device):
            try:
                prepared = self.executor.prepare(feeds, sizes)
            except NeedsValue as reason:
                raise NotExecutable(f"graph {self.graph.name!r}", f"it cannot be planned ahead: {reason}",
                                    "run it with Session.run, which takes one node after the other") from reason
            prepared.upload(feeds)
        return Replay(self.executor, prepared, tuple(self.graph.outputs))

    def close(self) -> None:
        """Give up all memory on the device."""
        self.executor.close()


def open_device(index: int | None = None) -> Device:
    """The GPU of that number (default: `$EGRAFT_CUDA_DEVICE`, else CUDA's current one), one object for all sessions.

    Raises TargetUnavailable with what is missing. With `$EGRAFT_CUDA_EMULATE` set to 1 it is the emulation.
    """
    if os.environ.get(EMULATE) == "1":
        from runtime.codegen import emulation

        from .emulated import EmulatedDevice

        reason = emulation.unavailable()
        if reason is not None:
            raise TargetUnavailable(f"target 'egraft:cuda' with {EMULATE}=1", reason, "use egraft:cpu")
        return EmulatedDevice()
    from . import cupy_device

    cupy_device.require(index)
    return _opened(cupy_device.chosen(index))


@cache
def _opened(index: int) -> Device:
    from .cupy_device import CupyDevice

    return CupyDevice(index)


__all__ = ["EMULATE", "CudaProgram", "CudaReport", "Replay", "open_device"]
