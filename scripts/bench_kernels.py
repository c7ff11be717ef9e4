"""Measure fused kernels of the CPU beside what else can run the same small graphs.

    python -m scripts.bench_kernels [--only softmax,rotary] [--seconds 4] [--threads 1] [--class rounding,exact]

Each graph of the suite runs in turns in one process: unfused on NumPy (egraft's own kernels), in ONNX Runtime with all
of its optimizations, in PyTorch (compiled), numba and numexpr where they are installed and can express it, and as one
fused kernel. What counts is the ratio within a round. Results are printed as a table; nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cost_model import protocol
from cost_model.targets import find_target
from cost_model.targets.base import Unsupported, prepared
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.text import parse_graph
from graphs.wording import counted
from runtime.codegen.c import FusedKernel, NotFusable, unavailable
from scripts.kernel_peers import PEERS

GELU = ("r = constant float32[] 1.4142135; one = constant float32[] 1.0; half = constant float32[] 0.5; "
        "d = Div({x}, r); e = Erf(d); f = Add(e, one); g = Mul({x}, f); y = Mul(g, half)")
GELU_TANH = ("three = constant float32[] 3.0; k = constant float32[] 0.044715; c = constant float32[] 0.7978846; "
             "one = constant float32[] 1.0; half = constant float32[] 0.5; p = Pow(x, three); q = Mul(p, k); "
             "u = Add(x, q); v = Mul(u, c); t = Tanh(v); w = Add(t, one); g = Mul(x, w); y = Mul(g, half)")
LAYER_NORM = ("two = constant float32[] 2.0; eps = constant float32[] 0.00001; mean = ReduceMean({x}, axes=[-1]); "
              "d = Sub({x}, mean); p = Pow(d, two); var = ReduceMean(p, axes=[-1]); w = Add(var, eps); q = Sqrt(w); "
              "n = Div(d, q); a = Mul(n, gain); y = Add(a, bias)")
RMS_NORM = ("two = constant float32[] 2.0; eps = constant float32[] 0.000001; p = Pow(x, two); "
            "m = ReduceMean(p, axes=[-1]); w = Add(m, eps); q = Sqrt(w); n = Div(x, q); y = Mul(n, gain)")
SOFTMAX = "k = constant float32[] 0.125; u = Mul(x, k); v = Add(u, mask); y = Softmax(v, axis=-1)"
ROTARY = ("lo = Slice(x, starts=[0], ends=[32], axes=[3]); hi = Slice(x, starts=[32], ends=[64], axes=[3]); "
          "ng = Neg(hi); r = Concat(ng, lo, axis=-1); p = Mul(x, c); q = Mul(r, s); y = Add(p, q)")


@dataclass(frozen=True)
class Case:
    """A graph of the suite: inputs with their shapes, and its nodes. `exact`: it has an exact kernel too."""

    name: str
    inputs: Mapping[str, tuple[int, ...]]
    nodes: str
    exact: bool = False

    def graph(self, scale: float = 1.0) -> Graph:
        """The graph, with the first dimension of the largest input scaled, and of all that have it."""
        texts, largest = [], max(self.inputs.values(), key=prod)
        for name, shape in self.inputs.items():
            alike = len(shape) == len(largest) and shape[0] == largest[0]
            sizes = (max(1, int(shape[0] * scale)), *shape[1:]) if alike else shape
            texts.append(f"{name}: float32{list(sizes)}")
        body = self.nodes.replace("; ", "\n")
        return parse_graph(f'graph "{self.name}" opset 20 ({", ".join(texts)}) -> (y) {{\n{body}\n}}')


def _suite() -> list[Case]:
    flat, wide, rows, heads = (16 << 20,), (4096, 3072), (4096, 768), (32, 12, 128, 128)
    norm, channels = {"gain": (768,), "bias": (768,)}, dict.fromkeys(("scale", "bias", "mean", "var"), (64,))
    return [
        Case("chain", dict.fromkeys("abcd", flat), "s = Add(a, b); p = Mul(s, c); y = Add(d, p)", True),
        Case("gelu-erf", {"x": wide}, GELU.format(x="x")),
        Case("gelu-tanh", {"x": wide}, GELU_TANH),
        Case("layernorm", {"x": rows, **norm}, LAYER_NORM.format(x="x")),
        Case("softmax", {"x": heads, "mask": (32, 1, 1, 128)}, SOFTMAX),
        Case("rmsnorm", {"x": rows, "gain": (768,)}, RMS_NORM),
        Case("swiglu", {"a": wide, "b": wide}, "s = Sigmoid(a); t = Mul(a, s); y = Mul(t, b)"),
        Case("rotary", {"x": (32, 12, 128, 64), "c": (128, 64), "s": (128, 64)}, ROTARY, True),
        Case("residual-layernorm", {"x": rows, "r": rows, **norm}, "u = Add(x, r); " + LAYER_NORM.format(x="u")),
        Case("bias-gelu", {"x": wide, "bias": (3072,)}, "u = Add(x, bias); " + GELU.format(x="u")),
        Case("batchnorm-relu", {"x": (32, 64, 56, 56), **channels},
             "n = BatchNormalization(x, scale, bias, mean, var); y = Relu(n)", True),
    ]  # fmt: skip


SUITE = _suite()


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    """Normal numbers; variances are positive."""
    rng = np.random.default_rng(0)
    found = {}
    for name in graph.inputs:
        type_ = graph.type_of(name)
        assert type_ is not None and type_.shape is not None
        block = rng.standard_normal(1 << 16).astype(np.float32)
        found[name] = np.resize(np.abs(block) if name == "var" else block, type_.shape)  # type: ignore[arg-type]
    return found


def runners_of(case: Case, threads: int, scale: float, classes: Sequence[str]) -> dict[str, Callable[[], None]]:
    """What can run a case, by name."""
    graph = case.graph(scale)
    feeds = feeds_of(graph)
    arrays = [feeds[name] for name in graph.inputs]
    runners: dict[str, Callable[[], None]] = {}
    for name, target in (("numpy", "egraft:cpu"), ("onnxruntime", "onnxruntime:cpu")):
        try:
            runners[name] = prepared(find_target(target), graph, feeds, threads).run
        except (Unsupported, ImportError, EgraftError) as reason:
            print(f"{case.name}: no {name}: {reason}", file=sys.stderr)
    for name, make in PEERS.items():
        peer = make(graph, arrays, threads)
        if peer is not None:
            runners[name] = peer
    for kind in classes:
        if kind == "exact" and not case.exact:
            continue
        kernel = FusedKernel(graph, kind == "exact")
        started = time.perf_counter()
        try:
            out = kernel(*arrays, threads=threads)
        except NotFusable as reason:
            print(f"{case.name}: no {kind} kernel: {reason}", file=sys.stderr)
            continue
        print(f"{case.name}: {kind} kernel made and run in {time.perf_counter() - started:.2f} s", file=sys.stderr)
        runners[f"fused {kind}"] = _bound(kernel, arrays, out, threads)
    return runners


def _bound(kernel: FusedKernel, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray],
           threads: int) -> Callable[[], None]:
    def run() -> None:
        kernel(*arrays, threads=threads, out=out)

    return run


def measure(case: Case, threads: int, seconds: float, scale: float,
            classes: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Milliseconds of a fused kernel and each peer's time by it (above 1: the kernel is faster), medians; whether no
    peer is faster beyond the noise."""
    runners = runners_of(case, threads, scale, classes)
    fused = next(name for name in runners if name.startswith("fused"))
    found = protocol.compare(runners, fused, threads, protocol.Settings(budget=seconds))
    row = {f"{fused} ms": found.results[fused].seconds * 1e3}
    beaten = any(each.verdict == "faster" for name, each in found.results.items() if not name.startswith("fused"))
    return {**row, **{name: each.ratio for name, each in found.results.items() if name != fused}}, not beaten


def main() -> int:
    """Print a line for each case: how many times longer each peer takes than the fused kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="names of cases, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--class", dest="classes", default="rounding,exact")
    parser.add_argument("--scale", type=float, default=1.0, help="of the large inputs' first dimension")
    given = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(f"no kernels: {reason}", file=sys.stderr)
        return 2
    print(f"load {os.getloadavg()[0]:.1f} on {counted(os.cpu_count(), 'core')}, threads {given.threads}; "
        "peers' time by the kernel's")
    print("milliseconds of the kernel, and how many times as long each peer takes")
    wins = even = 0
    classes = given.classes.split(",")
    cases = [case for case in SUITE if not given.only or case.name in given.only.split(",")]
    cases = [case for case in cases if case.exact or classes != ["exact"]]  # of others there is no exact kernel
    for case in cases:
        row, unbeaten = measure(case, given.threads, given.seconds, given.scale, classes)
        peers = {name: ratio for name, ratio in row.items() if not name.startswith("fused")}
        wins += min(peers.values(), default=0) >= 1
        even += unbeaten
        print(f"{case.name:20s}", "  ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    print(f"median at least as fast as every peer's: {wins} of {len(cases)}; no peer faster beyond the noise: {even}; "
          f"load now {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
