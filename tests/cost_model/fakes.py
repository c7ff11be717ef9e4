"""Clocks and runners that obey the test, and a target that runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle

import numpy as np

from cost_model.fingerprint import Fingerprint
from cost_model.protocol import Clocks
from cost_model.targets.base import MeasuredTarget, Overhead, Runner, Unsupported
from cost_model.timings import Timings
from graphs.ir import Graph


class FakeTime:
    """Both clocks; a runner advances them by the durations that it was made with, one after the other."""

    def __init__(self, cpu_share: float = 1.0) -> None:
        self.now = 0.0
        self.cpu_share = cpu_share
        self.speed = 1.0
        self.calls = 0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now, lambda: self.now * self.cpu_share)

    def runner(self, *durations: float) -> Callable[[], None]:
        source: Iterator[float] = cycle(durations)

        def run() -> None:
            self.calls += 1
            self.now += next(source) * self.speed

        return run


class FakeTarget(MeasuredTarget):
    """Counts what it is asked to prepare; every run does nothing. `missing` names operators without a
    kernel.
    """

    name = "fake:cpu"

    def __init__(
        self, device: str = "one", missing: frozenset[str] = frozenset(), broken: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.device, self.missing, self.broken = device, missing, broken
        self.prepared: list[Graph] = []

    def available(self) -> str | None:
        return None

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.of({"device": self.device})

    def overhead(self, threads: int, timings: Timings) -> Overhead:
        return Overhead(call=0.0, launch=1e-6)

    def prepare(self, graph: Graph, feeds: Mapping[str, np.ndarray], threads: int = 1) -> Runner:
        operators = {node.op for node in graph.nodes}
        if operators & self.missing:
            raise Unsupported(f"no kernel for {sorted(operators & self.missing)}")
        if operators & self.broken:
            raise RuntimeError("the data do not fit")
        self.prepared.append(graph)
        return Runner(lambda: None, dict)
