"""egraft's own engine on the CPU: generated C for Fused nodes, NumPy kernels and BLAS for others."""

from __future__ import annotations

import numpy as np

from graphs.errors import NotExecutable
from graphs.ir import Graph

from .. import blas
from ..costs import NodeSpec
from ..fingerprint import Fingerprint, egraft_cpu
from .base import Feeds, MeasuredTarget, Runner, Unsupported, is_view, view_key


class EgraftCpu(MeasuredTarget):
    """egraft's engine on the CPU: Fused nodes as generated C, others by NumPy kernels and BLAS."""

    name = "egraft:cpu"

    def available(self) -> str | None:
        """Always there."""
        return None

    @property
    def fingerprint(self) -> Fingerprint:
        """CPU, NumPy, BLAS and its kernel, and the source of egraft's runtime."""
        return egraft_cpu()

    def default_threads(self) -> int:
        """What NumPy's BLAS uses now."""
        return blas.threads() or super().default_threads()

    def key(self, spec: NodeSpec, threads: int) -> str:
        """Views share a record whatever their shape."""
        return view_key(spec, threads) if is_view(spec) else super().key(spec, threads)

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """A session; BLAS is set to `threads` threads around each run."""
        from runtime import Session
        from runtime.execute import MOST_TURNS

        try:
            session = Session(graph, target=self.name, threads=threads, most_turns=MOST_TURNS)
        except NotExecutable as error:
            raise Unsupported(error.found) from error
        bound = dict(feeds)
        setting = blas.thread_switch()

        def outputs() -> dict[str, np.ndarray]:
            before = setting(threads)
            try:
                return session.run(bound)
            finally:
                setting(before)

        def run() -> None:
            outputs()

        return Runner(run, outputs)
