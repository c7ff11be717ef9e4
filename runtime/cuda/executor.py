"""A graph on a device: planned once for each set of input sizes, or node by node where sizes depend on data."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.errors import EgraftError
from graphs.ir import Graph
from runtime.execute import Context

from .device import Device
from .eager import Eager
from .emitter import NeedsValue
from .lower import Constants, Values
from .plan import Instruction, Launch, OnHost, Plan, Product, plan_graph
from .tensor import Storage, Tensor
from .transfer import download, place, run_on_host
from .weights import Weights

PLANS = 4  # plans of other input sizes that are kept; the one that was not used for longest goes first


@dataclass
class Work:
    """What a run did: kernels and library products launched, nodes that became views, nodes that NumPy ran and why,
    bytes copied for those; for planned runs the size of the arena and what it would be without reuse."""

    kernels: int = 0
    products: int = 0
    views: int = 0
    on_host: list[str] = field(default_factory=list)
    copied_bytes: int = 0
    planned: bool = False
    peak_bytes: int | None = None
    without_reuse: int | None = None
    captured: bool = False
    not_captured: str = ""


class Executor:
    """A graph ready to run on a device."""

    def __init__(self, graph: Graph, device: Device, context: Context) -> None:
        self.graph, self.device, self.context = graph, device, context
        self.constants = Constants()
        self.weights = Weights(device, self.constants)
        self.prepared: OrderedDict[Any, Prepared] = OrderedDict()
        self.unplannable = ""  # why nodes are lowered one by one
        self.work = Work()  # of the last run

    @property
    def on_host(self) -> list[str]:
        """Nodes that NumPy ran in the last run, and why."""
        return self.work.on_host

    def run(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any]:
        """The output values, arrays of their own."""
        with lock_of(self.device):
            try:
                prepared = self.prepare(feeds, sizes)
            except NeedsValue:
                return self._without_plan(feeds, sizes)
            found = prepared.run(feeds)
            self.work = prepared.work()
            return found

    def prepare(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> Prepared:
        """The plan for inputs of these sizes. Raises NeedsValue where there is none."""
        if self.unplannable:
            raise NeedsValue(self.unplannable)
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
                self.unplannable = f"input {name!r} is no tensor of numbers"
                raise NeedsValue(self.unplannable)
        shapes = {name: (dtypes.name_of(array.dtype), tuple(array.shape)) for name, array in feeds.items()}
        key = tuple(sorted(shapes.items()))
        if key not in self.prepared:
            try:
                plan = plan_graph(self.graph, shapes, Values(self.graph, sizes, self.context, self.constants))
            except NeedsValue as reason:
                self.unplannable = str(reason)
                raise
            while len(self.prepared) >= PLANS:
                self.prepared.popitem(last=False)[1].close()
            self.prepared[key] = Prepared(plan, self.device, self.weights)
        self.prepared.move_to_end(key)
        return self.prepared[key]

    def _without_plan(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any]:
        try:
            return self._eager(feeds, sizes)
        except EgraftError:
            self.unplannable = ""  # sizes that no node takes say nothing of others
            raise

    def _eager(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any]:
        eager = Eager(self.device, self.weights)
        found = eager.run(self.graph, feeds, Values(self.graph, sizes, self.context, self.constants))
        self.work = Work(eager.kernels, eager.products, eager.views, eager.on_host, eager.copied_bytes,
                         not_captured=f"nodes are run one by one: {self.unplannable}")
        return found

    def close(self) -> None:
        """Give up all memory on the device. A later run takes it again."""
        with lock_of(self.device):
            for each in self.prepared.values():
                each.close()
            self.prepared.clear()
            self.weights.close()
            self.device.release()


class Prepared:
    """A plan with its memory on a device. The first run launches what is queued one by one; if no node runs on NumPy,
    the second records it as one unit, where the device can, and from then on that is replayed."""

    def __init__(self, plan: Plan, device: Device, weights: Weights) -> None:
        self.plan, self.device = plan, device
        device.prepare([each.kernel for each in plan.instructions if isinstance(each, Launch)])
        self.layout = plan.layout()
        self.arena = device.allocate(max(self.layout.size, 1))
        weights.settle(plan.constants, self._storages())
        self.runs = 0
        self.replay: Callable[[], None] | None = None
        self.not_captured = ""
        if any(isinstance(each, OnHost) for each in plan.instructions):
            self.not_captured = "nodes run on NumPy"
        self.calls = [self._call(each) for each in plan.instructions]

    def _storages(self) -> list[Storage]:
        """The storages that instructions use; those of the arena get their place."""
        tensors = [*self.plan.inputs.values(), *(each for each in self.plan.outputs if isinstance(each, Tensor))]
        for instruction in self.plan.instructions:
            tensors.extend(instruction.tensors)
        found = {each.storage.number: each.storage for each in tensors if each.storage is not None}
        for number, storage in found.items():
            if storage.array is None:
                storage.memory, storage.start = self.arena, self.layout.offsets[number]
        return list(found.values())

    def _call(self, each: Instruction) -> Callable[[], None]:
        if isinstance(each, Launch):
            return partial(self.device.launch, each.kernel, [place(tensor) for tensor in each.tensors])
        if isinstance(each, Product):
            return partial(self.device.gemm, each.gemm, *(place(tensor) for tensor in each.tensors))
        return partial(run_on_host, self.device, each)

    def upload(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Lay the inputs where the plan reads them."""
        for name, tensor in self.plan.inputs.items():
            if tensor.size:
                assert tensor.storage is not None
                self.device.write(tensor.storage.memory, tensor.storage.start, np.ascontiguousarray(feeds[name]))

    def queue(self) -> None:
        """Queue every instruction."""
        if self.runs == 1 and self.replay is None and not self.not_captured:
            self._capture()
        self.runs += 1
        if self.replay is not None:
            self.replay()
        else:
            self._launch_all()

    def _launch_all(self) -> None:
        device, arena = self.device, self.arena
        for offset, size in self.layout.rest:
            device.forget(arena, offset, size)
        for call, dying in zip(self.calls, self.layout.dying):
            call()
            for offset, size in dying:
                device.forget(arena, offset, size)

    def _capture(self) -> None:
        try:
            self.replay = self.device.capture(self._launch_all)
            self.not_captured = "" if self.replay is not None else f"{self.device.name} does not capture"
        except EgraftError as error:
            self.not_captured = " ".join(f"{error.where}: {error.found}".split())

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Upload, queue, and bring the results down."""
        self.upload(feeds)
        self.queue()
        return self.outputs()

    def outputs(self) -> list[Any]:
        """The results of the last run, once it is done."""
        return [download(self.device, each) for each in self.plan.outputs]

    def work(self) -> Work:
        """What a run does."""
        plan = self.plan
        launches = sum(isinstance(each, Launch) for each in plan.instructions)
        products = sum(isinstance(each, Product) for each in plan.instructions)
        return Work(launches, products, plan.views, plan.on_host, plan.copied_bytes, True, self.layout.size,
                    self.layout.without_reuse, self.replay is not None, self.not_captured)

    def close(self) -> None:
        """Let go of the memory."""
        self.device.synchronize()
        self.replay, self.arena, self.calls = None, None, []
        for storage in self._storages():
            storage.memory = None


def lock_of(device: Device) -> threading.RLock:  # type: ignore[valid-type]
    """One run at a time: what is queued, and above all what is captured, shares the device's one stream."""
    return vars(device).setdefault("_egraft_lock", threading.RLock())


__all__ = ["PLANS", "Executor", "Prepared", "Work", "lock_of"]
